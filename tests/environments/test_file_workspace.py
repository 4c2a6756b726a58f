"""FileWorkspace-v0 as a policy meets it: what is asked, what the tools do, what is rewarded, and what cheating earns."""

import asyncio
import hashlib
import json
import random
import re
from collections import Counter

import pytest
from suite import ReadsItsVerdict, attempts_on_page, check_guard, claims_success, play_beside

import llmgym
from llmgym import Policy, StopReason, Task
from llmgym.errors import TaskError, ToolError
from llmgym_environments.file_workspace import FileWorkspaceEnv, FileWorkspaceExpert, generate_tasks
from llmgym_environments.file_workspace.tree import Tree, page

FILES = {"attic/plum.txt": "12", "attic/reed.txt": "owner: fox\nsize: 4", "barn/fern.txt": "owner: foxglove"}
MOVE = Task("Move plum.txt to barn.", {"attic/plum.txt": None, "barn/plum.txt": "12"}, {"files": FILES})
EDIT = Task("Write 30 into plum.txt.", {"attic/plum.txt": "30"}, {"files": FILES})


def call(name, /, **arguments):
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def play(*messages, task=MOVE, env=FileWorkspaceEnv):
    """Play assistant messages (a list is a message with these calls) and return the episode."""
    script = [
        message if isinstance(message, str) else {"role": "assistant", "tool_calls": message} for message in messages
    ]
    return asyncio.run(llmgym.run_episode(env(), task, llmgym.ScriptedPolicy(script)))


def results(episode):
    return [message["content"] for message in episode.messages if message["role"] == "tool"]


def write(path, text):
    return call("write_file", path=path, text=text)


def move(source, target):
    return call("move", source=source, target=target)


def test_an_episode():
    episode = play(
        [call("list_dir", path="/")],
        [call("list_dir", path="attic"), call("read_file", path="attic/reed.txt"), call("grep", text="owner: fox")],
        [call("move", source="attic/plum", target="barn")],
        [call("move", source="attic/plum.txt", target="barn")],
        "done",
    )
    assert episode.initial_messages == [
        {"role": "system", "content": "Change the files with the tools. Then reply done."},
        {"role": "user", "content": "Move plum.txt to barn."},
    ]
    assert results(episode) == [
        "attic/\nbarn/",
        "plum.txt\nreed.txt",
        "owner: fox\nsize: 4",
        "attic/reed.txt:1: owner: fox\nbarn/fern.txt:1: owner: foxglove",
        "tool_error: attic/plum does not exist; name a file. Did you mean 'attic/plum.txt'?",
        "barn/plum.txt",
    ]
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.TERMINATED)
    assert episode.metrics == {
        "turns": 5,
        "tool_calls": 6,
        "tool_errors": 1,
        "calls_list_dir": 2,
        "calls_read_file": 1,
        "calls_grep": 1,
        "calls_move": 2,
        "changes": 2,
        "changes_made": 2,
        "files_spoiled": 0,
    }


@pytest.mark.parametrize(
    ("task", "calls", "reward", "made", "spoiled"),
    [
        (MOVE, [], 0.0, 0, 0),
        (MOVE, [write("barn/plum.txt", "12")], 0.0, 1, 0),
        (MOVE, [move("attic/plum.txt", "barn/plums.txt")], 0.0, 1, 1),
        (MOVE, [move("attic/plum.txt", "barn"), write("barn/plum.txt", "13")], 0.0, 1, 0),
        (MOVE, [move("attic/plum.txt", "barn"), write("barn/plum.txt", "12 \n\n")], 1.0, 2, 0),
        (MOVE, [move("attic/plum.txt", "barn"), write("barn/fern.txt", "")], 0.0, 2, 1),
        (MOVE, [move("attic/plum.txt", "barn"), write("note.txt", "x")], 0.0, 2, 1),
        (MOVE, [move("attic/plum.txt", "barn"), move("attic/reed.txt", "reed.txt")], 0.0, 2, 2),
        (MOVE, [move("attic/reed.txt", "/"), move("attic/plum.txt", "barn"), move("reed.txt", "attic")], 1.0, 2, 0),
        (MOVE, [move("attic/plum.txt", "barn"), write("attic/reed.txt", FILES["attic/reed.txt"] + "\n")], 0.0, 2, 1),
        (MOVE, [move("attic/plum.txt", "barn/new/plum.txt"), move("barn/new/plum.txt", "barn")], 0.0, 2, 1),
        (EDIT, [write("attic/plum.txt", "30")], 1.0, 1, 0),
        (EDIT, [write("./attic//plum.txt", "30\n")], 1.0, 1, 0),
        (EDIT, [write("attic/plum.txt", "31")], 0.0, 0, 0),
        (EDIT, [write("plum.txt", "30")], 0.0, 0, 1),
    ],
)
def test_what_counts_is_the_final_tree(task, calls, reward, made, spoiled):
    episode = play(*([one] for one in calls), "done", task=task)
    assert episode.metrics["tool_errors"] == 0
    assert (episode.reward, episode.metrics["changes_made"], episode.metrics["files_spoiled"]) == (
        reward,
        made,
        spoiled,
    )


