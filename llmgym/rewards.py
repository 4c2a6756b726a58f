"""A reward made of named parts. Knows numbers only."""

from __future__ import annotations

from collections.abc import Mapping

from llmgym.errors import ConfigError, did_you_mean

COMPONENT_PREFIX = "reward/"


def weighted_reward(
    components: Mapping[str, float], weights: Mapping[str, float] | None = None
) -> tuple[float, dict[str, float]]:
    """Add up named parts of a reward.

    Args:
        components: The value of each part, such as ``{"correct": 1.0, "short": 0.4}``.
        weights: The weight of each part; one that is missing counts 1.

    Returns:
        The sum of weight times value, and the values (without weights) as metrics named ``reward/<part>``, to be put
        into :attr:`llmgym.StepResult.metrics`, where training and evaluation log them.

    Raises:
        ConfigError: A weight belongs to no part.
    """
    weights = weights or {}
    for name in weights:
        if name not in components:
            raise ConfigError(
                f"there is a weight for the reward component {name!r}, but the components are "
                f"{', '.join(components) or 'none'}.{did_you_mean(name, components)}"
            )
    total = sum(weights.get(name, 1.0) * value for name, value in components.items())
    return float(total), {f"{COMPONENT_PREFIX}{name}": float(value) for name, value in components.items()}
