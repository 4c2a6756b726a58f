"""The page of all settings: every field of GRPOConfig, SFTConfig and EvalConfig, with its help text."""

import dataclasses
from collections.abc import Iterable

import transformers
import trl

from llmgym import EvalConfig
from llmgym._util.settings import markdown_table
from llmgym_trainer.config import DERIVED, LOSS_TYPES, OTHER_LOSS_TYPES, REFUSED, GRPOConfig
from llmgym_trainer.sft.config import SFTConfig


def pages() -> dict[str, str]:
    """The page, by its path below docs/."""
    fields = [field.name for field in dataclasses.fields(GRPOConfig) if field.init]
    inherited = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    trainers = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    defined = [name for name in GRPOConfig.__annotations__ if name not in REFUSED]
    passed = [name for name in fields if name not in {*defined, *DERIVED, *REFUSED}]
    idle = [name for name in passed if name.startswith("vllm_")]
    passed = [name for name in passed if name not in idle]
    sections = [
        "# Settings",
        "Every setting of training, then of evaluation. [Training](training.md) says what to set first.",
        "Each setting of training is an argument of `GRPOConfig(…)`, a line in the file given to `--config`, and an "
        "option of `llmgym train` with dashes for underscores (`--batch-size 16`). The commands start from "
        "[presets](../trainer/llmgym_trainer/models/builtin/__init__.py) for the built-in models.",
        "## Training: llmgym",
        markdown_table(GRPOConfig, [name for name in defined if name not in inherited]),
        "## Training: of TRL and transformers, with a default of our own",
        markdown_table(GRPOConfig, [name for name in defined if name in inherited]),
        f"## Training: passed on to TRL {trl.__version__}",
        "Here and in the next table, the first sentence of the field's own help (Apache-2.0). "
        "What belongs to a refused value (such as the numbers of a refused loss) has no effect.",
        markdown_table(GRPOConfig, [name for name in passed if name not in trainers]),
        "Without effect as long as `use_vllm` is refused: " + ", ".join(f"`{name}`" for name in idle) + ".",
        f"## Training: passed on to transformers {transformers.__version__}",
        markdown_table(GRPOConfig, [name for name in passed if name in trainers]),
        "## Loss types",
        "What the sum over the trained tokens of a step is divided by; [Rules](rules.md#the-loss) explains it.",
        _rows(
            ("`loss_type`", "here"),
            (
                *((f"`{name}`", text) for name, text in LOSS_TYPES.items()),
                *((f"`{name}`", f"refused: {why}") for name, why in OTHER_LOSS_TYPES.items()),
            ),
        ),
        "## Derived",
        "These follow from settings above. Setting one is an error that names the other.",
        _rows(("setting", "set instead"), ((f"`{name}`", ours) for name, ours in DERIVED.items())),
        "## Refused",
        "These have one allowed value.",
        _rows(
            ("setting", "allowed", "why"), ((f"`{name}`", f"`{only!r}`", why) for name, (only, why) in REFUSED.items())
        ),
        "## Supervised fine-tuning",
        "The options of `llmgym sft`; [Rules](rules.md#supervised-fine-tuning-first) says what it does.",
        markdown_table(SFTConfig),
        "## Evaluation",
        "Each is an argument of `llmgym.run_and_report` and, where it has a text form, an option of `llmgym eval`.",
        markdown_table(EvalConfig),
    ]
    return {"configuration.md": "\n\n".join(sections) + "\n"}


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
