"""The registered environments: a table of import strings, so that an environment is imported when it is used."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium

from llmgym.env import Env
from llmgym.errors import TaskError, UnknownEnvironmentError, did_you_mean
from llmgym.from_gymnasium import from_gym
from llmgym.policy import Policy
from llmgym.task import Task, check_unique_ids

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class EnvEntry:
    """One registered environment. Each field but ``id`` is the object itself or its ``"module:attribute"``.

    Attributes:
        id: Name and version, such as ``"ToolUseGame-v0"``.
        env: An :class:`Env` or ``gymnasium.Env`` subclass that needs no arguments, or a function ``task -> Env``.
        tasks: A list of tasks, a mapping from split to list, or a function ``(split, **options) -> list``.
        expert: A :class:`Policy` subclass that needs no arguments, or a function ``() -> Policy``.
    """

    id: str
    env: Any
    tasks: Any = None
    expert: Any = None

    def make_env(self, task: Task) -> Env:
        """Build a fresh environment for one episode of ``task``."""
        return env_factory(_load(self.env))(task)

    def load_tasks(self, split: str = "train", **options: Any) -> list[Task]:
        """Return the tasks of a split. Raises :class:`TaskError` when there are none, or no such split."""
        source = _load(self.tasks)
        if source is None:
            where = self.id.rpartition(":")[0]
            named = [f"{where}:{id}" for id, one in _ENTRIES.items() if where and one.env is self.env and one.tasks]
            raise TaskError(
                f"{self.id} has no tasks of its own; give some, such as --tasks tasks.jsonl"
                + (f", or write {named[0]}, which has" if named else "")
            )
        if callable(source):
            if split not in SPLITS:
                raise TaskError(
                    f"unknown split {split!r:.80}; allowed are {', '.join(SPLITS)}.{did_you_mean(str(split), SPLITS)}"
                )
            try:
                inspect.signature(source).bind(split, **options)
            except TypeError as error:
                allowed = list(inspect.signature(source).parameters)[1:]
                raise TaskError(
                    f"the tasks of {self.id} take no such options ({error}); allowed are "
                    f"{', '.join(allowed) or 'none'}.{did_you_mean(next(iter(options), ''), allowed)}"
                ) from error
            found = source(split, **options)
        else:
            if options:
                raise TaskError(f"the tasks of {self.id} take no options, got {', '.join(options)}")
            by_split: Mapping[str, Sequence[Task]] = source if isinstance(source, Mapping) else {"train": source}
            if split not in tuple(by_split):
                raise TaskError(
                    f"{self.id} has no split {split!r:.80}; it has "
                    f"{', '.join(by_split)}.{did_you_mean(str(split), by_split)}"
                )
            found = by_split[split]
        tasks = list(found)
        check_unique_ids(tasks)
        return tasks


_ENTRIES: dict[str, EnvEntry] = {}


def register(id: str, *, env: Any, tasks: Any = None, expert: Any = None) -> None:
    """Register an environment under an id, here and with Gymnasium.

    Afterwards ``gym.make(id)``, ``llmgym.tasks(id)`` and every llmgym command know it. Registering an id again
    replaces it.

    Args:
        id: Name and version, such as ``"MyGame-v0"``.
        env: See :class:`EnvEntry`; an import string ``"module:attribute"`` keeps the registration cheap.
        tasks: See :class:`EnvEntry`.
        expert: See :class:`EnvEntry`.
    """
    _ENTRIES[id] = EnvEntry(id, env, tasks, expert)
    gymnasium.registry.pop(id, None)
    gymnasium.register(
        id,
        entry_point="llmgym.gym.env:MessageEnv",
        vector_entry_point="llmgym.gym.vector:MessageVectorEnv",
        kwargs={"env_id": id},
        disable_env_checker=True,
    )


def registered_ids() -> list[str]:
    """All registered ids, sorted."""
    return sorted(_ENTRIES)


def find(reference: str) -> EnvEntry:
    """Resolve what a user may write for an environment.

    Args:
        reference: An id registered here or, over message lists, with Gymnasium alone; ``"module:Id-v0"``, which
            imports the module first, as in Gymnasium; ``"module:Class"``; or ``"path/to/file.py:Class"``.

    Raises:
        UnknownEnvironmentError: Nothing is found; the text names the nearest known id.
    """
    entry = _registered(reference)
    if entry is not None:
        return entry
    where, colon, name = reference.rpartition(":")
    if colon:
        module = _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
        entry = _registered(name)
        if entry is not None:
            return entry
        target = getattr(module, name, None)
        if callable(target):
            return EnvEntry(reference, target)
        bases = (Env, gymnasium.Env)
        classes = [
            key
            for key, value in vars(module).items()
            if inspect.isclass(value) and issubclass(value, bases) and not inspect.isabstract(value)
        ]
        raise UnknownEnvironmentError(
            f"{where} has no environment {name!r}; it defines "
            f"{', '.join(classes) or 'none'}.{did_you_mean(name, classes)}"
        )
    raise UnknownEnvironmentError(
        f"unknown environment {reference!r}; registered are {', '.join(registered_ids())}, or write "
        f"'my_env.py:MyEnv' or 'module:MyEnv'.{did_you_mean(reference, _ENTRIES)}"
    )


def tasks(id: str, split: str = "train", **options: Any) -> list[Task]:
    """The tasks of one split of an environment.

    Args:
        id: Anything :func:`find` resolves.
        split: ``"train"``, ``"val"`` or ``"test"``.
        options: Passed on to the environment's task function, such as ``level=2``.

    Raises:
        UnknownEnvironmentError: No such environment.
        TaskError: No such split, or no tasks.
    """
    return find(id).load_tasks(split, **options)


def expert_policy(id: str) -> Policy:
    """A fresh scripted expert of an environment, for one episode at a time.

    Raises:
        UnknownEnvironmentError: No such environment, or it has no expert.
    """
    entry = find(id)
    expert = _load(entry.expert)
    if expert is None:
        raise UnknownEnvironmentError(f"{id} was registered without a scripted expert")
    policy: Policy = expert()
    return policy


def env_factory(target: Any) -> Callable[[Task], Env]:
    """Turn an :class:`Env` or ``gymnasium.Env`` subclass, or a function of the task, into a function of the task."""
    if inspect.isclass(target) and issubclass(target, Env):
        return lambda task: target()
    if inspect.isclass(target) and issubclass(target, gymnasium.Env):
        return lambda task: from_gym(target)
    factory: Callable[[Task], Env] = target
    return factory


def _registered(id: str) -> EnvEntry | None:
    if id not in _ENTRIES and id in gymnasium.registry:
        return EnvEntry(id, lambda task: from_gym(id))
    return _ENTRIES.get(id)


def _load(target: Any) -> Any:
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    return getattr(_import_module(module), attribute)


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UnknownEnvironmentError(f"there is no module {name!r} to take an environment from") from error
        raise
    except SyntaxError as error:
        raise _unreadable(error) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UnknownEnvironmentError(f"there is no file {str(path)!r} to take an environment from")
    name = f"llmgym_user_{path.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path.resolve()):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    if str(path.resolve().parent) not in sys.path:
        sys.path.append(str(path.resolve().parent))  # the file may import its neighbours, as when it is run
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, SyntaxError):
            raise _unreadable(error) from error
        raise
    return module


def _unreadable(error: SyntaxError) -> UnknownEnvironmentError:
    return UnknownEnvironmentError(f"{error.filename}, line {error.lineno}, is no valid Python: {error.msg}")
