"""The episode loop: it runs an environment and a policy against each other, enforces limits and writes the record.

Each turn, in this order: ``policy.act`` → normalise → check for a malformed call → ``env.step`` → check for the end of
the episode (terminated, truncated, ``max_turns``). With ``parse_retries`` the loop itself answers a malformed turn,
with a user message that says what is wrong. The environment never sees these two messages; the policy sees them until
the environment rewrites its history. Nothing that an environment or a policy raises leaves this module: it becomes the
episode's stop reason. Cancellation passes through, and ``close`` always runs.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import numbers
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

from llmgym._util.seeding import derive_seed
from llmgym._util.versions import provenance as software_provenance
from llmgym.env import Env, StepResult
from llmgym.episode import Episode, EpisodeLimits, StopReason, Turn
from llmgym.errors import EnvContractError, MessageError
from llmgym.messages import (
    Message,
    MessageCopies,
    copy_message,
    malformed_reason,
    normalize_message,
    normalize_messages,
    unreadable_message,
)
from llmgym.policy import Policy, PolicyTurn
from llmgym.task import Task

T = TypeVar("T")

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 30.0
CORRECTION = "Your last message could not be read: {}. Nothing was done. Write it once more, in the right format."


async def run_episode(
    env: Env | Callable[[Task], Env],
    task: Task,
    policy: Policy,
    limits: EpisodeLimits | None = None,
    *,
    seed: int = 0,
    episode_index: int = 0,
    env_id: str = "",
    provenance: dict[str, Any] | None = None,
) -> Episode:
    """Run one whole episode and return its record.

    Args:
        env: A fresh environment, or a function of the task that makes one; it is always closed at the end.
        task: The task. The environment gets a copy.
        policy: The policy that acts; it is always closed at the end, too.
        limits: Limits on turns, tokens and time; None takes the defaults.
        seed: The run seed. ``env.rng`` is seeded from it, the task's id and ``episode_index``.
        episode_index: Index of this episode among those of the same task.
        env_id: Recorded in the episode.
        provenance: Recorded in the episode, beside the versions of Python, packages and environment.

    Returns:
        The episode. Its reward is the final step's when the environment ended it,
        ``limits.failed_parse_reward`` after a parse failure, and 0 otherwise.
    """
    limits = limits or EpisodeLimits()
    episode = Episode(
        task=task,
        stop_reason=StopReason.ERROR,
        env_id=env_id,
        episode_index=episode_index,
        seed=seed,
        limits=limits,
        provenance={**software_provenance(), **(provenance or {})},
    )
    closings = [("policy", policy.close)]
    try:
        if not isinstance(env, Env) and callable(env):
            env = _made(env, task)
        closings.insert(0, ("environment", env.close))
        episode.env_id = env_id or f"{type(env).__module__}:{type(env).__qualname__}"
        episode.provenance = {**software_provenance(type(env)), **episode.provenance}
        await _play(env, policy, limits, episode)
    except _Stop as stop:
        episode.stop_reason, episode.stop_detail = stop.reason, stop.detail
        episode.failed, episode.error_type = stop.failed, stop.error_type
    finally:
        errors: list[str] = []
        for name, closing in closings:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await closing()
            except BaseException as error:
                if _ends_more_than_the_episode(error):
                    raise
                errors.append(f"{name}.close: {_describe(error)}")
                logger.debug("close failed", exc_info=True)
        episode.close_error = "; ".join(errors) or None
    if episode.stop_reason is StopReason.PARSE_FAILURE:
        episode.reward = limits.failed_parse_reward
    return episode


class _Stop(Exception):
    """Ends :func:`_play` with a stop reason; an ERROR says who failed, and with what."""

    def __init__(
        self,
        reason: StopReason,
        detail: str = "",
        failed: Literal["environment", "policy"] | None = None,
        error_type: str | None = None,
    ) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail, self.failed, self.error_type = reason, detail, failed, error_type


def _failure(who: Literal["environment", "policy"], where: str, error: BaseException) -> _Stop:
    return _Stop(StopReason.ERROR, f"{where} {_describe(error)}", who, type(error).__name__)


def make_env(env_factory: Callable[[Task], Env], task: Task) -> Env:
    """Make the environment of a task. Raises what the factory raises, and TypeError when it returns something else."""
    env = env_factory(task)
    if not isinstance(env, Env):
        raise TypeError(f"it returned {env!r:.80}, which is no llmgym.Env")
    return env


def _made(env_factory: Callable[[Task], Env], task: Task) -> Env:
    try:
        return make_env(env_factory, task)
    except (Exception, SystemExit) as error:
        raise _failure("environment", "env_factory raised", error) from error


class _EnvClock:
    """Runs environment calls within one shared time budget."""

    def __init__(self, budget_s: float | None) -> None:
        self._budget_s = budget_s
        self._left_s = budget_s

    async def run(self, call: Awaitable[T], name: str) -> tuple[T, float]:
        start = time.perf_counter()
        timeout = _Stop(StopReason.TIMEOUT, f"{name} exceeded env_timeout_s={self._budget_s} of the episode")
        try:
            async with asyncio.timeout(None if self._left_s is None else max(self._left_s, 0.0)) as deadline:
                result = await call
        except BaseException as error:
            if _ends_more_than_the_episode(error):
                raise
            if isinstance(error, TimeoutError) and deadline.expired():
                raise timeout from None
            raise _failure("environment", f"{name} raised", error) from error
        seconds = time.perf_counter() - start
        if self._left_s is not None:
            self._left_s -= seconds
            if self._left_s < 0:  # a call that never awaits cannot be cut, only noticed afterwards
                raise timeout
        return result, seconds


def _cancelled_from_outside(error: BaseException) -> bool:
    """Tell the cancellation of this episode from a CancelledError that the environment or the engine raised itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _ends_more_than_the_episode(error: BaseException) -> bool:
    """What an environment must not swallow. Not SystemExit: a library that exits ends its episode, not the run."""
    return isinstance(error, (KeyboardInterrupt, GeneratorExit)) or _cancelled_from_outside(error)


