"""The tasks of DocSearch-v0, generated from a seed. Knows facts and questions; knows neither tools nor messages.

An encyclopedia belongs to one split: a hash of its number says to which. So no fact that was met in training helps in
validation or test.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from llmgym import Task
from llmgym_environments.doc_search.encyclopedia import ENCYCLOPEDIAS, encyclopedia
from llmgym_environments.task_generation import draw, generate, split_of

LEVELS = (1, 2, 3)


def generate_tasks(
    split: str = "train", *, level: int | str = 1, count: int | str | None = None, seed: int | str = 0
) -> list[Task]:
    """Generate tasks. A smaller ``count`` gives the beginning of a larger one.

    Args:
        split: ``"train"``, ``"val"`` or ``"test"``. No encyclopedia is used in two of them.
        level: 1, 2 or 3 as in the environment's page, or ``"all"`` for the three in turn.
        count: Number of tasks; None for 2000 in train and 200 in val and test.
        seed: Another seed gives other tasks of the same split.

    Returns:
        Tasks with a text as ``target`` and this ``metadata``: ``level``; ``encyclopedia``, its number; ``path``, the
        titles of the pages that support the answer, in the order in which they have to be found; ``query``, a search
        that finds the first.

    Raises:
        TaskError: An unknown split or level, a count or seed that is no whole number, or more tasks than there are.
    """
    return generate("DocSearch-v0", _stream, LEVELS, split, level=level, count=count, seed=seed)


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
    """A question of ``level`` steps from a title to the answer; None when what was drawn makes no good one."""
    start = draw(rng, list(facts), 1)[0]
    query = asked = start
    if level == 3:  # the first page is not named but described
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
        return None  # it stands in the question, or the way goes in a circle
    return Task(f"Find {asked}.", answer, {"level": level, "encyclopedia": number, "path": path, "query": query})
