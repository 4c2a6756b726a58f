"""Every setting of ``llmgym sft``, checked before a model loads."""

from __future__ import annotations

from dataclasses import KW_ONLY, MISSING, dataclass
from typing import Any

from llmgym._util.settings import check, setting
from llmgym.episode import EpisodeLimits


@dataclass(frozen=True)
class SFTConfig:
    """The settings of one supervised fine-tuning, the options of ``llmgym sft``.

    Raises:
        ConfigError: A setting is out of range.
    """

    _: KW_ONLY
    model: str = setting(MISSING, "What learns: a directory, a run folder, a hub name, or a built-in model.")
    out: str = setting(MISSING, "Folder of the model to write; it must not exist.")
    source: str = setting(
        "expert",
        "Where episodes come from: 'expert', the environment's scripted expert; 'samples', the model's own best "
        "episodes; or the folder of an evaluation or training run, or a JSONL file of episodes. On the command line: "
        "--from.",
    )
    episodes: int = setting(200, "Episodes to learn from at most; with samples, tasks to try.", least=1)
    flawed_share: float = setting(
        0.0,
        "expert: share of episodes with one deliberate mistake. Correct episodes alone may leave GRPO little to learn.",
        least=0,
        most=1,
    )
    samples_per_task: int = setting(8, "samples: episodes of each task, of which the best is kept.", least=1)
    min_reward: float | None = setting(
        None, "samples and records: smallest reward to learn from. None: 1 with samples, any with records."
    )
    best_per_task: bool = setting(False, "records: only the best episode of each task.")
    tasks: str | None = setting(None, "samples: a JSONL file of tasks, instead of the environment's own.")
    steps: int = setting(100, "Optimizer steps.", least=1)
    batch_size: int = setting(8, "Training rows per step.", least=1)
    learning_rate: float | None = setting(
        None,
        "The highest one: it rises over a twentieth of the steps, then falls linearly to a twentieth of itself. None: "
        "2e-5, and 2e-4 with lora.",
        above=0,
    )
    lora: bool = setting(False, "Train a LoRA adapter and merge it.")
    chat_template: str | None = setting(None, "A template file, 'compact' or 'hermes', instead of the model's own.")
    chat_template_kwargs: dict[str, Any] | None = setting(
        None, "Variables of the chat template, the same as in training."
    )
    max_turns: int = setting(10, "samples: assistant turns per episode.", least=1)
    max_model_length: int = setting(2048, "Tokens of an episode; a longer row is left out, never cut.", least=1)
    seed: int = setting(42, "Seed of tasks, sampling and order.", least=0, most=2**32 - 1)

    def __post_init__(self) -> None:
        check(type(self), vars(self))

    @property
    def limits(self) -> EpisodeLimits:
        """What ends a sampled episode from outside."""
        return EpisodeLimits(max_turns=self.max_turns, max_model_length=self.max_model_length)
