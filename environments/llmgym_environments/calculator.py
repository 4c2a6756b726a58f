"""A safe calculator for tools, and the reading of numbers in answers."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from llmgym.errors import ToolError

MAX_CHARACTERS = 500
MAX_NESTING = 50
MAX_BITS = 1024
"""Size of whole numbers, and of the two halves of a fraction: about 308 decimal digits."""

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_TOKEN = re.compile(rf"\s*(?:(?P<number>{_NUMBER})|(?P<operator>\*\*|//|[-+*/%()]))", re.ASCII)
_ANSWER = re.compile(rf"[+-]?{_NUMBER}", re.ASCII)
_USAGE = "use numbers and + - * / // % ** ( )"
_TOO_LARGE = f"too large: at most {MAX_BITS} bits, about 308 digits"


def evaluate(expression: str) -> Fraction:
    """Compute an arithmetic expression without ever running it as code.

    The grammar is Python's for ``+ - * / // % **``, signs and parentheses over decimal numbers, precedence
    included (``-2**2`` is -4, ``2**3**2`` is 512). Arithmetic is exact: ``0.1 + 0.2`` is 3/10. Two things are
    rounded to a double instead: a power with a fractional exponent, and a fraction that needs more than
    ``MAX_BITS`` bits. Time and memory are bounded by ``MAX_CHARACTERS``, ``MAX_NESTING`` and ``MAX_BITS``.

    Args:
        expression: The text a model wrote; anything at all.

    Returns:
        The value; :func:`format_number` writes it.

    Raises:
        ToolError: The text is too long, too deep or no arithmetic, divides by zero, has no real result, or a
            number grows too large. The message is short and meant for the model.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ToolError(f"the expression has {len(expression)} characters; at most {MAX_CHARACTERS} are allowed")
    try:
        return _Parser(_tokens(expression)).parse()
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except OverflowError:
        raise ToolError(f"a number is {_TOO_LARGE}") from None


def format_number(value: Fraction) -> str:
    """Write a number: whole numbers in full, others with up to 12 significant digits (``0.3``, ``0.333333333333``)."""
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.12g}"


def parse_number(text: str) -> Fraction | None:
    """Read a text that is one decimal number and nothing else; None when it is anything else.

    Blanks around it are allowed, and so are a sign, an exponent and a trailing point: ``42``, ``" 42.0\\n"``,
    ``42.``, ``+4.2e1``. Separators, units, words and a second number are not.
    """
    text = text.strip()
    if len(text) > MAX_CHARACTERS or not _ANSWER.fullmatch(text):
        return None
    try:
        return _literal(text)
    except OverflowError:
        return None


def _tokens(expression: str) -> list[str]:
    tokens, position = [], 0
    end = len(expression.rstrip())
    while position < end:
        found = _TOKEN.match(expression, position)
        if found is None:
            rest = expression[position:].lstrip()
            word = re.match(r"[^\W\d]\w*", rest)
            raise ToolError(f"cannot read {(word.group() if word else rest[:1])[:20]!r}; {_USAGE}")
        tokens.append(found.group("number") or found.group("operator"))
        position = found.end()
    return tokens


class _Parser:
    """Recursive descent over the tokens: binary operators by precedence, signs, power, atom."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def parse(self) -> Fraction:
        value = self._binary()
        if self._next < len(self._tokens):
            raise self._unexpected()
        return value

    def _binary(self, precedence: int = 0) -> Fraction:
        if precedence == len(_BINARY):
            return self._signed()
        value, operators = self._binary(precedence + 1), _BINARY[precedence]
        while symbol := self._take(*operators):
            value = _bounded(Fraction(operators[symbol](value, self._binary(precedence + 1))))
        return value

    def _signed(self) -> Fraction:
        negative = False
        while sign := self._take("+", "-"):  # a loop: a thousand signs need no stack
            negative ^= sign == "-"
        value = self._power()
        return -value if negative else value

    def _power(self) -> Fraction:
        base = self._atom()
        if not self._take("**"):
            return base
        return _power(base, self._nested(self._signed))

    def _atom(self) -> Fraction:
        if self._take("("):
            value = self._nested(self._binary)
            if not self._take(")"):
                raise self._unexpected()
            return value
        if self._next == len(self._tokens) or self._tokens[self._next] in _OPERATORS:
            raise self._unexpected()
        self._next += 1
        return _literal(self._tokens[self._next - 1])

    def _nested(self, rule: Callable[[], Fraction]) -> Fraction:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise ToolError(f"the expression is nested more than {MAX_NESTING} deep")
        value = rule()
        self._depth -= 1
        return value

    def _take(self, *wanted: str) -> str | None:
        if self._next < len(self._tokens) and self._tokens[self._next] in wanted:
            self._next += 1
            return self._tokens[self._next - 1]
        return None

    def _unexpected(self) -> ToolError:
        if self._next == len(self._tokens):
            return ToolError(f"the expression {'ends too early' if self._tokens else 'is empty'}; {_USAGE}")
        return ToolError(f"unexpected {self._tokens[self._next][:20]!r} in the expression; {_USAGE}")


_BINARY: Sequence[Mapping[str, Callable[[Fraction, Fraction], Fraction | int]]] = (
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod},
)
"""The operators between two values, the weakest first; those of one line bind alike, from left to right."""
_OPERATORS = frozenset(["+", "-", "*", "/", "//", "%", "**", "(", ")"])


def _literal(text: str) -> Fraction:
    _, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > MAX_BITS:
        raise OverflowError  # before a number of that size is built
    return _bounded(Fraction(text))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    # The first bound is on the work: within it, a whole result beyond MAX_BITS is computed and refused, and past
    # it a whole base above 1 is certain to overflow a double. So whole numbers are exact or refused.
    if exponent.denominator == 1 and abs(exponent.numerator) * _bits(base) <= 4 * MAX_BITS:
        return _bounded(Fraction(base**exponent.numerator))
    result = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise ToolError("a negative number has no real power with a fractional exponent")
    return Fraction(result)


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) <= MAX_BITS:
        return value
    if value.denominator == 1:
        raise OverflowError
    return Fraction(float(value))


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
