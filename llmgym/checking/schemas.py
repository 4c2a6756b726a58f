"""Tool specifications: what is wrong with one, and arguments that fit it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what hosted endpoints accept as a function name
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_MAX_DEPTH = 32


def spec_faults(specs: Any) -> list[str]:
    """Say what is wrong with a list of tool specifications; an empty list means nothing.

    Checked are the shape that chat templates and endpoints accept, names (1 to 64 letters, digits, ``_`` and ``-``, all
    different), and the parameters: an object schema whose types, ``required``, ``enum`` and ``$ref`` make sense.
    """
    if not isinstance(specs, list):
        return [f"tool_specs must be a list, got {type(specs).__name__}"]
    names: set[str] = set()
    faults = [fault for index, spec in enumerate(specs) for fault in _spec_faults(spec, index, names)]
    try:
        json.dumps(specs, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        faults.append(f"the specifications are not JSON: {error}")
    return faults


def valid_arguments(spec: Any) -> dict[str, Any]:
    """Arguments that fit a specification without faults: its required parameters, each as simple as allowed."""
    parameters = spec["function"]["parameters"]
    value = _example(parameters, parameters, 0)
    return value if isinstance(value, dict) else {}


def _spec_faults(spec: Any, index: int, names: set[str]) -> Iterator[str]:
    """The faults of one specification; its name is added to ``names``."""
    function = spec.get("function") if isinstance(spec, dict) else None
    if not isinstance(function, dict) or spec.get("type") != "function":
        yield f"entry {index} must look like {{'type': 'function', 'function': {{...}}}}, got {spec!r:.200}"
        return
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield f"the name of entry {index} must be 1 to 64 of a-z A-Z 0-9 _ -, got {name!r:.100}"
    elif name in names:
        yield f"two tools have the name {name!r}"
    else:
        names.add(name)
    if not isinstance(function.get("description", ""), str):
        yield f"{name}: the description must be text, got {function['description']!r:.100}"
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        yield f"{name}: parameters must be a schema of type 'object', got {parameters!r:.200}"
    else:
        yield from (f"{name}: {fault}" for fault in _schema_faults(parameters, parameters, "parameters", 0))


def _schema_faults(schema: Any, root: dict[str, Any], where: str, depth: int) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    if depth > _MAX_DEPTH:
        yield f"{where} is nested deeper than {_MAX_DEPTH} levels"
        return
    if not isinstance(schema, dict):
        yield f"{where} must be a schema, got {schema!r:.100}"
        return
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in TYPES:
            yield f"{where} has the unknown type {kind!r:.100}; allowed are {', '.join(TYPES)}"
    if "$ref" in schema and _target(schema["$ref"], root) is None:
        yield f"{where} refers to {schema['$ref']!r:.100}, which is not there"
    parts = [(key, schema[key]) for key in ("items", "additionalProperties") if key in schema]
    for key in ("enum", *_ALTERNATIVES):
        options = schema.get(key, [None])
        if not isinstance(options, list) or not options:
            yield f"{key} of {where} must be a list with an entry, got {options!r:.100}"
        elif key in schema and key != "enum":
            parts += [(f"{key}[{index}]", option) for index, option in enumerate(options)]
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        yield f"properties of {where} must be a dictionary, got {properties!r:.100}"
        return
    if not isinstance(required, list):
        yield f"required of {where} must be a list of names, got {required!r:.100}"
        return
    for name in required:
        if name not in properties:
            yield f"{where} requires {name!r:.100}, which it does not define"
    parts += properties.items()
    if depth == 0:
        parts += [(f"$defs.{name}", part) for name, part in schema.get("$defs", {}).items()]
    for name, part in parts:
        yield from _schema_faults(part, root, f"{where}.{name}", depth + 1)


def _target(reference: Any, root: dict[str, Any]) -> Any:
    """What a ``$ref`` such as ``"#/$defs/Place"`` refers to; None when that is not there."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node: Any = root
    for part in filter(None, reference[1:].split("/")):
        node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
    return node


def _resolve(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """A schema with its references followed, and the first of its alternatives taken."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, dict):
            break
        options = [schema[key][0] for key in _ALTERNATIVES if schema.get(key)]
        if "$ref" in schema:
            schema = _target(schema["$ref"], root)
        elif options and "type" not in schema:
            schema = options[0]
        else:
            return schema
    return {}


def _example(schema: Any, root: dict[str, Any], depth: int) -> Any:
    schema = _resolve(schema, root)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "string")
    if isinstance(kind, list):
        kind = kind[0] if kind else "string"
    if depth > _MAX_DEPTH or kind == "null":
        return None
    if kind == "boolean":
        return True
    if kind in ("integer", "number"):
        return _number(schema)
    if kind == "array":
        return [_example(schema.get("items", {}), root, depth + 1) for _ in range(schema.get("minItems", 0))]
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _example(properties[name], root, depth + 1) for name in schema.get("required", [])}
    return "1".ljust(schema.get("minLength", 1), "1")[: schema.get("maxLength")]


def _number(schema: dict[str, Any]) -> Any:
    """The first of a few simple numbers that is within the bounds."""
    low = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf))
    high = schema.get("maximum", schema.get("exclusiveMaximum", math.inf))
    step = schema.get("multipleOf", 0)
    above = [low, low + 1, *([math.ceil(low / step) * step] if step else [])] if low > -math.inf else []
    below = [high, high - 1, (low + high) / 2] if high < math.inf else []

    def fits(value: Any) -> bool:
        strict = value not in (schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum"))
        return low <= value <= high and strict and math.isfinite(value) and not (step and value % step)

    return next(filter(fits, [1, step or 1, *above, *below]), 1)
