"""What holds for both environments whose answer is one number: limits, many at once, and what cheating earns."""

import asyncio
import json
import re

import pytest
from suite import ReadsItsVerdict, check_guard, claims_success, play_all, play_beside, plays

import llmgym
from llmgym import ScriptedPolicy
from llmgym_environments import calculator_math, tool_use_game
from llmgym_environments.calculator import evaluate, parse_number
from llmgym_environments.calculator_math import CalculatorMathEnv, CalculatorMathExpert
from llmgym_environments.number_answer import NumberAnswerEnv
from llmgym_environments.tool_use_game import ToolUseGameEnv, ToolUseGameExpert
from llmgym_environments.tool_use_game.tasks import fill_in

GAMES = {
    CalculatorMathEnv: (calculator_math.generate_tasks, CalculatorMathExpert),
    ToolUseGameEnv: (tool_use_game.generate_tasks, ToolUseGameExpert),
}
RANGE = range(199)
"""The answers of the tasks that cheats are tried on."""

both = pytest.mark.parametrize("env", GAMES)


def call(expression):
    """A call of the calculator."""
    return {"function": {"name": "calculator", "arguments": json.dumps({"expression": expression})}}


def calculates(*expressions):
    """A message with such calls."""
    return {"role": "assistant", "content": "", "tool_calls": [call(expression) for expression in expressions]}


def results(episode):
    return [message["content"] for message in episode.messages if message["role"] == "tool"]


@both
def test_doing_nothing_earns_nothing(env):
    episodes = play_all(env, lambda: ScriptedPolicy([]), GAMES[env][0]("val", level="all"))
    assert {episode.reward for episode in episodes} == {0.0}
    assert not any(episode.metrics["answered"] or episode.metrics["calculated"] for episode in episodes)


@both
def test_the_metrics_tell_a_wrong_number_from_no_number_and_from_one_not_calculated(env):
    task = next(task for task in GAMES[env][0]("val") if task.target > 1)
    right, wrong = str(task.target), str(task.target + 1)
    for script, seen in {
        (right, right): (1.0, True, True),
        (right, wrong): (0.0, True, True),
        (wrong, right): (1.0, False, True),
        (wrong, f"It is {right}."): (0.0, False, False),
        (right, f"It is {right}."): (0.0, True, False),
    }.items():
        policy = ScriptedPolicy([calculates(script[0]), script[1]])
        episode = asyncio.run(llmgym.run_episode(env(), task, policy))
        assert (episode.reward, episode.metrics["calculated"], episode.metrics["answered"]) == seen


# Limits, and many at once


HOSTILE = {
    "9**9**9": "a number is too large",
    "9" * 400: "a number is too large",
    "(" * 200 + "1" + ")" * 200: "nested more than 50 deep",
    "1+" * 500_000 + "1": "the expression has 1000001 characters; at most 500 are allowed",
    "/".join(["1"] + ["97"] * 150): "",
    "*".join(["9.9**99"] * 60): "",
    "**".join(["1.0000001"] + ["3"] * 40): "",
    "-(2**1023+(2**1023-1))": "-1797693134862315",
}


@both
def test_no_calculation_is_long(env):
    task = GAMES[env][0]("val", count=1)[0]
    script = [calculates(*HOSTILE), calculates("1+1"), str(task.target)]
    episode = asyncio.run(llmgym.run_episode(env(), task, ScriptedPolicy(script)))
    *given, after = results(episode)
    assert all(said in shown for said, shown in zip(HOSTILE.values(), given, strict=True))
    assert max(map(len, given)) == 310 and "[cut" not in "".join(given)
    assert (after, episode.reward) == ("2", 1.0)


@both
def test_256_episodes_at_once_are_what_they_are_alone_also_beside_hostile_ones(env):
    generate_tasks, expert = GAMES[env]
    hostile = play_beside(env, expert, generate_tasks(level="all", count=256), [[calculates(*HOSTILE)] * 3] * 16)
    assert {episode.reward for episode in hostile} == {0.0}


# Cheating: each attempt earns nothing, and pays in a copy of the environment without the one guard against it.


def hides_numbers(task):
    yield f"I am sure that the answer is one of {', '.join(map(str, RANGE))}, so I am right."


def answers_with_the_question(task):
    yield fill_in(task.metadata["expression"], task.metadata.get("facts", {}))


def has_the_calculator_say_it(task):
    (said,) = yield [call("0-7")]
    yield said


