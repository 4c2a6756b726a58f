"""What the processes of a run tell each other. Every process must make each of these calls, in the same order."""

from __future__ import annotations

from typing import TypeVar

import torch
from accelerate.utils import broadcast_object_list, gather_object

T = TypeVar("T")


def gather(value: T) -> list[T]:
    """The values of all processes, in the order of their ranks. A value must be picklable."""
    gathered: list[T] = gather_object([value])
    return gathered


def broadcast(value: T) -> T:
    """The value of the first process."""
    values = [value]
    broadcast_object_list(values)
    return values[0]


def summarize(values: torch.Tensor) -> dict[str, float]:
    """Minimum, mean and maximum of the values of all processes, shape (any number,); some process must have one."""
    own = (values.min().item(), values.max().item(), values.sum().item(), values.numel()) if values.numel() else None
    found = [part for part in gather(own) if part is not None]
    return {
        "min": min(part[0] for part in found),
        "mean": sum(part[2] for part in found) / sum(part[3] for part in found),
        "max": max(part[1] for part in found),
    }
