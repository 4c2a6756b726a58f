"""``llmgym play``: a person as the policy, at a terminal. Knows forms and text; the episode runs elsewhere.

A line is an answer, and a line that begins with ``/`` calls a tool: its parameters are then asked for one by one, and
each is held against its JSON schema. What an environment says is printed with its control characters escaped.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmgym.cli.options import CommandParser
from llmgym.episode import Episode, EpisodeLimits, StopReason
from llmgym.errors import ConfigError, TaskError
from llmgym.messages import Message, ToolSpec
from llmgym.policy import Policy, PolicyTurn
from llmgym.records import EpisodeWriter
from llmgym.registry import find
from llmgym.rollout import run_episode
from llmgym.task import Task, load_tasks

_HELP = "Write your answer, or /NAME to call a tool (/ alone lists them). /quit leaves. // begins an answer with a /."
_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


_LEFT = "the player left"


class _PlayerLeft(Exception):
    """The person at the terminal ended the episode; says how."""


class PersonPolicy(Policy):
    """Asks a person for every turn.

    Args:
        ask: Shows a prompt and returns the line that was entered; raises ``EOFError`` at the end of the input.
        tell: Shows a text.
    """

    def __init__(self, ask: Callable[[str], str] | None = None, tell: Callable[[str], None] = print) -> None:
        self._ask = ask or terminal_input
        self._tell_raw = tell
        self._shown: list[Message] = []

    async def start(self, task: Task) -> None:
        self._shown = []
        self._tell(_HELP)

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> Message | PolicyTurn:
        """Show what is new and return what the person answers.

        ``/quit`` and the end of the input stop the episode with ``StopReason.ERROR``: it is no evidence about anybody.
        """
        self._show_new(messages)
        try:
            answer = self._answer(tool_specs)
        except _PlayerLeft as left:
            return PolicyTurn(stop=StopReason.ERROR, detail=str(left))
        self._shown = [*messages, answer]
        return answer

    def _answer(self, tool_specs: list[ToolSpec]) -> Message:
        while True:
            line = self._line("> ")
            if line == "/quit":
                raise _PlayerLeft(_LEFT)
            if not line.startswith("/") or line.startswith("//"):
                return {"role": "assistant", "content": line[1:] if line.startswith("//") else line}
            spec = self._find(line[1:].strip(), tool_specs)
            arguments = None if spec is None else self._form(spec)
            if spec is not None and arguments is not None:
                call = {"name": spec["function"]["name"], "arguments": json.dumps(arguments)}
                return {"role": "assistant", "content": "", "tool_calls": [{"id": "", "type": "function", "function": call}]}  # type: ignore[typeddict-item]  # fmt: skip

    def _find(self, name: str, tool_specs: list[ToolSpec]) -> ToolSpec | None:
        """The tool of that name, or the only one whose name begins so; else say which there are."""
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

    def _form(self, spec: ToolSpec) -> dict[str, Any] | None:
        """Ask for each parameter; None when the person goes back."""
        parameters = spec["function"]["parameters"]
        properties, required = parameters.get("properties", {}), parameters.get("required", [])
        arguments: dict[str, Any] = {}
        if properties:
            self._tell("/back leaves the form." + ("" if set(properties) <= set(required) else " Enter alone skips what is optional."))  # fmt: skip
        for name, given in properties.items():
            schema = resolve(given, parameters)
            self._tell(f"  {name}: {_about(schema, name in required, parameters)}")
            while True:
                line = self._line(f"  {name} = ")
                if line == "/back":
                    return None
                if not line and name not in required:
                    break
                try:
                    arguments[name] = read_value(line, schema, parameters)
                    break
                except ValueError as error:
                    self._tell(f"  {error}")
        return arguments

    def _show_new(self, messages: list[Message]) -> None:
        known = len(self._shown)
        if [_bare(message) for message in messages[:known]] != [_bare(message) for message in self._shown]:
            self._tell("--- the environment rewrote the history; it now reads ---")
            known = 0
        for message in messages[known:]:
            label = message.get("name") if message["role"] == "tool" else message["role"]
            self._tell(f"[{label}] {message.get('content', '')}")
            for call in message.get("tool_calls", []):
                self._tell(f"    calls {call['function']['name']} {call['function']['arguments']}")

    def _line(self, prompt: str) -> str:
        try:
            return self._ask(_printable(prompt))
        except EOFError:
            raise _PlayerLeft(f"{_LEFT}: the input has ended") from None

    def _tell(self, text: str) -> None:
        self._tell_raw(_printable(text))


def terminal_input(prompt: str) -> str:
    """``input`` in which Ctrl-C ends the input at once, as Ctrl-D does, also below an event loop."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(prompt)
    except KeyboardInterrupt:
        raise EOFError from None
    finally:
        signal.signal(signal.SIGINT, before)


