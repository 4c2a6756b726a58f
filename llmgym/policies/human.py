"""A person as the policy, at a terminal or through any two functions that ask and tell.

A line is an answer, and a line that begins with ``/`` calls a tool, whose parameters are then asked for one by one.
Wrong arguments are answered by the environment, as they are for a model.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

from llmgym._util.text import message_text, printable
from llmgym.episode import StopReason
from llmgym.messages import Message, ToolSpec
from llmgym.policy import Policy, PolicyTurn
from llmgym.task import Task

_HELP = "Write your answer, or /NAME to call a tool (/ alone lists them). /quit leaves. // begins an answer with a /."


class HumanPolicy(Policy):
    """Asks a person for every turn.

    Args:
        ask: Shows a prompt and returns the line that was entered; raises ``EOFError`` at the end of the input.
        tell: Shows a text, in which control characters are escaped.

    Attributes:
        left: Whether the person ended the episode.
    """

    def __init__(self, ask: Callable[[str], str] | None = None, tell: Callable[[str], None] = print) -> None:
        self._ask_raw = ask or terminal_input
        self._tell_raw = tell
        self._shown: list[Message] = []
        self.left = False

    async def start(self, task: Task) -> None:
        self._shown, self.left = [], False
        self._tell(_HELP)

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> Message | PolicyTurn:
        """Show what is new and return what the person answers.

        ``/quit`` and the end of the input stop the episode with ``StopReason.ERROR``: it is no evidence about anybody.
        """
        self._show_new(messages)
        try:
            answer = self._answer(tool_specs)
        except EOFError as ended:
            self.left = True
            return PolicyTurn(stop=StopReason.ERROR, detail=f"the player left{ended}")
        self._shown = [*messages, answer]
        return answer

    def _answer(self, tool_specs: list[ToolSpec]) -> Message:
        while True:
            line = self._ask("> ")
            if line == "/quit":
                raise EOFError("")
            if not line.startswith("/") or line.startswith("//"):
                return {"role": "assistant", "content": line[1:] if line.startswith("//") else line}
            spec = self._find(line[1:].strip(), tool_specs)
            arguments = None if spec is None else self._fill_in(spec)
            if spec is not None and arguments is not None:
                call = {"name": spec["function"]["name"], "arguments": json.dumps(arguments)}
                calls = [{"id": "", "type": "function", "function": call}]
                return {"role": "assistant", "content": "", "tool_calls": calls}  # type: ignore[typeddict-item]

    def _find(self, name: str, tool_specs: list[ToolSpec]) -> ToolSpec | None:
        """The tool of that name, or the only one whose name begins with it; else list the tools."""
        exact = [spec for spec in tool_specs if spec["function"]["name"] == name]
        found = exact or [spec for spec in tool_specs if name and spec["function"]["name"].startswith(name)]
        if len(found) == 1:
            return found[0]
        if name:
            self._tell(f"There is no tool {name!r}." if not found else f"{name!r} may be several tools.")
        self._tell("Tools:" if tool_specs else "This environment has no tools.")
        for spec in tool_specs:
            function = spec["function"]
            parameters = ", ".join(function["parameters"].get("properties", {}))
            self._tell(f"  /{function['name']} ({parameters})  {function.get('description', '')}".rstrip())
        return None

    def _fill_in(self, spec: ToolSpec) -> dict[str, Any] | None:
        """Ask for each parameter; None when the person goes back."""
        parameters = spec["function"]["parameters"]
        properties, required = parameters.get("properties", {}), parameters.get("required", [])
        arguments: dict[str, Any] = {}
        if properties:
            optional = "" if set(properties) <= set(required) else " Enter alone skips what is optional."
            self._tell(f"/back leaves the form.{optional}")
        for name, schema in properties.items():
            self._tell(f"  {name}{'' if name in required else ' (optional)'}: {json.dumps(schema)}")
            line = self._ask(f"  {name} = ")
            if line == "/back":
                return None
            if line or name in required:
                arguments[name] = read_value(line, schema)
        return arguments

    def _show_new(self, messages: list[Message]) -> None:
        known = len(self._shown)
        if [_without_ids(message) for message in messages[:known]] != [_without_ids(one) for one in self._shown]:
            self._tell("--- the environment rewrote the history; it now reads ---")
            known = 0
        for message in messages[known:]:
            self._tell(message_text(message))

    def _ask(self, prompt: str) -> str:
        try:
            return self._ask_raw(printable(prompt))
        except EOFError:
            raise EOFError(": the input has ended") from None

    def _tell(self, text: str) -> None:
        self._tell_raw(printable(text))


def terminal_input(prompt: str) -> str:
    """``input`` in which Ctrl-C ends the input at once, as Ctrl-D does, also below an event loop."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(prompt)
    except KeyboardInterrupt:
        raise EOFError from None
    finally:
        signal.signal(signal.SIGINT, before)


def read_value(line: str, schema: dict[str, Any]) -> Any:
    """The value of one parameter: the line as JSON, or as the text it is.

    A text is wanted where the schema's type is ``"string"``, and is what no JSON is.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return line
    return line if schema.get("type") == "string" and not isinstance(value, str) else value


def _without_ids(message: Message) -> Any:
    """A message without the ids of its calls, which the rollout fills in."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return message["role"], message.get("content", ""), calls
