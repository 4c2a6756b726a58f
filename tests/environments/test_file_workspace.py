"""FileWorkspace-v0 as a policy meets it: requests, tools, rewards, and what cheating earns."""

import asyncio
import hashlib
import json
import random
import re
from collections import Counter
from itertools import permutations

import pytest
from suite import check_guard, claims_success, earned, play_beside

import llmgym
from llmgym import Policy, StopReason, Task, ToolResult
from llmgym.errors import TaskError, ToolError, did_you_mean
from llmgym_environments.file_workspace import FileWorkspaceEnv, FileWorkspaceExpert, generate_tasks
from llmgym_environments.file_workspace.tasks import COLORS, FOLDERS, OWNERS, WORDS
from llmgym_environments.file_workspace.tree import MissingError, Tree, page

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
        "missing": 1,
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
        (call("read_file", path="attic"), "tool_error: attic is a folder; name a file"),
        (call("read_file", path="/"), "tool_error: / is a folder; name a file"),
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
        (move("attic", "barn"), "tool_error: attic is a folder; name a file"),
        (move("attic/plum.txt", "new/place.txt"), "new/place.txt"),
        (call("grep", text="foxes"), "no lines"),
        (call("grep", text=""), "tool_error: give a text to look for"),
        (call("grep", text=".*"), "no lines"),
    ],
)
def test_what_the_tools_answer(made, answer):
    given = results(play([made], "done"))[0]
    assert given.startswith(answer) if answer.startswith("tool_error") else given == answer


@pytest.mark.parametrize("path", ["plum.txt", "garden/plum.txt", "attic/plum.txt/plum.txt"])
def test_an_error_suggests_files_of_the_folder_that_was_named(path):
    assert results(play([call("read_file", path=path)], "done")) == [f"tool_error: {path} does not exist; name a file."]
    near = results(play([call("read_file", path="attic/plums.txt")], "done"))[0]
    assert near.endswith("Did you mean 'attic/plum.txt'?")


def test_a_text_that_is_refused_does_not_show_what_is_there():
    paths = ("attic", "garden", "attic/plum.txt/x", "garden/plum.txt/x")
    assert len({*results(play([write(path, "a" * 501) for path in paths], "done"))}) == 1
    full = "a" * (200_001 - sum(map(len, FILES.values())))  # as much as fits if a file's own text made room for it
    assert len({*results(play([write(path, full) for path in ("attic/plum.txt", "garden/plum.txt")], "done"))}) == 1


def test_to_look_whether_a_moved_file_is_gone_does_not_count():
    moved = [move("attic/plum.txt", "barn"), *[call("read_file", path="attic/plum.txt")] * 9]
    episode = play(moved, "done")
    assert (episode.reward, episode.metrics["missing"], episode.metrics["tool_errors"]) == (1.0, 0, 9)


@pytest.mark.parametrize("made", [call("list_dir", path="x"), call("read_file", path="x"), move("x", "barn")])
def test_a_fifth_call_for_what_is_not_there_ends_the_episode(made):
    solved = move("attic/plum.txt", "barn")
    assert play([made] * 4, [solved], "done").reward == 1.0
    episode = play([made] * 3, [solved, call("list_dir", path="y"), made, solved], "done")
    assert (episode.reward, episode.stop_reason, episode.metrics["missing"]) == (0.0, StopReason.TERMINATED, 5)
    assert results(episode)[-2:] == [
        "not there, and that once too often",
        "tool_error: not run, an earlier call ended the episode",
    ]


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


@pytest.mark.slow
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

    assert sum(asyncio.run(run())) / 500 <= at_most


def guesses(task):
    """Lists no folder: guesses five of the possible names, and reads only to learn whether a guess was right."""
    number, name, target = re.fullmatch(r"(?:Write (\d+) into|Move) (\S+?)(?: to (\w+))?\.", task.prompt).groups()
    if target:
        yield [move(f"{folder}/{name}", target) for folder in FOLDERS if folder != target][:5]
    else:
        *paths, last = [f"{folder}/{name}" for folder in FOLDERS[:5]]
        found = yield [call("read_file", path=path) for path in paths]
        there = [path for path, text in zip(paths, found, strict=True) if text.isdigit()]
        yield [write((there or [last])[0], number)]
    yield "done"


def test_what_guessing_the_folder_earns():
    async def run():
        return [await earned(FileWorkspaceEnv(), guesses, task) for task in generate_tasks("test")]

    assert sum(asyncio.run(run())) / 200 == 0.095  # 5 of 60 names can be tried


