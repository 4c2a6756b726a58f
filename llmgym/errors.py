"""The errors that llmgym raises on purpose, and suggestions for misspelt names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class LLMGymError(Exception):
    """Base of all errors raised on purpose by llmgym."""


class MessageError(LLMGymError, ValueError):
    """A value is not a chat message, or a message is malformed."""


class TaskError(LLMGymError, ValueError):
    """A task, a task file or a task index cannot be used."""


class DuplicateTaskError(TaskError):
    """Two different tasks share one id."""


class ToolError(LLMGymError):
    """A tool call failed in a way the model should read. The text is shown to the model.

    Attributes:
        error_type: Kind of the failure, for reports; see :attr:`llmgym.ToolResult.error_type`.
    """

    def __init__(self, text: str, *, error_type: str = "tool_error") -> None:
        super().__init__(text)
        self.error_type = error_type


def describe_error(error: BaseException) -> tuple[str, str]:
    """The ``error_type`` of what a tool raised, and the text that the model reads."""
    if isinstance(error, ToolError):
        return error.error_type, str(error)
    return type(error).__name__, f"{type(error).__name__}: {error}"


class EnvContractError(LLMGymError):
    """An environment broke its contract (a wrong return type, a reward that is not finite)."""


class UnknownEnvironmentError(LLMGymError, LookupError):
    """There is no environment under the given id or path."""


class ConfigError(LLMGymError, ValueError):
    """A setting is unknown, missing, or contradicts another one."""


class EndpointLostError(LLMGymError):
    """A hosted model cannot be asked any further: no answer after all retries, or it refuses every request."""


class RecordError(LLMGymError, ValueError):
    """A recorded episode cannot be read back."""


_VERSION = re.compile(r"-v\d+$")


def did_you_mean(given: str, allowed: Iterable[str], *, likeness: float = 0.7) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest allowed name, or an empty string when none is near.

    Args:
        given: The name that was given.
        allowed: The names that exist.
        likeness: Smallest ``difflib`` ratio, 0 to 1, at which a name is suggested. A version, such as ``-v0``, does not
            count. Tools keep 0.5, because their answers belong to the version of their environment.
    """

    def alike(name: str) -> bool:
        return difflib.SequenceMatcher(None, _VERSION.sub("", name), _VERSION.sub("", given)).ratio() >= likeness

    nearest = difflib.get_close_matches(given, [name for name in allowed if alike(name)], n=1, cutoff=0.0)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""
