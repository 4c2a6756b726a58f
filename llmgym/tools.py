"""Tools that a model can call: the protocol, and typed functions as tools."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar, get_type_hints, overload, runtime_checkable

import docstring_parser
import pydantic

from llmgym._util.aio import run_in_daemon_thread
from llmgym.errors import ToolError
from llmgym.isolation import address_of, call_isolated, serve
from llmgym.messages import ToolSpec

T = TypeVar("T")

MAX_QUOTED = 80
"""Characters of a name or a value that an error about arguments repeats."""
MAX_REASON = 500
"""Characters of what is wrong with one argument."""
MAX_ERRORS = 10
"""Wrong arguments that one error names."""


@dataclass
class ToolResult:
    """What a tool answers.

    Attributes:
        content: The text of the tool message.
        should_stop: Asks the environment to end the episode.
        error_type: What went wrong, for reports; never shown to the model. ``"unknown_tool"``,
            ``"invalid_arguments"``, ``"timeout"``, ``"process_died"`` (an isolated tool), ``"not_run"`` (an earlier
            call ended the episode), ``"tool_error"`` (a :class:`~llmgym.errors.ToolError`), or the class name of
            another exception. None: the call succeeded.
    """

    content: str
    should_stop: bool = False
    error_type: str | None = None


@runtime_checkable
class Tool(Protocol):
    """Anything with these four members. ``parameters_schema`` is the JSON schema of the arguments."""

    name: str
    description: str
    parameters_schema: dict[str, Any]

    async def execute(self, arguments: str) -> ToolResult:
        """Run the tool. ``arguments`` is the JSON text the model wrote; raise to report an error to the model."""
        ...


def tool_to_spec(tool: Tool) -> ToolSpec:
    """Return the OpenAI-style specification of a tool, as chat templates and endpoints take it."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters_schema},
    }


class FunctionTool:
    """A typed function as a :class:`Tool`. Made by :func:`tool`.

    The JSON schema comes from the signature, descriptions from the docstring. Arguments are validated
    and coerced with pydantic before the function runs. An ``async`` function runs on the event loop, any other
    on a daemon thread of its own, so that a slow or hung call blocks nobody else. An isolated one runs in a process
    of its own, which is killed when the call is cut.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        isolated: bool = False,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._address = address_of(function) if isolated else None
        signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
        docs = docstring_parser.parse(inspect.getdoc(function) or "")
        about = {parameter.arg_name: parameter.description for parameter in docs.params}
        fields: dict[str, Any] = {}
        names: list[str] = []
        for parameter in signature.parameters.values():
            if parameter.name == "self" and not fields:
                continue
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(
                    f"tool {function.__name__!r}: parameter {str(parameter)!r} cannot be given by name; "
                    "*args, **kwargs and positional-only parameters have no JSON schema"
                )
            if parameter.name not in hints:
                raise TypeError(f"tool {function.__name__!r}: parameter {parameter.name!r} needs a type annotation")
            default = ... if parameter.default is parameter.empty else parameter.default
            # The parameter's name is the alias: as a field's name, `schema` or `_x` would clash with pydantic.
            info: dict[str, Any] = {"alias": parameter.name}
            if about.get(parameter.name):
                info["description"] = about[parameter.name]
            fields[f"argument_{len(fields)}"] = (hints[parameter.name], pydantic.Field(default=default, **info))
            names.append(parameter.name)
        self.name = name or function.__name__
        texts = [text for text in (docs.short_description, docs.long_description) if text]
        self.description = description if description is not None else "\n\n".join(texts)
        self._names = names
        self._arguments_model = pydantic.create_model(
            self.name, __config__=pydantic.ConfigDict(extra="forbid"), **fields
        )
        self.parameters_schema = _without_titles(self._arguments_model.model_json_schema())

    def __get__(self, instance: Any, owner: type | None = None) -> FunctionTool:
        """Bind a decorated method to its object, as functions do."""
        if instance is None or self._address is not None:
            return self
        bound = object.__new__(FunctionTool)
        bound.__dict__.update(self.__dict__)
        bound._function = self._function.__get__(instance, owner)
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, without validation."""
        return self._function(*args, **kwargs)

    def validate(self, arguments: str) -> dict[str, Any]:
        """Parse, check and coerce the JSON text of the arguments.

        Raises:
            ToolError: No JSON object, or it does not fit the signature; the text names each bad argument.
        """
        try:
            parsed = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ToolError(f"the arguments are not valid JSON: {error}", error_type="invalid_arguments") from None
        if not isinstance(parsed, dict):
            raise ToolError(
                f"the arguments must be a JSON object, got a {type(parsed).__name__}", error_type="invalid_arguments"
            )
        try:
            model = self._arguments_model.model_validate(parsed)
        except pydantic.ValidationError as error:
            raise ToolError(_explain(error, self.name, self._names), error_type="invalid_arguments") from None
        return {
            name: getattr(model, field)
            for field, name in zip(self._arguments_model.model_fields, self._names, strict=True)
        }

    async def execute(self, arguments: str) -> ToolResult:
        """Validate ``arguments`` and run the function. A result that is no text becomes its JSON text."""
        values = self.validate(arguments)
        if self._address is not None:
            return ToolResult(**await call_isolated(self._address, arguments))
        if inspect.iscoroutinefunction(self._function):
            return _as_result(await self._function(**values))
        return _as_result(await run_in_daemon_thread(functools.partial(self._function, **values)))


