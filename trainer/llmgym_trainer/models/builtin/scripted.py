"""Supervised warm-up on scripted episodes. Knows episodes, rows and a training loop; no model family and no game.

An episode that is wrong on purpose replays the expert's with one mistake at a random turn: it answers too soon, writes a
call that cannot be read, or puts another word, number or sign into a call or the answer: the one that was written or seen
last. After the mistake it goes on with what it really sees. So each turn is right with a large probability and wrong in
a few definite ways with a small one, and reinforcement learning finds both to compare. (Mistakes spread over all words
and numbers do harm: they teach the model to look up and to copy vaguely, which it hardly unlearns.)
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PreTrainedModel

from llmgym import (
    Episode,
    EpisodeLimits,
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
from llmgym_trainer.algorithm.rows import Row, build_rows
from llmgym_trainer.engines.base import Sample, SamplingParams
from llmgym_trainer.finite import NonFiniteError, weights_are_finite
from llmgym_trainer.tokens.codec import Codec
from llmgym_trainer.tokens.policy import ModelPolicy

_PIECE = re.compile(r"\d+|[A-Za-z_]+|[-+*]")
_SIGNS = ("+", "-", "*")
_TOO_SOON_SHARE, _UNREADABLE_SHARE = 0.3, 0.1
_NO_LIMITS = EpisodeLimits(max_model_length=1_000_000)


def warm_up_key(recipe: Any, seed: int, *code: ModuleType) -> dict[str, Any]:
    """Everything a warmed-up model depends on, as a key of :func:`llmgym_trainer.models.builtin.cache.cached_model`.

    Args:
        recipe: A dataclass with ``env_id`` and ``flawed_share``.
        seed: See :func:`scripted_episodes`.
        code: Modules that build the model; a change in one of them, or in what the scripted episodes look like,
            makes it another model.
    """
    episodes = scripted_episodes(recipe.env_id, 8, flawed_share=recipe.flawed_share, seed=seed)
    seen = json.dumps([(episode.tool_specs, episode.messages) for episode in episodes], sort_keys=True)
    source = "".join(inspect.getsource(module) for module in (sys.modules[__name__], *code))
    return {"seed": seed, **asdict(recipe), "built_by": hashlib.sha256((seen + source).encode()).hexdigest()[:12]}


def scripted_episodes(env_id: str, count: int, *, flawed_share: float, seed: int) -> list[Episode]:
    """Play training tasks of an environment with its scripted expert, a part of them wrong on purpose.

    Args:
        env_id: An environment with tasks and an expert, see :func:`llmgym.registry.find`.
        count: Number of episodes. Tasks repeat when there are fewer.
        flawed_share: Share of the episodes, from 0 to 1, that holds a mistake. Which ones is drawn.
        seed: Determines tasks, episodes and mistakes.

    Raises:
        ConfigError: A share out of range, or the expert fails at a task.
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
    """The training tasks; more than there are by default where the environment can make them.

    A small model learns few tasks by heart instead of learning where to look.
    """
    tasks = entry.load_tasks("train")
    if len(tasks) >= count:
        return tasks
    try:
        return entry.load_tasks("train", count=count)
    except TaskError:  # a fixed list, or no option of this name
        return tasks


class FlawedReplay(Policy):
    """Replays a right episode with one mistake at a random turn, then goes on with what it really sees.

    Where no tools were called, what is seen are answers to a text, and what fits them only the expert knows: there the
    expert itself goes on.

    Args:
        right: An episode that ended by itself.
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
        """The expert's message of this turn, wrong at one turn and true to what was seen at all others."""
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


def encode_scripted(episode: Episode, codec: Codec) -> list[Row]:
    """Turn a scripted episode into training rows, as if a policy had sampled its assistant messages.

    The rollout's own policy holds and extends the tokens, so that nothing can differ from a rollout; only the engine is
    replaced, by one that returns the tokens of the scripted message.

    Args:
        episode: An episode with a message in each turn; ``turn.tokens`` is not read.
        codec: Of the model to train.

    Returns:
        Rows whose mask is 1 on the assistant messages, end-of-turn token included, but for malformed turns that were
        corrected. Their logprobs are 0.

    Raises:
        ConfigError: A turn has no message.
        CodecError: The chat template cannot express the episode.
    """

    async def encode() -> Episode:
        engine, history, turns = _Dictation(), list(episode.initial_messages), []
        policy = ModelPolicy(codec, engine, _NO_LIMITS, key="", rng=random.Random(0))
        for turn in episode.turns:
            if turn.message is None:
                raise ConfigError(f"a scripted episode of task {episode.task.id} has a turn without a message")
            engine.ids = codec.encode_turn(history, turn.message, episode.tool_specs)
            acted = await policy.act(history, episode.tool_specs)
            turns.append(replace(turn, tokens=acted.tokens))
            said = acted.message or turn.message  # the policy must find its own message in the history
            history = turn.observation if turn.history_edited else [*history, said, *turn.observation]
        return replace(episode, turns=turns)

    left_out = [number for number, turn in enumerate(episode.turns) if turn.corrected]
    return build_rows(run_sync(encode()), left_out=left_out)


