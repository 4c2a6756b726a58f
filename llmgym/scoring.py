"""A cache, time limit and retries around a slow scorer, such as an LLM judge."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import numbers
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from llmgym._util.settings import check_value
from llmgym.errors import ConfigError, LLMGymError


class ScorerError(LLMGymError):
    """A scorer gave no usable score. Raised in ``score`` or ``step`` it makes the episode an ERROR, to be retried."""


class CachedScorer:
    """Wraps an async function that gives a score, for use in :meth:`llmgym.ToolEnv.score`. Share one among episodes.

    The same question is asked once, also when several episodes ask at the same time. Answers are cached, in a file too
    if one is named, so that a resumed or repeated run gets the same scores from a judge that is not deterministic.
    Failures are not cached.

    Args:
        score: Gives a finite number for JSON-like arguments: ``async def judge(question: str, answer: str) -> float``.
        timeout_s: Seconds one try may take.
        retries: Further tries after a failed one.
        fallback: The score where all tries failed; None raises :class:`ScorerError` instead.
        cache_path: JSONL file of earlier answers, read now and appended to. None: memory only. It belongs to one
            question: another judge, or another prompt for it, needs another file.

    Attributes:
        asked: Questions put to ``score``, tries not counted twice.
        reused: Calls answered without a question of their own.
        failed: Questions of which all tries failed.

    Raises:
        ConfigError: A number is out of range, or ``cache_path`` holds something else.
    """

    def __init__(
        self,
        score: Callable[..., Awaitable[float]],
        *,
        timeout_s: float = 60.0,
        retries: int = 1,
        fallback: float | None = None,
        cache_path: str | Path | None = None,
    ) -> None:
        check_value("timeout_s", timeout_s, float, above=0)
        check_value("retries", retries, int, least=0)
        self._score, self._timeout_s, self._retries, self._fallback = score, timeout_s, retries, fallback
        self._path = Path(cache_path) if cache_path is not None else None
        self._known = _read(self._path) if self._path is not None and self._path.exists() else {}
        self._running: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[float]] = {}
        self.asked = self.reused = self.failed = 0

    async def __call__(self, *arguments: Any) -> float:
        """The score of ``arguments``.

        Raises:
            ScorerError: All tries failed and there is no fallback.
        """
        key = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()
        if key in self._known:
            self.reused += 1
            return self._known[key]
        place = (asyncio.get_running_loop(), key)
        task = self._running.get(place)
        if task is None:
            task = self._running[place] = asyncio.create_task(self._ask(key, arguments))
            task.add_done_callback(lambda done: self._forget(place, done))
        else:
            self.reused += 1
        try:
            return await asyncio.shield(task)  # an episode that ends early takes the answer from no other
        except ScorerError:
            if self._fallback is None:
                raise
            return self._fallback

    async def _ask(self, key: str, arguments: tuple[Any, ...]) -> float:
        self.asked += 1
        why = ""
        for _ in range(self._retries + 1):
            try:
                async with asyncio.timeout(self._timeout_s):
                    score = await self._score(*arguments)
            except TimeoutError:
                why = f"no answer within {self._timeout_s} s"
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a judge raises is one failed try
                why = f"{type(error).__name__}: {error}"
            else:
                if isinstance(score, numbers.Real) and math.isfinite(score):
                    self._remember(key, float(score))
                    return float(score)
                why = f"a score must be a finite number, got {score!r:.80}"
        self.failed += 1
        raise ScorerError(f"the scorer failed {self._retries + 1} times; the last time: {why}")

    def _forget(self, place: tuple[asyncio.AbstractEventLoop, str], done: asyncio.Task[float]) -> None:
        self._running.pop(place, None)
        if not done.cancelled():
            done.exception()  # whoever waits has it too; without this asyncio warns when nobody waits any more

    def _remember(self, key: str, score: float) -> None:
        self._known[key] = score
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "score": score}) + "\n")


def _read(path: Path) -> dict[str, float]:
    """The answers in a cache file. A last line that a crash cut short is removed from it."""
    whole, end, cut = path.read_text(encoding="utf-8").rpartition("\n")
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
        answers = {line["key"]: float(line["score"]) for line in lines}
        if cut:
            path.write_text(whole + end, encoding="utf-8")
        return answers
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{str(path)!r} is no cache of scores ({error}); name another cache_path") from error
