"""What holds for every environment that ships."""

import functools
import importlib
import math
import re

import pytest
from suite import SHIPPED

import llmgym
from llmgym.errors import TaskError
from llmgym.registry import find


@pytest.mark.parametrize("env_id", SHIPPED)
def test_the_page_has_the_sections_of_gymnasium_in_order(env_id):
    page = type(find(env_id).make_env(llmgym.tasks(env_id, count=1)[0])).__doc__
    assert re.findall(r"^ *## (.+)$", page, flags=re.MULTILINE) == [
        "Description",
        "Tools",
        "Observation",
        "Action",
        "Rewards",
        "Episode End",
        "Arguments",
        "Metrics",
        "Version History",
    ]


@pytest.mark.parametrize("env_id", SHIPPED)
def test_options_of_the_tasks(env_id):
    module, _, name = find(env_id).tasks.partition(":")
    generate_tasks = getattr(importlib.import_module(module), name)
    assert [len(llmgym.tasks(env_id, split)) for split in ("train", "val", "test")] == [2000, 200, 200]
    assert [len(generate_tasks(split)) for split in ("train", "val", "test")] == [2000, 200, 200]
    assert generate_tasks("val", level="2", count="5", seed="3") == generate_tasks("val", level=2, count=5, seed=3)
    assert generate_tasks(count=10, level="3") == generate_tasks(count=20, level=3)[:10]
    assert generate_tasks(count=10, seed=1) != generate_tasks(count=10)
    mixed = generate_tasks(level="all", count=6)
    assert [task.metadata["level"] for task in mixed] == [1, 2, 3, 1, 2, 3]
    assert mixed[2::3] == generate_tasks(level=3, count=2)
    assert llmgym.tasks(env_id, "test", level=3, count=2) == generate_tasks("test", level=3, count=2)
    for unknown in (4, 9):
        with pytest.raises(TaskError, match=f"unknown level {unknown}; allowed are 1, 2, 3 and 'all'"):
            generate_tasks(level=unknown)


@pytest.mark.parametrize("env_id", SHIPPED)
def test_options_that_are_refused_at_once(env_id):
    module, _, name = find(env_id).tasks.partition(":")
    generate_tasks = getattr(importlib.import_module(module), name)
    for value in (2.7, 2.0, math.inf, math.nan, True, False, "2.0", " 2", "1_0", "٢", "", "9" * 5000, [2], b"2"):
        for option in ("count", "seed"):
            with pytest.raises(TaskError) as caught:
                generate_tasks(**{option: value})
            assert str(caught.value) == f"{option} must be a whole number, such as 7 or '7', got {value!r:.80}"
    for value in (0, -1, "-1", 1_000_001, "1000001", 10**9):
        with pytest.raises(TaskError, match=f"^count must be from 1 to 1,000,000, got {value!r}$"):
            generate_tasks(count=value)
    for value in (None, ["val"], "Val", "all", 0):
        for ask in (generate_tasks, functools.partial(llmgym.tasks, env_id)):
            with pytest.raises(TaskError) as caught:
                ask(value)
            assert str(caught.value).startswith(f"unknown split {value!r}; allowed are train, val, test.")
    assert generate_tasks(count=1, seed="-3") == generate_tasks(count="+1", seed=-3)


@pytest.mark.parametrize("env_id", SHIPPED)
def test_no_task_of_a_split_comes_twice(env_id):
    for split in ("train", "val", "test"):
        for options in ({}, {"level": "all", "count": 600}):
            tasks = llmgym.tasks(env_id, split, **options)
            assert len({task.id for task in tasks}) == len(tasks)
