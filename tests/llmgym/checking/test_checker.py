"""Each environment of the zoo has exactly one finding; the shipped ones have none."""

from __future__ import annotations

import asyncio

import check_zoo as zoo
import gymnasium
import pytest
from suite import SHIPPED

import llmgym
from llmgym.checking import CHECKS, CODES, Status, checks
from llmgym.checking.session import CheckContext
from llmgym.errors import ConfigError, TaskError, UnknownEnvironmentError
from llmgym.gym.spaces import MessageSpace
from llmgym.registry import EnvEntry

ZOO = [
    ("build-fails", zoo.RaisingInit),
    ("build-fails", zoo.ExitingInit),
    ("build-fails", zoo.NoEnv),
    ("reset-raises", zoo.RaisingReset),
    ("opening-invalid", zoo.EmptyOpening),
    ("opening-invalid", zoo.TextOpening),
    ("step-raises", zoo.RaisingStep),
    ("step-raises", zoo.ExitingStep),
    ("step-result", zoo.TupleResult),
    ("step-result", zoo.ListMetrics),
    ("step-result", zoo.TextReward),
    ("tool-spec-invalid", zoo.NamelessTool),
    ("tool-spec-invalid", zoo.FlatSpec),
    ("tool-spec-invalid", zoo.RaisingSpec),
    ("tool-spec-unstable", zoo.GrowingTools),
    ("hostile-action-raises", zoo.StrictJson),
    ("hostile-action-raises", zoo.AsciiOnly),
    ("hostile-result-raises", zoo.FragileResults),
    ("calls-unanswered", zoo.KeyedByName),
    ("calls-unanswered", zoo.WrongOrder),
    ("history-aliased", zoo.OwnList),
    ("history-aliased", zoo.OwnDictionaries),
    ("history-aliased", zoo.OwnAction),
    ("history-mismatch", zoo.SilentTools),
    ("history-edited", zoo.Shortening),
    ("reward-not-finite", zoo.NotANumber),
    ("intermediate-reward", zoo.CallPays),
    ("call-hangs", zoo.Hanging),
    ("call-hangs", zoo.HangingOnText),
    ("blocks-event-loop", zoo.Sleeping),
    ("blocks-event-loop", zoo.SleepingForEver),
    ("blocks-event-loop", zoo.InlineTools),
    ("ignores-cancellation", zoo.Deaf),
    ("hanging-tool", zoo.NoTimeout),
    ("hanging-tool", zoo.OwnDispatch),
    ("not-reproducible", zoo.GlobalRandom),
    ("not-reproducible", zoo.Leftovers),
    ("shared-state", zoo.OneHistory),
    ("shared-state", zoo.GlobalSeed),
    ("shared-state", zoo.OneLock),
    ("close-raises", zoo.NeedsReset),
    ("close-leaks", zoo.LeavesTasks),
    ("close-leaks", zoo.LeavesFiles),
    ("do-nothing-scores", zoo.EmptyIsRight),
]
HANGING = {zoo.Hanging, zoo.HangingOnText, zoo.SleepingForEver, zoo.Deaf, zoo.OneLock}


def check(environment, tasks=zoo.TASKS, **options):
    """Check a class without its replay in other processes, which takes seconds."""
    return llmgym.check_env(lambda task: environment(), tasks, **options)


def statuses(report):
    return {result.name: result.status for result in report.checks}


@pytest.mark.parametrize(("code", "environment"), ZOO, ids=[environment.__name__ for _, environment in ZOO])
def test_a_broken_environment_has_exactly_one_finding(code, environment, monkeypatch):
    if code in ("close-leaks", "hanging-tool"):  # do not wait long for what never comes
        monkeypatch.setattr(checks, "SETTLE_S", 0.3)
        monkeypatch.setattr(checks, "HANG_S", 1.0)
    report = check(environment, timeout_s=0.5 if environment in HANGING else 30)
    assert [finding.code for finding in report.findings] == [code], report.findings
    failed = [result for result in report.checks if result.status in (Status.FAILED, Status.WARNING)]
    assert [code in [known.name for known in one.codes] for one in CHECKS if one.name == failed[0].name] == [True]
    assert len(failed) == 1
    assert report.ok == (CODES[code].level == "warning")
    finding = report.findings[0]
    assert finding.sent
    assert finding.got


@pytest.mark.slow
@pytest.mark.parametrize("environment", [zoo.Right, zoo.RightPlain])
def test_a_correct_environment_has_no_findings(environment):
    report = llmgym.check_env(environment, zoo.TASKS, expert=zoo.Expert)
    assert report.findings == []
    assert report.ok
    assert report.hostile_actions > 200
    not_checked = {name for name, status in statuses(report).items() if status is Status.NOT_CHECKED}
    assert not_checked == (set() if environment is zoo.Right else {"tool-dispatch", "hostile-results"})