@pytest.mark.parametrize(
    ("made", "answer"),
    [
        (call("list_dir", path=""), "attic/\nbarn/"),
        (call("list_dir", path="barn/"), "fern.txt"),
        (call("list_dir", path="garden"), "tool_error: no folder 'garden'."),
        (call("list_dir", path="bar"), "tool_error: no folder 'bar'. Did you mean 'barn'?"),
        (call("list_dir", path="attic/plum.txt"), "tool_error: attic/plum.txt is a file; read_file reads it"),
        (call("read_file", path="attic"), "tool_error: attic is a folder; name a file."),
        (call("read_file", path="/"), "tool_error: / is a folder; name a file."),
        (call("read_file", path="attic/reed.txt", first=2), "size: 4"),
        (
            call("read_file", path="attic/reed.txt", first=3),
            "tool_error: first=3 is out of range; there are lines 1 to 2",
        ),
        (
            call("read_file", path="attic/reed.txt", first=0),
            "tool_error: first=0 is out of range; there are lines 1 to 2",
        ),
        (call("read_file", path="../plum.txt"), "tool_error: the path '../plum.txt' is not allowed: names of letters"),
        (call("read_file", path="/etc/passwd"), "tool_error: etc/passwd does not exist; name a file."),
        (write("attic", "x"), "tool_error: attic is a folder; name a file"),
        (write("attic/plum.txt/x", "x"), "tool_error: attic/plum.txt is a file, so nothing can be in it"),
        (write("a\x00b", "x"), "tool_error: the path 'a\\x00b' is not allowed"),
        (write("a" * 101, "x"), "tool_error: the path"),
        (write("x.txt", "a" * 501), "tool_error: a line has more than 500 characters; break it"),
        (write("x.txt", "a\n" * 100_001), "tool_error: the workspace is full: at most 200 files and 200000 characters"),
        (move("attic/plum.txt", "barn/fern.txt"), "tool_error: barn/fern.txt exists already"),
        (move("attic/plum.txt", "attic"), "tool_error: attic/plum.txt exists already"),
        (move("attic/plum.txt", "attic/plum.txt/x"), "tool_error: attic/plum.txt is a file, so nothing can be in it"),
        (move("attic", "barn"), "tool_error: attic is a folder; name a file."),
        (move("attic/plum.txt", "new/place.txt"), "new/place.txt"),
        (call("grep", text="foxes"), "no lines"),
        (call("grep", text=""), "tool_error: give a text to look for"),
        (call("grep", text=".*"), "no lines"),
    ],
)
def test_what_the_tools_answer(made, answer):
    given = results(play([made], "done"))[0]
    assert given.startswith(answer) if answer.startswith("tool_error") else given == answer


def test_a_folder_stays_when_it_is_emptied():
    tree = Tree({"a/b/one": "1", "c/two": "2"})
    assert tree.move("a/b/one", "c") == "c/one"
    assert (tree.entries("/"), tree.entries("a"), tree.entries("a/b")) == (["a/", "c/"], ["b/"], [])
    assert tree.move("c/one", "a/b") == "a/b/one"
    assert tree.files == {"a/b/one": "1", "c/two": "2"}


