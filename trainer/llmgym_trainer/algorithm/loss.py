"""Importance sampling between the sampler's distribution and the trainer's. Knows tensors of a batch, no model.

The same weights give other probabilities in another precision or kernel, so that the gradient is one of episodes from
a slightly different policy. Weighing each token by ``trainer's probability / sampler's probability`` mends that;
cutting the weight at a cap bounds its variance (truncated importance sampling, IMPALA's, arXiv 1802.01561; in this
use: fengyao.notion.site/off-policy-rl, 2025). With ``"sequence"`` all tokens of a row have the geometric mean of
their ratios (GSPO's length-normalised ratio, arXiv 2507.18071): the plain product explodes with the length of an
episode.

The weights are exact only where the sampler drew from its whole distribution, so truncated sampling is refused.
"""

from __future__ import annotations

import torch

LEVELS = ("off", "token", "sequence")


def importance_ratios(
    logps: torch.Tensor, sampling_logps: torch.Tensor, mask: torch.Tensor, level: str
) -> torch.Tensor:
    """Ratios of the trainer's probabilities to the sampler's, before any cut. No gradient flows through them.

    Args:
        logps: Log-probabilities of the training forward pass, shape (B, T).
        sampling_logps: The sampler's, shape (B, T).
        mask: Above 0 on trained tokens, shape (B, T).
        level: ``"token"``, or ``"sequence"`` for one length-normalised ratio a row.

    Returns:
        The ratios, shape (B, T); 1 where nothing is trained.
    """
    trained = mask > 0
    differences = torch.where(trained, logps.detach() - sampling_logps, 0.0).float()
    if level == "sequence":
        mean = differences.sum(-1, keepdim=True) / trained.sum(-1, keepdim=True).clamp(min=1)
        differences = torch.where(trained, mean, 0.0)
    return differences.exp()
