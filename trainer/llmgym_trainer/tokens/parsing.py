"""Sampled text into reasoning, content and tool calls.

Strict on purpose, in training and evaluation alike: text that no chat template could have written is a
:class:`ParseError`, which ends the episode as a parse failure. Calls inside reasoning do not count.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from llmgym.errors import LLMGymError

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


class ParseError(LLMGymError):
    """A sampled text is not a message. The error says why in one sentence."""


@dataclass(frozen=True)
class ParsedCall:
    """One call: the tool's name and its arguments as canonical JSON text of an object."""

    name: str
    arguments: str


class CallFormat(Protocol):
    """A way of writing tool calls.

    Attributes:
        name: Shown to people.
        markup: Texts that belong to the format; tokenizers have them as tokens of their own.
    """

    @property
    def name(self) -> str: ...

    @property
    def markup(self) -> tuple[str, ...]: ...

    def split(self, text: str) -> tuple[str, list[ParsedCall]]:
        """Split a text into its content and its calls. Raises :class:`ParseError`."""
        ...


class HermesCalls:
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, several in a row, after an optional text."""

    name = "hermes"
    markup = ("<tool_call>", "</tool_call>")

    def split(self, text: str) -> tuple[str, list[ParsedCall]]:
        """Split a text into its content and its calls. Raises :class:`ParseError`."""
        opening, closing = self.markup
        content, found, rest = text.partition(opening)
        if closing in content:
            raise ParseError(f"a {closing} closes nothing")
        if not found:
            return text, []
        calls = []
        while True:
            value, rest = _decode_json(rest)
            calls.append(_call(value, "arguments"))
            if not rest.startswith(closing):
                raise ParseError(f"a {opening} is not closed: expected {closing}, got {rest[:40]!r}")
            rest = rest.removeprefix(closing).lstrip()
            if not rest:
                return content.strip("\n"), calls
            if not rest.startswith(opening):
                raise ParseError(f"text follows a tool call: {rest[:40]!r}")
            rest = rest.removeprefix(opening)


class LlamaCalls:
    """Llama 3's ``{"name": …, "parameters": {…}}`` as the whole message, with or without ``<|python_tag|>``."""

    name = "llama3"
    markup = ("<|python_tag|>",)

    def split(self, text: str) -> tuple[str, list[ParsedCall]]:
        """Split a text into its content and its calls. Raises :class:`ParseError`."""
        body = text.strip()
        tagged = body.startswith(self.markup[0])
        body = body.removeprefix(self.markup[0]).lstrip()
        if not tagged and not re.match(r'\{\s*"name"\s*:', body):
            return text, []
        value, rest = _decode_json(body)
        if rest:
            raise ParseError(f"a message holds one tool call and nothing else; after it comes {rest[:40]!r}")
        return "", [_call(value, "parameters")]


CALL_FORMATS: tuple[CallFormat, ...] = (HermesCalls(), LlamaCalls())


def split_reasoning(text: str, *, opened: bool) -> tuple[str, str]:
    """Split the reasoning block from the start of a text.

    Args:
        text: The sampled text without its stop token.
        opened: The prompt already ended inside a block, so that the text starts within it.

    Returns:
        Reasoning without outer newlines (empty when there is none) and what follows it.

    Raises:
        ParseError: A block is unfinished, or a tag is out of place.
    """
    body = text.lstrip()
    if opened or body.startswith(THINK_OPEN):
        reasoning, closed, rest = body.removeprefix(THINK_OPEN).partition(THINK_CLOSE)
        if not closed:
            raise ParseError(f"unfinished reasoning: {THINK_CLOSE} is missing")
        text = rest.lstrip("\n")
    else:
        reasoning = ""
    for tag in (THINK_OPEN, THINK_CLOSE):
        if tag in text or tag in reasoning:
            raise ParseError(f"the text holds a stray {tag}")
    return reasoning.strip("\n"), text


def _decode_json(text: str) -> tuple[Any, str]:
    """Read one JSON value from the start of a text; return it and what follows, without spaces around."""
    try:
        value, end = _DECODER.raw_decode(text.lstrip())
    except (ValueError, RecursionError) as error:
        raise ParseError(f"a tool call is not valid JSON ({error}): {text.strip()[:80]!r}") from None
    return value, text.lstrip()[end:].lstrip()


def _call(value: Any, arguments_key: str) -> ParsedCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise ParseError(f'a tool call must be {{"name": "…", "{arguments_key}": {{…}}}}, got {_short(value)}')
    arguments = value.get(arguments_key)
    if not isinstance(arguments, dict):
        raise ParseError(f"{arguments_key!r} of {value['name'][:80]!r} must be a JSON object, got {_short(arguments)}")
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (value["name"] + text).encode()
    except (ValueError, RecursionError) as error:  # 1e999, or half of a surrogate pair
        raise ParseError(f"the arguments of {value['name'][:80]!r} cannot be written back: {error}") from None
    return ParsedCall(value["name"], text)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def _short(value: Any) -> str:
    return repr(value[:80]) if isinstance(value, str) else f"a value of type {type(value).__name__}"
