"""Registration: ids, import strings, files of one's own, splits, suggestions."""

from __future__ import annotations

import asyncio
import sys

import gymnasium
import pytest
from suite import SHIPPED

import llmgym
from llmgym import Policy, ScriptedPolicy, Task, ToolEnv, registry, run_episode
from llmgym.errors import TaskError, UnknownEnvironmentError


class LocalEnv(ToolEnv):
    async def score(self, message):
        return float(message["content"] == self.task.target)


MODULE = '''
import llmgym
from llmgym import ToolEnv

class TheirEnv(ToolEnv):
    """An environment somebody else wrote."""

    async def score(self, message):
        return 2.0

def make(task):
    env = TheirEnv()
    env.made_for = task.prompt
    return env

NOT_CALLABLE = 3
'''


@pytest.fixture
def entries(monkeypatch):
    """Undo what a test registers."""
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    kept = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(kept)


@pytest.fixture
def their_module(tmp_path, monkeypatch, entries):
    """Name of an importable module that registers an environment when it is imported."""
    name = f"their_envs_{tmp_path.name.replace('-', '_')}"
    registration = f'llmgym.register("Theirs-v0", env="{name}:TheirEnv", tasks={{"test": [llmgym.Task("hi")]}})\n'
    (tmp_path / f"{name}.py").write_text(MODULE + registration)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def reward(env, task):
    return asyncio.run(run_episode(env, task, ScriptedPolicy(["4"]))).reward


def test_the_suite_is_registered():
    assert set(SHIPPED) <= set(llmgym.registered_ids())
    assert llmgym.registered_ids() == sorted(llmgym.registered_ids())
    assert set(SHIPPED) <= set(gymnasium.registry)


def test_a_registered_class_makes_a_fresh_environment_each_time(entries):
    llmgym.register("Local-v0", env=LocalEnv, tasks=[Task("2 + 2?", "4")])
    entry = registry.find("Local-v0")
    first, second = (entry.make_env(task) for task in llmgym.tasks("Local-v0") * 2)
    assert first is not second
    assert [reward(env, task) for env, task in zip((first, second), llmgym.tasks("Local-v0") * 2, strict=True)] == [
        1,
        1,
    ]


def test_a_registered_function_gets_the_task(entries):
    def make(task):
        env = LocalEnv()
        env.system_prompt = task.prompt.upper()
        return env

    llmgym.register("Local-v0", env=make)
    assert registry.find("Local-v0").make_env(Task("abc")).system_prompt == "ABC"


def test_registering_again_replaces(entries):
    llmgym.register("Local-v0", env=LocalEnv, tasks=[Task("old")])
    llmgym.register("Local-v0", env=LocalEnv, tasks=[Task("new")])
    assert llmgym.tasks("Local-v0") == [Task("new")]


def test_tasks_from_a_list_are_the_train_split(entries):
    llmgym.register("Local-v0", env=LocalEnv, tasks=[Task("a")])
    assert llmgym.tasks("Local-v0") == llmgym.tasks("Local-v0", "train") == [Task("a")]
    with pytest.raises(TaskError, match="Local-v0 has no split 'test'; it has train"):
        llmgym.tasks("Local-v0", "test")
    with pytest.raises(TaskError, match="take no options, got level"):
        llmgym.tasks("Local-v0", level=2)


def test_tasks_from_a_mapping(entries):
    llmgym.register("Local-v0", env=LocalEnv, tasks={"train": [Task("a")], "val": [Task("b")]})
    assert llmgym.tasks("Local-v0", split="val") == [Task("b")]
    with pytest.raises(TaskError, match=r"has no split 'vall'; it has train, val\. Did you mean 'val'\?"):
        llmgym.tasks("Local-v0", "vall")
    for split in (None, ["val"]):
        with pytest.raises(TaskError, match=r"Local-v0 has no split .*; it has train, val"):
            llmgym.tasks("Local-v0", split)


def test_tasks_from_a_function(entries):
    def generate(split, level=1):
        return (Task(f"{split} {level}") for _ in range(1))

    llmgym.register("Local-v0", env=LocalEnv, tasks=generate)
    assert llmgym.tasks("Local-v0", "test", level=3) == [Task("test 3")]
    with pytest.raises(TaskError, match=r"unknown split 'tset'; allowed are train, val, test\. Did you mean 'test'\?"):
        llmgym.tasks("Local-v0", "tset")
    with pytest.raises(TaskError, match=r"no such options \(.*'levle'\); allowed are level\. Did you mean 'level'\?"):
        llmgym.tasks("Local-v0", levle=2)


