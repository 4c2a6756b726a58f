"""``llmgym eval`` and ``llmgym export`` as commands: what they print, write and return."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

import pytest
from adding_env import ENV_ID
from servers import FaultServer, completion, error

from llmgym import Task, load_report, save_tasks
from llmgym.cli import main as cli


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def expert(out, *more):
    return cli.main(["eval", "ToolUseGame-v0", "--policy", "expert", "--limit", "3", "--out", out, *more])


def test_the_expert(capsys):
    assert expert("run", "--episodes-per-task", "2") == 0
    captured = capsys.readouterr()
    for part in ("ToolUseGame-v0, expert", "6 of 6, 3 tasks", "CONSTANT REWARD", "pass@k", "The expert is scripted"):
        assert part in captured.out
    assert captured.err == "folder: run (episodes.jsonl, report.json, report.md)\n"
    assert load_report("run").success.mean == 1.0


def test_every_option_arrives():
    save_tasks([Task("What is 0 + 1?", "1"), Task("What is 1 + 1?", "2")], "tasks.jsonl")
    with FaultServer(lambda body: completion("1", usage=(3, 2))) as server:
        arguments = (
            f"eval {ENV_ID} --tasks tasks.jsonl --limit 1 --model m --base-url {server.url} --episodes-per-task 3 "
            "--concurrency 2 --max-turns 5 --max-model-length 700 --max-completion-length 70 --timeout-s 9 "
            "--temperature 0.25 --seed 7 --success-reward 0.5 --price-in 1 --price-out 2 --max-cost 8 --out run"
        )
        assert cli.main(arguments.split()) == 0
    report = load_report("run")
    assert (report.episodes, report.success.mean, report.success_reward) == (3, 1.0, 0.5)
    assert report.cost == pytest.approx(3 * (3 * 1 + 2 * 2) / 1e6)
    settings = report.settings
    limits = {"max_turns": 5, "max_model_length": 700, "max_completion_length": 70, "env_timeout_s": 9.0}
    assert limits.items() <= settings["limits"].items()
    assert (settings["seed"], settings["policy"]["temperature"], settings["split"]) == (7, 0.25, None)
    assert {(body["temperature"], body["max_tokens"]) for body in server.bodies} == {(0.25, 70)}


def test_split_and_task_options():
    assert expert("run", "--split", "test", "--task-option", "level=2", "--episodes-per-task", "1") == 0
    report = load_report("run")
    assert (report.settings["split"], report.settings["task_options"]) == ("test", {"level": "2"})
    assert all("(" in row.prompt for row in report.tasks)  # level 1 has no parentheses


def test_a_lost_endpoint_is_status_1_and_resume_ends_it(capsys):
    left = 2

    def answer(body):
        nonlocal left
        left -= 1
        return completion("1") if left >= 0 else error(401, "no such key")

    save_tasks([Task(f"What is {number} + 1?", str(number + 1)) for number in range(4)], "tasks.jsonl")
    with FaultServer(answer) as server:
        arguments = f"eval {ENV_ID} --tasks tasks.jsonl --model m --base-url {server.url} --out run --concurrency 1"
        arguments += " --episodes-per-task 1"
        assert cli.main(arguments.split()) == 1
        assert "Not complete, 2 of 4 episodes: the endpoint was lost" in " ".join(capsys.readouterr().out.split())
        left = 9
        assert cli.main([*arguments.split(), "--resume"]) == 0
    assert load_report("run").episodes == 4
    assert len(server.bodies) == 2 + 1 + 2


def test_an_endpoint_that_never_answers_is_one_line_and_status_2(capsys):
    with FaultServer(error(401, "no such key")) as server:
        assert cli.main(["eval", ENV_ID, "--model", "m", "--base-url", server.url]) == 2
    err = capsys.readouterr().err
    assert "no such key" in err
    assert err.count("\n") == 1


def test_ctrl_c_saves_and_says_how_to_go_on():
    save_tasks([Task(f"task {number}") for number in range(200)], "tasks.jsonl")
    Path("my_env.py").write_text(
        "import llmgym\nclass MyEnv(llmgym.ToolEnv):\n    async def score(self, message): return 1.0\n"
    )

    def answer(body):
        if len(server.bodies) > 20:
            release.wait(60)  # the run is not over when the signal comes
        return completion("done")

    release = threading.Event()
    with FaultServer(answer) as server:
        command = f"eval my_env.py:MyEnv --tasks tasks.jsonl --model m --base-url {server.url} --out run"
        script = Path(sysconfig.get_path("scripts"), "llmgym")
        process = subprocess.Popen([script, *command.split()], stderr=subprocess.PIPE, text=True)
        record = Path("run/episodes.jsonl")
        while not record.is_file() or record.read_bytes().count(b"\n") < 3:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        release.set()
    assert process.returncode == 130
    assert "--resume runs the rest" in err
    assert "Traceback" not in err
    report = load_report("run")
    assert report.episodes == record.read_bytes().count(b"\n")
    assert report.stopped.startswith("it was interrupted")


def test_compare(capsys):
    assert expert("one") == expert("two", "--seed", "2") == 0
    capsys.readouterr()
    assert cli.main(["eval", "--compare", "one", "two"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "A: expert" in out
    assert "They ran with different seed." in out
    assert "B - A: +0.000 mean reward over 3 common tasks, p = 1 (exact sign-flip test over 0 differing tasks)" in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("eval", "name an environment"),
        ("eval ToolUseGame-v0", "give a policy"),
        ("eval ToolUseGam-v0 --policy expert", "Did you mean 'ToolUseGame-v0'?"),
        ("eval ToolUseGame-v0 --policy experts", "policy must be 'expert'"),
        ("eval ToolUseGame-v0 --policy expert --split holdout", "unknown split 'holdout'"),
        ("eval ToolUseGame-v0 --policy expert --tasks none.jsonl", "there is no task file 'none.jsonl'"),
        ("eval ToolUseGame-v0 --policy expert --tasks none.jsonl --split val", "drop one"),
        ("eval ToolUseGame-v0 --policy expert --task-option level", "KEY=VALUE"),
        ("eval ToolUseGame-v0 --policy expert --max-cost 1", "--price-in"),
        ("eval ToolUseGame-v0 --policy expert --resume", "--out DIR"),
        ("eval --compare one two", "there is no report at 'one'"),
        ("eval --compare one two --seed x", "command line: seed must be a whole number, got 'x'"),
        ("eval ToolUseGame-v0 --polcy expert", "unknown option '--polcy'. Did you mean '--policy'?"),
        ("eval ToolUseGame-v0 --policy expert --limit 0", "limit must be a whole number of at least 1 or None, got 0"),
        ("eval ToolUseGame-v0 --compare one two", "no environment"),
        ("export nothing --out rows.jsonl", "'nothing' holds no episodes"),
    ],
)
def test_refusals_are_one_line_and_status_2(capsys, arguments, text):
    assert cli.main(arguments.split()) == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1
    assert not Path("runs").exists()


def test_export(capsys):
    expert("run", "--episodes-per-task", "2")
    capsys.readouterr()
    arguments = "export run --out rows.jsonl --min-reward 1 --best-per-task --arguments string"
    assert cli.main(arguments.split()) == 0
    assert capsys.readouterr().out == (
        "3 of 6 episodes written to rows.jsonl; left out: 0 that their environment did not end, 0 of low reward, 3 not "
        "the best of their task\n"
    )
    first = json.loads(Path("rows.jsonl").read_text().splitlines()[0])
    assert isinstance(first["messages"][2]["tool_calls"][0]["function"]["arguments"], str)


def test_without_the_trainer_a_local_model_says_what_to_install():
    code = """
import sys
sys.modules["torch"] = None
from llmgym.cli import main as cli
sys.exit(cli.main(["eval", "ToolUseGame-v0", "--model", "tiny"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert 'pip install -e ".[train]"' in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_command_loads_no_torch():
    code = """
import sys
from llmgym.cli import main as cli
assert cli.main(["eval", "ToolUseGame-v0", "--policy", "expert", "--limit", "1"]) == 0
print([name for name in ("torch", "transformers", "openai") if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert done.stderr.endswith("[]\n")
