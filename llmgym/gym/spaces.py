"""The space of chat-message lists, which Gymnasium's own spaces cannot express."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import gymnasium
import numpy as np

from llmgym._util.settings import check_value
from llmgym.errors import ConfigError, MessageError
from llmgym.messages import ROLES, Message, Role, copy_message, normalize_message

_WORDS = ("a", "answer", "because", "find", "is", "it", "look", "not", "number", "of", "seven", "so", "the", "value")


class MessageSpace(gymnasium.Space[list[Message]]):
    """Lists of chat messages, such as a conversation or an action.

    A member is a ``list`` of dictionaries that :func:`llmgym.normalize_message` accepts. Samples are plain text
    without tool calls, the same for the same seed. Vector environments batch these spaces to a tuple with one list
    an environment; there is no shared-memory form, so ``AsyncVectorEnv`` needs ``shared_memory=False``.

    Args:
        roles: The roles that messages may have.
        length: The number of messages; None allows any.
        seed: Seed of :meth:`sample`.

    Raises:
        ConfigError: An unknown role, no role at all, or a length below 1.
    """

    def __init__(
        self,
        *,
        roles: Iterable[Role] = cast(tuple[Role, ...], ROLES),
        length: int | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self.roles = tuple(roles)
        self.length = length
        unknown = [role for role in self.roles if role not in ROLES]
        if unknown or not self.roles:
            raise ConfigError(f"roles must be some of {', '.join(ROLES)}, got {unknown or 'none'}")
        check_value("length", length, int, type(None), least=1)
        super().__init__(seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: text has no fixed size."""
        return False

    def sample(self, mask: None = None, probability: None = None) -> list[Message]:
        """Return messages of random words: ``length`` of them, or one to four."""
        if mask is not None or probability is not None:
            raise ConfigError("MessageSpace samples random words; it takes neither mask nor probability")
        draw = self.np_random.integers
        count = self.length if self.length is not None else int(draw(1, 5))
        return [
            {
                "role": self.roles[int(draw(len(self.roles)))],
                "content": " ".join(_WORDS[int(draw(len(_WORDS)))] for _ in range(int(draw(1, 9)))),
            }
            for _ in range(count)
        ]

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a list of chat messages with the roles and the length of this space."""
        if not isinstance(x, list) or (self.length is not None and len(x) != self.length):
            return False
        try:
            return all(normalize_message(message)["role"] in self.roles for message in x)
        except MessageError:
            return False

    def to_jsonable(self, sample_n: Iterable[list[Message]]) -> list[list[Message]]:
        """Return independent copies of the samples; messages are JSON values already."""
        return [[copy_message(message) for message in messages] for messages in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[list[Message]]:
        """Read :meth:`to_jsonable` back, each message normalised. Raises :class:`MessageError` for others."""
        return [[normalize_message(message) for message in messages] for messages in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageSpace) and (self.roles, self.length) == (other.roles, other.length)

    def __repr__(self) -> str:
        return f"MessageSpace(roles={self.roles}, length={self.length})"