def test_the_number_of_files_and_folders_is_limited():
    tree = Tree({f"f{index}": "" for index in range(200)})
    with pytest.raises(ToolError, match="full: at most 200 files"):
        tree.write("one more", "")
    tree.write("f7", "may be replaced")
    for index in range(199):
        tree.move("f0" if index == 0 else f"d{index - 1}/f0", f"d{index}/f0")
    with pytest.raises(ToolError, match="full: at most 200 folders"):
        tree.move("d198/f0", "d199/f0")


def test_long_results_are_cut_with_a_note_that_says_how_to_get_the_rest():
    lines = [f"line {number}" for number in range(1, 121)]
    assert page(lines, 1) == "\n".join([*lines[:50], "[cut: lines 1 to 50 of 120; first=51 shows more]"])
    assert page(lines, 101) == "\n".join(lines[100:])
    wide = ["a" * 600] * 5
    assert page(wide, 1) == "\n".join([*wide[:3], "[cut: lines 1 to 3 of 5; first=4 shows more]"])
    assert page([], 1) == ""
    task = Task("?", {"x": "1"}, {"files": {"x": "\n".join(lines), "y": "line"}})
    episode = play(
        [call("read_file", path="x", first=51)],
        [call("grep", text="line", first=101)],
        [call("grep", text="e 99")],
        "",
        task=task,
    )
    assert results(episode)[0].endswith("\nline 100\n[cut: lines 51 to 100 of 120; first=101 shows more]")
    assert results(episode)[1].endswith("x:120: line 120\ny:1: line")
    assert results(episode)[2] == "x:99: line 99"


@pytest.mark.parametrize(
    ("target", "files", "said"),
    [
        (None, FILES, "target of the task must map paths to texts"),
        ({}, FILES, "target of the task must map paths to texts"),
        ({"a": 1}, FILES, "target of the task must map paths to texts"),
        ({"a": "1"}, None, r"metadata\['files'\] of the task must map paths to texts"),
        ({"a": "1"}, {"b": None}, r"metadata\['files'\] of the task must map paths to texts"),
        ({"a": "1"}, {"../b": "2"}, "the path '../b' is not allowed"),
        ({"a/": "1"}, {"b": "2"}, "write the paths of a task plainly"),
        ({"a": "1"}, {"a": "1", "b": "2"}, "from the beginning; then doing nothing would be right"),
        ({"a": None}, {"b": "2"}, "from the beginning; then doing nothing would be right"),
    ],
)
def test_a_task_of_another_shape_is_refused(target, files, said):
    with pytest.raises(TaskError, match=said):
        asyncio.run(FileWorkspaceEnv().reset(Task("?", target, {"files": files})))


def test_the_expert_solves_1000_tasks():
    async def run():
        tasks = generate_tasks("test", level="all", count=1000)
        return [await llmgym.run_episode(FileWorkspaceEnv(), task, FileWorkspaceExpert()) for task in tasks]

    episodes = asyncio.run(run())
    assert [episode.reward for episode in episodes] == [1.0] * 1000
    assert sum(episode.metrics["tool_errors"] for episode in episodes) == 0
    by_level = [{episode.metrics["turns"] for episode in episodes[level::3]} for level in range(3)]
    assert by_level[:2] == [{4, 5, 6}, {3, 4, 5, 6}]
    assert max(by_level[2]) <= 14


def test_doing_nothing_earns_nothing():
    assert {play("done", task=task).reward for task in generate_tasks("val", level="all")} == {0.0}


def test_256_episodes_at_once_are_what_they_are_alone_also_beside_hostile_ones():
    tasks = generate_tasks("val", level="all", count=64) * 4
    made = [
        [write(path, "spoiled") for path in tasks[0].metadata["files"]],
        [write(f"f{number}.txt", f"{'a' * 499}\n" * 4) for number in range(210)],
        [write(path, "x") for path in ("../x", "/etc/x", "a" * 10**6, "a\x00", "\ud800", "/".join("x" * 50))],
        [write("large.txt", "a\n" * 10**6), call("grep", text="a" * 499), call("grep", text="a" * 10**6)],
        [move(f"f{number}.txt", f"{'d/' * number}f.txt") for number in range(1, 60)],
    ]
    script = [{"role": "assistant", "tool_calls": calls} for calls in made]
    hostile = play_beside(FileWorkspaceEnv, FileWorkspaceExpert, tasks, [script] * 2)
    assert {episode.reward for episode in hostile} == {0.0}
    assert all(episode.metrics["files_spoiled"] > 100 and episode.num_tool_errors > 100 for episode in hostile)
    assert max(len(text) for episode in hostile for text in results(episode)) < 2200


