"""Multi-turn GRPO on TRL's trainer: rollout and row building are ours, everything else stays TRL's.

Where this departs from ``trl.GRPOTrainer`` (1.16):

1. Data. One item of the dataloader is one optimizer step. Tasks come from a :class:`TaskStream`, so that every
   task is used whatever the batch size; TRL's sampler drops the tail of an epoch.
2. ``training_step`` runs the rollout, builds rows, and runs all micro-batches of the step. Their number follows
   from the rows and is the same on every process, as is their number of rows; a process with fewer pads with rows
   that train nothing.
3. Generation. TRL's generation, tool loop, reward functions and advantage code are not used.
4. Normalisation. Token weights and one denominator over the whole step replace TRL's per-type normalisers, which
   count rows or one micro-batch (see :class:`llmgym_trainer.algorithm.batches.LossScale`). The token loss is TRL's.
5. Groups whose rewards are all alike cost no forward pass and are not in the denominator, unless a KL term or an
   entropy bonus needs them. A step without any row leaves weights and optimizer state as they are.
6. Advantages are one a token, shape (B, T), which TRL's loss allows: turns may differ (:mod:`llmgym_trainer.algorithm.credit`).
   The importance weights between sampler and trainer multiply them, between the forward pass that gives the trainer's
   probabilities and the loss. TRL's own correction acts only with vLLM.
7. Checkpoints. They are written whole or not at all, and a resumed run goes on at its task, its random numbers and
   its records; TRL's skips the items of a dataloader (see :mod:`llmgym_trainer.runs.state`). A step that does not end
   leaves no trace in what a checkpoint holds.
8. Metrics of the rollout are ours (:mod:`llmgym_trainer.collection.metrics`); those of the loss are TRL's. Nothing is printed
   or reported by TRL's callbacks.

Overridden: ``get_train_dataloader``, ``training_step``, ``train``, ``log``, ``_save``, ``_save_checkpoint`` (no
model card) with ``_get_output_dir`` and ``_push_from_checkpoint``, which it calls, and
``_get_per_token_logps_and_entropies`` (its result is read, and the advantages weighed).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import trl
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from peft import PeftConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerCallback
from transformers.trainer_utils import rotate_checkpoints
from trl.trainer.utils import use_adapter

from llmgym._util.versions import provenance
from llmgym.env import Env
from llmgym.episode import Episode, StopReason
from llmgym.errors import ConfigError, LLMGymError, did_you_mean
from llmgym.task import Task
from llmgym_trainer.algorithm.advantages import OverlongPenalty
from llmgym_trainer.algorithm.batches import LossScale, StepTotals, TrainRow, pack, to_tensors
from llmgym_trainer.algorithm.credit import EpisodeRewards
from llmgym_trainer.algorithm.loss import importance_ratios
from llmgym_trainer.algorithm.rows import build_rows
from llmgym_trainer.collection.collector import Collector, Group
from llmgym_trainer.collection.metrics import EpisodeStats, rollout_metrics
from llmgym_trainer.config import GRPOConfig
from llmgym_trainer.data.task_stream import Mixture, MixtureStream, TaskStream
from llmgym_trainer.engines import make_engine
from llmgym_trainer.finite import NonFiniteError, RuinedWeightsError, weights_are_finite
from llmgym_trainer.models.load import make_codec
from llmgym_trainer.out_of_memory import explaining_out_of_memory
from llmgym_trainer.runs import checkpoints
from llmgym_trainer.runs.interrupts import StopRequest, TrainingInterrupted, run_until_closed
from llmgym_trainer.runs.reporting import Reporter
from llmgym_trainer.runs.state import RandomState, RunState, find_checkpoint, suggest_earlier
from llmgym_trainer.tokens.policy import NonFiniteLogprobError

MAX_NON_FINITE_STEPS = 3
"""So many steps in a row without finite gradients end the run."""


class TooManyErrorsError(LLMGymError, RuntimeError):
    """More episodes failed than ``max_error_share`` allows."""


class NoRewardVarianceError(LLMGymError, RuntimeError):
    """No group could train anything for ``max_steps_without_variance`` steps in a row."""


class NothingTrainedError(LLMGymError, RuntimeError):
    """A run ended without a single step that trained anything."""


class MultiTurnGRPOTrainer(trl.GRPOTrainer):  # type: ignore[misc]  # trl has no type information
    """Trains a model on whole episodes.

    Args:
        model: The model; with ``peft_config`` only its adapter trains.
        config: All settings.
        tasks: Training tasks, at least ``config.batch_size``.
        env_factory: Builds a fresh environment for one episode of a task.
        tokenizer: The model's tokenizer, with its chat template.
        reporter: Where metrics, episodes and progress go.
        val_tasks: Held-out tasks; None for no validation.
        peft_config: Adapter to train, such as ``peft.LoraConfig``.
        stop: Asks the run to stop; None makes one that never does.
        env_id: Recorded in the episodes.
        mixture: Where ``tasks`` and ``env_factory`` come from when there are several environments.

    Raises:
        ConfigError: A setting, the number of tasks, or the chat template cannot work.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: GRPOConfig,
        *,
        tasks: Sequence[Task],
        env_factory: Callable[[Task], Env],
        tokenizer: PreTrainedTokenizerBase,
        reporter: Reporter,
        val_tasks: Sequence[Task] | None = None,
        peft_config: PeftConfig | None = None,
        stop: StopRequest | None = None,
        env_id: str = "",
        mixture: Mixture | None = None,
    ) -> None:
        config.check_tasks(tasks, val_tasks)
        self._limits = config.limits()
        self._val_limits = config.limits(validation=True)
        self._credit = config.make_credit()
        self._last_logps: torch.Tensor | None = None
        self._last_ratios: torch.Tensor | None = None
        self._batch: dict[str, Any] | None = None
        self._writing_to: Path | None = None
        self._pending_resume: RunState | None = None  # of a checkpoint whose weights are not loaded yet
        self._weights_checked_at: int | None = None
        self._room_checked = False
        super().__init__(
            model=model,
            reward_funcs=_reward_comes_from_the_environment,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [""] * config.num_steps}),
            processing_class=tokenizer,
            peft_config=peft_config,
        )
        if self.ref_model is not None:  # TRL loads it by name, which is the base model's where an adapter was merged
            self.accelerator.unwrap_model(self.ref_model).load_state_dict(model.state_dict())
        self.callback_handler.callbacks = [
            callback
            for callback in self.callback_handler.callbacks
            if type(callback).__name__ not in ("PrinterCallback", "ProgressCallback")
        ]
        self.add_callback(_WhenLoaded(self._resume))
        self._token_loss_type = "cispo" if config.loss_type == "cispo" else "dapo"
        self.codec = make_codec(model, tokenizer, config.chat_template_kwargs)
        reporter.write(self.codec.probe().describe(self._limits.max_turns))
        sampled_from: Any = self.accelerator.unwrap_model(self.model)
        self.engine = make_engine(sampled_from, forward_context=self.accelerator.autocast)
        self.collector = Collector(
            self.codec,
            self.engine,
            env_factory,
            seed=config.seed,
            max_concurrent_episodes=config.max_concurrent_episodes,
            episode_retries=config.episode_retries,
            deterministic=config.deterministic,
            env_id=env_id if mixture is None else mixture.source_of,
            provenance={**provenance(), "model": config.model, "template_hash": self.codec.template_hash},
        )
        self._set_state(
            RunState.start(
                tasks,
                mixture.shares if mixture is not None else {},
                config.batch_size,
                self.accelerator.num_processes,
            )
        )
        shuffle = bool(config.shuffle_dataset)
        self.task_stream: TaskStream | MixtureStream = (
            TaskStream(tasks, seed=config.seed, shuffle=shuffle)
            if mixture is None
            else mixture.stream(seed=config.seed, shuffle=shuffle, batch_size=config.batch_size)
        )
        self._source_of: Callable[[Task], str] = mixture.source_of if mixture is not None else lambda task: ""
        self._val_tasks = list(val_tasks or [])
        self._overlong = OverlongPenalty(
            config.overlong_penalty, config.overlong_buffer_tokens, config.max_model_length
        )
        self._stop = stop or StopRequest()
        self._reporter = reporter

    # Trainer hooks

    def get_train_dataloader(self) -> Any:
        """One empty item an optimizer step: what a step trains on is sampled inside it."""
        steps: list[dict[str, Any]] = [{} for _ in range(self.args.max_steps)]
        return torch.utils.data.DataLoader(steps, batch_size=1, collate_fn=lambda items: items[0])

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train as TRL does, with a validation after the last step.

        Args:
            resume_from_checkpoint: A run folder (its last checkpoint) or a checkpoint to go on from; True takes the
                last checkpoint of this run. What was recorded after it moves to ``abandoned/``.
            kwargs: See ``transformers.Trainer.train``.

        Raises:
            ConfigError: The checkpoint is missing, of another folder, or does not fit the tasks, the chat template
                or the number of processes; or no prompt of the first step that runs now leaves room for a turn.
            CheckpointError: The checkpoint cannot be loaded; the run is as it was.
            NothingTrainedError: All steps ran, and none of them trained anything.
        """
        checkpoint = None
        if resume_from_checkpoint:
            where = self.args.output_dir if resume_from_checkpoint is True else resume_from_checkpoint
            checkpoint = find_checkpoint(where)
            self._pending_resume = self._load_state(checkpoint)
        try:
            if checkpoint is not None:
                self._load_rng_state(str(checkpoint))  # once more at the first step; here, to know that it loads
            output = super().train(resume_from_checkpoint=checkpoint and str(checkpoint), **kwargs)
        except Exception as error:
            if checkpoint is None or self._pending_resume is None or isinstance(error, LLMGymError):
                raise
            raise checkpoints.CheckpointError(
                f"{str(checkpoint)!r} cannot be loaded: {error}. {suggest_earlier(checkpoint)}"
            ) from error
        self.validate()
        if self.run_state.trained_steps == 0:
            raise NothingTrainedError(
                f"none of the {self.state.global_step} steps trained anything, so the model is still the one that the run "
                "began with. The reason is in metrics.jsonl: frac_reward_zero_std (groups whose episodes all got the same reward), "
                "context_overflow_ratio, error_ratio and non_finite_gradients; all episodes are in "
                f"{self._reporter.folder / 'episodes'}"
            )
        return output

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Run one optimizer step's rollout, forward and backward passes. Returns the loss, shape ()."""
        with self._rollback_on_error(model):
            step = self.state.global_step
            self._check_weights()
            if step % self.args.validation_interval == 0:
                self.validate()
            began = time.perf_counter()
            groups = self._rollout(step)
            rows = self._rows(groups, step)
            trained = time.perf_counter()
            loss = self._backward(model, rows)
            self._check_variance()
            self._add("time/training", time.perf_counter() - trained)
            self._add("step_time", time.perf_counter() - began)
            return loss

    def validate(self) -> dict[str, float]:
        """Run one episode of each validation task and log its metrics as ``val/…``. Once a step at most.

        Returns:
            The metrics, empty without validation tasks or when this step was validated before.
        """
        step = self.state.global_step
        if not self._val_tasks or self.run_state.validated_at == step:
            return {}
        self.engine.sync(step)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        config = self.args
        began = time.perf_counter()
        groups = self._run_episodes(
            self._val_tasks[rank::world],
            1,
            numbers=range(rank, len(self._val_tasks), world),
            phase="val",
            step=step,
            temperature=config.temperature if config.val_temperature is None else config.val_temperature,
        )
        self._reporter.episodes("val", step, rank, [e for g in groups for e in (*g.episodes, *g.failed)])
        stats = gather_object(self._stats(groups))
        self._check_errors(groups, stats, f"the validation episodes of step {step}")
        metrics = {f"val/{name}": value for name, value in rollout_metrics(stats, config.success_reward).items()}
        for name in ("val/reward_std", "val/frac_reward_zero_std", "val/groups/best_reward", "val/groups/with_success"):
            metrics.pop(name, None)  # groups of one episode
        metrics["val/time"] = time.perf_counter() - began
        self._reporter.validation(step, metrics)
        self.run_state.validated_at = step
        self._keep_best(step, metrics)
        return metrics

    def _keep_best(self, step: int, metrics: dict[str, float]) -> None:
        """Write a checkpoint when ``metric_for_best_model`` is better than ever; TRL's rotation then spares it."""
        name, state = self.args.metric_for_best_model, self.state
        if name is None:
            return
        value = metrics.get(name)
        if value is None and metrics["val/error_ratio"] > 0:
            self._reporter.write(
                f"this validation has no {name}, for episodes failed; it is not compared with the best"
            )
            return
        if value is None:
            raise ConfigError(
                f"metric_for_best_model={name!r} is no metric of this validation, which has {', '.join(sorted(metrics))}."
                f"{did_you_mean(name, metrics)}"
            )
        better = state.best_metric is None or (
            value > state.best_metric if self.args.greater_is_better else value < state.best_metric
        )
        if not better:
            return
        state.best_metric, state.best_global_step = value, step
        if step > 0:  # the model that the run began with is kept where it came from
            path = self.save_now()
            state.best_model_checkpoint = str(path)
            self._reporter.write(f"best {name} so far: {value:.3f}; kept as {path}")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Hand a step's metrics to the reporter as well."""
        super().log(logs, start_time)
        self._reporter.step(self.state.global_step, logs)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            (Path(output_dir or self.args.output_dir) / checkpoints.STATE_FILE).write_text(
                json.dumps({"template_hash": self.codec.template_hash})
            )

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint whole or not at all. Does nothing where that of this step exists.

        Raises:
            CheckpointError: It could not be written; those before it are as they were.
            RuinedWeightsError: The weights are not finite; likewise.
        """
        run, step, main = Path(self.args.output_dir), self.state.global_step, self.args.should_save
        exists: bool = broadcast_object_list([(run / checkpoints.checkpoint_name(step)).exists()])[0]
        if exists:
            return
        self._check_weights()
        try:
            self._writing_to = checkpoints.begin(run) if main else run / checkpoints.PARTIAL
            self.accelerator.wait_for_everyone()
            unlogged_loss = self.accelerator.gather(self._tr_loss.reshape(1)).mean().item()
            Trainer._save_checkpoint(self, model, trial)
            if self.state.best_global_step:  # named anew: the folder may have been written otherwise when it was kept
                self.state.best_model_checkpoint = str(run / checkpoints.checkpoint_name(self.state.best_global_step))
            if main:
                self.state.save_to_json(
                    str(self._writing_to / checkpoints.checkpoint_name(step) / "trainer_state.json")
                )
                dataclasses.replace(
                    self.run_state,
                    step=step,
                    logged_step=self._globalstep_last_logged,
                    unlogged_loss=unlogged_loss,
                    metrics_bytes=self._reporter.metrics_bytes,
                ).save(self._writing_to / checkpoints.checkpoint_name(step))
            self.accelerator.wait_for_everyone()
            if main:
                checkpoints.publish(run, step)
                rotate_checkpoints(str(run), self.args.save_total_limit, self.state.best_model_checkpoint)
            self.accelerator.wait_for_everyone()
        except Exception as error:
            if main:
                checkpoints.discard_partial(run)
            found = checkpoints.checkpoints(run)
            go_on = f"go on from {found[-1].name}: llmgym train --resume {run}" if found else "begin the run again"
            raise checkpoints.CheckpointError(
                f"the checkpoint of step {step} could not be written to {run}: {error}. {checkpoints.free_space(run)}. "
                f"When this is mended, {go_on}"
            ) from error
        finally:
            self._writing_to = None
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(run / checkpoints.checkpoint_name(step)))

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._writing_to or self.args.output_dir)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._writing_to is None:  # else it is not whole yet
            super()._push_from_checkpoint(checkpoint_folder)

    def _check_weights(self) -> None:
        """Raise :class:`RuinedWeightsError` where the last optimizer step left weights that are NaN or infinite."""
        if self._weights_checked_at == self.state.global_step:
            return
        if not weights_are_finite(self.model):
            raise self._ruined("holds weights that are NaN or infinite")
        self._weights_checked_at = self.state.global_step

    def _ruined(self, what: str) -> RuinedWeightsError:
        step, config = self.state.global_step, self.args
        return RuinedWeightsError(
            f"the model {what} after step {step}, most likely because learning_rate={config.learning_rate} is too high"
            f"{'' if config.max_grad_norm else ' for gradients without a limit (max_grad_norm=0)'}. It is not saved. Begin "
            "anew with a smaller learning_rate; an earlier checkpoint may be spoilt too"
        )

    def save_now(self) -> Path:
        """Write a checkpoint of the last whole step and return its folder."""
        self._save_checkpoint(self.model, None)
        return Path(self.args.output_dir) / checkpoints.checkpoint_name(self.state.global_step)

    def _set_state(self, state: RunState) -> None:
        self.run_state = state
        self._metrics["train"] = state.unlogged

    def _load_state(self, checkpoint: Path) -> RunState:
        """Read the state of a checkpoint and check that it is one of this run."""
        state = RunState.load(checkpoint)
        state.check_same_run(self.run_state)
        if checkpoint.parent.resolve() != Path(self.args.output_dir).resolve():
            raise ConfigError(f"{str(checkpoint)!r} is not in this run's folder {self.args.output_dir!r}")
        trained = json.loads((checkpoint / checkpoints.STATE_FILE).read_text()).get("template_hash")
        if trained != self.codec.template_hash:
            raise ConfigError(
                f"{checkpoint} was trained with chat template {trained}, not {self.codec.template_hash}; restore it"
            )
        return state

    def _resume(self) -> None:
        """Continue from a checkpoint that has loaded: nothing before this changes what the run left behind."""
        state, self._pending_resume = self._pending_resume, None
        if state is not None:
            self._reporter.resume(state)
            self._set_state(state)
            self._tr_loss += state.unlogged_loss
            self._globalstep_last_logged = state.logged_step
            self.accelerator.wait_for_everyone()

    @contextlib.contextmanager
    def _rollback_on_error(self, model: Any) -> Iterator[None]:
        """Restore the state of the run when a step raises. A validation that ended before that stays recorded."""
        before, random_state = copy.deepcopy(self.run_state), RandomState.now()
        try:
            yield
        except BaseException as error:
            self._set_state(dataclasses.replace(before, validated_at=self.run_state.validated_at))
            random_state.restore()
            model.zero_grad(set_to_none=True)
            if isinstance(error, Exception) and not isinstance(error, TrainingInterrupted):
                self._save_after(error)
            raise

    def _save_after(self, error: Exception) -> None:
        """Keep the last whole step when a failure that all processes share ends the run."""
        step = self.state.global_step
        if isinstance(error, (NoRewardVarianceError, RuinedWeightsError)):
            return  # saved by the caller; not worth saving
        if step == 0 or (
            self.accelerator.num_processes > 1 and not isinstance(error, (TooManyErrorsError, NonFiniteError))
        ):
            return
        with contextlib.suppress(checkpoints.CheckpointError):  # such as on a full disk, which may be the failure
            saved = self.save_now()
            self._reporter.write(
                f"training stops with an error after step {step}; saved {saved}. When the cause is mended, go on with: "
                f"llmgym train --resume {self.args.output_dir}"
            )

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        batch = self._batch
        assert batch is not None  # only the loss calls this method of ours
        self._last_logps = result[0].detach()
        level = self.args.sampling_correction
        self._last_ratios = importance_ratios(
            self._last_logps,
            batch["sampling_per_token_logps"],
            batch["tool_mask"],
            "token" if level == "off" else level,
        )
        if level != "off":  # the loss reads the advantages after this call
            batch["advantages"] = batch["advantages"] * self._last_ratios.clamp(max=self.args.sampling_correction_cap)
        return result

    # Rollout

    def _rollout(self, step: int) -> list[Group]:
        """Sample this process's groups of the step; replace those without reward variance for some rounds."""
        config, rank, world = self.args, self.accelerator.process_index, self.accelerator.num_processes
        began = time.perf_counter()
        sampling_s, env_s = self.collector.clock.sampling_s, self.collector.clock.env_s
        self.engine.sync(step)
        share = config.batch_size // world
        kept: list[Group] = []
        everything: list[Group] = []
        for attempt in range(config.max_sampling_attempts):
            wanted: list[int] = gather_object([share - len(kept)])
            if not any(wanted):
                break
            cursor = self.run_state.cursor
            self.run_state.cursor += sum(wanted)
            mine = range(sum(wanted[:rank]), sum(wanted[: rank + 1]))
            groups = self._run_episodes(
                [self.task_stream[cursor + number] for number in mine],
                config.episodes_per_task,
                numbers=mine,
                phase=f"train{attempt}",
                step=step,
                temperature=config.temperature,
            )
            everything += groups
            last = attempt == config.max_sampling_attempts - 1
            kept += [g for g in groups if last or self._credit.has_reward_variance(self._rewards(g))]
        self._add("time/rollout", time.perf_counter() - began)
        self._add("time/sampling", self.collector.clock.sampling_s - sampling_s)
        self._add("time/env", self.collector.clock.env_s - env_s)
        stats: list[EpisodeStats] = gather_object(self._stats(everything))
        for name, value in rollout_metrics(stats, config.success_reward).items():
            self._add(name, value)
        self.run_state.seen_tokens += sum(s.sampled_tokens + s.context_tokens for s in stats)
        self._add("num_tokens", float(self.run_state.seen_tokens))
        self._add("groups/sampled", float(sum(gather_object([len(everything)]))))
        if _error_share(stats) > config.max_error_share:
            self._reporter.episodes("train", step, rank, [e for g in everything for e in (*g.episodes, *g.failed)])
        self._check_errors(everything, stats, f"the episodes of step {step}")
        if not self._room_checked:
            self._check_room(everything, stats)
            self._room_checked = True
        self._everything = everything
        return kept

    def _check_errors(self, groups: Sequence[Group], stats: Sequence[EpisodeStats], what: str) -> None:
        """Raise :class:`TooManyErrorsError` when more episodes of a rollout failed, on all processes, than may."""
        failed, allowed = _error_share(stats), self.args.max_error_share
        if failed <= allowed:
            return
        failures = [episode for group in groups for episode in group.failed]
        not_finite = all(episode.error_type == NonFiniteLogprobError.__name__ for episode in failures)
        if failed == 1 and self.run_state.trained_steps > 0 and not_finite:
            raise self._ruined("gives no probabilities but NaN")
        why = next((episode.stop_detail for episode in failures), "see the other processes")
        raise TooManyErrorsError(
            f"{failed:.0%} of {what} failed, more than max_error_share={allowed:.0%}. The first one: {why}. All are in "
            f"{self._reporter.folder / 'episodes'}"
        )

    def _check_room(self, groups: Sequence[Group], stats: Sequence[EpisodeStats]) -> None:
        """Raise :class:`ConfigError` when all prompts of the first step here are too long for a turn, on all processes."""
        good = [s for s in stats if s.stop_reason is not StopReason.ERROR]
        if not good or any(s.turns or s.stop_reason is not StopReason.CONTEXT_OVERFLOW for s in good):
            return
        played = [group.episodes[0] for group in groups if group.episodes]
        lengths = gather_object([len(self.codec.render(e.initial_messages, e.tool_specs)) for e in played])
        limits = self._limits
        raise ConfigError(
            f"no episode of step {self.state.global_step} had room for a turn: the prompts have {min(lengths)} to {max(lengths)} tokens and "
            f"max_model_length={limits.max_model_length}, of which {limits.reply_reserve_tokens} are kept for a reply. Set "
            f"max_model_length to {max(lengths) + limits.reply_reserve_tokens} and what {limits.max_turns} turns need, or "
            "shorten the prompts"
        )

    def _run_episodes(
        self,
        tasks: Sequence[Task],
        episodes_per_task: int,
        *,
        numbers: Sequence[int],
        phase: str,
        step: int,
        temperature: float,
    ) -> list[Group]:
        validation = phase == "val"
        sequential = validation and self.args.sequential_validation
        groups: list[Group] = []
        with (
            contextlib.suppress(TrainingInterrupted),  # raised below, on all processes
            self._stop.waiting(),
            self._reporter.rollout(len(tasks) * episodes_per_task) as on_episode,
        ):
            numbered = list(zip(numbers, tasks, strict=True))
            for batch in [[pair] for pair in numbered] if sequential else [numbered]:
                groups += run_until_closed(
                    self.collector.collect(
                        [task for _, task in batch],
                        episodes_per_task,
                        self._val_limits if validation else self._limits,
                        numbers=[number for number, _ in batch],
                        temperature=temperature,
                        phase=phase,
                        step=step,
                        on_episode=on_episode,
                    ),
                    blocked_after_s=self.args.env_timeout_s,
                )
        self._stop.check_together(gather_object)
        return groups

    def _stats(self, groups: Sequence[Group]) -> list[EpisodeStats]:
        rank = self.accelerator.process_index
        return [
            EpisodeStats.of(episode, (rank, number), self._shaped(episode), self._source_of(episode.task))
            for number, group in enumerate(groups)
            for episode in (*group.episodes, *group.failed)
        ]

    def _rewards(self, group: Group) -> list[EpisodeRewards]:
        return [EpisodeRewards.of(episode, self._shaped(episode)) for episode in group.episodes]

    def _shaped(self, episode: Episode) -> float:
        return episode.reward - self._overlong.cost(episode)

    # Rows and loss

    def _rows(self, groups: Sequence[Group], step: int) -> list[TrainRow]:
        """Advantages and rows of this process's groups; everything sampled is recorded with its advantage."""
        config = self.args
        rewards = [self._rewards(group) for group in groups]
        everywhere: list[list[EpisodeRewards]] = gather_object(rewards)  # scale_rewards="batch" needs all processes'
        first = sum(gather_object([len(rewards)])[: self.accelerator.process_index])
        advantages = self._credit.advantages(everywhere)[first : first + len(rewards)]
        needs_all = config.beta != 0.0 or self._entropy_bonus_enabled
        rows: list[TrainRow] = []
        rows_of_episode: list[int] = []
        differing = 0
        for group, group_rewards, group_advantages in zip(groups, rewards, advantages, strict=True):
            differs = self._credit.has_reward_variance(group_rewards)
            differing += differs
            for episode, earned, by_turn in zip(group.episodes, group_rewards, group_advantages, strict=True):
                trains = (differs or needs_all) and not (config.overlong_masking and episode.truncated)
                episode.provenance |= {"shaped_reward": earned.outcome, "trained": trains}
                if self._credit.kind == "episode":
                    episode.provenance["advantage"] = by_turn[0] if by_turn else 0.0
                else:
                    episode.provenance["turn_advantages"] = by_turn
                if not trains:
                    continue
                left_out = (
                    [] if config.train_corrected_turns else [k for k, t in enumerate(episode.turns) if t.corrected]
                )
                built = build_rows(episode, len(rows_of_episode), left_out=left_out)
                tokens = sum(row.num_trained for row in built)
                rows += [TrainRow(row, by_turn, tokens) for row in built]
                if built:
                    rows_of_episode.append(len(built))
        self._reporter.episodes(
            "train",
            step,
            self.accelerator.process_index,
            [e for g in self._everything for e in (*g.episodes, *g.failed)],
        )
        totals = gather_object([(differing, sum(rows_of_episode), len(rows_of_episode))])
        self._add("rows_per_episode", sum(t[1] for t in totals) / max(sum(t[2] for t in totals), 1))
        any_variance = any(t[0] for t in totals)
        self.run_state.steps_without_variance = 0 if any_variance else self.run_state.steps_without_variance + 1
        return rows

    def _check_variance(self) -> None:
        """Raise :class:`NoRewardVarianceError` after too many steps in a row in which there was nothing to compare."""
        config, limit = self.args, self.args.max_steps_without_variance
        if limit is None or self.run_state.steps_without_variance < limit:
            return
        rewards = [reward for reward in self._metrics["train"].get("reward", []) if reward == reward]
        mean = f"{statistics.fmean(rewards):.3g}" if rewards else "unknown"
        raise NoRewardVarianceError(
            f"in {limit} steps in a row all episodes of a task got the same reward (mean {mean}), so there was nothing "
            f"to learn from. If the reward is at its best, the tasks are too easy; if it is at its worst, they are too "
            f"hard: take other tasks, give partial credit, or fine-tune the model first (llmgym sft). Else raise temperature="
            f"{config.temperature}, episodes_per_task={config.episodes_per_task} or max_sampling_attempts="
            f"{config.max_sampling_attempts}. All episodes are in {self._reporter.folder / 'episodes'}; "
            f"max_steps_without_variance=None goes on all the same"
        )

    def _backward(self, model: Any, rows: list[TrainRow]) -> torch.Tensor:
        """All micro-batches of the step. Gradients are None afterwards when no process has a row."""
        model.train()
        device = self.accelerator.device
        batches = pack(rows, self.args.micro_batch_tokens)
        mine = StepTotals(
            sum(row.row.num_trained for row in rows),
            len({row.row.episode for row in rows}),
            max((row.episode_tokens for row in rows), default=0),
            tuple(len(batch) for batch in batches),
        )
        totals = StepTotals.merge(gather_object([mine]))
        self._add("trained_tokens", float(totals.tokens))
        self._add("step_skipped", float(totals.micro_batches == 0))
        total_loss = torch.zeros((), device=device)
        if totals.micro_batches == 0:
            return total_loss
        scale = LossScale.of(self.args.loss_type, totals, self.args.max_model_length)
        differences: list[torch.Tensor] = []
        ratios: list[torch.Tensor] = []
        self.loss_type = self._token_loss_type
        self.current_gradient_accumulation_steps = totals.micro_batches  # what TRL divides an entropy bonus by
        for number, count in enumerate(totals.micro_batch_rows):
            self._stop.check_together(gather_object)
            inputs: dict[str, Any] = to_tensors(
                batches[number] if number < len(batches) else [],
                scale,
                count=count,
                pad_token_id=self.processing_class.pad_token_id,
                device=device,
            )
            # TRL multiplies this by the micro-batches of the step, and the product is the denominator.
            inputs["num_items_in_batch"] = torch.tensor(scale.denominator / totals.micro_batches, device=device)
            if self.args.beta != 0.0:
                inputs["ref_per_token_logps"] = self._reference_logps(inputs)
            is_last = number == totals.micro_batches - 1
            with (
                contextlib.nullcontext() if is_last else self.accelerator.no_sync(model),
                explaining_out_of_memory(inputs, self.args.micro_batch_tokens),
            ):
                self._batch = inputs
                loss = self.compute_loss(model, inputs)
                self.accelerator.backward(loss)
            total_loss += loss.detach()
            trained = inputs["tool_mask"] > 0
            assert self._last_logps is not None and self._last_ratios is not None
            differences.append((self._last_logps - inputs["sampling_per_token_logps"]).abs()[trained].float())
            ratios.append(self._last_ratios[trained])
        self._add_extremes("sampling/sampling_logp_difference", torch.cat(differences), ("mean", "max"))
        self._add_extremes("sampling/importance_sampling_ratio", torch.cat(ratios), ("min", "mean", "max"))
        self._drop_non_finite_gradients(model)
        return total_loss

    def _drop_non_finite_gradients(self, model: Any) -> None:
        """Leave weights and optimizer as they are in a step whose gradients are NaN or infinite.

        Raises:
            NonFiniteError: The same happened in the steps before.
        """
        if self.accelerator.scaler is not None:  # fp16: its scale is found by such steps
            self.run_state.trained_steps += 1
            return
        finite = all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
        finite = all(gather_object([finite]))
        self._add("non_finite_gradients", float(not finite))
        if finite:
            self.run_state.non_finite_steps = 0
            self.run_state.trained_steps += 1
            return
        self.run_state.non_finite_steps += 1
        model.zero_grad(set_to_none=True)
        if self.run_state.non_finite_steps == MAX_NON_FINITE_STEPS:
            raise NonFiniteError(
                f"the gradients of {MAX_NON_FINITE_STEPS} steps in a row were not finite, so none of them trained. The "
                "weights are still those before: lower learning_rate, or train in another precision (bf16=False)"
            )

    def _reference_logps(self, inputs: dict[str, Any]) -> torch.Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        keep = inputs["completion_ids"].size(1)
        with torch.no_grad():
            if self.ref_model is not None:
                return super()._get_per_token_logps_and_entropies(self.ref_model, ids, mask, keep)[0]
            with use_adapter(self.accelerator.unwrap_model(self.model), adapter_name=None):
                return super()._get_per_token_logps_and_entropies(self.model, ids, mask, keep)[0]

    def _add_extremes(self, name: str, values: torch.Tensor, which: Sequence[str]) -> None:
        """Add minimum, mean or maximum of the values of all processes, shape (tokens,)."""
        mine = (values.min().item(), values.sum().item(), values.max().item()) if values.numel() else None
        gathered = [g for g in gather_object([(mine, values.numel())]) if g[0] is not None]
        found = {
            "min": min(g[0][0] for g in gathered),
            "mean": sum(g[0][1] for g in gathered) / sum(g[1] for g in gathered),
            "max": max(g[0][2] for g in gathered),
        }
        for kind in which:
            self._add(f"{name}/{kind}", found[kind])

    def _add(self, name: str, value: float) -> None:
        self._metrics["train"][name].append(value)


class _WhenLoaded(TrainerCallback):  # type: ignore[misc]
    """Calls a function when the model and its optimizer stand, before the first step."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._begin()


def _reward_comes_from_the_environment(**kwargs: Any) -> list[float]:
    """Stands in for the reward functions TRL asks for; never called."""
    raise RuntimeError("rewards come from the environment")


def _error_share(stats: Sequence[EpisodeStats]) -> float:
    return sum(s.stop_reason is StopReason.ERROR for s in stats) / max(len(stats), 1)
