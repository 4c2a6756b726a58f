"""Chat messages in the OpenAI shape: how they are normalised, copied and judged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Required, TypedDict, cast

from llmgym.errors import MessageError

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = ("system", "user", "assistant", "tool")


class FunctionCall(TypedDict):
    """The function half of a tool call. ``arguments`` is a JSON *string*, as models write it."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """One call in an assistant message; its result is the tool message with the same id."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict, total=False):
    """One chat message. After :func:`normalize_message`, ``content`` is always a string."""

    role: Required[Role]
    content: str
    reasoning_content: str
    tool_calls: list[ToolCall]
    tool_call_id: str
    name: str


class FunctionSpec(TypedDict):
    """Name, description and JSON schema of the parameters of one tool."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolSpec(TypedDict):
    """One entry of the ``tools`` list that chat templates and hosted endpoints take."""

    type: Literal["function"]
    function: FunctionSpec


def normalize_message(value: Any, *, role: Role | None = None, call_id_prefix: str = "call_") -> Message:
    """Bring a message into the one shape that the rest of llmgym works with.

    A missing or ``null`` content becomes ``""``; a list of text parts becomes their text; an empty
    ``tool_calls`` disappears; call arguments given as an object become their JSON text; a call
    without an id, or with an id already used in this message, gets ``call_id_prefix`` + its index.
    A plain string becomes a message when ``role`` is given. Keys outside the chat shape are dropped.

    Args:
        value: The message as a mapping, or its text.
        role: The role that the message must have. None allows all four.
        call_id_prefix: Start of the ids that are filled in.

    Returns:
        A new, independent dictionary.

    Raises:
        MessageError: ``value`` is not a message. The text names what was given and what is expected.
    """
    if isinstance(value, str) and role is not None:
        value = {"role": role, "content": value}
    if not isinstance(value, Mapping):
        wanted = f"message with role {role!r}" if role else "chat message"
        raise MessageError(
            f"expected a {wanted}, a dictionary such as {{'role': {role or 'user'!r}, 'content': '...'}}; "
            f"got {_short(value)}"
        )
    given_role = value.get("role", role)
    if given_role not in ROLES:
        raise MessageError(f"unknown role {_short(given_role)}; allowed are {', '.join(ROLES)}")
    if role is not None and given_role != role:
        raise MessageError(f"expected a message with role {role!r}, got one with role {given_role!r}")
    message: Message = {"role": given_role, "content": _text(value.get("content"))}
    reasoning = value.get("reasoning_content") or value.get("reasoning")
    if isinstance(reasoning, str):
        message["reasoning_content"] = reasoning
    calls = value.get("tool_calls")
    if calls:
        if given_role != "assistant":
            raise MessageError(f"only an assistant message may carry tool_calls, not one with role {given_role!r}")
        message["tool_calls"] = _calls(calls, call_id_prefix)
    for key in ("tool_call_id", "name"):
        extra = value.get(key)
        if extra is not None:
            message[key] = str(extra)
    return message


def normalize_messages(values: Iterable[Any], known: Sequence[Message] = ()) -> list[Message]:
    """Normalise a whole history.

    Beside what :func:`normalize_message` does, a tool message without an id gets the id of the first call before it
    that has no result yet.

    Args:
        values: The messages.
        known: An earlier state of the history, normalised. When ``values`` begins with it, its messages are taken over
            and only those that follow are normalised.

    Raises:
        MessageError: As :func:`normalize_message`, or ``values`` is not a list.
    """
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise MessageError(f"expected a list of chat messages, got {_short(values)}")
    values, messages = list(values), list(known)
    if values[: len(messages)] != messages:
        messages = []
    for value in values[len(messages) :]:
        message = normalize_message(value)
        if message["role"] == "tool" and "tool_call_id" not in message:
            open_ids = _open_call_ids(messages)
            if open_ids:
                message["tool_call_id"] = open_ids[0]
        messages.append(message)
    return messages


def _open_call_ids(messages: Sequence[Message]) -> list[str]:
    """The ids of the last assistant message's calls that have no result yet."""
    answered = set()
    for message in reversed(messages):
        if message["role"] == "assistant":
            return [call["id"] for call in message.get("tool_calls", []) if call["id"] not in answered]
        answered.add(message.get("tool_call_id"))
    return []


# What a chat server or a template leaves in the text when it failed to parse a call: the call openers of Hermes/Qwen,
# Llama 3, Mistral, DeepSeek and gpt-oss, and the function tags of Qwen-Coder.
_TOOL_MARKUP = re.compile(
    r"</?tool_call>|<\|python_tag\|>|\[TOOL_CALLS\]|<｜tool▁calls?▁begin｜>|<function=|<\|channel\|>commentary to="
)