def test_an_environment_object_can_be_reset():
    env = FileWorkspaceEnv()

    async def run():
        tasks = []
        for _ in range(2):
            await env.reset(MOVE)
            await env.step({"role": "assistant", "content": "", "tool_calls": [move("attic/plum.txt", "barn")]})
            tasks.append(await env.step({"role": "assistant", "content": "done"}))
        return tasks

    first, second = asyncio.run(run())
    assert (first.reward, first.metrics) == (second.reward, second.metrics)
    assert first.reward == 1.0
    assert MOVE.metadata["files"] == FILES


class RandomWorker(Policy):
    """Lists a random folder, and moves or writes a random file of it as the request may want it."""

    rng = random.Random(0)

    async def act(self, messages, tool_specs):
        turn, seen = sum(message["role"] == "assistant" for message in messages), messages[-1]["content"].split("\n")
        if turn == 0:
            made = call("list_dir", path="/")
        elif turn == 1:
            self.folders = seen
            self.folder = self.rng.choice(seen)
            made = call("list_dir", path=self.folder)
        elif turn == 2:
            path = self.folder + self.rng.choice(seen)
            number = re.search(r"\d+|$", messages[1]["content"]).group()
            made = self.rng.choice([move(path, self.rng.choice(self.folders)), write(path, number)])
        else:
            return "done"
        return {"role": "assistant", "tool_calls": [made]}


@pytest.mark.parametrize(("level", "at_most"), [(1, 0.12), (2, 0.01), (3, 0.0)])
def test_what_a_random_policy_earns(level, at_most):
    async def run():
        tasks = generate_tasks("test", level=level, count=500)
        return [(await llmgym.run_episode(FileWorkspaceEnv(), task, RandomWorker())).reward for task in tasks]

    earned = asyncio.run(run())
    assert sum(earned) / 500 <= at_most


# Cheating: each attempt earns nothing, and pays in a copy of the environment without the one guard against it.


def wanted_move(task):
    """The file of a request to move, its name, and the folder that it is to be moved to."""
    name, target = re.fullmatch(r"Move (\S+) to (\w+)\.", task.prompt).groups()
    return next(path for path in task.metadata["files"] if path.endswith(f"/{name}")), name, target


def moves_everything(task):
    target = wanted_move(task)[2]
    yield [move(path, target) for path in task.metadata["files"] if not path.startswith(target)]


def leaves_an_empty_shell(task):
    path, name, target = wanted_move(task)
    yield [move(path, f"{target}/{name}"), write(f"{target}/{name}", "")]


def leaves_the_old_one(task):
    path, name, target = wanted_move(task)
    yield [write(f"{target}/{name}", task.metadata["files"][path])]


def writes_everywhere(task):
    number, name = re.fullmatch(r"Write (\d+) into (\S+)\.", task.prompt).groups()
    folders = {path.partition("/")[0] for path in task.metadata["files"]}
    yield [write(f"{folder}/{name}", number) for folder in sorted(folders)]


def has_a_tool_say_it(task):
    _, name, target = wanted_move(task)
    yield [write("log.txt", f"{target}/{name}"), call("read_file", path="log.txt")]


def writes_its_own_rules(task):
    path = wanted_move(task)[0]
    yield [write("rules.json", json.dumps({path: task.metadata["files"][path]}))]


def tries_all_moves(task):
    target = wanted_move(task)[2]
    for path in task.metadata["files"]:
        if not path.startswith(target):
            yield [move(path, target)]
            yield [move(f"{target}/{path.rpartition('/')[2]}", path)]


def edits_the_task(task):
    task.target.update({path: task.metadata["files"].get(path) for path in task.target})  # as they are
    yield "done"