def test_tasks_that_share_an_id_are_refused(entries):
    llmgym.register("Local-v0", env=LocalEnv, tasks=[Task("a", id="x"), Task("b", id="x")])
    with pytest.raises(TaskError, match="two different tasks have the id 'x'"):
        llmgym.tasks("Local-v0")


def test_an_environment_without_tasks_says_what_to_do(entries):
    llmgym.register("Local-v0", env=LocalEnv)
    with pytest.raises(TaskError, match="has no tasks of its own; give some, such as --tasks"):
        llmgym.tasks("Local-v0")


def test_a_class_without_tasks_names_the_id_that_has_some(tmp_path, entries):
    path = tmp_path / "my_env.py"
    path.write_text(MODULE + 'llmgym.register("Mine-v0", env=TheirEnv, tasks=[llmgym.Task("hi")])\n')
    with pytest.raises(TaskError, match=r"--tasks tasks.jsonl, or write /.*/my_env.py:Mine-v0, which has$"):
        llmgym.tasks(f"{path}:TheirEnv")


def test_experts(entries):
    llmgym.register("Local-v0", env=LocalEnv, expert=lambda: ScriptedPolicy(["4"]))
    first, second = llmgym.expert_policy("Local-v0"), llmgym.expert_policy("Local-v0")
    assert isinstance(first, Policy)
    assert first is not second
    llmgym.register("Local-v0", env=LocalEnv)
    with pytest.raises(UnknownEnvironmentError, match="Local-v0 was registered without a scripted expert"):
        llmgym.expert_policy("Local-v0")


def test_unknown_ids_get_a_suggestion():
    with pytest.raises(
        UnknownEnvironmentError, match=r"unknown environment 'ToolUseGam-v0'.*Did you mean 'ToolUseGame-v0'"
    ):
        registry.find("ToolUseGam-v0")


def test_a_third_party_id_imports_its_module(their_module):
    entry = registry.find(f"{their_module}:Theirs-v0")
    assert entry.id == "Theirs-v0"
    assert registry.find("Theirs-v0") is entry
    assert entry.load_tasks("test") == [Task("hi")]
    assert reward(entry.make_env(Task("hi")), Task("hi")) == 2.0


def test_a_class_or_function_of_a_module(their_module):
    assert reward(registry.find(f"{their_module}:TheirEnv").make_env(Task("hi")), Task("hi")) == 2.0
    assert registry.find(f"{their_module}:make").make_env(Task("hi")).made_for == "hi"


def test_a_file_that_is_no_package(tmp_path):
    path = tmp_path / "my_env.py"
    path.write_text(MODULE)
    entry = registry.find(f"{path}:TheirEnv")
    env = entry.make_env(Task("hi"))
    assert reward(env, Task("hi")) == 2.0
    assert type(env) is type(registry.find(f"{path}:TheirEnv").make_env(Task("hi")))  # loaded once
    with pytest.raises(TaskError, match="has no tasks of its own"):
        entry.load_tasks()


def test_two_files_of_one_name(tmp_path):
    for number, folder in enumerate(("a", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my_env.py").write_text(MODULE.replace("2.0", f"{number}.0"))
    found = [registry.find(f"{tmp_path / folder / 'my_env.py'}:TheirEnv") for folder in ("a", "b", "a")]
    assert [reward(entry.make_env(Task("hi")), Task("hi")) for entry in found] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("name", ["TheirEnvv", "NOT_CALLABLE"])
def test_a_name_that_a_file_does_not_define(tmp_path, name):
    path = tmp_path / "my_env.py"
    path.write_text(MODULE)
    with pytest.raises(UnknownEnvironmentError, match=rf"has no environment '{name}'; it defines TheirEnv\."):
        registry.find(f"{path}:{name}")


def test_a_file_may_import_its_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour_of_my_env.py").write_text("REWARD = 3.0\n")
    path = tmp_path / "my_env.py"
    path.write_text("from neighbour_of_my_env import REWARD\n" + MODULE.replace("2.0", "REWARD"))
    assert reward(registry.find(f"{path}:TheirEnv").make_env(Task("hi")), Task("hi")) == 3.0


def test_missing_files_and_modules(tmp_path):
    with pytest.raises(UnknownEnvironmentError, match=r"there is no file 'nowhere\.py'"):
        registry.find("nowhere.py:MyEnv")
    with pytest.raises(UnknownEnvironmentError, match=r"there is no module 'no_such_module\.deep'"):
        registry.find("no_such_module.deep:MyEnv")


def test_an_import_that_fails_inside_a_module_is_not_hidden(tmp_path):
    path = tmp_path / "my_env.py"
    path.write_text("import no_such_dependency")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        registry.find(f"{path}:MyEnv")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        registry.find(f"{path}:MyEnv")  # not half loaded
