"""What several command lines read alike. Knows texts, no command."""

from __future__ import annotations

from llmgym.errors import ConfigError


def key_value(text: str, option: str) -> tuple[str, str]:
    """Split ``KEY=VALUE``. Raises :class:`ConfigError`, which names the option, when it is none."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"{option} takes KEY=VALUE, got {text!r}")
    return key, value
