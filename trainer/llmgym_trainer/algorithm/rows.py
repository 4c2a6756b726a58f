"""Episodes as rows of tokens to train on.

A turn that extends the one before goes on in its row; where history was rewritten a new row starts. With contexts C and
sampled turns S, four turns of which the third starts anew give (C1 S1 C2 S2) (C3 S3 C4 S4), and exactly the S are
trained. Every sampled token stands in one row with mask 1, in the order it was sampled. Turns that are left out on
purpose stand there too, as context.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from llmgym.episode import Episode, TurnTokens
from llmgym.errors import LLMGymError


class RowError(LLMGymError, ValueError):
    """An episode's tokens cannot be trained on."""


@dataclass
class Row:
    """One training row. The four lists have one entry a token.

    Attributes:
        ids: Token ids: the prompt and everything after it.
        mask: 1 on a trained token, else 0.
        turns: The turn of the episode that a trained token was sampled in, else -1.
        logprobs: The sampler's log-probability of a trained token, else 0.0.
        prompt_length: Tokens in front of the first sampled one.
        episode: Index of the episode in its batch, as given to :func:`build_rows`.
        policy_version: Number of weight updates behind the oldest sampled token of the row.
    """

    episode: int
    policy_version: int
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_length: int = 0
    turns: list[int] = field(default_factory=list)

    @property
    def num_trained(self) -> int:
        """Trained tokens in this row."""
        return sum(self.mask)


@dataclass
class TrainRow:
    """A row with what the loss needs.

    Attributes:
        row: The tokens.
        advantages: The advantage of each turn of its episode.
        episode_tokens: Trained tokens of the whole episode, over all its rows.
    """

    row: Row
    advantages: Sequence[float]
    episode_tokens: int


def build_rows(episode: Episode, index: int = 0, *, left_out: Collection[int] = ()) -> list[Row]:
    """Turn an episode into training rows.

    Args:
        episode: An episode whose turns carry tokens.
        index: Its index in the batch, kept in the rows.
        left_out: Numbers of turns whose sampled tokens are kept as context and not trained.

    Returns:
        The rows in order, without those in which nothing is trained; none for an episode that ended before its first
        turn. Nothing is cut, whatever ended it.

    Raises:
        RowError: A turn has no tokens, no sampled token, or not one finite logprob for each of them; or the first
            turn claims to extend another.
    """
    rows: list[Row] = []
    for number, turn in enumerate(episode.turns):
        where = f"turn {number} of episode {index} (task {episode.task.id})"
        tokens = turn.tokens
        if tokens is None:
            raise RowError(f"{where} has no tokens; only episodes played by a ModelPolicy can be trained on")
        _check(tokens, where)
        if not tokens.extends:
            rows.append(Row(index, tokens.policy_version, prompt_length=len(tokens.context_ids)))
        elif not rows:
            raise RowError(f"{where} extends a turn before it, but there is none")
        row = rows[-1]
        context, sampled = len(tokens.context_ids), len(tokens.completion_ids)
        row.ids += tokens.context_ids + tokens.completion_ids
        trained = number not in left_out
        row.mask += [0] * context + [int(trained)] * sampled
        row.turns += [-1] * context + [number if trained else -1] * sampled
        row.logprobs += [0.0] * context + (tokens.logprobs if trained else [0.0] * sampled)
        row.policy_version = min(row.policy_version, tokens.policy_version)
    return [row for row in rows if row.num_trained]


def train_rows(episode: Episode, index: int, advantages: Sequence[float], *, corrected: bool) -> list[TrainRow]:
    """The rows of an episode with its advantages.

    Args:
        episode: The episode.
        index: Its index among those that train.
        advantages: One a turn.
        corrected: Whether malformed turns that were corrected train too.
    """
    left_out = [] if corrected else [number for number, turn in enumerate(episode.turns) if turn.corrected]
    rows = build_rows(episode, index, left_out=left_out)
    tokens = sum(row.num_trained for row in rows)
    return [TrainRow(row, advantages, tokens) for row in rows]


def _check(tokens: TurnTokens, where: str) -> None:
    if not tokens.completion_ids:
        raise RowError(f"{where} has no sampled token, so there is nothing to train")
    if not tokens.extends and not tokens.context_ids:
        raise RowError(f"{where} starts a row without a prompt")
    if len(tokens.logprobs) != len(tokens.completion_ids):
        raise RowError(f"{where} has {len(tokens.completion_ids)} sampled ids but {len(tokens.logprobs)} logprobs")
    if not all(math.isfinite(logprob) for logprob in tokens.logprobs):
        raise RowError(f"{where} has a logprob that is not finite")
