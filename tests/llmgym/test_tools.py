"""Typed functions as tools: schemas, coercion, errors a model can read, and where the function runs."""

from __future__ import annotations

import asyncio
import enum
import json
import subprocess
import sys
import threading
import warnings
from typing import Annotated, Literal

import pydantic
import pytest

from llmgym import Tool, ToolResult, tool, tool_to_spec
from llmgym._util.aio import run_in_daemon_thread
from llmgym.errors import ToolError


class Unit(enum.Enum):
    METRE = "m"
    FOOT = "ft"


class Point(pydantic.BaseModel):
    x: float
    y: float = 0.0


def execute(function, arguments="{}"):
    return asyncio.run(function.execute(arguments)).content


@tool
def everything(
    key: str,
    count: int = 1,
    limit: int | None = None,
    either: int | str = 0,
    unit: Unit = Unit.METRE,
    mode: Literal["fast", "slow"] = "fast",
    points: list[Point] = [],  # noqa: B006 - a default like any author writes
    share: Annotated[float, pydantic.Field(ge=0, le=1, description="From 0 to 1.")] = 0.5,
) -> dict:
    """Take one of each.

    This is the long part.

    Args:
        key: Name of the fact.
        count: How many times.
    """
    return {name: repr(value) for name, value in locals().items()}


def test_the_schema_comes_from_signature_and_docstring():
    assert tool_to_spec(everything) == {
        "type": "function",
        "function": {
            "name": "everything",
            "description": "Take one of each.\n\nThis is the long part.",
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "required": ["key"],
                "properties": {
                    "key": {"type": "string", "description": "Name of the fact."},
                    "count": {"type": "integer", "default": 1, "description": "How many times."},
                    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
                    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}], "default": 0},
                    "unit": {"$ref": "#/$defs/Unit", "default": "m"},
                    "mode": {"type": "string", "enum": ["fast", "slow"], "default": "fast"},
                    "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}, "default": []},
                    "share": {
                        "type": "number",
                        "minimum": 0,
                        "maximum": 1,
                        "default": 0.5,
                        "description": "From 0 to 1.",
                    },
                },
                "$defs": {
                    "Unit": {"type": "string", "enum": ["m", "ft"]},
                    "Point": {
                        "type": "object",
                        "required": ["x"],
                        "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0.0}},
                    },
                },
            },
        },
    }


def test_defaults_fill_what_is_left_out():
    assert everything.validate('{"key": "a"}') == {
        "key": "a",
        "count": 1,
        "limit": None,
        "either": 0,
        "unit": Unit.METRE,
        "mode": "fast",
        "points": [],
        "share": 0.5,
    }


def test_arguments_are_coerced():
    given = '{"key": "a", "count": "3", "limit": 2, "either": "x", "unit": "ft", "points": [{"x": "1.5"}], "share": 1}'
    values = everything.validate(given)
    assert (values["count"], values["limit"], values["either"]) == (3, 2, "x")
    assert (values["unit"], values["points"], values["share"]) == (Unit.FOOT, [Point(x=1.5)], 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{}", "everything: missing argument 'key'$"),
        (
            '{"key": "a", "keys": 1}',
            r"unknown argument 'keys' \(allowed: key, count, limit, either, unit, mode, points",
        ),
        ('{"key": "a", "argument_0": 1}', "unknown argument 'argument_0'"),
        ('{"key": "a", "count": "many"}', "argument 'count': Input should be a valid integer.*got 'many'"),
        ('{"key": 5, "mode": "idle"}', r"argument 'key': .*got 5; argument 'mode': Input should be 'fast' or 'slow'"),
        ('{"key": "a", "points": [{"y": 1}]}', r"missing argument 'points\.0\.x'"),
        ('{"key": "a", "share": 1.5}', "argument 'share': Input should be less than or equal to 1, got 1.5"),
        ('{"key": "a", "count": "\\ud800"}', r"argument 'count': .*got '.ud800'"),
        ('{"key": ', "the arguments are not valid JSON"),
        ("[" * 100_000, "the arguments are not valid JSON"),
        ('["a"]', "must be a JSON object, got a list"),
        ('"a"', "must be a JSON object, got a str"),
    ],
)
def test_bad_arguments_are_explained(arguments, message):
    with pytest.raises(ToolError, match=message):
        everything.validate(arguments)


def test_a_long_bad_argument_is_not_repeated_in_full():
    with pytest.raises(ToolError) as error:
        everything.validate('{"key": "a", "count": "' + "9" * 5000 + 'x"}')
    assert len(str(error.value)) < 300


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


@tool
def stroke(animal: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")], times: dict[str, int] = {}) -> str:  # noqa: B006
    """Stroke it."""
    return "purr"


LONG = "x" * 10**6


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (everything, {"key": "a", LONG: 1}, f"everything: unknown argument '{'x' * 80}' (allowed: key, count, limit"),
        (stroke, {"animal": {"kind": "cat"}, "times": {LONG: "a"}}, f"stroke: argument 'times.{'x' * 74}': Input "),
        (stroke, {"animal": {"kind": LONG}}, "stroke: argument 'animal': Input tag 'xxx"),
        (
            everything,
            {"key": "a", **{f"a{number}": number for number in range(100_000)}},
            "everything: unknown argument 'a0'",
        ),
    ],
)
def test_no_error_is_as_long_as_what_a_model_wrote(function, arguments, message):
    with pytest.raises(ToolError) as raised:
        function.validate(json.dumps(arguments))
    assert str(raised.value).startswith(message)
    assert len(str(raised.value)) < 2000


