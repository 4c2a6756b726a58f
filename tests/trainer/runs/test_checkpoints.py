import errno
import os

import pytest
import torch
from toys import TASKS, LetterEnv, make_trainer, settings

from llmgym.errors import ConfigError
from llmgym_trainer import GRPOConfig, train_multi_turn
from llmgym_trainer.runs.checkpoints import CheckpointError, begin, checkpoints, last_checkpoint, publish


def test_a_checkpoint_gets_its_name_when_it_is_whole(tmp_path):
    partial = begin(tmp_path)
    (partial / "checkpoint-7" / "deep").mkdir(parents=True)
    (partial / "checkpoint-7" / "deep" / "weights").write_text("abc")
    assert checkpoints(tmp_path) == []
    written = (partial / "checkpoint-7").stat().st_ino
    assert publish(tmp_path, 7) == tmp_path / "checkpoint-7"
    assert (tmp_path / "checkpoint-7").stat().st_ino == written  # renamed, which happens at once; a copy takes time
    assert (tmp_path / "checkpoint-7" / "deep" / "weights").read_text() == "abc"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-7"]


def test_what_a_crash_left_is_no_checkpoint_and_goes_at_the_next_one(tmp_path):
    (begin(tmp_path) / "checkpoint-7").mkdir()
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        last_checkpoint(tmp_path)
    assert list(begin(tmp_path).iterdir()) == []


def test_the_order_is_that_of_the_steps(tmp_path):
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-x", "checkpoint.partial"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10"]
    assert last_checkpoint(tmp_path).name == "checkpoint-10"


def test_a_disk_that_is_full_while_a_checkpoint_is_written(model_dir, tmp_path, monkeypatch):
    save = torch.save
    written = []

    def full_at_the_second(*args, **kwargs):
        written.append(1)
        if len(written) > 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(*args, **kwargs)

    monkeypatch.setattr(torch, "save", full_at_the_second)
    config = GRPOConfig(**settings(model_dir, tmp_path, num_steps=3, save_steps=1, run_name="a"))
    with pytest.raises(
        CheckpointError,
        match=r"step 2 could not be written.*No space left.*MiB are free there.* resume checkpoint-1: ",
    ):
        train_multi_turn(config, tasks=TASKS, env_factory=LetterEnv)
    assert [path.name for path in (tmp_path / "a").glob("checkpoint*")] == ["checkpoint-1"]

    monkeypatch.setattr(torch, "save", save)
    again = train_multi_turn(
        config.replace(resume_from_checkpoint=str(tmp_path / "a")), tasks=TASKS, env_factory=LetterEnv
    )
    assert again.steps == 3


def test_old_checkpoints_go_by_their_step(model_dir, tmp_path):
    trainer = make_trainer(model_dir, tmp_path, num_steps=4, save_steps=1, save_total_limit=2)
    trainer.train()
    assert [path.name for path in checkpoints(trainer._reporter.folder)] == ["checkpoint-3", "checkpoint-4"]
    before = (trainer._reporter.folder / "checkpoint-4").stat().st_mtime_ns
    assert trainer.save_now() == trainer._reporter.folder / "checkpoint-4"
    assert (trainer._reporter.folder / "checkpoint-4").stat().st_mtime_ns == before


def test_a_disk_that_is_full_before_there_is_a_checkpoint(model_dir, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise RuntimeError("[enforce fail at inline_container.cc:672]")

    monkeypatch.setattr(torch, "save", full)
    text = r"step 1 could not be written to .*inline_container.*MiB are free there.*, start the run again"
    with pytest.raises(CheckpointError, match=text):
        make_trainer(model_dir, tmp_path).train()
