"""The command line: what it prints, its exit status, and that it stays light."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import types
from pathlib import Path

import pytest

import llmgym
from llmgym import registry
from llmgym.cli import main as cli
from llmgym.errors import ConfigError
from llmgym.registry import EnvEntry


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"llmgym {llmgym.__version__}\n"


def test_list_shows_each_environment_with_its_tools_and_tasks(capsys):
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    assert re.search(
        r"^ToolUseGame-v0\n  [A-Z].*\n    .*\.\n  tools: list_fact_keys, lookup, calculator\n"
        r"  tasks: train \d+, val \d+, test \d+ \(levels 1, 2, 3\)$",
        out,
        re.MULTILINE,
    )
    assert max(map(len, out.splitlines())) <= 80
    assert [line for line in out.splitlines() if line[0] != " "] == llmgym.registered_ids()


class Documented(llmgym.ToolEnv):
    """
    ## Description
    A first sentence that does not
    fit on one line, as it is longer than a terminal is wide. And a second one.

    | level | size |
    | --- | --- |
    | 1 | 3 |
    | easy | 4 |
    """

    async def score(self, message):
        return 0.0


def test_list_says_one_sentence_and_survives_an_environment_that_fails(capsys, monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", {})
    registry._ENTRIES["A-v0"] = EnvEntry("A-v0", "no_such_module:Env")
    registry._ENTRIES["B-v0"] = EnvEntry("B-v0", Documented)
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "A-v0",
        "  cannot be shown: UnknownEnvironmentError: there is no module 'no_such_module'",
        "    to take an environment from",
        "B-v0",
        "  A first sentence that does not fit on one line, as it is longer than a",
        "    terminal is wide.",
        "  tools: none",
        "  tasks: none (levels 1, easy)",
    ]


def test_no_command_prints_the_help(capsys):
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert "train" in out
    assert "list" in out


def test_an_unknown_command_is_refused_with_the_nearest(capsys):
    assert cli.main(["evla"]) == 2
    err = capsys.readouterr().err
    assert "there is no command 'evla'; there are train, sft, check, eval," in err
    assert err.endswith("Did you mean 'eval'?\n")


IMPORTS_TORCH = [pytest.param(name, marks=pytest.mark.slow) for name in ("train", "sft")]


@pytest.mark.parametrize("command", [*IMPORTS_TORCH, "check", "eval", "export", "view", "new", "play", "list"])
def test_every_command_has_a_help_page(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    assert f"usage: llmgym {command}" in capsys.readouterr().out


@pytest.fixture
def trainer(monkeypatch):
    """Stand in for the trainer: pretend that it is installed, and keep the arguments it is called with."""
    module = types.ModuleType("llmgym_trainer.cli.train")
    module.given = []
    module.main = lambda argv: module.given.append(argv) or 3
    monkeypatch.setattr(cli, "_TRAINER_NEEDS", ())
    monkeypatch.setitem(sys.modules, "llmgym_trainer", types.ModuleType("llmgym_trainer"))
    monkeypatch.setitem(sys.modules, "llmgym_trainer.cli.train", module)
    return module


def test_train_hands_everything_over(trainer):
    assert cli.main(["train", "ToolUseGame-v0", "--num-steps", "2", "--help"]) == 3
    assert trainer.given == [["ToolUseGame-v0", "--num-steps", "2", "--help"]]


def test_an_error_of_llmgym_is_one_line_and_status_2(trainer, capsys):
    def refuse(argv):
        raise ConfigError("max_turns must be\n  at least 1, got 0")

    trainer.main = refuse
    assert cli.main(["train", "ToolUseGame-v0"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "llmgym: max_turns must be at least 1, got 0\n"
    assert captured.out == ""


def test_an_error_of_somebody_else_keeps_its_traceback(trainer):
    def fail(argv):
        raise ZeroDivisionError("a bug")

    trainer.main = fail
    with pytest.raises(ZeroDivisionError, match="a bug"):
        cli.main(["train", "ToolUseGame-v0"])


@pytest.mark.parametrize("missing", ["torch", "trl"])
def test_train_without_the_trainer_says_what_to_install(monkeypatch, capsys, missing):
    monkeypatch.setattr(cli, "_TRAINER_NEEDS", ("json", f"no_such_{missing}"))
    assert cli.main(["train", "ToolUseGame-v0"]) == 2
    err = capsys.readouterr().err
    assert 'pip install -e ".[train]"' in err
    assert f"no_such_{missing}" in err
    assert "json" not in err


@pytest.mark.slow
def test_the_commands_stay_light():
    code = """
import sys
from llmgym.cli.main import main
assert main(["list"]) == 0
assert main([]) == 0
sys.exit(", ".join(name for name in ("torch", "transformers", "trl") if name in sys.modules) or 0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_console_script_is_installed():
    done = subprocess.run(
        [Path(sysconfig.get_path("scripts"), "llmgym"), "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"llmgym {llmgym.__version__}\n"


def test_modules_of_the_current_folder_can_be_named(tmp_path, monkeypatch, trainer):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "module_of_the_folder.py").write_text(
        "import llmgym\nclass MyEnv(llmgym.ToolEnv):\n    async def score(self, message): return 1.0\n"
    )
    trainer.main = lambda argv: llmgym.registry.find(argv[0]) and 0
    assert cli.main(["train", "module_of_the_folder:MyEnv"]) == 0
