"""What the commands share: one kind of argument parser, and ``KEY=VALUE``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from llmgym.errors import ConfigError, did_you_mean


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are :class:`ConfigError`, with the nearest option for one that is unknown.

    Options are never abbreviated, and ``--max_turns`` is ``--max-turns``. An option that needs no value
    (``nargs="?"``) takes the next argument only if that is ``true``, ``false`` or ``none``.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        left, joined = list(args), []
        while left:
            name, equals, value = left.pop(0).partition("=")
            name = name.replace("_", "-") if name.startswith("--") else name
            action = self._option_string_actions.get(name)
            if action is not None and action.nargs == "?" and not equals:
                equals, value = "=", left.pop(0) if left and left[0].lower() in ("true", "false", "none") else "true"
            joined.append(name + equals + value)
        options, unknown = super().parse_known_args(joined, namespace)
        if unknown:
            hint = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions)
            kind = "option" if unknown[0].startswith("-") else "argument"
            self.error(f"unknown {kind} {unknown[0]!r}.{hint}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Raise :class:`ConfigError` in place of leaving the process."""
        raise ConfigError(f"{self.prog.removeprefix('llmgym ')}: {message} See {self.prog} --help")


def key_value(text: str, option: str) -> tuple[str, str]:
    """Split ``KEY=VALUE``. Raises :class:`ConfigError`, which names the option, when it is none."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"{option} takes KEY=VALUE, got {text!r}")
    return key, value