async def _play(env: Env, policy: Policy, limits: EpisodeLimits, episode: Episode) -> None:
    env.rng = random.Random(derive_seed(episode.seed, episode.task.id, episode.episode_index))
    clock = _EnvClock(limits.env_timeout_s)
    opening, episode.reset_s = await clock.run(env.reset(copy.deepcopy(episode.task)), "reset")
    try:
        history = normalize_messages(opening)
        tool_specs = copy.deepcopy(list(env.tool_specs))
        json.dumps(tool_specs)  # must be JSON, to be sent and recorded
        episode.tool_specs = tool_specs
    except Exception as error:
        raise _failure("environment", "after reset:", error) from error
    episode.initial_messages = list(history)
    shown = list(history)  # the environment's history, and corrections where the policy got one
    copies = MessageCopies()
    await _run_policy(policy.start(episode.task), limits, "start")

    while True:
        start = time.perf_counter()
        acted = await _run_policy(policy.act(copies.of(shown), copy.deepcopy(episode.tool_specs)), limits, "act")
        turn, stop = _read(acted, len(episode.turns))
        turn.policy_s = time.perf_counter() - start
        if stop is not None and _may_retry(stop, limits, episode):
            turn.failure = stop.detail or stop.reason
            turn.raw_text = _text(turn)
            turn.message = unreadable_message(turn.raw_text)
            turn.observation = [{"role": "user", "content": CORRECTION.format(turn.failure)}]
            episode.turns.append(turn)
            shown += [turn.message, *turn.observation]
            continue
        if any(part is not None for part in (turn.message, turn.tokens, turn.usage, turn.raw_text)):
            episode.turns.append(turn)
        if stop is not None:
            turn.failure = stop.detail or stop.reason
            raise stop
        message = turn.message
        assert message is not None  # _read gives a message or a stop

        result, turn.env_s = await clock.run(env.step(copy_message(message)), "step")
        try:
            check_step_result(result)
            after = normalize_messages(result.messages, [*history, message])
        except Exception as error:
            raise _failure("environment", "after step:", error) from error
        if after[: len(history) + 1] == [*history, message]:
            turn.observation = after[len(history) + 1 :]
            shown += after[len(history) :]
        else:
            turn.history_edited = True
            turn.observation = after
            shown = list(after)
        history = after
        turn.reward, turn.tool_errors = float(result.reward), dict(result.tool_errors)
        if result.terminated or result.truncated:
            episode.reward, episode.metrics = turn.reward, dict(result.metrics)
            episode.stop_reason = StopReason.TERMINATED if result.terminated else StopReason.ENV
            return
        if len(episode.turns) >= limits.max_turns:
            raise _Stop(StopReason.MAX_TURNS, f"{limits.max_turns} assistant turns ran")


