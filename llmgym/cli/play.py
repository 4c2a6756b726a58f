"""``llmgym play``: one episode with a person as the policy, at a terminal."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

from llmgym._util.text import message_text, printable
from llmgym.cli.options import CommandParser
from llmgym.episode import Episode, EpisodeLimits
from llmgym.errors import ConfigError, TaskError
from llmgym.policies.human import HumanPolicy
from llmgym.records import EpisodeWriter
from llmgym.registry import find
from llmgym.rollout import run_episode
from llmgym.task import Task, load_tasks


def main(argv: Sequence[str]) -> int:
    """Run ``llmgym play`` and return its exit status.

    Raises:
        LLMGymError: Anything the user can fix; the caller prints it as one line.
    """
    parser = CommandParser(
        prog="llmgym play",
        description="Play an episode yourself: call tools by form, or answer with text. The episode is recorded.",
    )
    parser.add_argument("env", help="registered id, module:Id-v0, module:Class or my_env.py:MyEnv")
    parser.add_argument("--split", default="train", help="train, val or test (default train)")
    parser.add_argument("--tasks", metavar="JSONL", help="tasks from a file, instead of the environment's own")
    parser.add_argument("--task", default="0", metavar="N", help="number or id of the task (default 0, the first)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the environment (default 0)")
    turns = EpisodeLimits().max_turns
    parser.add_argument("--max-turns", type=int, default=turns, metavar="N", help="your turns, at most")
    parser.add_argument("--out", metavar="JSONL", help="file to append the episode to (default runs/play-<time>.jsonl)")
    options = parser.parse_args(argv)
    entry = find(options.env)
    task = _task(load_tasks(options.tasks) if options.tasks else entry.load_tasks(options.split), options.task)
    limits = EpisodeLimits(max_turns=options.max_turns, env_timeout_s=None)
    out = Path(options.out or time.strftime("runs/play-%Y%m%d-%H%M%S.jsonl"))
    if out.is_dir():
        raise ConfigError(f"--out {str(out)!r} is a folder; give a JSONL file")
    policy = HumanPolicy()
    episode = asyncio.run(
        run_episode(
            entry.make_env(task), task, policy, limits,
            seed=options.seed, env_id=entry.id, provenance={"policy": "human"},
        )
    )  # fmt: skip
    with EpisodeWriter(out) as writer:
        writer.write(episode)
    print("\n".join(_outcome(episode, policy.left)))
    print(f"recorded in {out}; look at it with: llmgym view {out}")
    return 0


def _task(tasks: list[Task], wanted: str) -> Task:
    by_id = [task for task in tasks if task.id == wanted]
    if by_id:
        return by_id[0]
    if wanted.isdecimal() and int(wanted) < len(tasks):
        return tasks[int(wanted)]
    raise TaskError(f"there is no task {wanted!r}; give a number from 0 to {len(tasks) - 1}, or a task's id")


def _outcome(episode: Episode, left: bool) -> list[str]:
    """How the episode ended, with the answer to the last turn, unless the player saw that and left."""
    answers = episode.turns[-1].observation if episode.turns and not left else []
    detail = f" ({episode.stop_detail})" if episode.stop_detail else ""
    stopped = episode.stop_detail if left else f"{episode.stop_reason}{detail}"
    lines = [*map(message_text, answers), "", f"reward {episode.reward:g}, stopped: {stopped}"]
    if episode.task.target is not None:
        lines.append(f"target: {json.dumps(episode.task.target)}")
    lines += [f"  {name}: {value}" for name, value in episode.metrics.items()]
    return [printable(line) for line in lines]
