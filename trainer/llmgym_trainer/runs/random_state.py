"""The state of the global random generators, which dropout draws from. Knows no model."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy
import torch


@dataclass(frozen=True)
class RandomState:
    """The generators of Python, NumPy and torch (CPU and CUDA) at one moment."""

    python: Any
    numpy: Any
    torch: torch.Tensor
    cuda: list[torch.Tensor]

    @classmethod
    def now(cls) -> RandomState:
        """Read the state."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return cls(random.getstate(), numpy.random.get_state(), torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Set the state back."""
        random.setstate(self.python)
        numpy.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
