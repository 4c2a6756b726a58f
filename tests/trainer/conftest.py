"""Fixtures of the trainer's tests: one torch thread, and an engine that says what a test tells it."""

from __future__ import annotations

import os

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