def warm_up(
    model: PreTrainedModel,
    rows: Sequence[Row],
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    label: str = "warm-up",
) -> list[float]:
    """Train a model on rows with the cross-entropy of their masked-in tokens.

    Shows a progress bar; where the output is no terminal it prints a line at each tenth of the steps instead.

    AdamW without weight decay; the learning rate rises over the first twentieth of the steps and then falls linearly to
    a twentieth. Rows of similar length share a batch; each row is used once before any is used again.

    Args:
        model: What to train: its parameters that require gradients.
        rows: See :func:`encode_scripted`.
        steps: Optimizer steps.
        batch_size: Rows a step.
        learning_rate: The highest one.
        seed: Determines the order of the rows.
        label: Stands in front of the bar or line.

    Returns:
        The loss of each step, in nats a token.

    Raises:
        NonFiniteError: A loss, or the weights at the end, are NaN or infinite.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    rise = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, max(0.05, 1 - step / steps))
    )
    batches = _batches(rows, batch_size, random.Random(derive_seed("warm-up", seed)))
    losses: list[float] = []
    model.train()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    console = Console()
    has_bar = console.is_terminal or console.is_jupyter
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not has_bar) as progress:
        bar = progress.add_task(label, total=steps, note="")
        start = time.perf_counter()
        for step in range(steps):
            loss = _loss(model, next(batches))
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                raise _diverged(f"the loss of step {step + 1} of {steps} is {losses[-1]}", learning_rate)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            speed = (step + 1) / (time.perf_counter() - start)
            note = f"loss {losses[-1]:.3f}, {speed:.1f} steps/s"
            progress.update(bar, advance=1, note=note)
            if not has_bar and (step + 1) * 10 // steps > step * 10 // steps:
                print(f"{label}: step {step + 1}/{steps}, {note}", flush=True)
    if not weights_are_finite(model):
        raise _diverged(f"the weights after {steps} steps are NaN or infinite", learning_rate)
    model.eval()
    return losses


def _diverged(what: str, learning_rate: float) -> NonFiniteError:
    return NonFiniteError(f"{what}: learning_rate={learning_rate} is most likely too high; nothing was saved")


class _Dictation:
    """An engine that returns ``ids``, whatever the prompt."""

    ids: list[int]

    async def sample(self, prompt_ids: list[int], params: SamplingParams, key: str, rng: random.Random) -> Sample:
        return Sample(list(self.ids), [0.0] * len(self.ids), "stop", 0)

    def release(self, key: str) -> None: ...

    def abort(self, key: str) -> None: ...

    def sync(self, version: int) -> None: ...

    def close(self) -> None: ...


def _loss(model: PreTrainedModel, rows: Sequence[Row]) -> torch.Tensor:
    """Mean cross-entropy of the masked-in tokens. The head runs on these alone: it is the widest part."""
    length = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [0] * (length - len(row.ids)) for row in rows], device=model.device)
    mask = torch.tensor([row.mask + [0] * (length - len(row.mask)) for row in rows], device=model.device)[:, 1:].bool()
    # Padding stands behind the row, where causal attention never looks from a token that counts.
    hidden = model.get_decoder()(input_ids=ids, use_cache=False)[0][:, :-1]
    return F.cross_entropy(model.get_output_embeddings()(hidden[mask]).float(), ids[:, 1:][mask])


def _batches(rows: Sequence[Row], batch_size: int, rng: random.Random) -> Iterator[list[Row]]:
    """Endless batches, pass after pass: rows are shuffled, sorted by length within stretches, and cut."""
    while True:
        order = rng.sample(range(len(rows)), len(rows))
        stretch = 16 * batch_size
        for start in range(0, len(order), stretch):
            near = sorted(order[start : start + stretch], key=lambda index: len(rows[index].ids))
            batches = [near[first : first + batch_size] for first in range(0, len(near), batch_size)]
            rng.shuffle(batches)
            yield from ([rows[index] for index in batch] for batch in batches)


def _results(messages: Sequence[Message]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


def _texts(message: Message) -> list[str]:
    """What a policy decides freely in a message: texts and whole numbers among the arguments of its calls, else its
    content."""
    calls = message.get("tool_calls", [])
    values = [value for call in calls for value in json.loads(call["function"]["arguments"]).values()]
    return [str(value) for value in values if _is_free(value)] if calls else [message["content"]]


def _with_texts(message: Message, texts: Sequence[str]) -> Message:
    """The message with other texts in the places of :func:`_texts`."""
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
    """The text as a number where the old value is one and the text is one too: what was really seen may be none."""
    return int(text) if type(old) is int and re.fullmatch(r"-?\d+", text) else text


def _is_free(value: Any) -> bool:
    return type(value) in (str, int)


def _kind(piece: str) -> str:
    return "number" if piece.isdigit() else "sign" if piece in _SIGNS else "word"
