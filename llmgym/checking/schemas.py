"""Tool specifications: what is wrong with one, and arguments that fit it. Knows the JSON Schema that tools use."""

from __future__ import annotations

import json
import math
import re
from typing import Any

TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what hosted endpoints accept as a function name
_MAX_DEPTH = 32


def spec_faults(specs: Any) -> list[str]:
    """Say what is wrong with a list of tool specifications; an empty list means nothing.

    Looked at are the shape that chat templates and endpoints take, names (1 to 64 letters, digits, ``_`` and ``-``,
    no two alike), and the parameters: an object schema whose types, ``required``, ``enum`` and ``$ref`` make sense.
    """
    if not isinstance(specs, list):
        return [f"tool_specs must be a list, got {type(specs).__name__}"]
    faults: list[str] = []
    names: list[str] = []
    for index, spec in enumerate(specs):
        function = spec.get("function") if isinstance(spec, dict) else None
        if not isinstance(function, dict) or spec.get("type") != "function":
            faults.append(
                f"entry {index} must look like {{'type': 'function', 'function': {{...}}}}, got {spec!r:.200}"
            )
            continue
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            faults.append(f"the name of entry {index} must be 1 to 64 of a-z A-Z 0-9 _ -, got {name!r:.100}")
        elif name in names:
            faults.append(f"two tools have the name {name!r}")
        else:
            names.append(name)
        if not isinstance(function.get("description", ""), str):
            faults.append(f"{name}: the description must be text, got {function['description']!r:.100}")
        parameters = function.get("parameters")
        if not isinstance(parameters, dict) or parameters.get("type") != "object":
            faults.append(f"{name}: parameters must be a schema of type 'object', got {parameters!r:.200}")
            continue
        faults += [f"{name}: {fault}" for fault in _schema_faults(parameters, parameters, "parameters", 0)]
    try:
        json.dumps(specs, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        faults.append(f"the specifications are no JSON: {error}")
    return faults


def valid_arguments(spec: Any) -> dict[str, Any]:
    """Arguments that fit a specification without faults: its required parameters, each as simple as allowed."""
    parameters = spec["function"]["parameters"]
    value = _example(parameters, parameters, 0)
    return value if isinstance(value, dict) else {}


def properties_of(spec: Any) -> dict[str, Any]:
    """The parameters of a tool by name, with references resolved."""
    parameters = spec["function"]["parameters"]
    return {name: _resolve(schema, parameters) for name, schema in parameters.get("properties", {}).items()}


def _schema_faults(schema: Any, root: dict[str, Any], where: str, depth: int) -> list[str]:
    if isinstance(schema, bool):
        return []
    if not isinstance(schema, dict):
        return [f"{where} must be a schema, got {schema!r:.100}"]
    if depth > _MAX_DEPTH:
        return [f"{where} is nested deeper than {_MAX_DEPTH} levels"]
    faults = []
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in TYPES:
            faults.append(f"{where} has the unknown type {kind!r:.100}; allowed are {', '.join(TYPES)}")
    if "$ref" in schema and _target(schema["$ref"], root) is None:
        faults.append(f"{where} refers to {schema['$ref']!r:.100}, which is not there")
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        faults.append(f"{where} has an enum that is no list of values: {schema['enum']!r:.100}")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        return [*faults, f"the properties of {where} must be a dictionary, got {properties!r:.100}"]
    required = schema.get("required", [])
    if not isinstance(required, list):
        faults.append(f"required of {where} must be a list of names, got {required!r:.100}")
    else:
        faults += [
            f"{where} requires {name!r:.100}, which it does not define" for name in required if name not in properties
        ]
    parts: list[tuple[str, Any]] = [(f"{where}.{name}", part) for name, part in properties.items()]
    parts += [(f"{where}.{key}", schema[key]) for key in ("items", "additionalProperties") if key in schema]
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            options = schema[key]
            if not isinstance(options, list) or not options:
                faults.append(f"{key} of {where} must be a list of schemas, got {options!r:.100}")
            else:
                parts += [(f"{where}.{key}[{index}]", option) for index, option in enumerate(options)]
    definitions = schema.get("$defs", {})
    parts += [(f"{where}.$defs.{name}", part) for name, part in definitions.items()] if depth == 0 else []
    for name, part in parts:
        faults += _schema_faults(part, root, name, depth + 1)
    return faults


def _target(reference: Any, root: dict[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node: Any = root
    for part in reference.lstrip("#").strip("/").split("/"):
        if part:
            node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
    return node


def _resolve(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, dict):
            return {}
        if "$ref" in schema:
            schema = _target(schema["$ref"], root)
        elif any(schema.get(key) for key in ("anyOf", "oneOf", "allOf")) and "type" not in schema:
            schema = next(schema[key] for key in ("anyOf", "oneOf", "allOf") if schema.get(key))[0]
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
