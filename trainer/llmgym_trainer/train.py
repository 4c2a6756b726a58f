"""``train_multi_turn``: wires settings, tasks, environment, model, run folder and trainer together."""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from peft import PeftConfig

from llmgym.env import Env
from llmgym.errors import ConfigError
from llmgym.registry import env_factory as as_env_factory
from llmgym.task import Task, check_unique_ids
from llmgym_trainer.collection.collector import check_first_reset
from llmgym_trainer.config import GRPOConfig
from llmgym_trainer.data.task_stream import Mixture, TaskSource
from llmgym_trainer.distributed import broadcast
from llmgym_trainer.errors import NoRewardVarianceError
from llmgym_trainer.memory import check_memory, estimate_memory, free_memory
from llmgym_trainer.models.load import load_model, load_model_config, resolve_model
from llmgym_trainer.runs.checkpoints import checkpoint_name
from llmgym_trainer.runs.folder import RunFolder
from llmgym_trainer.runs.interrupts import StopRequest, TrainingInterrupted
from llmgym_trainer.runs.reporting import Reporter, check_wandb
from llmgym_trainer.runs.state import RunState, check_settings, find_checkpoint
from llmgym_trainer.trainer import MultiTurnGRPOTrainer


@dataclass(frozen=True)
class TrainResult:
    """The result of a run.

    Attributes:
        run_dir: The run's folder: ``config.yaml``, ``metrics.jsonl``, ``episodes/``, ``reward.png``, checkpoints.
        checkpoint: The last checkpoint, a directory that ``AutoModelForCausalLM.from_pretrained`` loads (an
            adapter when one was trained).
        steps: Whole optimizer steps done.
        interrupted: Whether Ctrl-C or SIGTERM stopped the run.
        best_checkpoint: The checkpoint with the best ``metric_for_best_model``; None without the setting, and where no
            step was better than the model that the run started with.
    """

    run_dir: Path
    checkpoint: Path
    steps: int
    interrupted: bool
    best_checkpoint: Path | None = None


def train_multi_turn(
    config: GRPOConfig,
    *,
    tasks: Sequence[Task] | None = None,
    env_factory: Callable[[Task], Env] | type[Env] | None = None,
    sources: Sequence[TaskSource] | None = None,
    val_tasks: Sequence[Task] | None = None,
    peft_config: PeftConfig | None = None,
    env_id: str = "",
    command: Sequence[str] | None = None,
) -> TrainResult:
    """Train a model with multi-turn GRPO over whole episodes.

    With ``config.resume_from_checkpoint`` the run of that folder continues, in its folder: give it the same tasks,
    environment and adapter, and settings that start from ``GRPOConfig.from_yaml("<run>/config.yaml", …)``.

    Args:
        config: All settings; ``max_turns`` is required.
        tasks: Training tasks, at least ``config.batch_size``.
        env_factory: Builds a fresh environment for one episode of a task, or an :class:`llmgym.Env` subclass.
        sources: Several environments, or the stages of a curriculum, instead of ``tasks``, ``env_factory``,
            ``val_tasks`` and ``env_id``.
        val_tasks: Held-out tasks, one episode each at step 0, every ``validation_interval`` steps and at the end.
        peft_config: Trains an adapter, such as ``peft.LoraConfig(...)``, instead of all weights.
        env_id: Recorded in the episodes, and what a built-in model is warmed up on. Empty: the environment's class is
            recorded.
        command: Arguments of ``llmgym train``, kept in the run's folder for ``llmgym train --resume``.

    Returns:
        Where everything is.

    Raises:
        ConfigError: A setting is missing or contradicts another, or the environment cannot begin an episode; raised
            before a model loads.
        NoRewardVarianceError: No group could train anything for ``max_steps_without_variance`` steps; the model is
            saved.
        NothingTrainedError: All steps ran, and none of them trained anything.
        TooManyErrorsError: More episodes failed than ``max_error_share``.
        OutOfMemoryError: A training step does not fit into memory.
        NonFiniteError: Gradients stayed NaN or infinite, or the weights became so.
        RunFolderError: Records could not be written, as on a full disk.
        CheckpointError: A checkpoint could not be written, or the one to resume could not be loaded.
        TrainingInterrupted: Asked to stop before the first step began.
    """
    config.limits()
    mixture = None
    if sources is not None:
        if tasks is not None or env_factory is not None or val_tasks is not None:
            raise ConfigError(
                "give either sources, or tasks and env_factory; a TaskSource has tasks and val_tasks itself"
            )
        mixture = Mixture(sources)
        tasks, env_factory, val_tasks = mixture.tasks, mixture.make_env, mixture.val_tasks or None
    if tasks is None or env_factory is None:
        raise ConfigError("what to train on is missing: give tasks and env_factory, or sources")
    make_env = as_env_factory(env_factory)
    config.check_tasks(tasks, val_tasks)
    check_unique_ids(tasks)
    check_unique_ids(val_tasks or [])
    check_wandb(config.wandb_project)

    state = PartialState()
    if state.num_processes > 1:  # its threads may otherwise abort the process while it exits
        atexit.register(state.destroy_process_group)
    stop = StopRequest()
    with contextlib.ExitStack() as held, stop.on_signals():
        folder = _claim_run_folder(config, state, held)
        config.output_dir = str(folder.path)
        checkpoint = None
        if config.resume_from_checkpoint is not None:
            checkpoint = find_checkpoint(config.resume_from_checkpoint)
            check_settings(config, checkpoint, adapter=peft_config is not None, validates=bool(val_tasks))
            now = RunState.start(tasks, mixture.shares if mixture else {}, config.batch_size, state.num_processes)
            RunState.load(checkpoint).check_same_run(now)
        creates = state.is_main_process and checkpoint is None
        with _discard_on_error(folder, held) if creates else contextlib.nullcontext():
            if creates:  # the settings of a resumed run are written once its checkpoint has loaded
                with folder.writing():
                    config.to_yaml(folder.path / "config.yaml")
                if command is not None:
                    folder.note(command=list(command))
            with stop.waiting():
                for of_one_env in [source.tasks for source in mixture.sources] if mixture is not None else [tasks]:
                    check_first_reset(make_env, of_one_env, config.limits(), seed=config.seed)
            with stop.waiting(), state.main_process_first():
                path = _base_model(config, folder, env_id)
            dtype = torch.bfloat16 if peft_config is not None and config.bf16 else torch.float32
            _check_memory(path, config, peft_config, dtype, len(val_tasks or []), tell=state.is_main_process)
            with stop.waiting():
                model, tokenizer = load_model(
                    path, dtype=dtype, chat_template=config.chat_template, **_model_kwargs(config)
                )

        reporter = Reporter(config, folder, is_main=state.is_main_process)
        try:
            with _discard_on_error(folder, held) if creates else contextlib.nullcontext():
                trainer = MultiTurnGRPOTrainer(
                    model,
                    config,
                    tasks=tasks,
                    env_factory=make_env,
                    tokenizer=tokenizer,
                    reporter=reporter,
                    val_tasks=val_tasks,
                    peft_config=peft_config,
                    stop=stop,
                    env_id=env_id,
                    mixture=mixture,
                )
            interrupted = False
            try:
                trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None)
            except TrainingInterrupted:
                interrupted = True
                saved = trainer.save_now()
                reporter.write(
                    f"stopped after step {trainer.state.global_step}; saved {saved}. To continue: llmgym train "
                    f"--resume {folder.path}"
                )
            except NoRewardVarianceError:
                reporter.write(f"nothing left to learn from; saved {trainer.save_now()}")
                raise
            steps, best = trainer.state.global_step, trainer.state.best_model_checkpoint
            trainer.engine.close()
        finally:
            reporter.close()
    return TrainResult(
        folder.path,
        folder.path / checkpoint_name(steps),
        steps,
        interrupted,
        folder.path / Path(best).name if best is not None else None,
    )