def test_tools_that_are_not_called_through_toolenv_are_not_checked():
    report = check(zoo.OwnTools)
    assert report.findings == []
    not_checked = {name for name, status in statuses(report).items() if status is Status.NOT_CHECKED}
    assert not_checked == {"tool-dispatch", "hostile-results", "other-process", "expert"}


@pytest.mark.slow
@pytest.mark.parametrize("id", SHIPPED)
def test_shipped_environments_have_no_findings(id):
    report = llmgym.check_env(id)
    assert report.findings == []
    without_tools = {"tool-specs", "hostile-results", "tool-dispatch"} if id == "Mastermind-v0" else set()
    assert {name for name, status in statuses(report).items() if status is not Status.PASSED} == without_tools


def test_every_shipped_environment_is_checked():
    entries = [llmgym.registry.find(id) for id in llmgym.registered_ids()]
    assert [entry.id for entry in entries if str(entry.env).startswith("llmgym_environments.")] == SHIPPED


def test_every_code_is_tested():
    elsewhere = {"tasks-fail", "duplicate-task-ids", "splits-overlap"}
    elsewhere |= {"process-dependent", "expert-fails", "kills-process"}
    assert {code for code, _ in ZOO} | elsewhere == set(CODES)


@pytest.mark.slow
def test_a_hash_in_the_prompt_is_process_dependent():
    report = llmgym.check_env(zoo.Hashing, zoo.TASKS)
    assert [finding.code for finding in report.findings] == ["process-dependent"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.stdin.read(); sys.exit('no licence')", "the other process failed: no licence"),
        ("import time; time.sleep(60)", "the other process did not end within 1 s"),
    ],
)
def test_a_replay_that_another_process_cannot_make_is_not_checked(program, reason, monkeypatch):
    monkeypatch.setattr(checks, "_PROCESS", program)
    monkeypatch.setattr(checks, "PROCESS_TIMEOUT_S", 1.0 if "sleep" in program else 60.0)
    report = llmgym.check_env(zoo.Right, zoo.TASKS)
    assert [result.detail for result in report.checks if result.name == "other-process"] == [reason]
    assert statuses(report)["other-process"] is Status.NOT_CHECKED


def test_a_failing_expert_is_a_finding():
    report = check(zoo.Right, expert=zoo.WrongExpert)
    assert [(finding.code, finding.count) for finding in report.findings] == [("expert-fails", 2)]
    assert "reward 0" in report.findings[0].got


def entry(tasks, environment=zoo.Right):
    return EnvEntry("Zoo-v0", lambda task: environment(), tasks)


def raising_tasks(split):
    raise ValueError("no network")


TWINS = [llmgym.Task("a", id="x"), llmgym.Task("b", id="x")]


@pytest.mark.parametrize(
    ("code", "tasks"),
    [
        ("tasks-fail", raising_tasks),
        ("tasks-fail", lambda split: ["What is 1 + 2?"]),
        ("tasks-fail", lambda split: []),
        ("duplicate-task-ids", TWINS),
        ("splits-overlap", {"train": zoo.TASKS, "val": zoo.TASKS[1:]}),
        ("splits-overlap", {"train": zoo.TASKS, "test": [llmgym.Task("What is 1 + 2?", "3", id="other")]}),
    ],
)
def test_broken_tasks_are_a_finding(code, tasks):
    report = llmgym.check_env(entry(tasks))
    assert {finding.code for finding in report.findings} == {code}
    playable = code == "splits-overlap"
    assert (statuses(report)["episode"] is Status.PASSED) == playable
    assert (statuses(report)["episode"] is Status.NOT_CHECKED) != playable


def test_duplicate_ids_in_a_file_are_a_finding(tmp_path):
    path = tmp_path / "tasks.jsonl"
    llmgym.save_tasks(TWINS, path)
    report = check(zoo.Right, path)
    assert [finding.code for finding in report.findings] == ["duplicate-task-ids"]


def test_other_checks_run_after_one_hostile_action_hangs():
    report = check(zoo.HangingOnText, timeout_s=0.5)
    assert statuses(report)["hostile-actions"] is Status.NOT_CHECKED
    assert statuses(report)["reproducible"] is Status.PASSED
    assert statuses(report)["interleaved"] is Status.PASSED