def test_only_the_first_of_many_errors_are_named():
    arguments = {"key": "a", "points": [{"x": "?"}] * 25}
    with pytest.raises(ToolError) as raised:
        everything.validate(json.dumps(arguments))
    *named, rest = str(raised.value).split("; ")
    assert [text.partition("argument ")[2].split(":")[0] for text in named] == [f"'points.{n}.x'" for n in range(10)]
    assert rest == "and 15 more errors"


def google(a: int, b: int = 0) -> int:
    """Add.

    Args:
        a: First.
        b: Second.

    Returns:
        The sum.
    """
    return a + b


def numpy_style(a: int, b: int = 0) -> int:
    """Add.

    Parameters
    ----------
    a : int
        First.
    b : int
        Second.

    Returns
    -------
    int
        The sum.
    """
    return a + b


def sphinx(a: int, b: int = 0) -> int:
    """Add.

    :param a: First.
    :param b: Second.
    :return: The sum.
    """
    return a + b


@pytest.mark.parametrize("function", [google, numpy_style, sphinx])
def test_docstring_styles(function):
    made = tool(function)
    assert made.description == "Add."
    properties = made.parameters_schema["properties"]
    assert [properties[name]["description"] for name in "ab"] == ["First.", "Second."]
    assert execute(made, '{"a": 2, "b": 3}') == "5"


def test_name_and_description_can_be_given():
    made = tool(name="sum", description="")(google)
    assert (made.name, made.description) == ("sum", "")
    assert made(1, b=2) == 3
    assert isinstance(made, Tool)


def test_parameter_names_are_free():
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @tool
        def query(schema: str, json: int, model_dump: int = 0, _private: int = 0, copy: bool = False) -> str:
            return f"{schema} {json} {model_dump} {_private} {copy}"

    assert list(query.parameters_schema["properties"]) == ["schema", "json", "model_dump", "_private", "copy"]
    assert execute(query, '{"schema": "s", "json": 1, "_private": 2}') == "s 1 0 2 False"


def test_a_tool_without_parameters():
    @tool
    def ping() -> str:
        return "pong"

    assert ping.parameters_schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert (ping.description, execute(ping), execute(ping, "")) == ("", "pong", "pong")


def no_annotation(a):
    return a


def star(*values: int):
    return values


def double_star(**values: int):
    return values


def positional(a: int, /):
    return a


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_annotation, "tool 'no_annotation': parameter 'a' needs a type annotation"),
        (star, "parameter .*values.* cannot be given by name"),
        (double_star, "cannot be given by name"),
        (positional, "cannot be given by name"),
    ],
)
def test_signatures_without_a_schema_are_refused(function, message):
    with pytest.raises(TypeError, match=message):
        tool(function)


@pytest.mark.parametrize(
    ("value", "content"),
    [("text", "text"), (0.1, "0.1"), (None, "null"), ({"a": [1, "é"]}, '{"a": [1, "\\u00e9"]}'), ({1}, '"{1}"')],
)
def test_results_become_text(value, content):
    @tool
    def give() -> object:
        return value

    assert execute(give) == content


def test_a_tool_result_passes_through():
    @tool
    async def stop() -> ToolResult:
        return ToolResult("done", should_stop=True)

    assert asyncio.run(stop.execute("{}")) == ToolResult("done", should_stop=True)


class Counter:
    def __init__(self, start):
        self.value = start

    @tool
    def add(self, amount: int) -> int:
        """Add to the counter."""
        self.value += amount
        return self.value

    @tool
    @staticmethod
    def twice(x: int) -> int:
        """Double a number."""
        return 2 * x


def test_methods_are_bound_to_their_object():
    first, second = Counter(0), Counter(10)
    assert "self" not in first.add.parameters_schema["properties"]
    assert (execute(first.add, '{"amount": 1}'), execute(second.add, '{"amount": 1}')) == ("1", "11")
    assert (execute(first.add, '{"amount": 1}'), first.add(amount=5), second.value) == ("2", 7, 11)
    assert (execute(first.twice, '{"x": 4}'), first.twice(5)) == ("8", 10)


def test_a_synchronous_function_runs_on_a_daemon_thread_of_its_own():
    @tool
    def where() -> str:
        thread = threading.current_thread()
        return f"{thread is threading.main_thread()} {thread.daemon}"

    @tool
    async def on_the_loop() -> str:
        return str(threading.current_thread() is threading.main_thread())

    assert execute(where) == "False True"
    assert execute(on_the_loop) == "True"


def test_any_number_of_hung_tools_block_nobody():
    release = threading.Event()

    @tool
    def hang() -> str:
        release.wait()
        return "released"

    @tool
    def quick() -> str:
        return "quick"

    async def main():
        hung = [asyncio.create_task(hang.execute("{}")) for _ in range(100)]  # more than any default pool holds
        result = await quick.execute("{}")
        assert not any(task.done() for task in hung)
        release.set()
        return result.content, {(await task).content for task in hung}

    assert asyncio.run(main()) == ("quick", {"released"})


def test_a_hung_tool_does_not_hold_up_the_exit_of_the_process():
    code = """
import asyncio, time
from llmgym import tool

@tool
def hang() -> str:
    time.sleep(100_000)

async def main():
    try:
        async with asyncio.timeout(0.2):
            await hang.execute("{}")
    except TimeoutError:
        print("cut")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "cut\n"


def raise_stop_iteration():
    next(iter([]))


def call_exit():
    sys.exit(3)


def raise_cancelled():
    raise asyncio.CancelledError("mine")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raise_stop_iteration, "StopIteration: "),
        (call_exit, "SystemExit: 3"),
        (raise_cancelled, "CancelledError: mine"),
    ],
)
def test_what_no_future_may_hold_becomes_a_runtime_error(function, message):
    async def main():
        await run_in_daemon_thread(function)

    with pytest.raises(RuntimeError, match=message):
        asyncio.run(main())