def resolve(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """A schema with its ``$ref`` followed."""
    for _ in range(16):
        reference = schema.get("$ref", "") if isinstance(schema, dict) else ""
        if not reference.startswith("#/"):
            break
        found: Any = root
        for part in reference[2:].split("/"):
            found = found.get(part, {}) if isinstance(found, dict) else {}
        schema = found
    return schema if isinstance(schema, dict) else {}


def read_value(line: str, schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """The value of one parameter from the line that was entered.

    The line is read as JSON where that fits the schema, else as the text it is: 44 is the number for an integer and
    the text "44" for a string.

    Args:
        line: What was entered.
        schema: The parameter's JSON schema.
        root: The schema that a ``$ref`` points into.

    Raises:
        ValueError: It does not fit; the text says what does.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value, hint = line, "; write JSON, such as 12, true or [1, 2]"
    else:
        if fault(value, schema, root) is None:
            return value
        hint = ""
    if fault(line, schema, root) is None:
        return line
    raise ValueError(f"{fault(value, schema, root)}{hint}")


def fault(value: Any, schema: dict[str, Any], root: dict[str, Any], depth: int = 0) -> str | None:
    """What keeps a value from fitting a schema; None when nothing that is looked at does.

    Looked at are ``type``, ``enum``, ``const``, bounds, ``items``, ``properties``, ``required`` and the alternatives of
    ``anyOf`` and ``oneOf``. The environment checks the whole schema itself.
    """
    schema = resolve(schema, root)
    if depth > 16:
        return None
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        faults = [fault(value, one, root, depth + 1) for one in alternatives]
        return None if None in faults else " or ".join(dict.fromkeys(str(one) for one in faults))
    allowed = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if allowed is not None and value not in allowed:
        return f"must be one of {', '.join(json.dumps(one) for one in allowed)}"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is_a(value, kind) for kind in kinds):
        return f"must be of type {' or '.join(kinds)}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for name, holds, words in _BOUNDS:
            if name in schema and not holds(value, schema[name]):
                return f"must be {words} {schema[name]}"
    if isinstance(value, list):
        faults = [fault(item, schema.get("items", {}), root, depth + 1) for item in value]
        return next((f"entry {place} {one}" for place, one in enumerate(faults) if one), None)
    if isinstance(value, dict):
        missing = [name for name in schema.get("required", []) if name not in value]
        if missing:
            return f"lacks {', '.join(missing)}"
        properties = schema.get("properties", {})
        named = ((name, fault(item, properties.get(name, {}), root, depth + 1)) for name, item in value.items())
        return next((f"{name} {one}" for name, one in named if one), None)
    return None


_BOUNDS: tuple[tuple[str, Callable[[Any, Any], bool], str], ...] = (
    ("minimum", lambda value, bound: value >= bound, "at least"),
    ("maximum", lambda value, bound: value <= bound, "at most"),
    ("exclusiveMinimum", lambda value, bound: value > bound, "more than"),
    ("exclusiveMaximum", lambda value, bound: value < bound, "less than"),
)


def main(argv: Sequence[str]) -> int:
    """Run ``llmgym play`` and return its exit status.

    Raises:
        LLMGymError: Anything the user can mend; the caller prints it as one line.
    """
    parser = CommandParser(
        prog="llmgym play",
        description="Play an episode yourself: call tools by form, or answer with text. The episode is recorded.",
    )
    parser.add_argument("env", help="registered id, module:Id-v0, module:Class or my_env.py:MyEnv")
    parser.add_argument("--split", default="train", help="train, val or test (default train)")
    parser.add_argument("--tasks", metavar="JSONL", help="tasks from a file, instead of the environment's own")
    parser.add_argument("--task", default="0", metavar="N", help="number or id of the task (default 0, the first)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the environment (default 0)")
    parser.add_argument("--max-turns", type=int, default=EpisodeLimits().max_turns, metavar="N", help="your turns, at most")  # fmt: skip
    parser.add_argument("--out", metavar="JSONL", help="file to append the episode to (default runs/play-<time>.jsonl)")
    options = parser.parse_args(argv)
    entry = find(options.env)
    task = _task(load_tasks(options.tasks) if options.tasks else entry.load_tasks(options.split), options.task)
    limits = EpisodeLimits(max_turns=options.max_turns, env_timeout_s=None)
    out = Path(options.out or time.strftime("runs/play-%Y%m%d-%H%M%S.jsonl"))
    if out.is_dir():
        raise ConfigError(f"--out {str(out)!r} is a folder; give a JSONL file")
    episode = asyncio.run(
        run_episode(
            entry.make_env(task), task, PersonPolicy(), limits,
            seed=options.seed, env_id=entry.id, provenance={"policy": "person"},
        )
    )  # fmt: skip
    with EpisodeWriter(out) as writer:
        writer.write(episode)
    print("\n".join(_outcome(episode)))
    print(f"recorded in {out}; look at it with: llmgym view {out}")
    return 0


def _task(tasks: list[Task], wanted: str) -> Task:
    by_id = [task for task in tasks if task.id == wanted]
    if by_id:
        return by_id[0]
    if wanted.isdecimal() and int(wanted) < len(tasks):
        return tasks[int(wanted)]
    raise TaskError(f"there is no task {wanted!r}; give a number from 0 to {len(tasks) - 1}, or a task's id")


def _outcome(episode: Episode) -> list[str]:
    detail = f" ({episode.stop_detail})" if episode.stop_detail else ""
    last, stopped = episode.turns[-1].observation if episode.turns else [], f"{episode.stop_reason}{detail}"
    if episode.stop_detail and episode.stop_detail.startswith(_LEFT):
        # Anybody else had no further turn, in which the policy would have shown what the last one was answered.
        last, stopped = [], episode.stop_detail
    lines = [f"[{m.get('name') or m['role']}] {m.get('content', '')}" for m in last]
    lines += ["", f"reward {episode.reward:g}, stopped: {stopped}"]
    if episode.task.target is not None:
        lines.append(f"target: {json.dumps(episode.task.target)}")
    lines += [f"  {name}: {value}" for name, value in episode.metrics.items()]
    return [_printable(line) for line in lines]


def _about(schema: dict[str, Any], required: bool, root: dict[str, Any]) -> str:
    kinds = [
        str(one.get("type", "any value")) for one in map(lambda one: resolve(one, root), schema.get("anyOf", [schema]))
    ]
    parts = [" or ".join(kinds)]
    if "enum" in schema:
        parts.append("one of " + ", ".join(json.dumps(one) for one in schema["enum"]))
    if not required:
        parts.append("optional" + (f", {json.dumps(schema['default'])} when left out" if "default" in schema else ""))
    about = schema.get("description")
    return "; ".join(parts) + (f". {about}" if about else "")


def _is_a(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, object))


def _bare(message: Message) -> Any:
    """A message without the ids of its calls, which the loop fills in."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return message["role"], message.get("content", ""), calls


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)
