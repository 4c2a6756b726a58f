"""A settings dataclass gives validation, conversion, options and a table."""

from __future__ import annotations

import dataclasses
import enum
import math
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import pytest

from llmgym._util.settings import add_options, check, differing, given, markdown_table, parse, setting
from llmgym.cli.options import CommandParser
from llmgym.errors import ConfigError


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Theirs:
    """As in TRL: types of all kinds, and help of several sentences."""

    rate: float = dataclasses.field(default=1e-6, metadata={"help": "The [rate](x) of `it`. More\nof it, 5%."})
    kwargs: dict[str, Any] | str | None = dataclasses.field(default=None, metadata={"help": "A mapping"})
    targets: str | list[str] | None = None
    pad: int | str | None = "auto"
    colour: Colour | str = "red"


@dataclass(kw_only=True)
class Settings(Theirs):
    env: str = setting(MISSING, "The environment.")
    turns: int = setting(16, "Turns | of one episode. At least one.", least=1)
    limit: int | None = setting(None, "The first so many.", least=1)
    share: float = setting(0.5, "A share.", least=0, most=1)
    cap: float = setting(2.0, "A cap.", above=0, most=math.inf)
    mode: str | None = setting("mean", "How.", choices=("mean", "median"))
    mask: bool = setting(False, "Mask.")
    options: dict[str, Any] = setting({}, "Options.")
    out: str | Path | None = setting(None, "Folder.")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("turns", 0, "turns must be a whole number of at least 1, got 0"),
        ("turns", 2.0, "turns must be a whole number of at least 1, got 2.0"),
        ("turns", 16.0, "turns must be a whole number of at least 1, got 16.0"),
        ("turns", True, "turns must be a whole number of at least 1, got True"),
        ("turns", None, "turns must be a whole number of at least 1, got None"),
        ("turns", "6", "turns must be a whole number of at least 1, got '6'"),
        ("limit", 0, "limit must be a whole number of at least 1 or None, got 0"),
        ("share", 1.5, "share must be a number from 0 to 1, got 1.5"),
        ("share", math.nan, "share must be a number from 0 to 1, got nan"),
        ("share", math.inf, "share must be a number from 0 to 1, got inf"),
        ("cap", 0, "cap must be a number above 0, got 0"),
        ("cap", math.nan, "cap must be a number above 0, got nan"),
        ("mode", "meadian", "mode must be 'mean', 'median' or None, got 'meadian'. Did you mean 'median'?"),
        ("mask", "yes", "mask must be true or false, got 'yes'"),
        ("mask", 1, "mask must be true or false, got 1"),
        ("options", [1], "options must be a mapping, got [1]"),
        ("env", None, "env must be a text, got None"),
        ("rate", "fast", "rate must be a number, got 'fast'"),
        ("rate", math.inf, "rate must be a number, got inf"),
        ("targets", 3, "targets must be a text, a list or None, got 3"),
        ("colour", "bluee", "colour must be 'red' or 'blue', got 'bluee'. Did you mean 'blue'?"),
    ],
)
def test_values_that_are_refused(name, value, text):
    with pytest.raises(ConfigError) as caught:
        check(Settings, {"turns": 3, name: value})
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("turns", 1), ("limit", None), ("limit", 7), ("share", 1), ("share", 0), ("cap", math.inf), ("mode", None),
        ("mode", "median"), ("options", {"level": 2}), ("out", Path("runs")), ("kwargs", {}), ("kwargs", "{}"),
        ("targets", ["q"]), ("colour", Colour.BLUE), ("colour", "blue"), ("pad", 8),
    ],
)  # fmt: skip
def test_values_that_are_allowed(name, value):
    check(Settings, {name: value})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rate", "2e-5", 2e-5),
        ("rate", 3, 3.0),
        ("turns", "6", 6),
        ("turns", 6, 6),
        ("limit", "none", None),
        ("limit", "7", 7),
        ("mode", "null", None),
        ("mask", "True", True),
        ("mask", "false", False),
        ("env", "123", "123"),
        ("env", "none", "none"),
        ("pad", "8", 8),
        ("pad", "auto", "auto"),
        ("kwargs", '{"a": [1]}', {"a": [1]}),
        ("kwargs", "file.json", "file.json"),
        ("targets", '["q", "v"]', ["q", "v"]),
        ("targets", "all", "all"),
        ("options", {"level": 2}, {"level": 2}),
    ],
)
def test_texts_take_the_type_of_their_setting(name, text, value):
    found = parse(Settings, {name: text}, source="c.yaml")[name]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"turn": 3}, "c.yaml: unknown setting 'turn'. Did you mean 'turns'?"),
        ({1: 3}, "c.yaml: unknown setting 1."),
        ({"turns": "many"}, "c.yaml: turns must be a whole number of at least 1, got 'many'"),
        ({"mask": "maybe"}, "c.yaml: mask must be true or false, got 'maybe'"),
        ({"options": "{a"}, "c.yaml: options must be a mapping, got '{a'"),
    ],
)
def test_texts_that_are_refused(values, text):
    with pytest.raises(ConfigError) as caught:
        parse(Settings, values, source="c.yaml")
    assert str(caught.value) == text