def _may_retry(stop: _Stop, limits: EpisodeLimits, episode: Episode) -> bool:
    corrected = sum(turn.corrected for turn in episode.turns)
    another_turn = len(episode.turns) + 1 < limits.max_turns
    return stop.reason is StopReason.PARSE_FAILURE and another_turn and corrected < limits.parse_retries


def _text(turn: Turn) -> str:
    """The text of a malformed turn, with its calls where it has some."""
    if turn.raw_text is not None or turn.message is None:
        return turn.raw_text or ""
    calls = [json.dumps(call["function"]) for call in turn.message.get("tool_calls", [])]
    return "\n".join(part for part in (turn.message["content"], *calls) if part)


async def _run_policy(call: Awaitable[T], limits: EpisodeLimits, name: str) -> T:
    try:
        async with asyncio.timeout(limits.policy_timeout_s) as deadline:
            return await call
    except (Exception, asyncio.CancelledError) as error:
        if _cancelled_from_outside(error):
            raise
        if isinstance(error, TimeoutError) and deadline.expired():
            detail = f"policy.{name} exceeded policy_timeout_s={limits.policy_timeout_s}"
            raise _Stop(StopReason.ERROR, detail, "policy", "timeout") from None
        raise _failure("policy", f"policy.{name} raised", error) from error


def _read(acted: PolicyTurn | Message | str, turn_index: int) -> tuple[Turn, _Stop | None]:
    """Normalise what a policy returned and check it for malformed calls."""
    if not isinstance(acted, PolicyTurn):
        acted = PolicyTurn(message=acted)  # type: ignore[arg-type]  # a string is normalised below
    turn = Turn(raw_text=acted.raw_text, tokens=acted.tokens, usage=acted.usage)
    if acted.message is not None:
        try:
            turn.message = normalize_message(acted.message, role="assistant", call_id_prefix=f"call_{turn_index}_")
        except MessageError as error:
            return turn, _Stop(StopReason.PARSE_FAILURE, str(error))
    if acted.stop is not None:
        return turn, _Stop(acted.stop, acted.detail, "policy" if acted.stop is StopReason.ERROR else None)
    if turn.message is None:
        return turn, _Stop(StopReason.ERROR, "policy.act returned neither a message nor a stop reason", "policy")
    reason = malformed_reason(turn.message)
    return turn, _Stop(StopReason.PARSE_FAILURE, reason) if reason else None


def check_step_result(result: Any) -> None:
    """Raise :class:`EnvContractError` when ``result`` is not what :meth:`Env.step` must return."""
    if not isinstance(result, StepResult):
        raise EnvContractError(f"step must return a StepResult, got {type(result).__name__} {result!r:.80}")
    if not isinstance(result.reward, numbers.Real) or not math.isfinite(result.reward):
        raise EnvContractError(f"StepResult.reward must be a finite number, got {result.reward!r:.80}")
    for name, value in result.metrics.items():
        if not isinstance(name, str) or not isinstance(value, (bool, int, float, str)):
            raise EnvContractError(
                f"StepResult.metrics holds {name!r}: {value!r:.80}; use numbers, booleans or strings"
            )
    for call_id, kind in result.tool_errors.items():
        if not isinstance(call_id, str) or not isinstance(kind, str):
            raise EnvContractError(
                f"StepResult.tool_errors maps call ids to error types, got {call_id!r}: {kind!r:.80}"
            )


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