def _claim_run_folder(config: GRPOConfig, state: PartialState, held: contextlib.ExitStack) -> RunFolder:
    """The folder of a new run, or of the one to resume. The first process locks it and tells the others, errors too.

    Args:
        config: Says which folder.
        state: The processes.
        held: Unlocks the folder when it closes.
    """
    claimed: RunFolder | ConfigError | None = None
    if state.is_main_process:
        try:
            if config.resume_from_checkpoint is None:
                folder = RunFolder.create(config.runs_dir, config.run_name)
            else:
                folder = RunFolder(find_checkpoint(config.resume_from_checkpoint).parent)
            held.enter_context(folder.locked())
            claimed = folder
        except ConfigError as error:
            claimed = error
    claimed = broadcast(claimed)
    if isinstance(claimed, RunFolder):
        return claimed
    assert claimed is not None
    raise claimed


@contextlib.contextmanager
def _discard_on_error(folder: RunFolder, held: contextlib.ExitStack) -> Iterator[None]:
    """Remove the run folder if this section raises: nothing was trained yet."""
    try:
        yield
    except BaseException:
        held.close()
        folder.discard()
        raise


def _check_memory(
    path: str, config: GRPOConfig, peft_config: PeftConfig | None, dtype: torch.dtype, val_tasks: int, *, tell: bool
) -> None:
    """Print what memory the run needs and refuse it if that cannot fit. Quantized weights are not estimated."""
    model_config = load_model_config(path, trust_remote_code=config.trust_remote_code)
    if _model_kwargs(config).get("quantization_config") or getattr(model_config, "quantization_config", None):
        return
    available, where = free_memory(config)
    estimate = estimate_memory(
        model_config,
        config,
        peft_config=peft_config,
        dtype=dtype,
        val_tasks=val_tasks,
        on_gpu=torch.cuda.is_available() and not config.use_cpu,
    )
    if tell:
        print(f"memory: {estimate}; {where} has {available / 2**30:,.1f} GiB free", file=sys.stderr)
    warning = check_memory(estimate, available, config, where=where)
    if tell and warning is not None:
        print(f"memory: {warning}", file=sys.stderr)


def _base_model(config: GRPOConfig, folder: RunFolder, env_id: str) -> str:
    """Directory or hub name of the model the run started with; what ``config.model`` stands for may change later."""
    noted: str | None = folder.notes().get("base_model")
    if noted is not None and (noted == config.model or Path(noted).is_dir()):
        return noted
    path = resolve_model(config.model, config.seed, env_id)
    folder.note(base_model=path)
    return path


def _model_kwargs(config: GRPOConfig) -> dict[str, Any]:
    kwargs = config.model_init_kwargs
    if isinstance(kwargs, str):
        raise ConfigError(f"model_init_kwargs must be a mapping, got {kwargs!r}")
    return {"trust_remote_code": config.trust_remote_code, **(kwargs or {})}


def print_summary(result: TrainResult) -> None:
    """Print where the results of a run are, on the first process only."""
    if not PartialState().is_main_process:
        return
    if result.best_checkpoint is not None:
        print(f"best model: {result.best_checkpoint}", file=sys.stderr)
    print(
        f"model: {result.checkpoint}\nrun folder: {result.run_dir} (reward.png, metrics.jsonl, episodes/)",
        file=sys.stderr,
    )
