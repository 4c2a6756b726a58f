"""``llmgym sft``: from the command line to :func:`llmgym_trainer.sft.sft.run_sft`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from llmgym.episode import EpisodeLimits
from llmgym.errors import ConfigError
from llmgym.registry import expert_policy, find
from llmgym.task import load_tasks
from llmgym_trainer.config import parse_settings

_EPILOG = """\
The folder is a model like any other: llmgym train ENV --model DIR goes on from there.

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
    out = Path(options.out)
    entry = find(options.env)
    for name in ("episodes", "samples_per_task", "steps", "batch_size", "max_turns", "max_model_length"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")

    template_kwargs = parse_settings({"chat_template_kwargs": options.chat_template_kwargs}, source="command line")[
        "chat_template_kwargs"
    ]
    if not isinstance(template_kwargs, dict):
        raise ConfigError(f"--chat-template-kwargs takes a JSON object, got {options.chat_template_kwargs!r}")

    from llmgym_trainer.sft.episodes import best_samples, recorded_episodes
    from llmgym_trainer.sft.sft import check_output, run_sft

    check_output(out)
    limits = EpisodeLimits(max_turns=options.max_turns, max_model_length=options.max_model_length)
    tasks, episodes = [], []
    if options.source == "expert":
        from llmgym_trainer.models.builtin.scripted import scripted_episodes

        expert_policy(options.env)  # refused before anything is played
        episodes = scripted_episodes(
            options.env, options.episodes, flawed_share=options.flawed_share, seed=options.seed
        )
    elif options.source == "samples":
        tasks = load_tasks(options.tasks) if options.tasks else entry.load_tasks("train")
        tasks = tasks[: options.episodes]
    else:
        episodes = recorded_episodes(
            options.source,
            min_reward=options.min_reward,
            best_per_task=options.best_per_task,
            limit=options.episodes,
        )

    import torch

    from llmgym_trainer.models.load import load_model, resolve_model
    from llmgym_trainer.models.lora import default_lora
    from llmgym_trainer.tokens.codec import Codec

    path = resolve_model(options.model, options.seed, options.env)
    model, tokenizer = load_model(path, dtype=torch.float32, chat_template=options.chat_template)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    stop_ids: Any = model.generation_config.eos_token_id
    codec = Codec(
        tokenizer,
        template_kwargs=template_kwargs,
        extra_stop_ids=[stop_ids] if isinstance(stop_ids, int) else stop_ids or [],
    )
    codec.probe()
    if options.source == "samples":
        episodes = best_samples(
            model.eval(),
            codec,
            entry.make_env,
            tasks,
            limits,
            samples_per_task=options.samples_per_task,
            min_reward=1.0 if options.min_reward is None else options.min_reward,
            seed=options.seed,
        )
        print(f"{len(episodes)} of {len(tasks)} tasks have an episode to learn from", file=sys.stderr)
    result = run_sft(
        model,
        tokenizer,
        codec,
        episodes,
        out,
        steps=options.steps,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate or (2e-4 if options.lora else 2e-5),
        seed=options.seed,
        max_length=options.max_model_length,
        use_sampled_tokens=options.source == "samples",
        peft_config=default_lora() if options.lora else None,
    )
    print(
        f"model: {result.path} (learned from {result.episodes} episodes in {result.rows} rows"
        + (f", {result.too_long} longer ones left out" if result.too_long else "")
        + f"; loss {result.losses[0]:.3f} to {result.losses[-1]:.3f})",
        file=sys.stderr,
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llmgym sft",
        description="Teach a model by examples, before it is trained with reinforcement learning.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("env", help="registered id, module:Id-v0, module:Class or my_env.py:MyEnv")
    add("--model", required=True, help="a directory, a run folder, a hub name, or a built-in model")
    add("--out", required=True, metavar="DIR", help="folder of the model to write; it must not exist")
    add(
        "--from",
        dest="source",
        default="expert",
        metavar="SOURCE",
        help="expert (the default): the environment's scripted expert; samples: the model's own best episodes; else the "
        "folder of an evaluation or training run, or a JSONL file of episodes",
    )
    add("--episodes", type=int, default=200, help="episodes to learn from at most; with samples, tasks to try (200)")
    add("--flawed-share", type=float, default=0.0, help="expert: share of episodes that are wrong on purpose (0)")
    add("--samples-per-task", type=int, default=8, help="samples: episodes of each task, of which the best is kept (8)")
    add("--min-reward", type=float, help="samples and records: the smallest reward to learn from (samples: 1)")
    add("--best-per-task", action="store_true", help="records: only the best episode of each task")
    add("--tasks", metavar="JSONL", help="samples: tasks, instead of the environment's own")
    add("--steps", type=int, default=100, help="optimizer steps (100)")
    add("--batch-size", type=int, default=8, help="training rows a step (8)")
    add("--learning-rate", type=float, help="the highest one (2e-5; 2e-4 with --lora)")
    add("--lora", action="store_true", help="train a LoRA adapter and merge it")
    add("--chat-template", help="template file, 'compact' or 'hermes', instead of the model's own")
    add("--chat-template-kwargs", default="{}", metavar="JSON", help="variables of the template, as in training")
    add("--max-turns", type=int, default=10, help="samples: assistant turns an episode (10)")
    add("--max-model-length", type=int, default=2048, help="tokens of an episode; longer rows are left out (2048)")
    add("--seed", type=int, default=42, help="seed of tasks, sampling and order (42)")
    return parser
