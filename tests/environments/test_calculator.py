"""The safe calculator: values worked out by hand, hostile input, and a comparison with Python's own parser."""

import ast
import operator
import random
from fractions import Fraction

import pytest

from llmgym.errors import ToolError
from llmgym_environments.calculator import MAX_BITS, MAX_NESTING, evaluate, format_number, parse_number


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("12+34", "46"),
        (" 2 * ( 3 + 4 ) ", "14"),
        ("2+3*4", "14"),
        ("8-3-2", "3"),
        ("100/10/5", "2"),
        ("7//2", "3"),
        ("-7//2", "-4"),
        ("-7%3", "2"),
        ("-2**2", "-4"),
        ("2**3**2", "512"),
        ("2**-3", "0.125"),
        ("2*-3", "-6"),
        ("--+-5", "-5"),
        ("0.1+0.2", "0.3"),
        (".5+1.", "1.5"),
        ("1.5e3", "1500"),
        ("6/3", "2"),
        ("1/3", "0.333333333333"),
        ("1/3*3", "1"),
        ("1/3+1/3+1/3", "1"),
        ("2/3", "0.666666666667"),
        ("4**0.5", "2"),
        ("2**0.5", "1.41421356237"),
        ("007", "7"),
        ("123456789*987654321", "121932631112635269"),
        ("2**100", "1267650600228229401496703205376"),
        ("0**0", "1"),
        ("1e-7", "1e-07"),
        ("0.5**2000", "0"),  # as with doubles: below 5e-324 there is nothing
        ("1" + "+1" * 200, "201"),
        ("-" * 400 + "1", "1"),
        ("(" * MAX_NESTING + "7" + ")" * MAX_NESTING, "7"),
    ],
)
def test_value(expression, shown):
    assert format_number(evaluate(expression)) == shown


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("9**9**9", "too large"),
        ("9**9**9**9**9**9", "too large"),
        ("2**1024", "too large"),
        ("1e308*10", "too large"),
        ("1e999999999999", "too large"),
        ("1e-999999999999", "too large"),
        ("9" * 400, "too large"),
        ("1.5**2000", "too large"),
        ("(" * 100 + "1" + ")" * 100, "nested more than 50"),
        ("**".join(["1"] * 100), "nested more than 50"),
        ("-" * 10_000 + "1", "10001 characters; at most 500"),
        ("1+" * 5_000_000 + "1", "10000001 characters"),
        ("1/0", "division by zero"),
        ("1//0", "division by zero"),
        ("1%0", "division by zero"),
        ("0**-1", "division by zero"),
        ("0**-0.5", "division by zero"),
        ("(-8)**(1/3)", "no real power"),
        ("", "is empty"),
        (" \n", "is empty"),
        ("1+", "ends too early"),
        ("(1", "ends too early"),
        ("1)", "unexpected ')'"),
        ("()", "unexpected ')'"),
        ("5 5", "unexpected '5'"),
        ("2(3)", "unexpected '('"),
        ("*2", "unexpected '*'"),
        ("1,000", "cannot read ','"),
        ("2^3", "cannot read '^'"),
        ("nan", "cannot read 'nan'"),
        ("inf", "cannot read 'inf'"),
        ("1j", "cannot read 'j'"),
        ("1_000", "cannot read '_000'"),
        ("0x10", "cannot read 'x10'"),
        ("sqrt(2)", "cannot read 'sqrt'; use numbers and + - * / // % ** ( )"),
        ("__import__('os').system('true')", "cannot read '__import__'"),
        ("amber+cedar", "cannot read 'amber'"),
        ("٣+1", "cannot read '٣'"),
        ("２+1", "cannot read '２'"),
        ("²", "cannot read '²'"),
        ("1\x002", r"cannot read '\x00'"),
        ("1+\ud800", r"cannot read '\ud800'"),
    ],
)
def test_refusal_is_short_and_readable(expression, said):
    with pytest.raises(ToolError) as caught:
        evaluate(expression)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 120
    str(caught.value).encode()  # no lone surrogate, no raw control character reaches the model
    assert str(caught.value).isprintable()