def malformed_reason(message: Message) -> str | None:
    """Say why an assistant message counts as a parse failure, or return None.

    The same rule holds for every kind of policy, in training and in evaluation: a message is malformed when the
    arguments of a call are not a JSON object, when tool markup is left in the text, or when a reasoning block does not
    end. An unknown tool name or arguments that do not fit the schema are *not* malformed: the environment answers them.
    """
    for call in message.get("tool_calls", []):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if not name:
            return "a tool call has no name"
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return f"the arguments of {name!r} are not valid JSON ({error}): {_short(arguments)}"
        if not isinstance(parsed, dict):
            return f"the arguments of {name!r} must be a JSON object, got {_short(arguments)}"
    found = _TOOL_MARKUP.search(message.get("content", ""))
    if found:
        return f"the text holds unparsed tool-call markup {found.group()!r}"
    if message.get("content", "").lstrip().startswith("<think>") and "</think>" not in message["content"]:
        return "unfinished reasoning: </think> is missing"
    return None


def unreadable_message(text: str) -> Message:
    """An unparseable turn, as it appears in the history for a retry."""
    return {"role": "assistant", "content": text}


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = []
        for part in content:
            if isinstance(part, str):
                parts.append(part)
            elif isinstance(part, Mapping) and part.get("type") == "text":
                parts.append(str(part.get("text", "")))
            else:
                kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                raise MessageError(f"llmgym is text only: a content part of type {kind!r} cannot be used")
        return "".join(parts)
    raise MessageError(f"content must be a string, got {_short(content)}")


def _calls(calls: Any, call_id_prefix: str) -> list[ToolCall]:
    if not isinstance(calls, list):
        raise MessageError(f"tool_calls must be a list, got {_short(calls)}")
    result: list[ToolCall] = []
    ids = (call.get("id") for call in calls if isinstance(call, Mapping))
    given = {call_id for call_id in ids if isinstance(call_id, str)}
    used: set[str] = set()
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise MessageError(
                f"a tool call looks like {{'id': ..., 'function': {{'name': ..., 'arguments': ...}}}}, got "
                f"{_short(call)}"
            )
        arguments = function.get("arguments")
        if arguments is None:
            arguments = "{}"
        elif not isinstance(arguments, str):
            arguments = _json_text(arguments)
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id or call_id in used:
            call_id = f"{call_id_prefix}{index}"
            while call_id in used or call_id in given:
                call_id += "_"
        used.add(call_id)
        result.append(
            {"id": call_id, "type": "function", "function": {"name": function["name"], "arguments": arguments}}
        )
    return result


def _json_text(arguments: Any) -> str:
    try:
        return json.dumps(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError(f"tool-call arguments must be JSON text or a JSON object: {error}") from error


def _short(value: Any, limit: int = 120) -> str:
    text = f"{type(value).__name__} {value!r}" if not isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[:limit] + "…"


def tool_message(call: ToolCall, content: str) -> Message:
    """The message that answers one tool call."""
    return {"role": "tool", "content": content, "tool_call_id": call["id"], "name": call["function"]["name"]}


def copy_message(message: Message) -> Message:
    """An independent copy of a normalised message."""
    copied = cast(Message, dict(message))
    if "tool_calls" in copied:
        copied["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {**call["function"]}} for call in copied["tool_calls"]
        ]
    return copied


def with_object_arguments(message: Message) -> dict[str, Any]:
    """The message with call arguments as objects, as chat templates want them; text that is no JSON object stays."""
    return {
        **message,
        **({"tool_calls": [_with_object(call) for call in message["tool_calls"]]} if "tool_calls" in message else {}),
    }


def _with_object(call: ToolCall) -> dict[str, Any]:
    try:
        value = json.loads(call["function"]["arguments"])
    except (ValueError, RecursionError):
        return dict(call)
    return {**call, "function": {**call["function"], "arguments": value}} if isinstance(value, dict) else dict(call)


class MessageCopies:
    """Copies of a growing history for a reader who may change them. Each message is copied once.

    When the reader changed a copy, or the history itself changed where it was copied, all are copied anew.
    """

    def __init__(self) -> None:
        self._copies: list[Message] = []

    def of(self, history: Sequence[Message]) -> list[Message]:
        """A fresh list with a copy of each message of ``history``, which is normalised."""
        if self._copies != history[: len(self._copies)]:
            self._copies = []
        self._copies += [copy_message(message) for message in history[len(self._copies) :]]
        return list(self._copies)
