"""The errors that end a training run, and the test for unusable weights.

The errors of its files are in :mod:`llmgym_trainer.runs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from llmgym.errors import LLMGymError

if TYPE_CHECKING:
    from llmgym_trainer.config import GRPOConfig


class TooManyErrorsError(LLMGymError, RuntimeError):
    """More episodes failed than ``max_error_share`` allows."""


class NoRewardVarianceError(LLMGymError, RuntimeError):
    """For ``max_steps_without_variance`` steps in a row no group had reward variance."""


class NothingTrainedError(LLMGymError, RuntimeError):
    """A run ended without a single step that trained anything."""


class OutOfMemoryError(LLMGymError, RuntimeError):
    """A training step does not fit into memory."""


class NonFiniteError(LLMGymError, RuntimeError):
    """Gradients, a loss or weights are NaN or infinite."""


class RuinedWeightsError(NonFiniteError):
    """The weights are unusable: no checkpoint of them is written."""


def weights_are_finite(model: torch.nn.Module) -> bool:
    """Whether no parameter holds NaN or infinity, in one pass over them: either makes a sum non-finite too."""
    return all(bool(parameter.detach().sum(dtype=torch.float32).isfinite()) for parameter in model.parameters())


def ruined_weights(what: str, step: int, config: GRPOConfig) -> RuinedWeightsError:
    """The error of a model that ``what`` is wrong with after a step."""
    unlimited = "" if config.max_grad_norm else " for gradients without a limit (max_grad_norm=0)"
    return RuinedWeightsError(
        f"the model {what} after step {step}, most likely because learning_rate={config.learning_rate} is too high"
        f"{unlimited}. It is not saved. Start again with a lower learning_rate; earlier checkpoints may be damaged too"
    )
