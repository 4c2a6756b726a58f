"""NaN and infinity in training: the error, and whether weights are free of them. Knows no trainer."""

from __future__ import annotations

import torch
from torch import nn

from llmgym.errors import LLMGymError


class NonFiniteError(LLMGymError, RuntimeError):
    """Gradients, a loss or weights are NaN or infinite."""


class RuinedWeightsError(NonFiniteError):
    """The weights are past use: no checkpoint of them is written."""


def weights_are_finite(model: nn.Module) -> bool:
    """Whether no parameter holds NaN or infinity, in one pass over them: either makes a sum non-finite too."""
    return all(bool(parameter.detach().sum(dtype=torch.float32).isfinite()) for parameter in model.parameters())
