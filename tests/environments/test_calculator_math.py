"""CalculatorMath-v0 as a policy meets it, and its tasks. What cheating earns is in ``test_number_answer``."""

import asyncio
import hashlib
import json
import random
import re
from collections import Counter
from fractions import Fraction

import pytest
from suite import play_all

import llmgym
from llmgym import Policy, StopReason, Task
from llmgym.errors import TaskError
from llmgym_environments.calculator_math import CalculatorMathEnv, CalculatorMathExpert, generate_tasks


def play(*messages, task):
    return asyncio.run(llmgym.run_episode(CalculatorMathEnv(), task, llmgym.ScriptedPolicy(messages)))


def calculate(expression):
    arguments = json.dumps({"expression": expression})
    function = {"name": "calculator", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}


def test_an_episode():
    episode = play(calculate("(12+34"), calculate("(12+34)*5"), "230", task=Task("What is (12 + 34) * 5?", 230))
    assert [(message["role"], message["content"]) for message in episode.messages] == [
        ("system", "Use the calculator. Then reply with only the number."),
        ("user", "What is (12 + 34) * 5?"),
        ("assistant", ""),
        ("tool", "tool_error: the expression ends too early; use numbers and + - * / // % ** ( )"),
        ("assistant", ""),
        ("tool", "230"),
        ("assistant", "230"),
    ]
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.TERMINATED)
    assert episode.metrics == {
        "turns": 3,
        "tool_calls": 2,
        "tool_errors": 1,
        "calls_calculator": 2,
        "calculated": True,
        "answered": True,
    }


@pytest.mark.parametrize(
    ("answer", "target", "reward"),
    [
        ("2.5", 2.5, 1.0),
        ("2.50", 2.5, 1.0),
        ("2.5", "2.5", 1.0),
        ("5/2", 2.5, 0.0),
        ("2.5000001", 2.5, 0.0),
        ("0.1", 0.1, 1.0),
        ("about 2.5", 2.5, 0.0),
        ("2 2.5", 2.5, 0.0),
    ],
)
def test_answers_are_compared_as_numbers(answer, target, reward):
    assert play(answer, task=Task("?", target)).reward == reward


def test_a_target_that_is_no_number_is_refused():
    with pytest.raises(TaskError, match="must be a number, such as 42 or '42', got 'many'"):
        asyncio.run(CalculatorMathEnv().reset(Task("?", "many")))


def test_the_expert_solves_1000_tasks():
    async def run():
        tasks = generate_tasks("test", level="all", count=1000)
        return [await llmgym.run_episode(CalculatorMathEnv(), task, CalculatorMathExpert()) for task in tasks]

    episodes = asyncio.run(run())
    assert [(episode.reward, episode.metrics["turns"]) for episode in episodes] == [(1.0, 2)] * 1000


class RandomCalculator(Policy):
    """Calculates with the numbers of the question, in any order and with any operators, and answers the result."""

    rng = random.Random(0)

    async def act(self, messages, tool_specs):
        if messages[-1]["role"] == "tool":
            return messages[-1]["content"]
        first, *rest = self.rng.sample(found := re.findall(r"\d+", messages[-1]["content"]), len(found))
        return calculate(first + "".join(f" {self.rng.choice('+-*/')} {number}" for number in rest))


@pytest.mark.parametrize(("level", "score"), [(1, 0.21), (2, 0.03), (3, 0.0)])
def test_what_a_random_policy_earns(level, score):
    episodes = play_all(CalculatorMathEnv, RandomCalculator, generate_tasks("train", level=level, count=1000), width=1)
    assert sum(episode.reward for episode in episodes) / 1000 == pytest.approx(score, abs=0.03)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_targets_are_exact_and_spread(level):
    tasks = generate_tasks("train", level=level, count=2000)
    for task in tasks:
        exact = re.sub(r"\d+", r"Fraction(\g<0>)", task.metadata["expression"])
        assert Fraction(str(task.target)) == eval(exact)  # noqa: S307 - our own text, in a test
        assert task.prompt == f"What is {task.metadata['expression']}?"
    assert Counter(task.target for task in tasks).most_common(1)[0][1] / 2000 <= 0.02


def test_levels_have_the_promised_shape():
    shapes = {
        1: r"\d{1,2} [-+*] \d{1,2}",
        2: r"\(\d{1,2} [-+*] \d{1,2}\) [-+*] \d{1,2}|\d{1,2} [-+*] \(\d{1,2} [-+*] \d{1,2}\)",
        3: r"\(\d{1,3} [-+] \d{1,3}\) \* \(\d{1,3} [-+] \d{1,3}\) / (2|4|5|8|10)",
    }
    for level, shape in shapes.items():
        for task in generate_tasks("val", level=level):
            assert re.fullmatch(shape, task.metadata["expression"])


def test_the_first_thousand_tasks_never_change():
    tasks = [task.to_json() for task in generate_tasks("train", level="all", count=1000)]
    assert tasks[0]["prompt"] == "What is 71 * 17?"
    assert tasks[0]["target"] == 1207
    digest = hashlib.sha256(json.dumps(tasks).encode()).hexdigest()
    assert digest == "8437dd1a0b4d4de89942901931f853ac2985a359b886c0f30d5110331558bd9f"


def test_splits_share_no_expression():
    found = {
        split: {task.prompt for seed in (0, 1) for task in generate_tasks(split, level="all", count=1200, seed=seed)}
        for split in ("train", "val", "test")
    }
    assert not found["train"] & found["val"]
    assert not found["train"] & found["test"]
    assert not found["val"] & found["test"]


@pytest.mark.slow
def test_tasks_come_once_and_level_1_comes_whole():
    by_split = {
        split: {task.metadata["expression"] for task in generate_tasks(split, count=count)}
        for split, count in {"train": 22_135, "val": 3667, "test": 3601}.items()
    }
    assert [len(found) for found in by_split.values()] == [22_135, 3667, 3601]
    every = {f"{a} {operator} {b}" for a in range(1, 100) for b in range(1, 100) for operator in "+-*"}
    assert set.union(*by_split.values()) == every
    for level in (2, 3):
        assert len({task.prompt for task in generate_tasks(level=level, count=12_000)}) == 12_000


def test_more_tasks_than_there_are_is_an_error():
    with pytest.raises(TaskError, match="CalculatorMath-v0, split 'test', level 1: there are 3601 different tasks"):
        generate_tasks("test", count=3602)
    with pytest.raises(TaskError, match="level 1: there are 3601 different tasks, and more are asked for; lower count"):
        generate_tasks("test", level="all", count=3 * 3601 + 1)
