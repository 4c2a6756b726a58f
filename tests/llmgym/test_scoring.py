import asyncio

import pytest

from llmgym import CachedScorer, ScriptedPolicy, StopReason, Task, ToolEnv, run_episode
from llmgym.errors import ConfigError
from llmgym.scoring import ScorerError


class Judge:
    """Scores with the length of the answer. Each entry of ``faults`` is raised (or, None, hangs) first."""

    def __init__(self, *faults, gate=None):
        self.faults, self.gate, self.calls = list(faults), gate, []

    async def __call__(self, question, answer):
        self.calls.append((question, answer))
        if self.gate is not None:
            await self.gate.wait()
        if self.faults:
            fault = self.faults.pop(0)
            if fault is None:
                await asyncio.Event().wait()
            raise fault
        return len(answer)


def counts(scorer):
    return scorer.asked, scorer.reused, scorer.failed


def test_a_question_is_asked_once():
    judge = Judge()
    scorer = CachedScorer(judge)

    async def run():
        return [await scorer(*question) for question in (("a", "xy"), ("a", "xy"), ("b", "xy"), ("a", "x"))]

    assert asyncio.run(run()) == [2, 2, 2, 1]
    assert judge.calls == [("a", "xy"), ("b", "xy"), ("a", "x")]
    assert counts(scorer) == (3, 1, 0)
    assert asyncio.run(scorer("a", "xy")) == 2  # another event loop
    assert len(judge.calls) == 3


def test_those_who_ask_at_the_same_time_share_one_question():
    async def run():
        judge = Judge(gate=asyncio.Event())
        scorer = CachedScorer(judge)
        asking = [asyncio.create_task(scorer("a", "xy")) for _ in range(3)]
        await asyncio.sleep(0)
        asking[0].cancel()  # its episode has ended; the others still get their answer
        await asyncio.sleep(0)
        judge.gate.set()
        assert await asyncio.gather(*asking[1:]) == [2, 2]
        assert asking[0].cancelled()
        assert (len(judge.calls), counts(scorer)) == (1, (1, 2, 0))

    asyncio.run(run())


def test_a_failed_try_is_repeated():
    judge = Judge(OSError("busy"), None)
    scorer = CachedScorer(judge, timeout_s=0.05, retries=2)
    assert asyncio.run(scorer("a", "xyz")) == 3
    assert (len(judge.calls), counts(scorer)) == (3, (1, 0, 0))


def test_all_tries_failed():
    scorer = CachedScorer(Judge(OSError("busy"), None), timeout_s=0.05)
    with pytest.raises(ScorerError, match=r"failed 2 times; the last time: no answer within 0\.05 s"):
        asyncio.run(scorer("a", "xyz"))
    assert counts(scorer) == (1, 0, 1)
    assert asyncio.run(scorer("a", "xyz")) == 3  # a failure is not remembered


def test_a_fallback_is_not_remembered():
    scorer = CachedScorer(Judge(OSError("busy")), retries=0, fallback=0.5)
    assert asyncio.run(scorer("a", "xyz")) == 0.5
    assert asyncio.run(scorer("a", "xyz")) == 3


@pytest.mark.parametrize("score", [float("nan"), "7", None])
def test_a_score_is_a_finite_number(score):
    async def judge():
        return score

    with pytest.raises(ScorerError, match="finite number"):
        asyncio.run(CachedScorer(judge, retries=0)())


def test_answers_survive_in_a_file(tmp_path):
    path = tmp_path / "cache" / "judge.jsonl"
    asyncio.run(CachedScorer(Judge(), cache_path=path)("a", "xy"))
    with path.open("a") as file:
        file.write('{"key": "cut')  # by a crash
    again = Judge()
    scorer = CachedScorer(again, cache_path=path)
    assert asyncio.run(scorer("a", "xy")) == 2
    assert again.calls == []
    asyncio.run(scorer("b", "x"))
    third = CachedScorer(again, cache_path=path)
    assert asyncio.run(third("b", "x")) == 1
    assert (len(path.read_text().splitlines()), len(again.calls)) == (2, 1)


def test_mistakes(tmp_path):
    (tmp_path / "other.jsonl").write_text('{"prompt": "hi"}\n')
    for settings, text in (
        ({"timeout_s": 0}, "timeout_s must be a number above 0, got 0"),
        ({"retries": -1}, "retries must be a whole number of at least 0, got -1"),
        ({"cache_path": tmp_path / "other.jsonl"}, "is no cache of scores"),
    ):
        with pytest.raises(ConfigError, match=text):
            CachedScorer(Judge(), **settings)


def test_in_an_environment():
    class Judged(ToolEnv):
        scorer = CachedScorer(Judge(OSError("down"), OSError("down")), retries=0)

        async def score(self, message):
            return {"judge": await self.scorer(self.task.prompt, message["content"])}

    def play():
        return asyncio.run(run_episode(Judged(), Task("q"), ScriptedPolicy(["four"])))

    failed = play()
    assert failed.stop_reason is StopReason.ERROR
    assert "the scorer failed 1 times; the last time: OSError: down" in failed.stop_detail
    play()
    good = play()
    assert (good.reward, good.metrics["reward/judge"]) == (4.0, 4.0)