def test_the_finding_says_where_the_loop_is_blocked():
    report = check(zoo.SleepingForEver, timeout_s=0.5)
    assert "check_zoo.py" in report.findings[0].got
    assert "time.sleep(20)" in report.findings[0].got


def test_findings_of_one_code_are_counted():
    report = check(zoo.StrictJson)
    assert report.findings[0].count > 10


def test_the_same_seed_gives_the_same_report():
    first, second = (check(zoo.StrictJson, seed=3).to_json() for _ in range(2))
    del first["seconds"], second["seconds"]
    assert first == second


class GuessingGame(gymnasium.Env):
    """A Gymnasium environment over message lists, with dense rewards."""

    observation_space = MessageSpace()
    action_space = MessageSpace(roles=("assistant",), length=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turns = 0
        self.history = [{"role": "user", "content": f"Guess {self.np_random.integers(10)}"}]
        return list(self.history), {}

    def step(self, action):
        self.turns += 1
        self.history = [*self.history, *action]
        for call in action[0].get("tool_calls", []):
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": "tool_error: no tools here"})
        guessed = action[0]["content"] == self.history[0]["content"][-1]
        return list(self.history), 0.5 * guessed, self.turns == 5, False, {}


@pytest.mark.slow
def test_a_gymnasium_environment_without_tasks_is_played_with_seeds():
    report = llmgym.check_env(GuessingGame)
    assert report.findings == []
    assert statuses(report)["tasks"] is Status.NOT_CHECKED
    assert statuses(report)["tool-dispatch"] is Status.NOT_CHECKED
    assert statuses(report)["hostile-results"] is Status.NOT_CHECKED
    assert statuses(report)["tool-specs"] is Status.NOT_CHECKED
    assert statuses(report)["other-process"] is Status.PASSED


def test_arguments_that_cannot_be_checked_are_refused():
    with pytest.raises(UnknownEnvironmentError, match="Nope"):
        llmgym.check_env("Nope")
    with pytest.raises(TaskError, match="give some"):
        llmgym.check_env(zoo.Right)
    with pytest.raises(TaskError, match=r"Zoo-v0 has no split 'nope'; it has train, val\."):
        llmgym.check_env(entry({"train": zoo.TASKS, "val": zoo.TASKS}), split="nope")
    with pytest.raises(TaskError, match="there is no task file"):
        llmgym.check_env(zoo.Right, "none.jsonl")
    with pytest.raises(ConfigError, match="fresh one"):
        llmgym.check_env(zoo.Right(), zoo.TASKS)
    with pytest.raises(ConfigError, match="episodes"):
        llmgym.check_env(zoo.Right, zoo.TASKS, episodes=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "nope"}, "unknown split 'nope'; allowed are train, val, test."),
        ({"task_options": {"levle": 1}}, "allowed are level, count, seed. Did you mean 'level'?"),
        ({"task_options": {"level": "9"}}, "unknown level '9'; allowed are"),
    ],
)
def test_an_unknown_split_or_option_is_refused(options, message):
    with pytest.raises(TaskError) as refused:
        llmgym.check_env("CalculatorMath-v0", **options)
    assert message in str(refused.value)


def test_task_options_reach_the_tasks():
    def tasks(split, count=1):
        return [llmgym.Task(f"{split} {number}", "3") for number in range(int(count))]

    report = llmgym.check_env(entry(tasks), task_options={"count": "3"}, split="val")
    assert report.checks[0].detail == "val 3, train 3, test 3"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def broken(:", "line 1, is no valid Python"),
        ("import no_such_package", "cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise ValueError('no licence')", r"cannot be imported: ValueError: no licence \(broken_file.py:1"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused_with_its_place(text, why, tmp_path):
    path = tmp_path / "broken_file.py"
    path.write_text(text)
    with pytest.raises(UnknownEnvironmentError, match=why) as refused:
        llmgym.check_env(f"{path}:MyEnv")
    assert "broken_file.py" in str(refused.value)


@pytest.mark.parametrize(("hangs", "lost"), [("hanging-tool", 0), ("call-hangs", 1)])
def test_a_tool_that_was_called_to_be_cancelled_is_no_lost_call(hangs, lost):
    context = CheckContext(
        entry(zoo.TASKS), None, expert=None, tasks=None, split="train", task_options={}, episodes=1, timeout_s=0.1,
        seed=0, progress=lambda text: None,
    )  # fmt: skip
    context.call(context.worker.start(), asyncio.Event().wait, "a call", raises="reset-raises", hangs=hangs)
    assert [finding.code for finding in context.findings.all()] == [hangs]
    assert (context.calls, context.lost_calls) == (1, lost)
