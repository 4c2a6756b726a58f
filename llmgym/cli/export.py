"""``llmgym export``: episodes as rows for supervised fine-tuning (SFT)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from llmgym._util.files import whole_file
from llmgym.cli.options import CommandParser
from llmgym.episode import Episode, StopReason
from llmgym.errors import ConfigError
from llmgym.evaluation.folder import EPISODES_FILE
from llmgym.messages import with_object_arguments
from llmgym.records import iter_episodes

ArgumentForm = Literal["object", "string"]


def main(argv: Sequence[str]) -> int:
    """Run ``llmgym export`` and return its exit status. Raises what :func:`export_rows` does."""
    parser = CommandParser(
        prog="llmgym export",
        description="Write the episodes of a run as rows of `messages` and `tools`, one JSON object a line, for an SFT "
        "trainer. Only episodes that their environment ended are written.",
    )
    parser.add_argument("run", help="folder of an evaluation or of a training run (its training episodes), or a JSONL")
    parser.add_argument("--out", required=True, metavar="JSONL", help="file to write")
    parser.add_argument("--min-reward", type=float, metavar="X", help="leave out episodes with a smaller reward")
    parser.add_argument("--best-per-task", action="store_true", help="only the best episode of each task")
    parser.add_argument(
        "--arguments",
        choices=("object", "string"),
        default="object",
        help="how the arguments of a tool call are written: as an object, which chat templates want (default), or as "
        "JSON text, which OpenAI's fine-tuning wants",
    )
    options = parser.parse_args(argv)
    counts = export_rows(
        options.run,
        options.out,
        min_reward=options.min_reward,
        best_per_task=options.best_per_task,
        arguments=options.arguments,
    )
    print(
        f"{counts.written} of {counts.episodes} episodes written to {options.out}; left out: {counts.unfinished} that "
        f"their environment did not end, {counts.low} of low reward, {counts.not_best} not the best of their task"
    )
    return 0


@dataclass
class ExportCounts:
    """What became of the episodes.

    Attributes:
        episodes: All there are.
        written: Rows written.
        unfinished: Left out because their environment did not end them.
        low: Left out for their reward.
        not_best: Left out because another episode of the task is better.
    """

    episodes: int = 0
    written: int = 0
    unfinished: int = 0
    low: int = 0
    not_best: int = 0


def export_rows(
    run: str | Path,
    out: str | Path,
    *,
    min_reward: float | None = None,
    best_per_task: bool = False,
    arguments: ArgumentForm = "object",
) -> ExportCounts:
    """Write episodes as JSON lines with ``messages`` and ``tools``.

    An episode stopped from outside is left out, whatever its reward: its last message may be cut, or is missing. So
    only those that ended with TERMINATED or ENV are written.

    Args:
        run: Folder of an evaluation; folder of a training run, of which the training episodes are taken and those of
            its validation are not; or a JSONL file of episodes.
        out: The file; it must not exist. It is written whole or not at all.
        min_reward: Leave out episodes with a smaller reward.
        best_per_task: Take one episode of each task: that of the highest reward, of those the one with the fewest
            turns, of those the first.
        arguments: Tool-call arguments as ``"object"``, as chat templates want them, or as JSON text (``"string"``).

    Raises:
        ConfigError: There are no episodes, no row is left, ``out`` exists or has no folder, or ``min_reward`` is NaN.
        RecordError: A line is no episode.
    """
    out = Path(out)
    if out.exists():
        raise ConfigError(f"{str(out)!r} exists; give another --out, or remove it")
    if min_reward is not None and math.isnan(min_reward):
        raise ConfigError(f"min_reward must be a number (--min-reward), got {min_reward}")
    counts = ExportCounts()
    chosen = choose_episodes(run, counts, min_reward=min_reward, best_per_task=best_per_task)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder of {str(out)!r} ({error}); give another --out") from error
    with whole_file(out) as file:
        for episode in chosen:
            line = json.dumps(to_row(episode, arguments), ensure_ascii=False) + "\n"
            file.write(line.encode("utf-8", "replace"))  # UTF-8 has no lone surrogates
            counts.written += 1
        if not counts.written:
            raise ConfigError(
                f"no episode of {str(run)!r} is left: of {counts.episodes}, {counts.unfinished} were not ended by "
                f"their environment and {counts.low} have a reward below {min_reward}"
            )
    return counts


def choose_episodes(
    run: str | Path, counts: ExportCounts, *, min_reward: float | None = None, best_per_task: bool = False
) -> Iterator[Episode]:
    """Read the episodes worth imitating and count the others. Arguments and errors are those of :func:`export_rows`."""
    chosen = _chosen(_episode_files(Path(run)), counts, min_reward)
    return iter(best_of_tasks(chosen, counts)) if best_per_task else chosen


def best_of_tasks(episodes: Iterable[Episode], counts: ExportCounts) -> list[Episode]:
    """One episode of each task: that of the highest reward, of those the one with the fewest turns, then the first."""
    best: dict[str, Episode] = {}
    for episode in episodes:
        other = best.setdefault(episode.task.id, episode)
        if other is episode:
            continue
        counts.not_best += 1
        if (episode.reward, -len(episode.turns)) > (other.reward, -len(other.turns)):
            best[episode.task.id] = episode
    return list(best.values())


def to_row(episode: Episode, arguments: ArgumentForm = "object") -> dict[str, Any]:
    """The conversation of an episode, as its environment last gave it, and the tools that were offered.

    Malformed turns that were corrected are left out with their corrections: they should not be learnt.
    """
    well_formed = dataclasses.replace(episode, turns=[turn for turn in episode.turns if not turn.corrected])
    to_json = with_object_arguments if arguments == "object" else dict
    messages = [to_json(message) for message in well_formed.messages]
    return {"messages": messages, "tools": episode.tool_specs}


def _episode_files(run: Path) -> list[Path]:
    if run.is_file():
        return [run]
    if (run / EPISODES_FILE).is_file():
        return [run / EPISODES_FILE]
    found = sorted((run / "episodes").glob("train-*.jsonl"))
    if not found:
        raise ConfigError(
            f"{str(run)!r} holds no episodes: give the folder of an evaluation or of a training run, or a JSONL file"
        )
    return found


def _chosen(files: list[Path], counts: ExportCounts, min_reward: float | None) -> Iterator[Episode]:
    for file in files:
        for episode in iter_episodes(file, skip_cut_line=True):
            counts.episodes += 1
            if episode.stop_reason not in (StopReason.TERMINATED, StopReason.ENV):
                counts.unfinished += 1
            elif min_reward is not None and episode.reward < min_reward:
                counts.low += 1
            else:
                yield episode
