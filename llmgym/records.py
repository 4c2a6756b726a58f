"""Episodes as JSON lines, and their replay.

One line is one episode: ``format_version`` and every field of :class:`~llmgym.Episode`, nothing left out. Each line
is flushed as it is written, so a crash costs at most the line it interrupts.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import logging
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from llmgym._util.text import first_difference
from llmgym.env import Env
from llmgym.episode import Episode, StopReason
from llmgym.errors import LLMGymError, RecordError, did_you_mean
from llmgym.messages import Message, ToolSpec
from llmgym.policy import Policy, PolicyTurn
from llmgym.rollout import run_episode
from llmgym.task import Task

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1

# Written as \uXXXX: characters that some reader takes for the end of a line, and surrogates, which UTF-8 cannot
# hold. The second of two adjacent surrogates stays raw: two escapes in a row would be read back as one character.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udbff]|(?<![\ud800-\udbff])[\udc00-\udfff]")


def episode_to_json(episode: Episode) -> str:
    """Return the episode as one line of JSON, without the line's end.

    Floats keep all their digits; what is not finite is written as Python's ``NaN`` and ``Infinity``. A tuple
    becomes a list.

    Raises:
        RecordError: A field holds a value that JSON cannot express.
    """
    try:
        text = json.dumps({"format_version": FORMAT_VERSION, **dataclasses.asdict(episode)}, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"the episode of task {episode.task.id!r} cannot be written as JSON: {error}") from error
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def episode_from_json(line: str) -> Episode:
    """Read :func:`episode_to_json` back. A field that an older version did not write gets its default.

    Raises:
        RecordError: No JSON, another format version, or an unknown, missing or malformed field, which is named.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise RecordError(f"an episode is a JSON object, got {value!r:.80}")
    version = value.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise RecordError(f"format_version is {version!r}; this version of llmgym reads {FORMAT_VERSION}")
    episode: Episode = _build(Episode, value, "episode")
    return episode