def test_what_differs_from_the_defaults():
    assert differing(Settings(env="E-v0")) == {"env": "E-v0"}
    changed = Settings(env="E-v0", turns=16, options={"a": 1}, colour=Colour.BLUE, out=Path("runs"))
    assert differing(changed) == {"env": "E-v0", "options": {"a": 1}, "colour": "blue", "out": "runs"}
    assert Settings(env="").options is not Settings(env="").options


def parser():
    parser = CommandParser(prog="llmgym try")
    parser.add_argument("name", nargs="?")
    group = parser.add_argument_group("ours")
    add_options(group, Settings, ["turns", "mask", "limit", "rate", "mode"])
    return parser


def test_options():
    def read(text):
        options = parser().parse_args(text.split())
        return options.name, parse(Settings, given(options, Settings), source="command line")

    assert read("") == (None, {})
    assert read("--turns 3 --rate=2e-5 here") == ("here", {"turns": 3, "rate": 2e-5})
    assert read("--mask here --mode median") == ("here", {"mask": True, "mode": "median"})
    assert read("--mask false --limit none") == (None, {"mask": False, "limit": None})
    assert read("--mask") == (None, {"mask": True})


def test_every_option_is_in_the_help():
    text = " ".join(parser().format_help().split())
    assert "ours: --turns N Turns | of one episode. At least one. (default 16) --mask" in text
    assert "--rate X The rate of `it`. (default 1e-06)" in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--turn 3", "try: unknown option '--turn'. Did you mean '--turns'? See llmgym try --help"),
        ("a b", "try: unknown argument 'b'. See llmgym try --help"),
        ("--turns", "try: argument --turns: expected one argument See llmgym try --help"),
    ],
)
def test_mistakes_on_a_command_line(arguments, text):
    with pytest.raises(ConfigError) as caught:
        parser().parse_args(arguments.split())
    assert str(caught.value) == text


def test_the_table():
    assert markdown_table(Settings, ["turns", "kwargs", "rate", "env", "colour", "options"]).splitlines() == [
        "| setting | allowed | default | meaning |",
        "| --- | --- | --- | --- |",
        "| `turns` | a whole number of at least 1 | `16` | Turns \\| of one episode. At least one. |",
        "| `kwargs` | a text, a mapping or None | `None` | A mapping. |",
        "| `rate` | a number | `1e-06` | The rate of `it`. |",
        "| `env` | a text | `required` | The environment. |",
        "| `colour` | 'red' or 'blue' | `'red'` | . |",
        "| `options` | a mapping | `{}` | Options. |",
    ]
