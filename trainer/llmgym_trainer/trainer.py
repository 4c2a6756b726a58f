"""Multi-turn GRPO on TRL's trainer: rollouts and training rows are ours, everything else is TRL's.

Where this departs from ``trl.GRPOTrainer`` (1.16):

1. Data. One item of the dataloader is one optimizer step. Every task is used whatever the
   batch size; TRL's sampler drops the tail of an epoch.
2. ``training_step`` runs the rollout, builds rows, and runs all micro-batches of the step. Their number follows
   from the rows and is the same on every process, as is their number of rows; a process with fewer pads with rows
   that train nothing.
3. Generation. TRL's generation, tool loop, reward functions and advantage code are not used.
4. Normalisation. Token weights and one denominator over the whole step replace TRL's per-type normalisers, which
   count rows or one micro-batch (see :class:`llmgym_trainer.algorithm.loss.LossScale`). The token loss is TRL's.
5. Groups without reward variance cost no forward pass and are not in the denominator, unless a KL term or an entropy
   bonus needs them. A step without any row leaves weights and optimizer state as they are.
6. Advantages are one a token, shape (B, T), which TRL's loss allows: turns may differ
   (:mod:`llmgym_trainer.algorithm.advantages`).
7. Off-policy correction. ``_compute_loss`` runs the forward pass, weights the advantages by the importance ratios
   (:mod:`llmgym_trainer.algorithm.loss`), and hands both to TRL's loss. TRL's own correction acts only with vLLM.
8. Checkpoints are written atomically, and a resumed run continues with its next task, its random numbers and its
   records; TRL skips the items of a dataloader (see :mod:`llmgym_trainer.runs.state`). A step that raises leaves no
   trace in what a checkpoint holds.
9. Metrics of the rollout are ours (:mod:`llmgym_trainer.metrics`); those of the loss are TRL's. Nothing is
   printed or reported by TRL's callbacks.

Overridden: ``get_train_dataloader``, ``training_step``, ``train``, ``log``, ``_save``, ``_save_checkpoint`` (no
model card) with ``_get_output_dir`` and ``_push_from_checkpoint``, which it calls, ``_compute_loss``, and
``_get_per_token_logps_and_entropies``, which returns the forward pass of ``_compute_loss`` to TRL's.
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
from datasets import Dataset
from peft import PeftConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerCallback
from transformers.trainer_utils import rotate_checkpoints
from trl.trainer.utils import use_adapter

from llmgym._util.versions import provenance
from llmgym.env import Env
from llmgym.errors import ConfigError, LLMGymError, did_you_mean
from llmgym.task import Task
from llmgym_trainer.algorithm.batches import pack, to_tensors
from llmgym_trainer.algorithm.loss import LossScale, StepTotals, corrected_advantages, importance_ratios
from llmgym_trainer.algorithm.rows import TrainRow, train_rows
from llmgym_trainer.collection.collector import Collector, Group
from llmgym_trainer.collection.sampler import StepSampler
from llmgym_trainer.config import GRPOConfig
from llmgym_trainer.data.task_stream import Mixture, TaskStream
from llmgym_trainer.distributed import broadcast, gather, summarize
from llmgym_trainer.engines import make_engine
from llmgym_trainer.errors import (
    NonFiniteError,
    NoRewardVarianceError,
    NothingTrainedError,
    RuinedWeightsError,
    TooManyErrorsError,
    ruined_weights,
    weights_are_finite,
)
from llmgym_trainer.memory import explain_out_of_memory
from llmgym_trainer.models.load import make_codec
from llmgym_trainer.runs import checkpoints
from llmgym_trainer.runs.interrupts import StopRequest, TrainingInterrupted
from llmgym_trainer.runs.reporting import Reporter
from llmgym_trainer.runs.state import RandomState, RunState, find_checkpoint, suggest_earlier

MAX_NON_FINITE_STEPS = 3
"""This many steps in a row without finite gradients end the run."""


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
        limits = config.limits()
        self._credit = config.make_credit()
        self._forward_result: Any = None
        self._writing_to: Path | None = None
        self._pending_resume: RunState | None = None  # of a checkpoint whose weights are not loaded yet
        super().__init__(
            model=model,
            reward_funcs=_reward_comes_from_the_environment,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [""] * config.num_steps}),
            processing_class=tokenizer,
            peft_config=peft_config,
        )
        if config.disable_dropout:
            _disable_functional_dropout(self.model)
        if self.ref_model is not None:  # TRL loads it by name, which is the base model's where an adapter was merged
            self.accelerator.unwrap_model(self.ref_model).load_state_dict(model.state_dict())
        self.callback_handler.callbacks = [
            callback
            for callback in self.callback_handler.callbacks
            if type(callback).__name__ not in ("PrinterCallback", "ProgressCallback")
        ]
        self.add_callback(_WhenLoaded(self._resume))
        self._reporter = reporter
        self._stop = stop or StopRequest()
        self.run_state = RunState.start(
            tasks, mixture.shares if mixture is not None else {}, config.batch_size, self.accelerator.num_processes
        )
        self._metrics["train"] = self.run_state.unlogged
        self.codec = make_codec(model, tokenizer, config.chat_template_kwargs)
        reporter.write(self.codec.probe().describe(limits.max_turns))
        self.engine = make_engine(self.accelerator.unwrap_model(self.model), forward_context=self.accelerator.autocast)
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
        shuffle = bool(config.shuffle_dataset)
        self.sampler = StepSampler(
            self.collector,
            config,
            self.run_state,
            TaskStream(tasks, seed=config.seed, shuffle=shuffle)
            if mixture is None
            else mixture.stream(seed=config.seed, shuffle=shuffle, batch_size=config.batch_size),
            val_tasks or (),
            reporter=reporter,
            stop=self._stop,
            source_of=mixture.source_of if mixture is not None else lambda task: "",
        )

    # Training

    def get_train_dataloader(self) -> Any:
        """One empty item an optimizer step: what a step trains on is sampled inside it."""
        steps: list[dict[str, Any]] = [{} for _ in range(self.args.max_steps)]
        return torch.utils.data.DataLoader(steps, batch_size=1, collate_fn=lambda items: items[0])

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train as TRL does, with a validation after the last step.

        Args:
            resume_from_checkpoint: A run folder (its last checkpoint) or a checkpoint to resume; True takes the last
                checkpoint of this run. What was recorded after it moves to ``abandoned/``.
            kwargs: See ``transformers.Trainer.train``.

        Raises:
            ConfigError: The checkpoint is missing, of another folder, or does not fit the tasks, the chat template
                or the number of processes; or no prompt of the first step that runs now leaves room for a turn.
            CheckpointError: The checkpoint cannot be loaded; the run is unchanged.
            NothingTrainedError: All steps ran, and none of them trained anything.
        """
        checkpoint = None
        if resume_from_checkpoint:
            checkpoint = find_checkpoint(
                self.args.output_dir if resume_from_checkpoint is True else resume_from_checkpoint
            )
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
                f"none of the {self.state.global_step} steps trained anything, so the model is still the one that the "
                "run started with. The reason is in metrics.jsonl: frac_reward_zero_std (groups whose episodes all "
                "got the same reward), context_overflow_ratio, error_ratio and non_finite_gradients; all episodes "
                f"are in {self._reporter.folder / 'episodes'}"
            )
        return output

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Run one optimizer step's rollout, forward and backward passes. Returns the loss, shape ()."""
        step, rank = self.state.global_step, self.accelerator.process_index
        with self._rollback_on_error(model):
            self._check_weights()
            if step % self.args.validation_interval == 0:
                self.validate()
            start = time.perf_counter()
            groups = self.sampler.sample(step)
            rows = self._rows(groups)
            self._reporter.episodes("train", step, rank, [e for group in groups for e in group.all_episodes])
            update_start = time.perf_counter()
            loss = self._backward(model, rows)
            self._check_variance()
            self.run_state.add("time/training", time.perf_counter() - update_start)
            self.run_state.add("step_time", time.perf_counter() - start)
            return loss

    def _rows(self, groups: Sequence[Group]) -> list[TrainRow]:
        """The training rows of this process's groups. Notes in each episode's record what it trains with."""
        config, credit = self.args, self._credit
        to_train = [group.episodes for group in groups if not group.replaced]
        rewards = [[credit.rewards(episode) for episode in episodes] for episodes in to_train]
        of_processes = gather(rewards)  # scale_rewards="batch" compares all of them
        everywhere = [group for of_process in of_processes for group in of_process]
        first = sum(len(of_process) for of_process in of_processes[: self.accelerator.process_index])
        advantages = credit.advantages(everywhere)[first : first + len(rewards)]
        varies = [credit.has_reward_variance(group) for group in everywhere]
        self.run_state.steps_without_variance = 0 if any(varies) else self.run_state.steps_without_variance + 1

        needs_all = config.beta != 0.0 or self._entropy_bonus_enabled
        rows: list[TrainRow] = []
        episodes_with_rows = 0
        for episodes, by_episode, has_variance in zip(to_train, advantages, varies[first:], strict=False):
            for episode, by_turn in zip(episodes, by_episode, strict=True):
                trains = (has_variance or needs_all) and not (config.overlong_masking and episode.truncated)
                episode.provenance |= {"shaped_reward": credit.rewards(episode).outcome, "trained": trains}
                if credit.kind == "episode":
                    episode.provenance["advantage"] = by_turn[0] if by_turn else 0.0
                else:
                    episode.provenance["turn_advantages"] = by_turn
                if trains:
                    own = train_rows(episode, episodes_with_rows, by_turn, corrected=config.train_corrected_turns)
                    rows += own
                    episodes_with_rows += bool(own)
        counts = gather((len(rows), episodes_with_rows))
        self.run_state.add("rows_per_episode", sum(n for n, _ in counts) / max(sum(n for _, n in counts), 1))
        return rows

    def _backward(self, model: Any, rows: list[TrainRow]) -> torch.Tensor:
        """All micro-batches of the step. Gradients are None afterwards when no process has a row."""
        model.train()
        device = self.accelerator.device
        batches = pack(rows, self.args.micro_batch_tokens)
        totals = StepTotals.merge(gather(StepTotals.of(batches)))
        self.run_state.add("trained_tokens", float(totals.tokens))
        self.run_state.add("step_skipped", float(totals.micro_batches == 0))
        total_loss = torch.zeros((), device=device)
        if totals.micro_batches == 0:
            return total_loss
        scale = LossScale.of(self.args.loss_type, totals, self.args.max_model_length)
        self.loss_type = "cispo" if self.args.loss_type == "cispo" else "dapo"  # the token loss; the scale is ours
        self.current_gradient_accumulation_steps = totals.micro_batches  # what TRL divides an entropy bonus by
        gaps, ratios = [], []
        for number, count in enumerate(totals.micro_batch_rows):
            self._stop.check_together()
            inputs = to_tensors(
                batches[number] if number < len(batches) else [],
                scale,
                count=count,
                pad_token_id=self.processing_class.pad_token_id,
                device=device,
            )
            # TRL multiplies this by the micro-batches of the step, and the product is the denominator.
            inputs["num_items_in_batch"] = torch.tensor(scale.denominator / totals.micro_batches, device=device)
            is_last = number == totals.micro_batches - 1
            with (
                contextlib.nullcontext() if is_last else self.accelerator.no_sync(model),
                explain_out_of_memory(inputs, self.args.micro_batch_tokens),
            ):
                loss = self.compute_loss(model, inputs)
                self.accelerator.backward(loss)
            total_loss += loss.detach()
            trained = inputs["tool_mask"] > 0
            gaps.append((inputs["per_token_logps"] - inputs["sampling_per_token_logps"]).abs()[trained].float())
            ratios.append(inputs["importance_ratios"][trained])
        for name, values, kinds in (
            ("sampling/sampling_logp_difference", gaps, ("mean", "max")),
            ("sampling/importance_sampling_ratio", ratios, ("min", "mean", "max")),
        ):
            summary = summarize(torch.cat(values))
            for kind in kinds:
                self.run_state.add(f"{name}/{kind}", summary[kind])
        self._drop_non_finite_gradients(model)
        return total_loss

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """TRL's loss, on advantages that are corrected for the sampler's probabilities.

        Adds to ``inputs`` what the metrics need: ``per_token_logps`` and ``importance_ratios``, both (B, C).
        """
        if self.args.beta != 0.0:
            inputs["ref_per_token_logps"] = self._reference_logps(inputs)
        self._forward_result = self._forward(model, inputs, router_loss=self.aux_loss_enabled)
        logps, correction = self._forward_result[0].detach(), self.args.sampling_correction
        ratios = importance_ratios(logps, inputs["sampling_per_token_logps"], inputs["tool_mask"], correction)
        inputs |= {
            "per_token_logps": logps,
            "importance_ratios": ratios,
            "advantages": corrected_advantages(
                inputs["advantages"], ratios, correction, self.args.sampling_correction_cap
            ),
        }
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        self._forward_result = None
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """The forward pass that TRL's loss asks for; :meth:`_compute_loss` has just run it."""
        return self._forward_result

    def _forward(
        self, model: Any, inputs: dict[str, torch.Tensor], *, router_loss: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Log-probabilities and entropies (None of a reference), (B, C), 0 where nothing trains; the experts' loss."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        labels = ids.clone()
        labels[:, 1:][inputs["tool_mask"] == 0] = -100
        with self.accelerator.autocast():
            outputs = model(
                input_ids=ids,
                attention_mask=mask,
                labels=labels,
                fused_lm_head=True,
                **({"output_router_logits": True} if router_loss else {}),
            )
        untrained = inputs["tool_mask"] == 0  # zero these: on a CPU the fused head scores every token
        entropy = None if outputs.entropy is None else outputs.entropy.masked_fill(untrained, 0.0)
        return outputs.log_probs.masked_fill(untrained, 0.0), entropy, outputs.aux_loss if router_loss else None

    def _reference_logps(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            if self.ref_model is not None:
                return self._forward(self.ref_model, inputs)[0]
            with use_adapter(self.accelerator.unwrap_model(self.model), adapter_name=None):
                return self._forward(self.model, inputs)[0]

    def _drop_non_finite_gradients(self, model: Any) -> None:
        """Leave weights and optimizer as they are in a step whose gradients are NaN or infinite.

        Raises:
            NonFiniteError: This has happened :data:`MAX_NON_FINITE_STEPS` times in a row.
        """
        state = self.run_state
        if self.accelerator.scaler is not None:  # fp16: such steps are how its loss scale is found
            state.trained_steps += 1
            return
        finite = all(gather(all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())))
        state.add("non_finite_gradients", float(not finite))
        if finite:
            state.non_finite_steps = 0
            state.trained_steps += 1
            return
        state.non_finite_steps += 1
        model.zero_grad(set_to_none=True)
        if state.non_finite_steps == MAX_NON_FINITE_STEPS:
            raise NonFiniteError(
                f"the gradients of {MAX_NON_FINITE_STEPS} steps in a row were not finite, so none of them trained. The "
                "weights are still those before: lower learning_rate, or train in another precision (bf16=False)"
            )

    def _check_variance(self) -> None:
        """Raise :class:`NoRewardVarianceError` after too many steps in a row in which there was nothing to compare."""
        config, limit = self.args, self.args.max_steps_without_variance
        if limit is None or self.run_state.steps_without_variance < limit:
            return
        rewards = [reward for reward in self.run_state.unlogged.get("reward", []) if reward == reward]
        mean = f"{statistics.fmean(rewards):.3g}" if rewards else "unknown"
        raise NoRewardVarianceError(
            f"in {limit} steps in a row all episodes of a task got the same reward (mean {mean}), so there was nothing "
            f"to learn from. If this is the best reward, the tasks are too easy; if it is the worst, they are too "
            f"hard: use other tasks, give partial credit, or fine-tune the model first (llmgym sft). Otherwise raise "
            f"temperature={config.temperature}, episodes_per_task={config.episodes_per_task} or max_sampling_attempts="
            f"{config.max_sampling_attempts}. All episodes are in {self._reporter.folder / 'episodes'}; "
            f"max_steps_without_variance=None continues regardless"
        )

    def _check_weights(self) -> None:
        """Raise :class:`RuinedWeightsError` if the last optimizer step left weights that are NaN or infinite."""
        if not weights_are_finite(self.model):
            raise ruined_weights("holds weights that are NaN or infinite", self.state.global_step, self.args)

    # Validation

    def validate(self) -> dict[str, float]:
        """Run one episode of each validation task and log its metrics as ``val/…``. At most once a step.

        Returns:
            The metrics, empty without validation tasks or when this step was validated before.
        """
        step = self.state.global_step
        if not self.sampler.val_tasks or self.run_state.validated_at == step:
            return {}
        metrics = self.sampler.validate(step)
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
                f"this validation has no {name}, because episodes failed; it is not compared with the best"
            )
            return
        if value is None:
            raise ConfigError(
                f"metric_for_best_model={name!r} is no metric of this validation, which has "
                f"{', '.join(sorted(metrics))}.{did_you_mean(name, metrics)}"
            )
        better = state.best_metric is None or (
            value > state.best_metric if self.args.greater_is_better else value < state.best_metric
        )
        if not better:
            return
        state.best_metric, state.best_global_step = value, step
        if step > 0:  # the model that the run started with is kept where it came from
            path = self.save_now()
            state.best_model_checkpoint = str(path)
            self._reporter.write(f"best {name} so far: {value:.3f}; kept as {path}")

    # Checkpoints and logs

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Hand a step's metrics to the reporter as well."""
        super().log(logs, start_time)
        self._reporter.step(self.state.global_step, logs)

    def save_now(self) -> Path:
        """Write a checkpoint of the last complete step and return its folder."""
        self._save_checkpoint(self.model, None)
        return Path(self.args.output_dir) / checkpoints.checkpoint_name(self.state.global_step)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            (Path(output_dir or self.args.output_dir) / checkpoints.STATE_FILE).write_text(
                json.dumps({"template_hash": self.codec.template_hash})
            )

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint atomically. Does nothing if that of this step exists.

        Raises:
            CheckpointError: It could not be written; earlier ones are unchanged.
            RuinedWeightsError: The weights are not finite; likewise.
        """
        run, step, main = Path(self.args.output_dir), self.state.global_step, self.args.should_save
        if broadcast((run / checkpoints.checkpoint_name(step)).exists()):
            return
        self._check_weights()
        try:
            self._writing_to = checkpoints.begin(run) if main else run / checkpoints.PARTIAL
            partial = self._writing_to / checkpoints.checkpoint_name(step)
            self.accelerator.wait_for_everyone()
            unlogged_loss = self.accelerator.gather(self._tr_loss.reshape(1)).mean().item()
            Trainer._save_checkpoint(self, model, trial)
            if self.state.best_global_step:  # named again: when it was kept, the run folder may have had another path
                self.state.best_model_checkpoint = str(run / checkpoints.checkpoint_name(self.state.best_global_step))
            if main:
                self.state.save_to_json(str(partial / "trainer_state.json"))
                dataclasses.replace(
                    self.run_state,
                    step=step,
                    logged_step=self._globalstep_last_logged,
                    unlogged_loss=unlogged_loss,
                    metrics_bytes=self._reporter.metrics_bytes,
                ).save(partial)
            self.accelerator.wait_for_everyone()
            if main:
                checkpoints.publish(run, step)
                rotate_checkpoints(str(run), self.args.save_total_limit, self.state.best_model_checkpoint)
            self.accelerator.wait_for_everyone()
        except Exception as error:
            if main:
                checkpoints.discard_partial(run)
            found = checkpoints.checkpoints(run)
            remedy = f"resume {found[-1].name}: llmgym train --resume {run}" if found else "start the run again"
            raise checkpoints.CheckpointError(
                f"the checkpoint of step {step} could not be written to {run}: {error}. {checkpoints.free_space(run)}. "
                f"When this is fixed, {remedy}"
            ) from error
        finally:
            self._writing_to = None
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(run / checkpoints.checkpoint_name(step)))

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._writing_to or self.args.output_dir)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._writing_to is None:  # else it is incomplete
            super()._push_from_checkpoint(checkpoint_folder)

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
            self.run_state.restore(state)
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
            self.run_state.restore(dataclasses.replace(before, validated_at=self.run_state.validated_at))
            random_state.restore()
            model.zero_grad(set_to_none=True)
            if isinstance(error, Exception) and not isinstance(error, TrainingInterrupted):
                self._save_after(error)
            raise

    def _save_after(self, error: Exception) -> None:
        """Save the last complete step when an error that all processes share ends the run."""
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
                f"training stops with an error after step {step}; saved {saved}. When the cause is fixed, continue "
                f"with: llmgym train --resume {self.args.output_dir}"
            )


class _WhenLoaded(TrainerCallback):  # type: ignore[misc]
    """Calls a function when model and optimizer are loaded, before the first step."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._function()


def _disable_functional_dropout(model: torch.nn.Module) -> None:
    """Switch off the noise that modules take from numbers of their own or of their configuration.

    TRL's ``disable_dropout`` reaches ``torch.nn.Dropout`` only. Attention calls ``dropout(p=self.attention_dropout)``,
    OPT and Falcon do so for hidden states too, and the routers of experts jitter their input.
    """
    holders = [*model.modules(), *{id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values()]
    for holder in holders:
        for name, value in list(vars(holder).items()):
            if isinstance(value, float) and ("drop" in name or "jitter" in name):
                setattr(holder, name, 0.0)


def _reward_comes_from_the_environment(**kwargs: Any) -> list[float]:
    """Stands in for the reward functions TRL asks for; never called."""
    raise RuntimeError("rewards come from the environment")
