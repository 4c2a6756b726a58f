"""An evaluation of a model in this process: what is reported, that it repeats, and that it goes on where it ended."""

from __future__ import annotations

from pathlib import Path

from toys import TASKS, LetterEnv

from llmgym import read_episodes, run_and_report


def tokens(folder: Path) -> dict[tuple[str, int], list[list[int]]]:
    return {
        (episode.task.id, episode.episode_index): [turn.tokens.completion_ids for turn in episode.turns if turn.tokens]
        for episode in read_episodes(folder / "episodes.jsonl")
    }


def test_a_model_directory(model_dir, tmp_path):
    settings = {
        "tasks": TASKS[:2],
        "model": str(model_dir),
        "episodes_per_task": 3,
        "max_model_length": 120,
        "max_completion_length": 20,
    }
    report = run_and_report(LetterEnv, **settings, out=tmp_path / "one")
    sampled = tokens(tmp_path / "one")
    assert (report.episodes, report.failed, report.stopped) == (6, 0, None)
    assert report.policy == str(model_dir)
    assert report.completion_tokens == sum(len(ids) for turns in sampled.values() for ids in turns)
    assert report.turns_without_usage == 0

    # One episode at a time gives the same episodes, and so does a run that was cut short and resumed.
    run_and_report(LetterEnv, **settings, out=tmp_path / "two", concurrency=1)
    assert tokens(tmp_path / "two") == sampled
    record = tmp_path / "two" / "episodes.jsonl"
    record.write_bytes(b"".join(record.read_bytes().splitlines(keepends=True)[:4])[:-20])
    again = run_and_report(LetterEnv, **settings, out=tmp_path / "two", resume=True)
    assert tokens(tmp_path / "two") == sampled
    assert (again.reward, again.tasks) == (report.reward, report.tasks)
