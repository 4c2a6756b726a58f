"""``llmgym check``: output, exit status, and environments that take their process with them."""

from __future__ import annotations

import json
from pathlib import Path

import check_zoo as zoo
import pytest

import llmgym
from llmgym.checking import CODES, CheckReport, guard
from llmgym.cli import main as cli

ZOO_FILE = Path(zoo.__file__)


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "tasks.jsonl"
    llmgym.save_tasks(zoo.TASKS, path)
    return str(path)


def run(name, tasks, *options):
    return cli.main(["check", f"{ZOO_FILE}:{name}", "--tasks", tasks, *options])


def test_a_right_environment_exits_with_0(tasks, capsys):
    assert run("Right", tasks) == 0
    out = capsys.readouterr().out
    assert "0 errors, 0 warnings" in out
    assert "failed" not in out


def test_an_error_exits_with_1_and_is_told_in_full(tasks, capsys):
    assert run("NoTimeout", tasks) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "error hanging-tool: a hanging tool is not cut" in out
    assert "sent: a look at tool_timeout_s" in out
    assert f"why it hurts: {CODES['hanging-tool'].why}" in out
    assert f"how to mend it: {CODES['hanging-tool'].mend}" in out
    assert "1 errors, 0 warnings" in out


def test_a_warning_fails_only_when_strict(tasks, capsys):
    assert run("CallPays", tasks, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert [(finding["code"], finding["level"]) for finding in report["findings"]] == [
        ("intermediate-reward", "warning")
    ]
    assert run("CallPays", tasks, "--json", "--strict") == 1


def test_json_is_the_report(tasks, capsys):
    assert run("OneHistory", tasks, "--json", "--seed", "5", "--episodes", "1") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["env_id"] == f"{ZOO_FILE}:OneHistory"
    assert report["ok"] is False
    finding = report["findings"][0]
    assert set(finding) == {"code", "level", "title", "why", "mend", "sent", "got", "count"}
    by_name = {check["name"]: check["status"] for check in report["checks"]}
    assert by_name["interleaved"] == "failed"
    assert by_name["tool-dispatch"] == "not checked"


def test_what_the_environment_prints_is_not_in_the_report(tasks, capsys, tmp_path):
    path = tmp_path / "loud_env.py"
    path.write_text(ZOO_FILE.read_text() + "\n\nprint('loud')\nos.write(1, b'louder')\n")
    assert cli.main(["check", f"{path}:Right", "--tasks", tasks, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]


def test_task_options_reach_the_tasks(capsys):
    assert cli.main(["check", "CalculatorMath-v0", "--task-option", "count=3", "--json", "--split", "val"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["checks"][0]["detail"] == "val 3, train 3, test 3"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["Nope-v0"], "unknown environment 'Nope-v0'"),
        ([f"{ZOO_FILE}:Right"], "has no tasks of its own; give some, such as --tasks"),
        (["CalculatorMath-v0", "--task-option", "level"], "KEY=VALUE"),
        (["CalculatorMath-v0", "--episodes", "0"], "must be positive"),
        (["CalculatorMath-v0", "--split", "nope"], "unknown split 'nope'; allowed are train, val, test."),
        (["CalculatorMath-v0", "--task-option", "levle=1"], "allowed are level, count, seed. Did you mean 'level'?"),
        (["CalculatorMath-v0", "--task-option", "level=9"], "unknown level '9'; allowed are"),
    ],
)
def test_what_cannot_be_checked_exits_with_2(arguments, said, capsys):
    assert cli.main(["check", *arguments]) == 2
    assert said in capsys.readouterr().err


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


def test_an_environment_that_freezes_the_process_is_a_finding(tasks, capsys, monkeypatch):
    monkeypatch.setattr(guard, "SILENCE_S", 5.0)
    assert run("Freezing", tasks, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert [finding["code"] for finding in report["findings"]] == ["kills-process"]
    assert "no sign of life for 5 s" in report["findings"][0]["got"]
    assert "check_zoo.py" in report["findings"][0]["got"]


def test_a_slow_start_is_no_frozen_process(tasks, capsys, monkeypatch):
    lines = [{"started": True}, {"report": CheckReport("Slow-v0").to_json(), "end": True}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    monkeypatch.setattr(guard, "SILENCE_S", 1.0)
    monkeypatch.setattr(guard, "_CHILD", f"import time; time.sleep(2); print({text!r}, end='')")
    assert run("Right", tasks, "--json") == 0
    assert json.loads(capsys.readouterr().out)["env_id"] == "Slow-v0"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def broken(:", "line 1, is no valid Python"),
        ("import no_such_package", "cannot be imported"),
        ("raise ValueError('no licence')", "cannot be imported"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused_with_its_place(text, why, tmp_path, capsys):
    (tmp_path / "broken_file.py").write_text(text)
    assert cli.main(["check", f"{tmp_path / 'broken_file.py'}:MyEnv", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert why in captured.err
    assert "broken_file.py" in captured.err


def test_a_fault_of_the_checker_is_no_finding(tasks, monkeypatch, tmp_path):
    monkeypatch.setattr(guard, "_CHILD", guard._CHILD.replace("serve(json", "guard_fails(); serve(json"))
    monkeypatch.setattr(
        guard,
        "_CHILD",
        guard._CHILD.replace("guard_fails();", "import llmgym.checking.checker as c; c.conclude = None;"),
    )
    with pytest.raises(RuntimeError, match="please report it"):
        run("Right", tasks)