class EpisodeWriter:
    """Appends episodes to a JSONL file, one flushed line each. Also a context manager.

    A last line that a crash cut short is removed first, with a warning: appending to it would spoil the next one.

    Args:
        path: The file; it and its folder are made when they are missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab+")
        self._repair()

    def write(self, episode: Episode) -> None:
        """Append one episode. Raises :class:`RecordError` when it holds what JSON cannot express."""
        self._file.write((episode_to_json(episode) + "\n").encode("utf-8", "surrogatepass"))
        self._file.flush()

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._file.close()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _repair(self) -> None:
        self._file.seek(0)
        end = 0
        for line in self._file:
            if line.endswith(b"\n"):
                end += len(line)
            elif _is_whole(line):
                self._file.write(b"\n")
            else:
                self._file.truncate(end)
                logger.warning("%s: removed a last line that was cut short (%d bytes)", self.path, len(line))


def write_episodes(path: str | Path, episodes: Iterable[Episode]) -> None:
    """Append ``episodes`` to a JSONL file. See :class:`EpisodeWriter`."""
    with EpisodeWriter(path) as writer:
        for episode in episodes:
            writer.write(episode)


def iter_episodes(path: str | Path, *, skip_cut_line: bool = False) -> Iterator[Episode]:
    """Yield the episodes of a JSONL file one by one.

    Args:
        path: The file.
        skip_cut_line: Leave out a last line that a crash cut short, instead of raising.

    Raises:
        RecordError: There is no such file, or a line is no episode; the text names file and line.
    """
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"there is no episode file {str(path)!r}")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            if not line.endswith(b"\n") and not _is_whole(line):
                if skip_cut_line:
                    return
                raise RecordError(
                    f"{path}:{number}: the last line was cut short, as by a crash while it was written; "
                    "the lines before it are whole: read them with skip_cut_line=True"
                )
            try:
                yield episode_from_json(line.decode("utf-8", "surrogatepass"))
            except ValueError as error:  # also what is no UTF-8
                raise RecordError(f"{path}:{number}: {error}") from error


def read_episodes(path: str | Path, *, skip_cut_line: bool = False) -> list[Episode]:
    """Read all episodes of a JSONL file. Arguments and errors are those of :func:`iter_episodes`."""
    return list(iter_episodes(path, skip_cut_line=skip_cut_line))


class ReplayPolicy(Policy):
    """Plays the assistant turns of a recorded episode, and ends it as its policy did.

    Past the recorded turns it raises, so that the replay of an episode whose environment failed, and now does
    not, ends there.
    """

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._next = 0

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> PolicyTurn:
        episode = self._episode
        stop = episode.stop_reason
        given = stop if stop in (StopReason.CONTEXT_OVERFLOW, StopReason.PARSE_FAILURE) else None
        if self._next == len(episode.turns):
            if given is None:
                raise RecordError(f"the record has no further turn; it stopped there as {stop}: {episode.stop_detail}")
            return PolicyTurn(stop=given, detail=episode.stop_detail)
        turn = copy.deepcopy(episode.turns[self._next])
        self._next += 1
        if turn.corrected:
            return PolicyTurn(
                stop=StopReason.PARSE_FAILURE,
                detail=turn.failure or "",
                raw_text=turn.raw_text,
                tokens=turn.tokens,
                usage=turn.usage,
            )
        ended = turn.failure is not None
        return PolicyTurn(
            message=turn.message,
            stop=given if ended else None,
            detail=episode.stop_detail if ended else "",
            raw_text=turn.raw_text,
            tokens=turn.tokens,
            usage=turn.usage,
        )


async def replay(episode: Episode, env_factory: Callable[[Task], Env]) -> Episode:
    """Run the recorded assistant turns once more on a fresh environment.

    Task, seed, episode index and limits are the recorded ones, so ``env.rng`` gives the same numbers.

    Args:
        episode: The recorded episode; it is left as it is.
        env_factory: Builds a fresh environment for the task.

    Returns:
        The new episode. Compare the two with :func:`compare_replay`.
    """
    return await run_episode(
        env_factory(episode.task),
        episode.task,
        ReplayPolicy(episode),
        episode.limits,
        seed=episode.seed,
        episode_index=episode.episode_index,
        env_id=episode.env_id,
    )


def compare_replay(recorded: Episode, replayed: Episode) -> list[str]:
    """Say in which ways a replay differs from its record; an empty list means that it reproduces.

    Messages, tool results, tool specifications, rewards, stop reason and metrics are compared; times, tokens and
    provenance are not, and of an ERROR only whether environment or policy failed.
    """
    pairs: list[tuple[str, Any, Any]] = [
        ("initial_messages", recorded.initial_messages, replayed.initial_messages),
        ("tool_specs", recorded.tool_specs, replayed.tool_specs),
        ("number of turns", len(recorded.turns), len(replayed.turns)),
    ]
    for index, (old, new) in enumerate(zip(recorded.turns, replayed.turns, strict=False)):
        for name in ("message", "raw_text", "failure", "observation", "history_edited", "reward"):
            pairs.append((f"turn {index} {name}", getattr(old, name), getattr(new, name)))
    pairs += [
        ("stop_reason", recorded.stop_reason, replayed.stop_reason),
        ("who failed", recorded.failed, replayed.failed if recorded.failed else None),
        ("reward", recorded.reward, replayed.reward),
        ("metrics", recorded.metrics, replayed.metrics),
    ]
    texts = ((name, json.dumps(old, sort_keys=True), json.dumps(new, sort_keys=True)) for name, old, new in pairs)
    differences = ((name, *first_difference(old, new)) for name, old, new in texts if old != new)
    return [f"{name}: recorded {old}, replayed {new}" for name, old, new in differences]


def _is_whole(line: bytes) -> bool:
    """Whether a line without its end is JSON all the same, as when somebody edited the file."""
    try:
        json.loads(line.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return False
    return True


def _build(hint: Any, value: Any, where: str) -> Any:
    """Make the dataclasses and the enumeration that a type names; every other value stays as JSON gave it.

    pydantic would do the same, but refuses lone surrogates, which models do write.
    """
    if typing.get_origin(hint) in (list, dict) and not isinstance(value, typing.get_origin(hint)):
        raise RecordError(f"{where} must be a {typing.get_origin(hint).__name__}, got {value!r:.80}")
    parts = [part for part in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(part) or part is StopReason]
    if not parts or (value is None and types.NoneType in typing.get_args(hint)):
        return value
    make: Any = parts[0]
    if isinstance(value, list):
        return [_build(make, item, f"{where}[{index}]") for index, item in enumerate(value)]
    try:
        return make(value) if make is StopReason else make(**_fields(make, value, where))
    except RecordError:
        raise
    except (LLMGymError, ValueError) as error:
        raise RecordError(f"{where}: {error}") from error


def _fields(cls: Any, value: Any, where: str) -> dict[str, Any]:
    """The arguments of a dataclass."""
    if not isinstance(value, dict):
        raise RecordError(f"{where} must be a dict, got {value!r:.80}")
    hints = _hints(cls)
    for name in value:
        if name not in hints:
            raise RecordError(f"{where} has the unknown field {name!r}.{did_you_mean(name, hints)}")
    for field in dataclasses.fields(cls):
        if field.name not in value and field.default is field.default_factory:  # both are MISSING
            raise RecordError(f"{where} lacks the field {field.name!r}")
    return {name: _build(hints[name], item, f"{where}.{name}") for name, item in value.items()}


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)
