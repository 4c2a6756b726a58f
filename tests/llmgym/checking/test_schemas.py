"""Tool specifications: faults that are found, and arguments that fit."""

from __future__ import annotations

import enum
import json
from typing import Annotated, Any, Literal

import pydantic
import pytest

import llmgym
from llmgym.checking.schemas import spec_faults, valid_arguments


def spec(parameters: Any, name: Any = "find") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "Find.", "parameters": parameters}}


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


NESTED: dict[str, Any] = {"type": "string"}
for _ in range(40):
    NESTED = {"type": "array", "items": NESTED}


@pytest.mark.parametrize(
    ("specs", "fault"),
    [
        ({}, "must be a list"),
        (["find"], "must look like"),
        ([{"name": "find", "parameters": schema()}], "must look like"),
        ([spec(schema(), name="")], "1 to 64"),
        ([spec(schema(), name="find it")], "1 to 64"),
        ([spec(schema(), name="f" * 65)], "1 to 64"),
        ([spec(schema()), spec(schema())], "two tools have the name 'find'"),
        ([spec(None)], "schema of type 'object'"),
        ([spec({"type": "string"})], "schema of type 'object'"),
        ([spec(schema(a={"type": "int"}))], "unknown type 'int'"),
        ([spec(schema(a="string"))], "parameters.a must be a schema"),
        ([spec({"type": "object", "properties": [], "required": []})], "must be a dictionary"),
        ([spec({"type": "object", "properties": {}, "required": ["a"]})], "requires 'a', which it does not define"),
        ([spec({"type": "object", "properties": {}, "required": "a"})], "must be a list of names"),
        (
            [spec(schema(a={"type": "string"})) | {"function": {**spec(schema())["function"], "description": 7}}],
            "be text",
        ),
        ([spec(schema(a={"$ref": "https://example.com"}))], "which is not there"),
        ([spec(schema(a=NESTED))], "is nested deeper than 32 levels"),
        ([spec(schema(a={"enum": []}))], "enum"),
        ([spec(schema(a={"$ref": "#/$defs/Place"}))], "which is not there"),
        ([spec(schema(a={"anyOf": {}}))], "anyOf"),
        ([spec(schema(a={"type": "array", "items": {"type": "list"}}))], "parameters.a.items has the unknown type"),
        ([spec(schema(a={"type": "string", "default": {1, 2}}))], "not JSON"),
    ],
)
def test_each_fault_of_a_specification_is_named(specs, fault):
    found = spec_faults(specs)
    assert len(found) == 1
    assert fault in found[0]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(pydantic.BaseModel):
    x: int
    y: float = 0.5


def everything(
    text: str,
    number: Annotated[int, pydantic.Field(ge=10, le=20)],
    share: Annotated[float, pydantic.Field(gt=0.2, lt=0.4)],
    colour: Colour,
    unit: Literal["kg", "g"],
    place: Place,
    places: Annotated[list[Place], pydantic.Field(min_length=2)],
    code: Annotated[str, pydantic.Field(min_length=3)],
    maybe: int | None,
    either: str | int,
    flag: bool,
    table: dict[str, int],
    even: Annotated[int, pydantic.Field(multiple_of=4)],
    optional: int = 7,
) -> str:
    """Take one argument of every kind."""
    return "taken"


def test_a_typed_function_has_no_faults_and_accepts_the_example():
    tool = llmgym.tool(everything)
    specification = llmgym.tool_to_spec(tool)
    assert spec_faults([specification]) == []
    example = valid_arguments(specification)
    tool.validate(json.dumps(example))
    assert example["text"] == "1"
    assert example["number"] == 10
    assert example["colour"] == "red"
    assert example["unit"] == "kg"
    assert example["place"] == {"x": 1}
    assert example["places"] == [{"x": 1}, {"x": 1}]
    assert example["even"] == 4
    assert "optional" not in example
