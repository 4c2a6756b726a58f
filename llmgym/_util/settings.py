"""Settings as dataclasses: a field's help text, type and bounds give its validation, option, conversion and page.

A dataclass writes each setting once, with :func:`setting`. From that follow :func:`check` (values), :func:`parse`
(texts of YAML and of a command line), :func:`add_options` (one option a field, all of them in ``--help``) and
:func:`markdown_table`. Fields of other libraries take part when their ``metadata`` holds a ``"help"`` text, as those of
``trl.GRPOConfig`` do; of such a text only the first sentence is shown.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import math
import os
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from llmgym.errors import ConfigError, did_you_mean

_KINDS = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    str: "a text",
    Mapping: "a mapping",
    list: "a list",
    types.NoneType: "None",
}
_METAVARS = {bool: "true|false", float: "X", int: "N", Mapping: "JSON", list: "JSON"}
_METADATA = "llmgym"


@dataclass(frozen=True)
class Rule:
    """What a value must be beyond its type. Numbers must be finite, except ``most=math.inf`` itself."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: Sequence[Any] = ()

    def allows(self, value: Any) -> bool:
        """Whether a number keeps the bounds."""
        return (
            (math.isfinite(value) or value == self.most)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    def __str__(self) -> str:
        most = None if self.most == math.inf else self.most
        if self.least is not None and most is not None:
            return f" from {self.least} to {most}"
        bounds = [("of at least", self.least), ("above", self.above), ("of at most", most)]
        return "".join(f" {words} {bound}" for words, bound in bounds if bound is not None)


def setting(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    choices: Sequence[Any] = (),
) -> Any:
    """A field of a settings dataclass.

    Args:
        default: The default; ``dataclasses.MISSING`` for a required setting. A dict or list is copied.
        help: One or two sentences for ``--help`` and the page.
        least: Smallest number allowed.
        above: The number must be larger than this.
        most: Largest number allowed.
        choices: The values allowed; the annotated type is not checked then.
    """
    metadata = {"help": help, _METADATA: Rule(least, above, most, choices)}
    if isinstance(default, dict | list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def check(cls: type, values: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for the first value of the wrong type or out of bounds.

    Args:
        cls: The settings dataclass.
        values: Values by name of the field. One that is the field's default is not looked at.
    """
    for field, kinds, rule in _fields(cls, values):
        value = plain(values[field.name])
        if value is field.default or _fits(value, kinds, rule):
            continue
        raise _refusal(field.name, values[field.name], kinds, rule)


def check_value(name: str, value: Any, *kinds: type, **bounds: Any) -> None:
    """Raise :class:`ConfigError` when one value is of none of these types or out of bounds; see :func:`setting`."""
    rule = Rule(**bounds)
    if not _fits(value, kinds, rule):
        raise _refusal(name, value, kinds, rule)


def parse(cls: type, values: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Check names, and convert texts such as ``"2e-5"`` (a text to YAML too) to the type of their setting.

    Args:
        cls: The settings dataclass.
        values: What was given, by name.
        source: Where it was given, such as the path of a file; each error begins with it.

    Raises:
        ConfigError: A name is unknown (the nearest is suggested), or a text does not convert.
    """
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    for name in values:
        if name not in names:
            raise ConfigError(f"{source}: unknown setting {name!r}.{did_you_mean(str(name), names)}")
    return {
        field.name: _converted(field.name, values[field.name], kinds, rule, source)
        for field, kinds, rule in _fields(cls, values)
    }


def add_options(parser: argparse._ActionsContainer, cls: type, names: Iterable[str] | None = None) -> None:
    """Add an option for each field: ``--max-turns N`` for ``max_turns``; one that is not given leaves no attribute.

    The parsed options hold texts, which :func:`parse` converts: ``parse(cls, given(options, cls), source=...)``. A
    ``bool`` needs no value; parse with :class:`llmgym.cli.options.CommandParser`, for which its value is optional.

    Args:
        parser: A parser or a group of one.
        cls: The settings dataclass.
        names: The fields, in this order; None takes all.
    """
    for field, kinds, rule in _fields(cls, names):
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            dest=field.name,
            metavar=next((_METAVARS[kind] for kind in _METAVARS if kind in kinds and not rule.choices), None),
            default=argparse.SUPPRESS,
            help=f"{_help(field)} (default {default_text(field)})".replace("%", "%%"),
            **({"nargs": "?", "const": "true"} if bool in kinds else {}),  # type: ignore[arg-type]
        )


def given(options: argparse.Namespace, cls: type) -> dict[str, str]:
    """The options of :func:`add_options` that were given, as texts by name of the field."""
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(cls) if field.name in options}


def differing(settings: Any) -> dict[str, Any]:
    """The values that are not those of the defaults, enumerations and paths as texts."""
    fields = [field for field in dataclasses.fields(settings) if field.init]
    values = {field.name: plain(getattr(settings, field.name)) for field in fields}
    return {field.name: values[field.name] for field in fields if values[field.name] != plain(_default(field))}


def markdown_table(cls: type, names: Iterable[str] | None = None) -> str:
    """The settings as a Markdown table of name, allowed values, default and meaning.

    Args:
        cls: The settings dataclass.
        names: The fields, in this order; None takes all.
    """
    rows = [("setting", "allowed", "default", "meaning"), ("---",) * 4]
    for field, kinds, rule in _fields(cls, names):
        rows.append((f"`{field.name}`", _allowed(kinds, rule), f"`{default_text(field)}`", _help(field)))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def plain(value: Any) -> Any:
    """Enumerations and paths as the text that sets them; anything else as it is."""
    if isinstance(value, enum.Enum):
        return value.value
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def default_text(field: dataclasses.Field[Any]) -> str:
    """The default as it is written in Python, or ``required``."""
    return "required" if _default(field) is MISSING else repr(plain(_default(field)))


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _fields(
    cls: type, names: Iterable[str] | None = None
) -> Iterable[tuple[dataclasses.Field[Any], tuple[Any, ...], Rule]]:
    """Each field with the parts of its type and its rule. An enumeration stands for the choice of its values."""
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    hints = typing.get_type_hints(cls)
    for field in fields.values() if names is None else (fields[name] for name in names):
        hint = hints[field.name]
        union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        parts = [typing.get_origin(part) or part for part in (typing.get_args(hint) if union else [hint])]
        rule = field.metadata.get(_METADATA, Rule())
        for part in parts:
            if isinstance(part, type) and issubclass(part, enum.Enum):
                rule = dataclasses.replace(rule, choices=[member.value for member in part])
        yield field, tuple(Mapping if part is dict else part for part in parts), rule


def _fits(value: Any, kinds: tuple[Any, ...], rule: Rule) -> bool:
    if rule.choices:
        return value in rule.choices or (value is None and types.NoneType in kinds)
    if not set(kinds) <= _KINDS.keys():
        return True  # a type that only its owner can check
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, int | float):
        return (float in kinds or (int in kinds and isinstance(value, int))) and rule.allows(value)
    return isinstance(value, kinds)


