"""``llmgym sft``: from the command line to :func:`llmgym_trainer.sft.sft.run_sft`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from llmgym._util.settings import add_options, given, parse
from llmgym.cli.options import CommandParser
from llmgym.errors import ConfigError
from llmgym.registry import expert_policy, find
from llmgym.task import load_tasks
from llmgym_trainer.sft.config import SFTConfig

_EPILOG = """\
The folder is a model like any other: llmgym train ENV --model DIR continues from there.

examples:
  llmgym sft ToolUseGame-v0 --model Qwen/Qwen3-0.6B --out sft
  llmgym sft ToolUseGame-v0 --model Qwen/Qwen3-0.6B --from runs/eval-gpt --min-reward 1 --out sft
  llmgym sft my_env.py:MyEnv --tasks tasks.jsonl --model Qwen/Qwen3-0.6B --from samples --lora --out sft
"""


def main(argv: list[str]) -> int:
    """Run ``llmgym sft`` and return its exit status.

    Raises:
        LLMGymError: Anything the user can fix; the caller prints it as one line.
    """
    options = _parser().parse_args(argv)
    settings = parse(SFTConfig, given(options, SFTConfig), source="command line")
    for name in ("model", "out"):
        if name not in settings:
            raise ConfigError(f"--{name} is missing; see llmgym sft --help")
    config = SFTConfig(**settings)
    entry = find(options.env)

    from llmgym_trainer.sft.episodes import best_samples, recorded_episodes
    from llmgym_trainer.sft.sft import check_output, run_sft

    check_output(Path(config.out))
    tasks, episodes = [], []
    if config.source == "expert":
        from llmgym_trainer.models.builtin.scripted import scripted_episodes

        expert_policy(options.env)  # refused before anything is played
        episodes = scripted_episodes(options.env, config.episodes, flawed_share=config.flawed_share, seed=config.seed)
    elif config.source == "samples":
        tasks = (load_tasks(config.tasks) if config.tasks else entry.load_tasks("train"))[: config.episodes]
    else:
        episodes = recorded_episodes(
            config.source,
            min_reward=config.min_reward,
            best_per_task=config.best_per_task,
            limit=config.episodes,
        )

    import torch

    from llmgym_trainer.models.load import load_model, make_codec, resolve_model
    from llmgym_trainer.models.lora import default_lora

    path = resolve_model(config.model, config.seed, options.env)
    model, tokenizer = load_model(path, dtype=torch.float32, chat_template=config.chat_template)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    codec = make_codec(model, tokenizer, config.chat_template_kwargs)
    codec.probe()
    if config.source == "samples":
        episodes = best_samples(
            model.eval(),
            codec,
            entry.make_env,
            tasks,
            config.limits,
            samples_per_task=config.samples_per_task,
            min_reward=1.0 if config.min_reward is None else config.min_reward,
            seed=config.seed,
        )
        print(f"{len(episodes)} of {len(tasks)} tasks have an episode to learn from", file=sys.stderr)
    result = run_sft(
        model,
        tokenizer,
        codec,
        episodes,
        config.out,
        steps=config.steps,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate or (2e-4 if config.lora else 2e-5),
        seed=config.seed,
        max_length=config.max_model_length,
        use_sampled_tokens=config.source == "samples",
        peft_config=default_lora() if config.lora else None,
    )
    print(
        f"model: {result.path} (learned from {result.episodes} episodes in {result.rows} rows"
        + (f", {result.too_long} longer ones left out" if result.too_long else "")
        + f"; loss {result.losses[0]:.3f} to {result.losses[-1]:.3f})",
        file=sys.stderr,
    )
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="llmgym sft",
        description="Fine-tune a model on episodes, before it is trained with reinforcement learning.",
        epilog=_EPILOG,
    )
    parser.add_argument("env", help="registered id, module:Id-v0, module:Class or my_env.py:MyEnv")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="SOURCE",
        default=SFTConfig.source,
        help="expert (the default): the environment's scripted expert; samples: the model's own best episodes; else "
        "the folder of an evaluation or training run, or a JSONL file of episodes",
    )
    add_options(parser, SFTConfig, [f.name for f in dataclasses.fields(SFTConfig) if f.name != "source"])
    return parser