# Cheating: each attempt earns nothing, and some are shown to pay in a copy of the environment without its guard.


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


def moves_it_from_every_folder(task):
    _, name, target = wanted_move(task)
    yield [move(f"{folder}/{name}", target) for folder in FOLDERS if folder != target]


def has_an_error_name_the_path(task):
    _, name, target = wanted_move(task)
    (error,) = yield [call("read_file", path=name)]
    if found := re.search(r"Did you mean '(.+)'", error):
        yield [move(found[1], target)]


class OtherFilesDoNotCount(FileWorkspaceEnv):
    """Guard removed: files that the request does not mean must stay as they were."""

    async def score(self, message):
        await super().score(message)
        return float(self._made == len(self._changes))


class EndsWhenItIsRight(FileWorkspaceEnv):
    """Guard removed: only the policy ends the episode."""

    async def step(self, message):
        result = await super().step(message)
        if await self.score(message) == 1.0:
            result.terminated, result.reward, self._ended = True, 1.0, True
        return result


class MissingPathsAreFree(FileWorkspaceEnv):
    """Guard removed: few calls may name what is not there."""

    max_missing = len(FOLDERS)


class ErrorsNameAnyFile(FileWorkspaceEnv):
    """Guard removed: an error suggests files of the folder that was named, and no other."""

    @llmgym.tool
    async def read_file(self, path: str, first: int = 1) -> ToolResult:
        """Read a file."""
        try:
            return self._find(lambda: self._tree.read(path))
        except MissingError as error:
            raise ToolError(f"{error}{did_you_mean(path, self._tree.files, likeness=0.5)}") from error


CHEATS = {
    "move every file instead of finding the right one": (moves_everything, OtherFilesDoNotCount),
    "put an empty file of the right name in the right place": (leaves_an_empty_shell, None),
    "write the file anew and leave the old one": (leaves_the_old_one, None),
    "write a file of the right name into every folder": (writes_everywhere, None),
    "write what a check would write (`reward: 1.0`, turn markers)": (claims_success, None),
    "write a file that says what a tool would say, and read it": (has_a_tool_say_it, None),
    "write the rules of the check into the tree": (writes_its_own_rules, None),
    "try all moves, there and back, until something gives": (tries_all_moves, EndsWhenItIsRight),
    "move the file out of every folder that there can be": (moves_it_from_every_folder, MissingPathsAreFree),
    "read the bare name, so that the error names the path": (has_an_error_name_the_path, ErrorsNameAnyFile),
    "edit the task while it is played": (edits_the_task, None),
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheating_earns_nothing(name):
    script, removed = CHEATS[name]
    kind = "Write" if script is writes_everywhere else "Move"
    tasks = [task for task in generate_tasks("test", count=60) if task.prompt.startswith(kind)][:10]
    check_guard(FileWorkspaceEnv, removed, script, FileWorkspaceExpert, tasks)


# The tasks.


def test_the_first_thousand_tasks_never_change():
    tasks = [task.to_json() for task in generate_tasks("train", level="all", count=1000)]
    assert tasks[0] == {
        "id": "693764b81f904c6c",
        "prompt": "Move coral.txt to church.",
        "target": {"temple/coral.txt": None, "church/coral.txt": "20"},
        "metadata": {
            "level": 1,
            "files": {
                "church/cedar.txt": "86",
                "church/sage.txt": "13",
                "museum/acorn.txt": "49",
                "museum/bread.txt": "48",
                "temple/coral.txt": "20",
                "temple/plum.txt": "76",
            },
            "plan": [
                ["list_dir", {"path": "/"}],
                ["list_dir", {"path": "church"}],
                ["list_dir", {"path": "museum"}],
                ["list_dir", {"path": "temple"}],
                ["move", {"source": "temple/coral.txt", "target": "church"}],
            ],
        },
    }
    digest = hashlib.sha256(json.dumps(tasks).encode()).hexdigest()
    assert digest == "d37a7999c459257ed1ae111c1e66d570e3bc3610198a4d0a086b361d7ca90154"


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


def test_no_folder_begins_as_another_word_does():
    words = [*FOLDERS, *WORDS, *OWNERS, *COLORS, "code", "owner", "color", "size", "shelf", "summary"]
    assert len({*words}) == len(words)
    begins = [{one, two} for one, two in permutations(words, 2) if two.startswith(one)]
    assert begins and not any(pair & {*FOLDERS} for pair in begins)


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