def _converted(name: str, value: Any, kinds: tuple[Any, ...], rule: Rule, source: str) -> Any:
    if not isinstance(value, str):
        return float(value) if type(value) is int and float in kinds and int not in kinds else value
    if value.lower() in ("none", "null") and types.NoneType in kinds:
        return None
    if value.lower() in ("true", "false") and bool in kinds:
        return value.lower() == "true"
    readers: list[Any] = [kind for kind in (int, float) if kind in kinds]
    if value.lstrip()[:1] in ("{", "[") and not {Mapping, list}.isdisjoint(kinds):
        readers.append(json.loads)
    for read in readers:
        try:
            return read(value)
        except ValueError:
            pass
    if str in kinds or not set(kinds) <= _KINDS.keys():
        return value
    raise ConfigError(f"{source}: {_refusal(name, value, kinds, rule)}")


def _refusal(name: str, value: Any, kinds: tuple[Any, ...], rule: Rule) -> ConfigError:
    hint = did_you_mean(value, [str(choice) for choice in rule.choices]) if isinstance(value, str) else ""
    return ConfigError(f"{name} must be {_allowed(kinds, rule)}, got {value!r:.200}{hint and '.' + hint}")


def _allowed(kinds: tuple[Any, ...], rule: Rule) -> str:
    """What is allowed, as the end of "must be …"."""
    if rule.choices:
        words = [repr(choice) for choice in rule.choices] + ["None"] * (types.NoneType in kinds)
    else:
        known = [kind for kind in _KINDS if kind in kinds and not (kind is int and float in kinds)]
        words = [_KINDS[kind] + (str(rule) if kind in (int, float) else "") for kind in known]
        words += [getattr(kind, "__name__", str(kind)) for kind in kinds if kind not in _KINDS]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _help(field: dataclasses.Field[Any]) -> str:
    text = " ".join(str(field.metadata.get("help", "")).split())
    if _METADATA in field.metadata:
        return text
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.split(r"(?<=[a-z0-9`)])\. (?=[A-Z`])", text)[0].removesuffix(".") + "."
