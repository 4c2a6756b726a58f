"""Every error llmgym raises on purpose. Knows nothing of the rest of the package."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LLMGymError(Exception):
    """Base of all errors raised on purpose by llmgym."""


class MessageError(LLMGymError, ValueError):
    """A value is not a chat message, or a message is out of shape."""


class TaskError(LLMGymError, ValueError):
    """A task, a task file or a task index is not usable."""


class DuplicateTaskError(TaskError):
    """Two different tasks share one id."""


class ToolError(LLMGymError):
    """A tool call failed in a way the model should read. The text is shown to the model."""


class EnvContractError(LLMGymError):
    """An environment broke its contract (a wrong return type, a reward that is not finite)."""


class UnknownEnvironmentError(LLMGymError, LookupError):
    """No environment is known under the given id or path."""


class ConfigError(LLMGymError, ValueError):
    """A setting is unknown, missing, or contradicts another one."""


class EndpointLostError(LLMGymError):
    """A hosted model cannot be asked any further: no answer after all retries, or it refuses every request."""


class RecordError(LLMGymError, ValueError):
    """A recorded episode cannot be read back."""


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest allowed name, or an empty string."""
    nearest = difflib.get_close_matches(given, list(allowed), n=1, cutoff=0.5)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""