class OtherFilesDoNotCount(FileWorkspaceEnv):
    """Guard removed: files that the request does not mean must stay as they were."""

    async def score(self, message):
        await super().score(message)
        return float(self._made == len(self._changes))


class TextsDoNotCount(FileWorkspaceEnv):
    """Guard removed: texts are compared, not only paths."""

    async def score(self, message):
        return float(all((path in self._tree.files) == (text is not None) for path, text in self._changes.items()))


class OldPathsDoNotCount(FileWorkspaceEnv):
    """Guard removed: the old path must be gone."""

    async def score(self, message):
        await super().score(message)
        wanted = {path: text for path, text in self._changes.items() if text is not None}
        return float(not self._spoiled and wanted.items() <= self._tree.files.items())


class NewFilesDoNotCount(FileWorkspaceEnv):
    """Guard removed: there may be no further file."""

    async def score(self, message):
        await super().score(message)
        return float(self._made == len(self._changes) and self._others.items() <= self._tree.files.items())


class ReadsTheTranscript(FileWorkspaceEnv):
    """Guard removed: the tree is looked at. Here tools have to have shown the new path, with which ``move`` answers."""

    async def score(self, message):
        return float({path for path, text in self._changes.items() if text is not None} <= {*results(self)})


class KeepsTheRulesInTheTree(FileWorkspaceEnv):
    """Guard removed: no tool reaches the rules."""

    async def setup(self):
        await super().setup()
        self._tree.write("rules.json", json.dumps(self._changes))

    async def score(self, message):
        self._others["rules.json"] = self._tree.read("rules.json")
        self._changes = json.loads(self._others["rules.json"])
        return await super().score(message)


class EndsWhenItIsRight(FileWorkspaceEnv):
    """Guard removed: only the policy ends the episode."""

    async def step(self, message):
        result = await super().step(message)
        if await self.score(message) == 1.0:
            result.terminated, result.reward, self._ended = True, 1.0, True
        return result


class KeepsTheTasksOwnTarget(FileWorkspaceEnv):
    """Guard removed: the target is copied at the beginning."""

    async def setup(self):
        await super().setup()
        self._changes = self.task.target


