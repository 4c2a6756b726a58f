"""Turns episodes into the data of the page: an index of all, conversations in packed chunks, tokens of some.

The index has one column per property and one entry per episode. A chunk is a list of conversations. Whatever a foreign
record holds in place of text becomes text here, so that the page need not check.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from llmgym.episode import Episode, StopReason, Turn, TurnTokens
from llmgym.viewer.sources import Source

MAX_TEXT_CHARS = 20_000
"""Longer texts are cut in the middle, with a note."""

_CHUNK_CHARS = 64 * 1024
_OF_ONE_EPISODE = ("phase", "step", "attempt", "shaped_reward", "advantage", "trained")
_OF_ITS_TURNS = "turn_advantages"


@dataclass
class PageData:
    """The data of a page, packed: each text is the base64 of gzipped JSON.

    Attributes:
        index: Everything except conversations and tokens.
        chunks: Conversations, by name.
        tokens: Tokens of one episode each, by name.
        num_episodes: Episodes in the index.
        num_conversations: Those whose conversation is included.
    """

    index: str
    chunks: dict[str, str]
    tokens: dict[str, str]
    num_episodes: int
    num_conversations: int


@dataclass
class _Group:
    """Episodes that are compared with each other: those of one task in one step."""

    members: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    has_tokens: bool = False

    @property
    def rewards_differ(self) -> bool:
        return max(self.rewards) > min(self.rewards)


class _Table:
    """Distinct values in order of appearance, and the number of each."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: Any, key: str | None = None) -> int:
        key = _json(value) if key is None else key
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]


