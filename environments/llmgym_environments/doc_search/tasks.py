"""The tasks of DocSearch-v0. A hash of the encyclopedia's number decides the split."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from llmgym import Task
from llmgym_environments.doc_search.encyclopedia import ENCYCLOPEDIAS, encyclopedia
from llmgym_environments.task_generation import TaskGenerator, draw, split_of

LEVELS = (1, 2, 3)


def encyclopedias_of(split: str) -> list[int]:
    """The numbers of the encyclopedias that belong to a split."""
    return [number for number in range(ENCYCLOPEDIAS) if split_of(f"DocSearch-v0 encyclopedia {number}") == split]


def _stream(rng: random.Random, split: str, level: int) -> Iterator[Task]:
    numbers = encyclopedias_of(split)
    while True:
        number = draw(rng, numbers, 1)[0]
        task = _task(rng, level, number, encyclopedia(number).facts)
        if task is not None:
            yield task


def _task(rng: random.Random, level: int, number: int, facts: Mapping[str, Mapping[str, str]]) -> Task | None:
    """A question of ``level`` steps from a title to the answer; None when the draw makes no good question."""
    start = draw(rng, list(facts), 1)[0]
    query = asked = start
    if level == 3:  # the first page is described, not named
        trade, birthplace = facts[start].get("trade"), facts[start].get("birthplace")
        same = [one for one in facts.values() if (one.get("trade"), one.get("birthplace")) == (trade, birthplace)]
        if trade is None or len(same) > 1:
            return None
        query, asked = f"{trade} born in {birthplace}", f"the {trade} born in {birthplace}"
    path, answer = [start], start
    for step in range(level):
        if step:
            path.append(answer)
        here = facts[path[-1]]
        relation = draw(rng, [name for name in here if step + 1 == level or here[name] in facts], 1)[0]
        answer, asked = here[relation], f"the {relation} of {asked}"
    if answer in asked or answer in path or len(set(path)) < level:
        return None  # the answer stands in the question, or the path is circular
    return Task(f"Find {asked}.", answer, {"level": level, "encyclopedia": number, "path": path, "query": query})


generate_tasks = TaskGenerator("DocSearch-v0", LEVELS, _stream)
"""Tasks with a text as ``target`` and this ``metadata``: ``level``; ``encyclopedia``, its number; ``path``, the titles
of the pages that support the answer, in the order in which they have to be found; ``query``, a search that finds the
first."""
