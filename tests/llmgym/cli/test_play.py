"""``llmgym play``: what it prints and records."""

from __future__ import annotations

import asyncio

import pytest

import llmgym
from llmgym import read_episodes, replay
from llmgym.cli import main as cli
from llmgym.records import compare_replay


def test_the_command_says_plainly_that_the_player_left_and_nothing_twice(monkeypatch, tmp_path, capsys):
    lines = iter(["teal", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    assert cli.main(["play", "Mastermind-v0", "--out", str(tmp_path / "left.jsonl")]) == 0
    text = capsys.readouterr().out
    assert text.count("[user] no guess") == 1
    assert "\nreward 0, stopped: the player left\n" in text


def test_the_command_records_what_can_be_replayed_and_viewed(monkeypatch, tmp_path, capsys):
    task = llmgym.tasks("ToolUseGame-v0", "val")[2]
    lines = iter(["/lookup", next(iter(task.metadata["facts"])), str(task.target)])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    out = tmp_path / "mine.jsonl"
    assert cli.main(["play", "ToolUseGame-v0", "--split", "val", "--task", "2", "--out", str(out)]) == 0
    (episode,) = read_episodes(out)
    assert (episode.task, episode.env_id, episode.provenance["policy"]) == (task, "ToolUseGame-v0", "human")
    assert len(episode.turns) == 2
    text = capsys.readouterr().out
    assert f"reward {episode.reward:g}, stopped: terminated" in text
    assert f"target: {task.target}" in text
    make = llmgym.registry.find("ToolUseGame-v0").make_env
    assert compare_replay(episode, asyncio.run(replay(episode, make))) == []
    assert cli.main(["view", str(out)]) == 0
    assert (tmp_path / "mine.html").is_file()


@pytest.mark.parametrize("task", ["99999", "-1", "no-such-id"])
def test_a_task_that_is_not_there_is_refused(task, capsys):
    assert cli.main(["play", "ToolUseGame-v0", f"--task={task}"]) == 2
    assert repr(task) in capsys.readouterr().err


def test_a_task_is_chosen_by_its_id_and_an_episode_cut_by_its_limit_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("builtins.input", lambda prompt: "teal")
    task = llmgym.tasks("Mastermind-v0", "train")[1]
    command = ["play", "Mastermind-v0", "--task", task.id, "--max-turns", "1", "--out"]
    assert cli.main([*command, str(tmp_path)]) == 2
    assert "is a folder; give a JSONL file" in capsys.readouterr().err
    assert cli.main([*command, str(tmp_path / "cut.jsonl")]) == 0
    (episode,) = read_episodes(tmp_path / "cut.jsonl")
    assert episode.task == task
    assert "\nreward 0, stopped: max_turns (1 assistant turns ran)\n" in capsys.readouterr().out