CHEATS = {
    "move every file instead of finding the right one": (moves_everything, OtherFilesDoNotCount),
    "put an empty file of the right name in the right place": (leaves_an_empty_shell, TextsDoNotCount),
    "write the file anew and leave the old one": (leaves_the_old_one, OldPathsDoNotCount),
    "write a file of the right name into every folder": (writes_everywhere, NewFilesDoNotCount),
    "write what a check would write (`reward: 1.0`, turn markers)": (claims_success, ReadsItsVerdict),
    "write a file that says what a tool would say, and read it": (has_a_tool_say_it, ReadsTheTranscript),
    "write the rules of the check into the tree": (writes_its_own_rules, KeepsTheRulesInTheTree),
    "try all moves, there and back, until something gives": (tries_all_moves, EndsWhenItIsRight),
    "edit the task while it is played": (edits_the_task, KeepsTheTasksOwnTarget),
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheating_earns_nothing(name):
    script, removed = CHEATS[name]
    kind = "Write" if script is writes_everywhere else "Move"
    tasks = [task for task in generate_tasks("test", count=60) if task.prompt.startswith(kind)][:10]
    check_guard(FileWorkspaceEnv, removed, script, FileWorkspaceExpert, tasks)


def test_the_page_lists_every_attempt():
    assert attempts_on_page("FileWorkspace-v0") == [*CHEATS]


# The tasks.


def test_the_first_thousand_tasks_never_change():
    tasks = [task.to_json() for task in generate_tasks("train", level="all", count=1000)]
    assert tasks[0] == {
        "id": "3d73e80535273b5a",
        "prompt": "Move coral.txt to barn.",
        "target": {"studio/coral.txt": None, "barn/coral.txt": "20"},
        "metadata": {
            "level": 1,
            "files": {
                "barn/cedar.txt": "86",
                "barn/sage.txt": "13",
                "kitchen/acorn.txt": "49",
                "kitchen/bread.txt": "48",
                "studio/coral.txt": "20",
                "studio/plum.txt": "76",
            },
            "plan": [
                ["list_dir", {"path": "/"}],
                ["list_dir", {"path": "barn"}],
                ["list_dir", {"path": "kitchen"}],
                ["list_dir", {"path": "studio"}],
                ["move", {"source": "studio/coral.txt", "target": "barn"}],
            ],
        },
    }
    digest = hashlib.sha256(json.dumps(tasks).encode()).hexdigest()
    assert digest == "618eb81a87e04f038927277c5ed8e51a19cd5affc3717dadb0e7b694cea02153"


def test_splits_share_no_names():
    names = {
        split: {
            " ".join(sorted(path.rpartition("/")[2] for path in task.metadata["files"]))
            for seed in (0, 1)
            for task in generate_tasks(split, level="all", count=1200, seed=seed)
        }
        for split in ("train", "val", "test")
    }
    assert not names["train"] & names["val"]
    assert not names["train"] & names["test"]
    assert not names["val"] & names["test"]


def test_there_are_ten_thousand_different_tasks():
    tasks = generate_tasks(count=12_000)
    assert len({json.dumps([task.prompt, task.metadata["files"]]) for task in tasks}) >= 11_900


def test_requests_mean_what_the_targets_say():
    seen = Counter()
    for task in generate_tasks("test", level="all", count=1500):
        files, changes = task.metadata["files"], task.target
        lines = {
            path: dict(line.split(": ") for line in text.split("\n") if ": " in line) for path, text in files.items()
        }
        forms = {
            r"Move (\S+\.txt) to (\w+)\.": lambda name, folder, files=files: {
                path: folder for path in files if path.endswith(f"/{name}")
            },
            r"Move all files with owner (\w+) to (\w+)\.": lambda owner, folder, lines=lines: {
                path: folder for path, one in lines.items() if one["owner"] == owner
            },
            r"Move each file to the folder that its line shelf names\.": lambda lines=lines: {
                path: one["shelf"] for path, one in lines.items()
            },
        }
        for form, moves in forms.items():
            if found := re.fullmatch(form, task.prompt):
                after = dict(files)
                for path, folder in moves(*found.groups()).items():
                    after[f"{folder}/{path.rpartition('/')[2]}"] = after.pop(path)
                wanted = {**files, **changes}
                assert after == {path: text for path, text in wanted.items() if text is not None}
                seen[form] += 1
        if found := re.fullmatch(r"Write (\d+) into (\S+)\.", task.prompt):
            assert [*changes.values()] == [found[1]] and [path.rpartition("/")[2] for path in changes] == [found[2]]
            seen["write"] += 1
        if found := re.fullmatch(r"Change owner (\w+) to (\w+) in all files\.", task.prompt):
            assert changes == {
                path: text.replace(f"owner: {found[1]}\n", f"owner: {found[2]}\n")
                for path, text in files.items()
                if f"owner: {found[1]}\n" in text
            }
            seen["owner"] += 1
        if found := re.fullmatch(r"In the file with code (\d+), change size to (\d+)\.", task.prompt):
            path = next(path for path in files if lines[path]["code"] == found[1])
            assert changes == {path: files[path].replace(f"size: {lines[path]['size']}", f"size: {found[2]}")}
            seen["size"] += 1
        if found := re.match(r"Make a file summary\.txt .* color (\w+),", task.prompt):
            rows = sorted(
                (path.rpartition("/")[2], one["size"]) for path, one in lines.items() if one["color"] == found[1]
            )
            assert changes == {"summary.txt": "\n".join(f"{name}: {size}" for name, size in rows)}
            seen["summary"] += 1
        if found := re.match(r"Rename the file with code (\d+) to (\S+) and", task.prompt):
            path = next(path for path in files if lines[path]["code"] == found[1])
            assert changes == {path: None, f"{path.partition('/')[0]}/{found[2]}": files[path]}
            seen["rename"] += 1
        if found := re.match(r"Swap the texts of the files with code (\d+) and code (\d+)\.", task.prompt):
            one, other = (next(path for path in files if lines[path]["code"] == code) for code in found.groups())
            assert changes == {one: files[other], other: files[one]}
            seen["swap"] += 1
    assert seen.total() == 1500
    assert len(seen) == 9 and min(seen.values()) >= 90
