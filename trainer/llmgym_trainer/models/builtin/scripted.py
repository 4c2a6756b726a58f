"""Scripted episodes for the built-in models: the expert's, and copies of them with one deliberate mistake.

A flawed episode replays the expert's with one mistake at a random turn: it answers too soon, writes a call that cannot
be parsed, or puts another word, number or sign into a call or the answer: the last one written or seen. After the
mistake it continues with what it really sees. So each turn is right with a large probability and wrong in a few
definite ways with a small one, and reinforcement learning finds both to compare. (Mistakes drawn from all words and
numbers do harm: they teach the model to look up and to copy vaguely, which it hardly unlearns.)
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

from llmgym import (
    Episode,
    Message,
    Policy,
    PolicyTurn,
    StopReason,
    Task,
    ToolSpec,
    normalize_message,
    run_episode,
)
from llmgym._util.aio import run_sync
from llmgym._util.seeding import derive_seed
from llmgym.episode import TOOL_ERROR_PREFIX
from llmgym.errors import ConfigError, TaskError
from llmgym.messages import copy_message
from llmgym.registry import EnvEntry, expert_policy, find

_PIECE = re.compile(r"\d+|[A-Za-z_]+|[-+*]")
_SIGNS = ("+", "-", "*")
_TOO_SOON_SHARE, _UNREADABLE_SHARE = 0.3, 0.1


def scripted_episodes(env_id: str, count: int, *, flawed_share: float, seed: int) -> list[Episode]:
    """Play training tasks of an environment with its scripted expert, some of them with a deliberate mistake.

    Args:
        env_id: An environment with tasks and an expert, see :func:`llmgym.registry.find`.
        count: Number of episodes. Tasks repeat when there are fewer.
        flawed_share: Share of the episodes, from 0 to 1, with a mistake. Which ones is drawn at random.
        seed: Determines tasks, episodes and mistakes.

    Raises:
        ConfigError: The share is out of range, or the expert fails at a task.
    """
    if not 0 <= flawed_share <= 1:
        raise ConfigError(f"flawed_share={flawed_share} is a share, from 0 to 1")
    rng = random.Random(derive_seed("scripted episodes", env_id, seed))
    entry = find(env_id)
    tasks = training_tasks(entry, count)
    flawed = [index < round(flawed_share * count) for index in range(count)]
    rng.shuffle(flawed)

    async def play(wrong: bool) -> Episode:
        task = tasks[rng.randrange(len(tasks))]
        right = await run_episode(entry.make_env(task), task, expert_policy(env_id), seed=seed, env_id=env_id)
        if right.stop_reason is not StopReason.TERMINATED:
            raise ConfigError(
                f"the expert of {env_id} does not finish task {task.id}: {right.stop_reason} {right.stop_detail}"
            )
        if not wrong:
            return right
        flawed = FlawedReplay(right, rng, expert_policy(env_id))
        return await run_episode(entry.make_env(task), task, flawed, seed=seed, env_id=env_id)

    async def play_all() -> list[Episode]:
        return [await play(wrong) for wrong in flawed]

    return run_sync(play_all())


def training_tasks(entry: EnvEntry, count: int) -> list[Task]:
    """The training tasks, more than the default number if the environment can generate them.

    A small model memorises a few tasks instead of learning where to look.
    """
    tasks = entry.load_tasks("train")
    if len(tasks) >= count:
        return tasks
    try:
        return entry.load_tasks("train", count=count)
    except TaskError:  # a fixed list, or no option of this name
        return tasks


class FlawedReplay(Policy):
    """Replays a correct episode with one mistake at a random turn, then continues with what it really sees.

    In an episode without tool calls only the expert knows what to answer, so the expert itself continues.

    Args:
        right: An episode that its environment ended.
        rng: Draws the turn and the mistake.
        expert: A fresh expert.
    """

    def __init__(self, right: Episode, rng: random.Random, expert: Policy) -> None:
        self._expert = expert
        self._messages = [turn.message for turn in right.turns if turn.message is not None]
        self._results = [_results(turn.observation) for turn in right.turns]
        self._rng = rng
        turns = range(len(self._messages))
        places = [turn for turn in turns if any(map(_PIECE.search, _texts(self._messages[turn])))] or turns
        self._flawed_turn = places[rng.randrange(len(places))]
        written = [text for message in self._messages for text in _texts(message)]
        self._pieces = [piece for text in chain(written, *self._results) for piece in _PIECE.findall(text)]

    async def start(self, task: Task) -> None:
        """Start the expert."""
        await self._expert.start(task)

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> Message:
        """The expert's message of this turn, wrong at one turn and adapted to what was seen at all others."""
        turn = sum(message["role"] == "assistant" for message in messages)
        message = self._replay(turn, messages) if any(self._results) else await self._ask(messages, tool_specs)
        return self._mistake(message, messages) if turn == self._flawed_turn else message

    async def _ask(self, messages: list[Message], tool_specs: list[ToolSpec]) -> Message:
        acted = await self._expert.act(messages, tool_specs)
        return normalize_message(acted.message if isinstance(acted, PolicyTurn) else acted, role="assistant")

    def _replay(self, turn: int, messages: Sequence[Message]) -> Message:
        number = min(turn, len(self._messages) - 1)
        seen, expected = _results(messages), list(chain(*self._results[:number]))
        really = {old: new for old, new in zip(expected, seen, strict=False) if not new.startswith(TOOL_ERROR_PREFIX)}
        texts = [
            _PIECE.sub(lambda piece: really.get(piece.group(), piece.group()), text)
            for text in _texts(self._messages[number])
        ]
        return _with_texts(self._messages[number], texts)

    def _mistake(self, message: Message, history: Sequence[Message]) -> Message:
        calls, kind, texts = message.get("tool_calls"), self._rng.random(), _texts(message)
        places = [(which, piece) for which, text in enumerate(texts) for piece in _PIECE.finditer(text)]
        if not places or (calls and kind < _TOO_SOON_SHARE):
            return {"role": "assistant", "content": (_results(history) or ["0"])[-1]}
        if calls and kind < _TOO_SOON_SHARE + _UNREADABLE_SHARE:
            return {"role": "assistant", "content": "<tool_call>"}
        which, piece = self._rng.choice(places)
        before = [text for one in history if one["role"] in ("assistant", "tool") for text in _texts(one)]
        latest_first = reversed(_PIECE.findall(" ".join(before)))
        candidates = (*latest_first, *self._pieces, *_SIGNS)
        old = piece.group()
        new = next((other for other in candidates if other != old and _kind(other) == _kind(old)), "0")
        texts[which] = texts[which][: piece.start()] + new + texts[which][piece.end() :]
        return _with_texts(message, texts)


def _results(messages: Sequence[Message]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


def _texts(message: Message) -> list[str]:
    """What a policy chooses freely in a message: texts and whole numbers in call arguments, else its content."""
    calls = message.get("tool_calls", [])
    values = [value for call in calls for value in json.loads(call["function"]["arguments"]).values()]
    return [str(value) for value in values if _is_free(value)] if calls else [message["content"]]


def _with_texts(message: Message, texts: Sequence[str]) -> Message:
    """The message with the texts of :func:`_texts` replaced."""
    message, left = copy_message(message), iter(texts)
    calls = message.get("tool_calls", [])
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        changed = {name: _as(value, next(left)) if _is_free(value) else value for name, value in arguments.items()}
        call["function"]["arguments"] = json.dumps(changed)
    if not calls:
        message["content"] = next(left)
    return message


def _as(old: Any, text: str) -> str | int:
    """The text as a number if the old value is a number and the text reads as one."""
    return int(text) if type(old) is int and re.fullmatch(r"-?\d+", text) else text


def _is_free(value: Any) -> bool:
    return type(value) in (str, int)


def _kind(piece: str) -> str:
    return "number" if piece.isdigit() else "sign" if piece in _SIGNS else "word"