def test_whole_numbers_are_exact_up_to_the_limit():
    assert evaluate(f"2**{MAX_BITS - 1}") == 2 ** (MAX_BITS - 1)
    assert evaluate("3**600") == 3**600
    assert evaluate("7**300//7**299") == 7


def test_long_fractions_are_rounded_to_a_double():
    # 1.004167**360 has 1080 decimals; compared with the exact power, which Python may build here.
    value = evaluate("1.004167**360")
    exact = Fraction("1.004167") ** 360
    assert value != exact
    assert abs(value / exact - 1) < Fraction(1, 10**12)


_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def _reference(node):
    """The value that Python's grammar gives, in exact fractions."""
    if isinstance(node, ast.Constant):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp):
        value = _reference(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    left, right = _reference(node.left), _reference(node.right)
    if isinstance(node.op, ast.Pow):
        return left ** int(right)
    return Fraction(_OPERATORS[type(node.op)](left, right))


def _random_expression(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        return str(rng.randrange(100))
    kind = rng.random()
    if kind < 0.15:
        return rng.choice("+-") + _random_expression(rng, depth - 1)
    if kind < 0.3:
        return f"({_random_expression(rng, depth - 1)})"
    if kind < 0.4:
        return f"({_random_expression(rng, depth - 1)})**{rng.choice(['2', '3', '-1', '-+2'])}"
    sign = rng.choice(["+", "-", "*", "/", "//", "%", " - ", " * "])
    return _random_expression(rng, depth - 1) + sign + _random_expression(rng, depth - 1)


def test_agrees_with_fractions_and_the_grammar_of_python():
    rng = random.Random(0)
    compared = divisions_by_zero = 0
    while compared < 3000:
        expression = _random_expression(rng, 5)
        try:
            expected = _reference(ast.parse(expression, mode="eval").body)
        except ZeroDivisionError:
            divisions_by_zero += 1
            with pytest.raises(ToolError, match="division by zero"):
                evaluate(expression)
            continue
        if max(expected.numerator.bit_length(), expected.denominator.bit_length()) < 200 and len(expression) < 300:
            assert evaluate(expression) == expected, expression
            compared += 1
    assert divisions_by_zero > 10


def test_noise_gives_a_value_or_a_tool_error():
    rng = random.Random(1)
    alphabet = "0123456789.eE+-*/%() **//\t\nj_,^٣\x00\ud800é"
    values = 0
    for _ in range(20_000):
        text = "".join(rng.choice(alphabet[: rng.choice([24, len(alphabet)])]) for _ in range(rng.randrange(1, 12)))
        try:
            format_number(evaluate(text))
            values += 1
        except ToolError:
            pass
    assert values > 100


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        (" 42\n", 42),
        ("42.0", 42),
        ("42.", 42),
        ("+4.2e1", 42),
        ("-5", -5),
        ("0.333333333333", Fraction("0.333333333333")),
        ("1e-07", Fraction(1, 10**7)),
        ("0" * 499 + "7", 7),
    ],
)
def test_one_number_is_read(text, number):
    assert parse_number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        *("", "The answer is 42.", "42 43", "4, 2", "1,000", "42 apples", "$42", "--42", "6*7", "84/2", "4_2", "nan"),
        *("inf", "True", "٤٢", "42\x00", "1e999999999999", "9" * 1000, "9" * 5000, "0" * 500 + "7"),
    ],
)
def test_anything_else_is_no_number(text):
    assert parse_number(text) is None


def test_what_the_calculator_writes_reads_back_as_an_answer():
    for expression in ("1/3", "2**-40", "10**20/3", "-1/7", "2**1000", "1e-300", "-0.125"):
        value = evaluate(expression)
        read = parse_number(format_number(value))
        assert read is not None
        assert abs(read / value - 1) < Fraction(1, 10**11)
