"""Sampling engines. :func:`make_engine` is the only place outside their own modules that chooses one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from llmgym_trainer.engines.base import Engine
from llmgym_trainer.engines.transformers import TransformersEngine


def make_engine(
    model: torch.nn.Module,
    *,
    forward_context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Engine:
    """The engine that samples from a model.

    Args:
        model: A transformers causal language model, such as the one that is being trained.
        forward_context: Entered around each forward pass, such as the trainer's autocast.
    """
    return TransformersEngine(model, forward_context=forward_context)