def collect(source: Source, token_episodes: int, max_chars: int, token_texts: Any = None) -> PageData:
    """Read all episodes of a source.

    Args:
        source: What to read.
        token_episodes: The largest number of episodes to show token by token: whole groups, evenly over the run, those
            whose rewards differ before others.
        max_chars: The largest size of the data. Conversations beyond it are left out, evenly over the run; the index
            is always complete.
        token_texts: Function from token ids to the text of each; None shows ids.
    """
    tasks, phases, shared = _Table(), _Table(), _Table()
    columns: dict[str, list[Any]] = defaultdict(list)
    groups: dict[tuple[Any, ...], _Group] = {}
    group_numbers: dict[tuple[Any, ...], int] = {}
    seen: Counter[tuple[Any, ...]] = Counter()
    chunks = _Chunks()
    for number, episode in source.episodes():
        given = episode.provenance
        phase, step = given.get("phase"), given.get("step")
        names = (phase, step, episode.task.id)
        attempt = (*names, episode.episode_index, given.get("attempt"))
        group_key = (*names, seen[attempt])  # a task may be drawn twice in one step
        seen[attempt] += 1
        group = groups.setdefault(group_key, _Group())
        group.members.append(number)
        group.rewards.append(episode.reward)
        group.has_tokens |= any(turn.tokens is not None for turn in episode.turns)
        row = {
            "task": tasks.number(_task(episode), episode.task.id),
            "phase": phases.number(_cut(str(phase), 40) if phase is not None else ""),
            "step": _counted(step, phase),
            "group": group_numbers.setdefault(group_key, len(group_numbers)),
            "episode_index": episode.episode_index,
            "attempt": given.get("attempt"),
            "reward": episode.reward,
            "shaped_reward": given.get("shaped_reward"),
            "advantage": given.get("advantage"),
            "trained": given.get("trained"),
            "stop": list(StopReason).index(episode.stop_reason),
            "turns": len(episode.turns),
            "tool_calls": episode.num_tool_calls,
            "tool_errors": episode.num_tool_errors,
            "sampled_tokens": episode.num_sampled_tokens,
            "policy_s": round(sum(turn.policy_s for turn in episode.turns), 6),
            "env_s": round(episode.env_s, 6),
            "answer": _cut(_answer(episode), 120),
            "chunk": chunks.add(_body(episode, shared)),
        }
        for name, value in row.items():
            columns[name].append(value)
    packed = chunks.pack()
    columns["tokens"] = [0] * len(columns["task"])
    tokens, used_ids = _tokens(source, _choose(list(groups.values()), token_episodes), max_chars // 3)
    for name in tokens:
        columns["tokens"][int(name)] = 1
    index = {
        "name": source.name,
        "kind": source.kind,
        "metrics": source.metrics,
        "report": source.report,
        "settings": source.settings,
        "stops": list(StopReason),
        "phases": phases.values,
        "tasks": tasks.values,
        "shared": shared.values,
        "columns": {name: values for name, values in columns.items() if any(value is not None for value in values)},
        "vocabulary": [] if token_texts is None else list(zip(used_ids, token_texts(used_ids), strict=True)),
    }
    index_text = pack(_json(index))
    kept = _thin(packed, max_chars - len(index_text) - sum(map(len, tokens.values())))
    held = Counter(columns["chunk"])
    return PageData(index_text, kept, tokens, len(columns["task"]), sum(held[int(name)] for name in kept))


def pack(text: str) -> str:
    """Base64 of gzipped JSON text. A lone surrogate, which UTF-8 cannot hold, becomes its JSON escape."""
    return base64.b64encode(gzip.compress(text.encode("utf-8", "backslashreplace"), mtime=0)).decode()


class _Chunks:
    """Packs conversations in the order they are added, about 64 thousand characters to a chunk."""

    def __init__(self) -> None:
        self._packed: dict[str, str] = {}
        self._open: list[str] = []
        self._chars = 0

    def add(self, body: dict[str, Any]) -> int:
        """Add a conversation at the end of the last chunk and return the number of that chunk."""
        if self._chars > _CHUNK_CHARS:
            self._seal()
        self._open.append(_json(body))
        self._chars += len(self._open[-1])
        return len(self._packed)

    def pack(self) -> dict[str, str]:
        self._seal()
        return self._packed

    def _seal(self) -> None:
        if self._open:
            self._packed[str(len(self._packed))] = pack(f"[{','.join(self._open)}]")
        self._open, self._chars = [], 0


def _thin(packed: dict[str, str], max_chars: int) -> dict[str, str]:
    """Leave out as many as needed, evenly, to stay below ``max_chars``."""
    names = list(packed)
    sizes = [len(packed[name]) for name in names]
    count = len(names)
    while count and sum(sizes[place] for place in evenly_spaced(len(names), count)) > max_chars:
        count = min(count - 1, int(count * 0.98))
    return {names[place]: packed[names[place]] for place in evenly_spaced(len(names), count)}


def evenly_spaced(length: int, count: int) -> list[int]:
    """``count`` indices of a list of ``length``, including the first and the last; all of them when there are fewer."""
    if count >= length:
        return list(range(length))
    if count < 2:
        return [length - 1][:count]
    return [round(place * (length - 1) / (count - 1)) for place in range(count)]


def _choose(groups: Sequence[_Group], episodes: int) -> set[int]:
    """The episodes to show token by token."""
    chosen: set[int] = set()
    for differ in (True, False):  # groups that trained something come first, the others fill the rest
        candidates = [group for group in groups if group.has_tokens and group.rewards_differ is differ]
        if candidates:
            size = sum(len(group.members) for group in candidates) / len(candidates)
            for place in evenly_spaced(len(candidates), int((episodes - len(chosen)) / size)):
                chosen |= set(candidates[place].members)
    return chosen


def _tokens(source: Source, chosen: set[int], max_chars: int) -> tuple[dict[str, str], list[int]]:
    packed: dict[str, str] = {}
    used: set[int] = set()
    chars = 0
    last = max(chosen, default=-1)
    for number, episode in source.episodes():
        if number > last or chars >= max_chars:
            break
        if number in chosen:
            turns = [None if turn.tokens is None else _turn_tokens(turn.tokens) for turn in episode.turns]
            for turn in turns:
                used |= {*turn["context_ids"], *turn["completion_ids"]} if turn else set()
            packed[str(number)] = pack(_json(turns))
            chars += len(packed[str(number)])
    return packed, sorted(used)


def _turn_tokens(tokens: TurnTokens) -> dict[str, Any]:
    return {
        "context_ids": [int(id) for id in tokens.context_ids],
        "completion_ids": [int(id) for id in tokens.completion_ids],
        "logprobs": [round(float(logprob), 4) for logprob in tokens.logprobs],
        "extends": bool(tokens.extends),
        "finish_reason": _cut(str(tokens.finish_reason), 40),
        "policy_version": tokens.policy_version,
    }


def _counted(step: Any, phase: Any) -> int | None:
    """A step as ``metrics.jsonl`` counts it.

    An episode is recorded with the number of updates before it, the metrics of its step with the number after it; a
    validation makes no update.
    """
    return step + str(phase).startswith("train") if isinstance(step, int) else None


def _task(episode: Episode) -> dict[str, Any]:
    task = episode.task
    return {
        "id": _cut(task.id, 200),
        "prompt": _cut(task.prompt, 2_000),
        "target": None if task.target is None else _cut(_readable(task.target), 2_000),
        "metadata": _cut(_readable(task.metadata), 4_000) if task.metadata else None,
    }


def _answer(episode: Episode) -> str:
    """The content of the last turn, or its text when that could not be parsed."""
    if not episode.turns:
        return episode.stop_detail
    last = episode.turns[-1]
    if last.message is None:
        return _string(last.raw_text)
    return _string(last.message.get("content"))


def _body(episode: Episode, shared: _Table) -> dict[str, Any]:
    """The conversation, under the names of the record. What many episodes share is a number in ``shared``."""
    advantages = episode.provenance.get(_OF_ITS_TURNS)
    if not isinstance(advantages, list):
        advantages = []
    common = {
        name: value for name, value in episode.provenance.items() if name not in (*_OF_ONE_EPISODE, _OF_ITS_TURNS)
    }
    return {
        "initial_messages": _messages(episode.initial_messages, Turn()),
        "turns": [
            _turn(turn, advantage) for turn, advantage in zip_longest(episode.turns, advantages[: len(episode.turns)])
        ],
        "metrics": {_cut(name, 200): _string(value) for name, value in episode.metrics.items()},
        "stop_detail": _cut(_string(episode.stop_detail)),
        "close_error": None if episode.close_error is None else _cut(_string(episode.close_error)),
        "seed": str(episode.seed),
        "reset_s": round(episode.reset_s, 6),
        "env_id": _cut(_string(episode.env_id), 200),
        "tool_specs": shared.number(_cut(_readable(episode.tool_specs))),
        "limits": shared.number(_readable(vars(episode.limits))),
        "provenance": shared.number(_cut(_readable(common))),
    }


def _turn(turn: Turn, advantage: Any) -> dict[str, Any]:
    usage = turn.usage
    return {
        "message": None if turn.message is None else _message(turn.message),
        "observation": _messages(turn.observation, turn),
        "reward": turn.reward,
        "advantage": advantage if isinstance(advantage, float) and math.isfinite(advantage) else None,
        "failure": None if turn.failure is None else _cut(_string(turn.failure)),
        "raw_text": None if turn.raw_text is None else _cut(_string(turn.raw_text)),
        "history_edited": bool(turn.history_edited),
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "completion_tokens": usage.completion_tokens if usage else None,
        "policy_s": round(turn.policy_s, 6),
        "env_s": round(turn.env_s, 6),
    }


def _messages(messages: Iterable[Any], turn: Turn) -> list[dict[str, Any]]:
    """Messages from the environment; those that report a failed tool call have an ``error``."""
    shown: list[Any] = [_message(message) for message in messages]
    return [{**one, "error": error} if (error := turn.error_type(one)) else one for one in shown]


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        return {"role": "", "content": _cut(_string(message))}
    shown: dict[str, Any] = {"role": _cut(_string(message.get("role")), 40)}
    for name in ("content", "reasoning_content", "tool_call_id", "name"):
        if message.get(name) is not None:
            shown[name] = _cut(_string(message[name]))
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        shown["tool_calls"] = [_call(call) for call in calls]
    return shown


def _call(call: Any) -> dict[str, str]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return {"id": "", "name": "", "arguments": _cut(_string(call))}
    return {
        "id": _cut(_string(call.get("id"))),
        "name": _cut(_string(function.get("name"))),
        "arguments": _cut(_string(function.get("arguments"))),
    }


def _string(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)  # also nan and inf
    return value if isinstance(value, str) else "" if value is None else _json(value)


def _readable(value: Any) -> str:
    return value if isinstance(value, str) else _json(value, indent=1)


def _cut(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    if len(text) <= limit:
        return text
    if limit < 1_000:
        return text[:limit] + "…"
    head, tail = limit * 3 // 4, limit // 4
    return f"{text[:head]}\n[… {len(text) - head - tail:,} characters left out …]\n{text[-tail:]}"


def _json(value: Any, indent: int | None = None) -> str:
    """JSON as browsers read it: NaN and Infinity become text."""
    separators = (",", ":") if indent is None else (",", ": ")
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=separators, indent=indent)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, separators=separators, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
