"""Fixtures of the trainer's tests: one tiny model on disk for the whole session, one torch thread."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("WANDB_MODE", "disabled")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _scripted_engine():
    """What a test asserts does not depend on what a model happens to sample; ``with toys.sampled()`` makes it do so."""
    from toys import scripted

    with scripted():
        yield


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a model of two layers that says a few letters a turn, with its tokenizer and the compact template."""
    from toys import build_llama, build_tokenizer, teach_to_stop

    path = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer()
    model = build_llama(len(tokenizer))
    teach_to_stop(model, tokenizer)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
