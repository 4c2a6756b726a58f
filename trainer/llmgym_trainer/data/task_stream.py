"""Which task comes next: the training tasks in shuffled epochs, from one environment or a mixture of several."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmgym._util.seeding import derive_seed
from llmgym.env import Env
from llmgym.errors import ConfigError
from llmgym.registry import env_factory as as_env_factory
from llmgym.task import Task, check_unique_ids


class TaskStream:
    """The training tasks without end: ``stream[position]`` is the task at a position.

    Each epoch holds every task once, in an order of its own. What a stream gives follows from its arguments alone, so a
    position is all that a resumed run has to know.

    Args:
        tasks: At least one.
        seed: Determines the order in each epoch.
        shuffle: False keeps the order of ``tasks`` in every epoch.
    """

    def __init__(self, tasks: Sequence[Task], *, seed: int, shuffle: bool = True) -> None:
        self._tasks = list(tasks)
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = -1
        self._order = list(range(len(self._tasks)))

    def __getitem__(self, position: int) -> Task:
        epoch, index = divmod(position, len(self._tasks))
        if self._shuffle and epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(len(self._tasks)))
            random.Random(derive_seed(self._seed, "task order", epoch)).shuffle(self._order)
        return self._tasks[self._order[index]]


@dataclass(frozen=True)
class TaskSource:
    """One environment of a mixture, or one stage of a curriculum.

    Attributes:
        name: Stands in the metrics (``by_env/<name>/reward``), in the records as ``env_id``, and in front of the ids of
            its tasks.
        tasks: Training tasks; they repeat when they are used up.
        env_factory: Builds a fresh environment for one episode of a task, or an :class:`llmgym.Env` subclass.
        weight: Its share of the tasks, relative to the weights of the other sources that are on.
        val_tasks: Held-out tasks.
        from_step: The first step it is on. Steps are counted as ``batch_size`` tasks given out, so tasks that replace
            groups without reward variance bring this forward.
        until_step: The first step it is on no longer; None for never.
    """

    name: str
    tasks: Sequence[Task]
    env_factory: Callable[[Task], Env] | type[Env]
    weight: float = 1.0
    val_tasks: Sequence[Task] = ()
    from_step: int = 0
    until_step: int | None = None

    def is_on(self, step: int) -> bool:
        """Whether tasks of a step may come from here."""
        return self.from_step <= step and (self.until_step is None or step < self.until_step)


class Mixture:
    """Task sources as one: their tasks under unique ids, and the way back from a task to its environment.

    Attributes:
        tasks: All training tasks; their ids are ``<name of the source>/<id>``.
        val_tasks: All held-out tasks, likewise.

    Args:
        sources: At least one.

    Raises:
        ConfigError: Two sources share a name, one has no tasks or a wrong weight, or at some step none is on.
        TaskError: Two different tasks of a source have one id.
    """

    def __init__(self, sources: Sequence[TaskSource]) -> None:
        _check(sources)
        self.sources = [
            dataclasses.replace(
                source, tasks=_prefixed(source.name, source.tasks), val_tasks=_prefixed(source.name, source.val_tasks)
            )
            for source in sources
        ]
        self.tasks = [task for source in self.sources for task in source.tasks]
        self.val_tasks = [task for source in self.sources for task in source.val_tasks]
        self._factories = {source.name: as_env_factory(source.env_factory) for source in sources}

    @property
    def shares(self) -> dict[str, list[float | None]]:
        """``[weight, from_step, until_step]`` of each source: with the tasks, all that their order follows from."""
        return {source.name: [source.weight, source.from_step, source.until_step] for source in self.sources}

    def source_of(self, task: Task) -> str:
        """The name of the source that a task comes from."""
        return task.id.partition("/")[0]

    def make_env(self, task: Task) -> Env:
        """A fresh environment for one episode of a task."""
        return self._factories[self.source_of(task)](task)

    def stream(self, *, seed: int, shuffle: bool, batch_size: int) -> MixtureStream:
        """The tasks of the sources for ever, in the proportion of their weights."""
        return MixtureStream(self.sources, seed=seed, shuffle=shuffle, batch_size=batch_size)


class MixtureStream:
    """A :class:`TaskStream` over several sources.

    Whose turn it is follows from the weights alone: each source that is on gains its share with every task given out,
    the one that has gained most comes next, and pays one. So every stretch of tasks has the proportion of the weights
    up to one task.

    Args:
        sources: Where tasks come from.
        seed: Determines the order of the tasks of each source.
        shuffle: Whether that order changes from epoch to epoch.
        batch_size: Tasks of a step.
    """

    def __init__(self, sources: Sequence[TaskSource], *, seed: int, shuffle: bool, batch_size: int) -> None:
        self._sources = list(sources)
        self._batch_size = batch_size
        self._streams = [
            TaskStream(source.tasks, seed=derive_seed(seed, source.name), shuffle=shuffle) for source in sources
        ]
        self._gained = [0.0 for _ in sources]
        self._given = [0 for _ in sources]
        self._places: list[tuple[int, int]] = []  # by position: which source, and the position in its own stream

    def __getitem__(self, position: int) -> Task:
        while len(self._places) <= position:
            self._places.append(self._next(len(self._places) // self._batch_size))
        source, index = self._places[position]
        return self._streams[source][index]

    def _next(self, step: int) -> tuple[int, int]:
        on = [number for number, source in enumerate(self._sources) if source.is_on(step)]
        total = sum(self._sources[number].weight for number in on)
        for number in on:
            self._gained[number] += self._sources[number].weight / total
        chosen = max(on, key=lambda number: self._gained[number])
        self._gained[chosen] -= 1
        self._given[chosen] += 1
        return chosen, self._given[chosen] - 1


def _check(sources: Sequence[TaskSource]) -> None:
    if not sources:
        raise ConfigError("a mixture needs at least one TaskSource")
    names = [source.name for source in sources]
    for source in sources:
        if not source.name or "/" in source.name:
            raise ConfigError(f"the name of a TaskSource must be a text without '/', got {source.name!r}")
        if names.count(source.name) > 1:
            raise ConfigError(f"two TaskSources have the name {source.name!r}; give each its own")
        if not source.tasks:
            raise ConfigError(f"TaskSource {source.name!r} has no tasks")
        if not 0 < source.weight < math.inf:
            raise ConfigError(f"TaskSource {source.name!r} has weight={source.weight}; it must be positive and finite")
        if source.from_step < 0 or (source.until_step is not None and source.until_step <= source.from_step):
            raise ConfigError(
                f"TaskSource {source.name!r} is on from_step={source.from_step} until_step={source.until_step}, which "
                "is never"
            )
        check_unique_ids([*source.tasks, *source.val_tasks])
    for step in (0, *(source.until_step for source in sources if source.until_step is not None)):
        if not any(source.is_on(step) for source in sources):
            raise ConfigError(f"no TaskSource is on at step {step}; lower a from_step, or raise an until_step")


def _prefixed(name: str, tasks: Sequence[Task]) -> list[Task]:
    return [dataclasses.replace(task, id=f"{name}/{task.id}") for task in tasks]
