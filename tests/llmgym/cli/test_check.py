"""``llmgym check``: output, exit status, and environments that kill or freeze their process."""

from __future__ import annotations

import json
from pathlib import Path

import check_zoo as zoo
import pytest

import llmgym
from llmgym.checking import CODES, CheckReport, CheckResult, Finding, Status, guard
from llmgym.cli import check
from llmgym.cli import main as cli

ZOO_FILE = Path(zoo.__file__)


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "tasks.jsonl"
    llmgym.save_tasks(zoo.TASKS, path)
    return str(path)


def run(name, tasks, *options):
    return cli.main(["check", f"{ZOO_FILE}:{name}", "--tasks", tasks, *options])


@pytest.fixture
def finds(monkeypatch):
    """Lets the next checks find these codes, without a check; the arguments of each are appended to the list."""
    asked: list[dict] = []

    def finds(*codes):
        def check_guarded(options, progress):
            asked.append(options)
            passed = [CheckResult("tasks", Status.PASSED, "train 2")]
            return CheckReport("Zoo-v0", passed, [Finding(code, "step(\x1b)", "nothing", 2) for code in codes])

        monkeypatch.setattr(check, "check_guarded", check_guarded)
        return asked

    return finds


def test_a_report_without_findings_exits_with_0(finds, capsys):
    finds()
    assert cli.main(["check", "Zoo-v0"]) == 0
    out = capsys.readouterr().out
    assert "0 errors, 0 warnings" in out
    assert "failed" not in out


def test_an_error_exits_with_1_and_is_shown_in_full(finds, capsys):
    finds("hanging-tool")
    assert cli.main(["check", "Zoo-v0"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "error hanging-tool: a hanging tool is not stopped (2 times)" in out
    assert "came back: nothing" in out
    assert f"why it hurts: {CODES['hanging-tool'].why}" in out
    assert f"how to fix it: {CODES['hanging-tool'].fix}" in out
    assert "1 errors, 0 warnings" in out


def test_a_warning_fails_only_when_strict(finds, capsys):
    finds("intermediate-reward")
    assert cli.main(["check", "Zoo-v0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert [(finding["code"], finding["level"]) for finding in report["findings"]] == [
        ("intermediate-reward", "warning")
    ]
    assert cli.main(["check", "Zoo-v0", "--json", "--strict"]) == 1


def test_options_reach_the_check(finds):
    asked = finds()
    assert cli.main(["check", "Zoo-v0"]) == 0
    given = ["--task-option", "level=2", "--task-option", "name=a=b", "--split", "val", "--tasks", "t.jsonl"]
    assert cli.main(["check", "Zoo-v0", *given, "--episodes", "7", "--timeout", "0.5", "--seed", "5"]) == 0
    defaults = {"tasks": None, "split": "train", "task_options": {}, "episodes": 4, "timeout_s": 30.0, "seed": 0}
    assert asked[0] == {"env": "Zoo-v0", **defaults}
    assert asked[1] == {
        **{"env": "Zoo-v0", "tasks": "t.jsonl", "split": "val", "task_options": {"level": "2", "name": "a=b"}},
        **{"episodes": 7, "timeout_s": 0.5, "seed": 5},
    }


@pytest.mark.slow
def test_json_output_is_the_report(tasks, capsys):
    assert run("OneHistory", tasks, "--json", "--seed", "5", "--episodes", "1") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["env_id"] == f"{ZOO_FILE}:OneHistory"
    assert report["ok"] is False
    finding = report["findings"][0]
    assert set(finding) == {"code", "level", "title", "why", "fix", "sent", "got", "count"}
    by_name = {check["name"]: check["status"] for check in report["checks"]}
    assert by_name["interleaved"] == "failed"
    assert by_name["tool-dispatch"] == "not checked"


@pytest.mark.slow
def test_output_of_the_environment_is_not_in_the_report(tasks, capsys, tmp_path):
    path = tmp_path / "loud_env.py"
    path.write_text(ZOO_FILE.read_text() + "\n\nprint('loud')\nos.write(1, b'louder')\n")
    assert cli.main(["check", f"{path}:Right", "--tasks", tasks, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["Nope-v0"], "unknown environment 'Nope-v0'"),
        ([f"{ZOO_FILE}:Right"], "has no tasks of its own; give some, such as --tasks"),
        (["CalculatorMath-v0", "--task-option", "level"], "--task-option takes KEY=VALUE, got 'level'"),
        (["CalculatorMath-v0", "--episodes", "0"], "must be positive"),
        (["CalculatorMath-v0", "--episods", "1"], "unknown option '--episods'. Did you mean '--episodes'?"),
    ],
)
def test_nothing_to_check_exits_with_2(arguments, said, capsys):
    assert cli.main(["check", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err


@pytest.mark.parametrize("name", ["Exiting", "ExitingOnText"])
def test_an_environment_that_ends_the_process_is_a_finding(name, tasks, capsys):
    assert run(name, tasks, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert [finding["code"] for finding in report["findings"]] == ["kills-process"]
    assert report["findings"][0]["got"] == "the process ended with exit status 3"
    by_name = {check["name"]: check["status"] for check in report["checks"]}
    assert by_name["time"] == "failed"
    assert by_name["tasks"] == "passed"
    assert by_name["episode"] == ("passed" if name == "ExitingOnText" else "not checked")
    assert by_name["close"] == "not checked"
    assert ("content: NUL" in report["findings"][0]["sent"]) == (name == "ExitingOnText")


@pytest.mark.slow
def test_an_environment_that_freezes_the_process_is_a_finding(tasks, capsys, monkeypatch):
    monkeypatch.setattr(guard, "SILENCE_S", 3.0)
    assert run("Freezing", tasks, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert [finding["code"] for finding in report["findings"]] == ["kills-process"]
    assert "no sign of life for 3 s" in report["findings"][0]["got"]
    assert "check_zoo.py" in report["findings"][0]["got"]


def test_a_slow_start_is_not_a_frozen_process(tasks, capsys, monkeypatch):
    lines = [{"started": True}, {"report": CheckReport("Slow-v0").to_json(), "end": True}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    monkeypatch.setattr(guard, "SILENCE_S", 0.5)
    monkeypatch.setattr(guard, "_CHILD", f"import time; time.sleep(1); print({text!r}, end='')")
    assert run("Right", tasks, "--json") == 0
    assert json.loads(capsys.readouterr().out)["env_id"] == "Slow-v0"


def test_a_file_that_cannot_be_imported_is_refused_with_its_place(tmp_path, capsys):
    (tmp_path / "broken_file.py").write_text("def broken(:")
    assert cli.main(["check", f"{tmp_path / 'broken_file.py'}:MyEnv", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "broken_file.py, line 1, is no valid Python" in captured.err


def test_a_fault_of_the_checker_is_not_a_finding(tasks, monkeypatch):
    broken = guard._CHILD.replace("serve()", "import llmgym.checking.checker as c; c.conclude = None; serve()")
    monkeypatch.setattr(guard, "_CHILD", broken)
    with pytest.raises(RuntimeError, match="please report it"):
        run("Right", tasks)
