"""CalculatorMath-v0 as a policy meets it, and what every environment's page must hold."""

import asyncio
import hashlib
import json
import re
from collections import Counter
from fractions import Fraction

import pytest

import llmgym
from llmgym import StopReason, Task
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
    assert episode.metrics == {"turns": 3, "tool_calls": 2, "tool_errors": 1, "calls_calculator": 2}


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
    assert tasks[0]["prompt"] == "What is 71 * 81?"
    assert tasks[0]["target"] == 5751
    digest = hashlib.sha256(json.dumps(tasks).encode()).hexdigest()
    assert digest == "d5307c84b220ba8e09943070ee7b7b5858282d0e4d2eb76e598d1a8d4ac118bb"


def test_splits_share_no_expression():
    found = {
        split: {task.prompt for seed in (0, 1) for task in generate_tasks(split, level="all", count=1200, seed=seed)}
        for split in ("train", "val", "test")
    }
    assert not found["train"] & found["val"]
    assert not found["train"] & found["test"]
    assert not found["val"] & found["test"]
