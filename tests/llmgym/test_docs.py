"""What README and docs/ show is run here: the guide from an empty file to a green check, records, command lines."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest

import llmgym
import llmgym_trainer
from llmgym import Episode, EpisodeLimits, ScriptedPolicy, StopReason, Turn
from llmgym.cli import main as cli
from llmgym.episode import TurnTokens, Usage
from llmgym.records import FORMAT_VERSION

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (DOCS / "writing-an-environment.md").read_text(encoding="utf-8")
RECORDS = (DOCS / "records.md").read_text(encoding="utf-8")
VIEWING = (DOCS / "viewing.md").read_text(encoding="utf-8")


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


*WAREHOUSE, GUESS = blocks(GUIDE, "python")
COMMANDS = [line for block in blocks(GUIDE, "bash") for line in block.splitlines()]
BREAKS = re.findall(r"^```diff\n(.*?)^```\n(.*?)(?=\n```|\nEach finding)", GUIDE, re.MULTILINE | re.DOTALL)


def changed(source, diff):
    """The file after the change that a diff block shows."""
    for part in diff.split("@@\n"):
        lines = part.splitlines(keepends=True)
        old = "".join(line[1:] or "\n" for line in lines if line[0] != "+")
        new = "".join(line[1:] or "\n" for line in lines if line[0] != "-")
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with the file that the guide writes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_env.py").write_text("\n\n".join(WAREHOUSE))
    return tmp_path


@pytest.mark.slow
def test_the_commands_of_the_guide_work(folder, monkeypatch, capsys):
    lines = iter(["/weigh", "lamp", "not a number"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    assert [line.split()[1] for line in COMMANDS] == ["check", "play", "eval", "view"]
    printed = []
    for line in COMMANDS:
        assert cli.main(line.split()[1:]) == 0, line
        printed.append(capsys.readouterr().out)
    said = blocks(GUIDE, "text")[0].strip()
    assert said == "0 errors, 0 warnings"
    assert said in printed[0]
    assert not re.search("failed|warning |not checked", printed[0])
    assert "[tool weigh] " in printed[1]
    assert json.loads((folder / "runs/expert/report.json").read_text())["success"]["mean"] == 1.0
    assert (folder / "runs/expert/view.html").is_file()
    (block,) = blocks(RECORDS, "python")
    exec(block, {})  # reads and replays what was played
    assert capsys.readouterr().out.endswith("terminated 0.0 2\n[]\n")


def test_the_episode_that_is_played_by_hand(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (transcript,) = blocks(VIEWING, "text")
    (command,) = (line for block in blocks(VIEWING, "bash") for line in block.splitlines() if " play " in line)
    typed = iter(re.findall(r"^(?:> |  key = )(.*)", transcript, re.MULTILINE))
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    assert cli.main(command.split()[1:]) == 0
    shown = [line for line in transcript.splitlines() if not line.startswith(("> ", "  key = "))]
    assert capsys.readouterr().out.splitlines()[1 : 1 + len(shown)] == shown  # below a line that tells what to do
    assert list(typed) == []


def test_splits_of_the_guide_are_apart_and_all_there(folder):
    splits = [llmgym.tasks("my_env.py:Warehouse-v0", split) for split in ("train", "val", "test")]
    assert sum(map(len, splits)) == 5 * 12 * 11 / 2
    assert all(splits)


@pytest.mark.slow
@pytest.mark.parametrize("place", range(3))
def test_each_change_of_the_guide_is_found(place, folder):
    diff, about = BREAKS[place]
    (folder / "broken_env.py").write_text(changed((folder / "my_env.py").read_text(), diff))
    report = llmgym.check_env("broken_env.py:Warehouse-v0")
    assert not report.ok
    assert [finding.code for finding in report.findings] == re.findall(r"`([a-z]+-[a-z-]+)`", about)


def test_every_change_of_the_guide_is_tested():
    assert len(BREAKS) == len(blocks(GUIDE, "diff")) == 3


@pytest.mark.slow
def test_the_environment_without_toolenv_is_right(folder):
    (folder / "guess_env.py").write_text(GUESS)
    report = llmgym.check_env("guess_env.py:Guess-v0")
    assert report.findings == []
    not_checked = {one.name for one in report.checks if one.status == "not checked"}
    assert not_checked == {"tool-specs", "hostile-results", "tool-dispatch", "expert"}


def section(title):
    return re.search(rf"^### {title}\n(.*?)(?=^##|\Z)", RECORDS, re.MULTILINE | re.DOTALL)[1]


def named(text):
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("title", "kind"),
    [("Turn", Turn), ("Tokens", TurnTokens), ("Usage", Usage), ("Limits", EpisodeLimits)],
)
def test_the_page_names_every_field_of_a_record(title, kind):
    assert named(section(title)) == [field.name for field in dataclasses.fields(kind)]


def test_the_page_names_every_field_of_an_episode_and_every_stop_reason():
    fields = [field.name for field in dataclasses.fields(Episode)]
    assert named(section("Episode")) == [*fields, *StopReason]
    assert f"`format_version`, which is {FORMAT_VERSION}," in section("Episode")


def command_lines():
    """The words of each ``llmgym`` command in a block of README or docs/, with the file it stands in."""
    for file in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for block in blocks(file.read_text(encoding="utf-8"), "(?:bash|text)"):
            for line in block.replace("\\\n", " ").splitlines():
                if found := re.search(r"(?:^|&& |--no_python |--no-python )llmgym (.+)", line):
                    yield file.name, shlex.split(found[1], comments=True)


@pytest.mark.slow
def test_every_command_line_has_a_command_and_options_that_exist(capsys):
    helps = {}
    for file, (command, *words) in command_lines():
        if command not in helps:
            with pytest.raises(SystemExit, match="0"):
                cli.main([command, "--help"])
            helps[command] = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
        options = {word.split("=")[0] for word in words if word.startswith("--")}
        assert options <= helps[command], (file, command, words)
    assert set(helps) == {"train", "sft", "eval", "export", "check", "view", "play", "new"}


def test_the_environment_of_the_readme():
    source, _ = blocks(README, "python")
    names = {}
    exec(source, names)
    (task,) = names["TASKS"]
    call = {"function": {"name": "capital", "arguments": '{"country": "Peru"}'}}
    policy = ScriptedPolicy([{"role": "assistant", "tool_calls": [call]}, "Lima"])
    episode = asyncio.run(llmgym.run_episode(names["CapitalEnv"](), task, policy))
    assert (episode.reward, episode.turns[0].observation[0]["content"]) == (1.0, "Lima")


@pytest.mark.parametrize(("module", "prefix"), [(llmgym, "llmgym"), (llmgym_trainer, "llmgym_trainer")])
def test_the_reference_has_every_public_name(module, prefix):
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    assert sorted(re.findall(rf"^::: {prefix}\.(\w+)$", pages, re.MULTILINE)) == sorted(module.__all__)