def serve_isolated() -> None:
    """Answer one call of an isolated tool: the main function of its process."""

    def run(found: Any, arguments: str) -> dict[str, Any]:
        tool = found if isinstance(found, FunctionTool) else FunctionTool(found)
        result = tool(**tool.validate(arguments))
        return asdict(_as_result(asyncio.run(result) if inspect.iscoroutine(result) else result))

    serve(run)


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, isolated: bool = False
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    isolated: bool = False,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Turn a typed function, or a method of a :class:`~llmgym.ToolEnv`, into a tool.

    Args:
        function: The function; its docstring's summary and ``Args:`` become the descriptions.
        name: Name of the tool; None takes the function's.
        description: Description of the tool; None takes the docstring's.
        isolated: Run each call in a fresh process, for code that may kill or hang its process. For module-level
            functions and static methods (``@tool(isolated=True)`` above ``@staticmethod``); starting a process
            takes about half a second.

    Raises:
        TypeError: A parameter has no annotation, or is ``*args`` or ``**kwargs``; or ``isolated`` is asked of a
            method or of a function that another process cannot import.
    """
    if function is None:
        return lambda wrapped: FunctionTool(wrapped, name=name, description=description, isolated=isolated)
    return FunctionTool(function)


def _as_result(result: Any) -> ToolResult:
    if isinstance(result, ToolResult):
        return result
    return ToolResult(result if isinstance(result, str) else json.dumps(result, default=str))


def _explain(error: pydantic.ValidationError, tool_name: str, allowed: list[str]) -> str:
    """Name what is wrong with the arguments; what the model wrote is cut, and so is a long list of errors."""
    items = error.errors(include_url=False)
    parts = []
    for item in items[:MAX_ERRORS]:
        where = ".".join(str(part) for part in item["loc"])[:MAX_QUOTED]
        if item["type"] == "extra_forbidden":
            parts.append(f"unknown argument {where!r} (allowed: {', '.join(allowed) or 'none'})")
        elif item["type"] == "missing":
            parts.append(f"missing argument {where!r}")
        else:  # a message of pydantic may quote the input too
            got = repr(item["input"])[:MAX_QUOTED]
            parts.append(f"argument {where!r}: {item['msg'][:MAX_REASON]}, got {got}")
    if len(items) > MAX_ERRORS:
        parts.append(f"and {len(items) - MAX_ERRORS} more errors")
    return f"{tool_name}: " + "; ".join(parts)


def _without_titles(schema: Any) -> Any:
    """Drop the titles pydantic adds to schemas; they cost prompt tokens and say nothing."""
    if isinstance(schema, dict):
        return {
            key: {name: _without_titles(value) for name, value in item.items()}
            if key in ("properties", "$defs")
            else _without_titles(item)
            for key, item in schema.items()
            if key != "title"
        }
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    return schema
