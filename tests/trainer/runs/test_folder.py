import json
import math

import pytest

from llmgym import Episode, StopReason, Task, read_episodes
from llmgym.errors import ConfigError
from llmgym_trainer.runs.folder import RunFolder, plot_run, read_metrics


def test_a_run_never_gets_another_ones_folder(tmp_path):
    first = RunFolder.create(tmp_path, "a")
    first.write_metrics(1, {"reward": 1.0})
    with pytest.raises(ConfigError, match=r"there is already a run .*a'"):
        RunFolder.create(tmp_path, "a")
    assert read_metrics(first.path) == [{"step": 1, "reward": 1.0}]


def test_unnamed_runs_of_one_second_get_folders_of_their_own(tmp_path):
    folders = {RunFolder.create(tmp_path, None).path for _ in range(5)}
    assert len(folders) == 5
    assert {folder.parent for folder in folders} == {tmp_path}


@pytest.mark.parametrize("name", ["a/b", "..", ".", "", "/abs"])
def test_a_run_name_is_a_plain_folder_name(tmp_path, name):
    with pytest.raises(ConfigError, match="must be a plain folder name"):
        RunFolder.create(tmp_path / "runs", name)
    assert not (tmp_path / "runs").exists()


def test_a_discarded_run_leaves_its_name_free(tmp_path):
    RunFolder.create(tmp_path, "a").discard()
    assert RunFolder.create(tmp_path, "a").path.is_dir()


def test_each_line_of_metrics_is_on_disk_at_once(tmp_path):
    folder = RunFolder.create(tmp_path, "a")
    for step in (1, 2):
        folder.write_metrics(step, {"reward": step / 2})
        assert len((folder.path / "metrics.jsonl").read_text().splitlines()) == step


def test_what_is_no_number_becomes_null_and_only_that(tmp_path):
    folder = RunFolder.create(tmp_path, "a")
    folder.write_metrics(3, {"a": math.nan, "b": 1.5, "c": None, "d": math.inf, "e": 2, "f": -math.inf})
    text = (folder.path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name)) == {
        "step": 3, "a": None, "b": 1.5, "c": None, "d": None, "e": 2, "f": None,
    }  # fmt: skip


def test_metrics_of_a_run_without_any(tmp_path):
    assert read_metrics(tmp_path) == []


def test_a_last_line_cut_by_a_crash_does_not_hide_the_others(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "rew')
    assert read_metrics(tmp_path) == [{"step": 1, "reward": 0.5}]


def test_episodes_append(tmp_path):
    folder = RunFolder.create(tmp_path, "a")
    for index in range(3):
        folder.write_episodes("train-000001", [Episode(Task("x"), StopReason.TERMINATED, episode_index=index)])
    found = list(read_episodes(folder.path / "episodes" / "train-000001.jsonl"))
    assert [episode.episode_index for episode in found] == [0, 1, 2]


@pytest.mark.parametrize(
    "lines", [[], [{"val/success": 0.5}], [{"reward": None}, {"reward": 0.5, "val/success": None}]]
)
def test_the_picture_is_a_png(tmp_path, lines):
    folder = RunFolder.create(tmp_path, "a")
    for step, line in enumerate(lines):
        folder.write_metrics(step, line)
    path = plot_run(folder.path)
    assert path == folder.path / "reward.png"
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize("text", ["{", "[]", "", "\0\0"])
def test_broken_notes_are_named(tmp_path, text):
    folder = RunFolder.create(tmp_path, "a")
    (folder.path / "run.json").write_text(text)
    with pytest.raises(ConfigError, match=r"a/run.json' is broken .*; remove it, and resume"):
        folder.command()


def test_a_broken_line_of_metrics_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st{"step": 3}\n')
    with pytest.raises(ConfigError, match=r"metrics.jsonl:2: .* is not a line of metrics"):
        read_metrics(tmp_path)