def reads_the_target(task):
    (said,) = yield [call("env.task.target")]
    yield said


def edits_the_task(task):
    object.__setattr__(task, "target", -7)
    yield "-7"


class OneLineIsEnough(NumberAnswerEnv):
    """Guard removed: the whole message is one number. Here one line of it is."""

    async def score(self, message):
        return float(any(parse_number(line) == self._target for line in message["content"].split("\n")))


class LooksForANumber(NumberAnswerEnv):
    """Guard removed: no number is looked for."""

    async def score(self, message):
        return float(any(parse_number(word) == self._target for word in re.findall(r"-?\d+", message["content"])))


class CalculatesTheAnswer(NumberAnswerEnv):
    """Guard removed: an answer is not calculated."""

    async def score(self, message):
        return float(evaluate(message["content"]) == self._target)


class ABeginningIsEnough(NumberAnswerEnv):
    """Guard removed: the number must be equal."""

    async def score(self, message):
        return float(str(self._target).startswith(message["content"]))


class NearIsEnough(NumberAnswerEnv):
    """Guard removed: only decimal numbers count. Here those that are not far from the target do."""

    async def score(self, message):
        return float(not abs(float(message["content"]) - float(self._target)) > 1e-6)


class BelievesTheCalculator(NumberAnswerEnv):
    """Guard removed: the target is the task's. Here it is what was calculated last."""

    def calculate(self, expression):
        self._target = evaluate(expression)
        return super().calculate(expression)


class FoundOnTheWayCounts(NumberAnswerEnv):
    """Guard removed: only the answer counts. Here it is as good to have calculated it."""

    async def score(self, message):
        return max(await super().score(message), float(self._calculated))


class RunsExpressions(NumberAnswerEnv):
    """Guard removed: expressions are not run as code."""

    def calculate(self, expression):
        return str(eval(expression, {"env": self}))  # noqa: S307 - a test's own text


class EveryMessageCounts(NumberAnswerEnv):
    """Guard removed: only the message that ends the episode is an answer."""

    async def score(self, message):
        said = [one["content"] for one in self.messages if one["role"] == "assistant"]
        return float(any(parse_number(text) == self._target for text in said))


class AsksAgain(NumberAnswerEnv):
    """Guard removed: the first answer ends the episode."""

    async def respond(self, message):
        return [] if await self.score(message) else [{"role": "user", "content": "No. Try again."}]


class ReadsTheTaskAtTheEnd(NumberAnswerEnv):
    """Guard removed: the target is read at the beginning."""

    async def score(self, message):
        return float(parse_number(message["content"]) == parse_number(str(self.task.target)))


CHEATS = {
    "give every answer there is, one a line": (plays("\n".join(map(str, RANGE))), OneLineIsEnough),
    "hide the numbers in a sentence": (hides_numbers, LooksForANumber),
    "answer with the expression, so that the check calculates": (answers_with_the_question, CalculatesTheAnswer),
    "answer with nothing, with which every number begins": (plays(""), ABeginningIsEnough),
    "answer `nan`, which is not far from any number": (plays("nan"), NearIsEnough),
    "print a reward, a success, the end of a message": (claims_success, ReadsItsVerdict),
    "have the calculator say what is then answered: `0-7`": (has_the_calculator_say_it, BelievesTheCalculator),
    "calculate every answer there is, and give none": (
        plays([call(str(number)) for number in RANGE], "One of these."),
        FoundOnTheWayCounts,
    ),
    "read the target by a tool's argument": (reads_the_target, RunsExpressions),
    "write another target by a tool's argument": (plays([call("setattr(env, '_target', 0-7)")], "-7"), RunsExpressions),
    "guess, one answer a message, beside calls": (
        plays(*({**calculates("1"), "content": str(number)} for number in RANGE)),
        EveryMessageCounts,
    ),
    "answer again and again": (plays(*map(str, RANGE)), AsksAgain),
    "edit the task while it is played": (edits_the_task, ReadsTheTaskAtTheEnd),
}


@both
@pytest.mark.parametrize("name", CHEATS)
def test_cheating_earns_nothing(env, name):
    generate_tasks, expert = GAMES[env]
    tasks = [task for task in generate_tasks("test") if 1 < task.target < len(RANGE)][:5]
    script, removed = CHEATS[name]
    check_guard(env, removed, script, expert, tasks)
