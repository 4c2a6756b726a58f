"""Messages to token ids, and sampled ids back to messages, for one tokenizer.

The next prompt is the tokens already held plus the rendering of only the new messages. :meth:`Codec.extend` decides in
this order whether that is possible:

1. The held tokens end with the template's end of a turn; a turn stopped any other way has no valid continuation.
2. Either the new rendering begins with the text held, or, where sampled text differs from the template's own spelling
   (spaces in JSON, outer newlines), the rendering of the history does so and holds all of the last turn.
3. Otherwise the template rewrites history there, and a new row starts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmgym.episode import StopReason
from llmgym.errors import ConfigError, LLMGymError, did_you_mean
from llmgym.messages import Message, ToolSpec, malformed_reason, normalize_message, with_object_arguments
from llmgym.policy import PolicyTurn
from llmgym_trainer.tokens.parsing import (
    CALL_FORMATS,
    THINK_CLOSE,
    THINK_OPEN,
    CallFormat,
    ParsedCall,
    ParseError,
    split_reasoning,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class CodecError(LLMGymError, ValueError):
    """A chat template or tokenizer cannot express these messages."""


@dataclass(frozen=True)
class ProbeReport:
    """What :meth:`Codec.probe` found out about a chat template.

    Attributes:
        call_format: Name of the tool-call format.
        end_of_turn: Texts of the tokens that end an assistant turn.
        parallel_calls: Whether one message may hold several calls.
        rewrites: Situations in which the template rewrites history, so that a new training row starts.
        rewrites_most_turns: Whether one of them follows most turns of an episode.
    """

    call_format: str
    end_of_turn: tuple[str, ...]
    parallel_calls: bool
    rewrites: tuple[str, ...]
    rewrites_most_turns: bool

    def describe(self, max_turns: int) -> str:
        """One sentence for the user, with the training rows to expect of an episode of at most ``max_turns`` turns."""
        what = f"chat template: {self.call_format} tool calls"
        if not self.rewrites:
            return f"{what}; it keeps the whole history, so an episode is one training row"
        where = "after most turns" if self.rewrites_most_turns else "where a user message arrives in mid-episode"
        return (
            f"{what}; it rewrites earlier turns after {', '.join(self.rewrites)}. A new training row starts there: "
            f"{where}, so expect 1 to {max_turns} rows per episode (the metric rows_per_episode)"
        )


def load_chat_template(name_or_path: str) -> str:
    """Return the text of a template shipped here (``compact``, ``hermes``) or of a template file.

    Raises:
        ConfigError: There is no such template.
    """
    folder = resources.files("llmgym_trainer") / "tokens" / "templates"
    names = sorted(entry.name.removesuffix(".jinja") for entry in folder.iterdir() if entry.name.endswith(".jinja"))
    if name_or_path in names:
        return (folder / f"{name_or_path}.jinja").read_text(encoding="utf-8")
    if Path(name_or_path).is_file():
        return Path(name_or_path).read_text(encoding="utf-8")
    raise ConfigError(
        f"chat_template={name_or_path!r} is neither a file nor one of {', '.join(names)}."
        f"{did_you_mean(name_or_path, names)}"
    )


class Codec:
    """Renders, extends and parses for one tokenizer. It holds no state of an episode.

    Args:
        tokenizer: A fast transformers tokenizer.
        chat_template: Template text to use instead of the tokenizer's own.
        template_kwargs: Further variables of the template, such as ``{"enable_thinking": False}``.
        extra_stop_ids: Ids that end a turn in addition to those of template and tokenizer, such as a generation
            config's.

    Attributes:
        tokenizer: The tokenizer.
        template: Text of the chat template.
        template_hash: First 16 hex digits of the template text's SHA-256, saved with every checkpoint.
        end_of_turn_ids: The tokens with which the template ends an assistant message.
        stop_token_ids: All ids that end a sampled turn.
        longest_token: Most characters that one token stands for; a byte of a byte-level vocabulary counts as one.
        call_format: How this template writes tool calls; None for a format not known here.

    Raises:
        ConfigError: There is no chat template, or it does not end assistant messages with a special token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        chat_template: str | None = None,
        template_kwargs: dict[str, Any] | None = None,
        extra_stop_ids: Iterable[int] = (),
    ) -> None:
        self.tokenizer = tokenizer
        try:
            self.template: str = tokenizer.get_chat_template(chat_template, tools=[_PROBE_TOOL])
        except ValueError as error:
            raise ConfigError(f"the tokenizer has no chat template ({error}); {_REMEDY}") from None
        self.template_hash = hashlib.sha256(self.template.encode()).hexdigest()[:16]
        self._template_kwargs = dict(template_kwargs or {})
        added = tokenizer.added_tokens_decoder
        self._special = {index: token.content for index, token in added.items() if token.special}
        vocabulary = tokenizer.get_vocab()
        self._known_ids = frozenset(vocabulary.values())
        self.longest_token = max(map(len, vocabulary))

        prompt = self._try_text([_USER], [_PROBE_TOOL], True)
        answer, call = (self._try_text([_USER, message], [_PROBE_TOOL], False) for message in (_ANSWER, _CALL))
        ends = [self._last_special(_after(prompt, text)) for text in (answer, call)]
        self.end_of_turn_ids = frozenset(index for index in ends if index is not None)
        if not self.end_of_turn_ids:
            raise ConfigError(
                "the chat template ends assistant messages with no special token of this tokenizer "
                f"({', '.join(list(self._special.values())[:8]) or 'it has none'}), so no turn would ever end; "
                f"{_REMEDY}"
            )
        eos = {tokenizer.eos_token_id} - {None}
        self.stop_token_ids: frozenset[int] = self.end_of_turn_ids | eos | frozenset(extra_stop_ids)
        header = prompt.rpartition(_USER["content"])[2]
        self._opens_reasoning = header.rfind(THINK_OPEN) > header.rfind(THINK_CLOSE)
        self.call_format = self._detect_format(_after(prompt, call))
        markup = (THINK_OPEN, THINK_CLOSE, *(self.call_format.markup if self.call_format else ()))
        self._control_ids = {index for index, text in self._special.items() if text not in markup}

    def render(
        self, messages: list[Message], tool_specs: list[ToolSpec], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Return the ids of a whole prompt.

        Raises:
            CodecError: The template refuses the messages.
        """
        return self._encode(self._text(messages, tool_specs, add_generation_prompt))

    def extend(
        self, history: list[Message], new: list[Message], tool_specs: list[ToolSpec], held_ids: list[int]
    ) -> list[int] | None:
        """Return the ids that turn everything held into the next prompt, or None where a new row must start.

        Args:
            history: The messages that ``held_ids`` stand for, ending with the last sampled assistant message.
            new: The messages after it.
            tool_specs: The tools, the same as before.
            held_ids: Prompt and sampled ids so far, ending with the sampled stop token.

        Raises:
            CodecError: The template refuses the messages.
        """
        if not held_ids or held_ids[-1] not in self.end_of_turn_ids:
            return None
        end = self._special[held_ids[-1]]
        after = self._text([*history, *new], tool_specs, True)
        held = self.decode(held_ids)
        if not after.startswith(held):
            before = self._text(history, tool_specs, False)
            cut = before.rfind(end)
            held = before[: cut + len(end)]
            if cut < 0 or not after.startswith(held) or not self._shows(history, tool_specs, held):
                return None
        ids = self._encode(end + after[len(held) :])  # some tokenizers treat the start of a text specially
        if not ids or ids[0] != held_ids[-1]:
            raise CodecError(f"the tokenizer does not read {end!r} as one token at the start of a text")
        return ids[1:]

    def encode_turn(self, history: list[Message], message: Message, tool_specs: list[ToolSpec]) -> list[int]:
        """Return the ids that a policy would have to sample after ``render(history)`` to say ``message``.

        Their text is tokenized on its own, as sampling does, and ends with the template's end of a turn.

        Raises:
            CodecError: The template refuses the messages, or does not write this message after its own prompt.
        """
        prompt = self._text(history, tool_specs, True)
        whole = self._text([*history, message], tool_specs, False)
        end = self._last_special(whole[len(prompt) :])
        if not whole.startswith(prompt) or end not in self.end_of_turn_ids:
            raise CodecError(f"the chat template does not continue its prompt {prompt[-60:]!r} with {message!r:.200}")
        text = whole[len(prompt) :]
        return self._encode(text[: text.rindex(self._special[end]) + len(self._special[end])])

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, special tokens included."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def parse(self, completion_ids: list[int], finish_reason: str, *, call_id_prefix: str = "call_") -> PolicyTurn:
        """Parse one sampled turn. Never raises, whatever the ids.

        Args:
            completion_ids: Sampled ids, with or without a stop token at the end.
            finish_reason: ``"stop"``, or ``"length"`` for a turn cut by its limit, which is never read as a message.
            call_id_prefix: Start of the ids of the calls.

        Returns:
            A turn with a message, or one with ``stop`` (PARSE_FAILURE or CONTEXT_OVERFLOW), ``detail`` and
            ``raw_text``.
        """
        stopped = bool(completion_ids) and completion_ids[-1] in self.stop_token_ids
        ids = list(completion_ids[:-1] if stopped else completion_ids)
        raw_text = self.decode([index for index in ids if index in self._known_ids])
        if finish_reason == "length":
            return PolicyTurn(
                stop=StopReason.CONTEXT_OVERFLOW, detail="the turn was cut by its token limit", raw_text=raw_text
            )
        try:
            for index in ids:
                if index not in self._known_ids:
                    raise ParseError(f"the tokenizer has no token {index}")
                if index in self._control_ids or index in self.stop_token_ids:
                    raise ParseError(f"the control token {self.decode([index])!r} occurs inside the message")
            reasoning, text = split_reasoning(self.decode(ids), opened=self._opens_reasoning)
            content, calls = self.call_format.split(text) if self.call_format else (text, [])
            said: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": reasoning}
            if calls:
                said["tool_calls"] = [{"function": {"name": c.name, "arguments": c.arguments}} for c in calls]
            message = normalize_message(said, call_id_prefix=call_id_prefix)
            reason = malformed_reason(message)
            if reason is not None:
                raise ParseError(reason)
        except ParseError as error:
            return PolicyTurn(stop=StopReason.PARSE_FAILURE, detail=str(error), raw_text=raw_text)
        return PolicyTurn(message=message)

    def probe(self) -> ProbeReport:
        """Check at start-up that training with this template can work.

        Raises:
            ConfigError: It cannot; the text says why and what to do.
        """
        ask, tools = [_USER], [_PROBE_TOOL]
        words = set(re.findall(r"\w+", self.template))
        unread = [name for name in self._template_kwargs if name not in words]
        if unread:
            raise ConfigError(
                f"chat_template_kwargs: the chat template never reads {', '.join(map(repr, unread))}; leave it out"
            )
        if self._try_text(ask, tools, True) == self._try_text(ask, [], True):
            raise ConfigError(f"the chat template ignores tools: they change nothing in the prompt; {_REMEDY}")
        if self.call_format is None:
            raise ConfigError(
                "the chat template writes tool calls in no format known here "
                f"({', '.join(known.name for known in CALL_FORMATS)}); {_REMEDY}"
            )
        cases: list[tuple[str, list[Message], list[Message]]] = [
            ("a tool result", [*ask, _CALL, _RESULT], [_RESULT]),
            ("a second turn", [*ask, _CALL, _RESULT, _ANSWER, _USER_2], [_RESULT, _ANSWER, _USER_2]),
            ("a user message after a tool result", [*ask, _CALL, _RESULT, _USER_2], [_RESULT, _USER_2]),
            ("an empty message", [*ask, _CALL, _EMPTY_RESULT, _EMPTY, _USER_2], [_USER_2]),
        ]
        for what, messages, shown in cases:
            text = self._try_text(messages, tools, True)
            if any(message["content"] not in text for message in shown):
                raise ConfigError(f"the chat template leaves out {what}; {_REMEDY}")
        rewritten = [situation for situation in _SITUATIONS if not self._keeps(situation)]
        return ProbeReport(
            call_format=self.call_format.name,
            end_of_turn=tuple(sorted(self._special[index] for index in self.end_of_turn_ids)),
            parallel_calls=self._allows_parallel_calls(),
            rewrites=tuple(situation.name for situation in rewritten),
            rewrites_most_turns=any(situation.usual for situation in rewritten),
        )

    def _text(self, messages: list[Message], tool_specs: list[ToolSpec], add_generation_prompt: bool) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(
                [with_object_arguments(message) for message in messages],
                tools=tool_specs or None,
                chat_template=self.template,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **self._template_kwargs,
            )
        except Exception as error:
            roles = " ".join(message["role"] for message in messages)
            raise CodecError(f"the chat template refuses these messages ({roles}): {error}") from error
        return text

    def _try_text(self, messages: list[Message], tool_specs: list[ToolSpec], add_generation_prompt: bool) -> str:
        try:
            return self._text(messages, tool_specs, add_generation_prompt)
        except CodecError as error:
            raise ConfigError(f"{error}; {_REMEDY}") from error

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _last_special(self, text: str) -> int | None:
        """The id of the last special token in a text."""
        found = max(self._special, key=lambda index: text.rfind(self._special[index]), default=None)
        return found if found is not None and self._special[found] in text else None

    def _detect_format(self, rendered: str) -> CallFormat | None:
        """The format that reads back the call that the template wrote."""
        for index in self.end_of_turn_ids:
            rendered = rendered.partition(self._special[index])[0]
        for call_format in CALL_FORMATS:
            try:
                _, text = split_reasoning(rendered, opened=False)
                if call_format.split(text.strip()) == ("", [ParsedCall(_PROBE_NAME, json.dumps(_PROBE_ARGUMENTS))]):
                    return call_format
            except ParseError:
                continue
        return None

    def _shows(self, history: list[Message], tool_specs: list[ToolSpec], rendered: str) -> bool:
        """Whether a rendering of the history holds the last message's reasoning and content."""
        segment = _after(self._text(history[:-1], tool_specs, True), rendered)
        last = history[-1]
        return all(part.strip() in segment for part in (last.get("reasoning_content", ""), last.get("content", "")))

    def _allows_parallel_calls(self) -> bool:
        two: Message = {**_CALL, "tool_calls": [_tool_call("call_0"), _tool_call("call_1")]}
        other: Message = {**_RESULT, "content": "probe result two", "tool_call_id": "call_1"}
        try:
            text = self._text([_USER, two, _RESULT, other], [_PROBE_TOOL], True)
        except CodecError:
            return False
        shown = _RESULT["content"] in text and other["content"] in text
        return shown and len(re.findall(f'"name": "{_PROBE_NAME}"', text)) >= 2

    def _keeps(self, situation: _Situation) -> bool:
        """Whether the tokens of the sampled message can be kept in front of the new messages."""
        tools, reasoning, history = [_PROBE_TOOL], situation.reasoning, situation.history
        sampled: Message = {**history[-1]}
        if reasoning:
            sampled["reasoning_content"] = reasoning
        prompt = self._text(history[:-1], tools, True)
        plain = self._text([*history[:-1], {**sampled, "reasoning_content": ""}], tools, False)
        completion = _after(prompt, plain)
        _, completion = split_reasoning(completion, opened=False)
        if reasoning:
            opening = "" if self._opens_reasoning else f"{THINK_OPEN}\n"
            completion = f"{opening}{reasoning}\n{THINK_CLOSE}\n\n{completion}"
        elif self._opens_reasoning:
            return True
        end = self._last_special(completion)
        assert end is not None  # checked at construction
        completion = completion[: completion.rindex(self._special[end]) + len(self._special[end])]
        held_ids = self._encode(prompt + completion)
        return self.extend([*history[:-1], sampled], situation.new, tools, held_ids) is not None


def _after(prompt: str, text: str) -> str:
    """The part of a text after its common start with a prompt."""
    return text[next((at for at, (a, b) in enumerate(zip(prompt, text, strict=False)) if a != b), len(prompt)) :]


_REMEDY = (
    "pass chat_template with a template that shows tools, calls and results: 'hermes', 'compact', or a template file"
)
_PROBE_NAME = "probe_tool"
_PROBE_ARGUMENTS = {"probe_key": "probe value"}
_PROBE_TOOL: ToolSpec = {
    "type": "function",
    "function": {
        "name": _PROBE_NAME,
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}, "required": ["probe_key"]},
    },
}


def _tool_call(call_id: str) -> Any:
    function = {"name": _PROBE_NAME, "arguments": json.dumps(_PROBE_ARGUMENTS)}
    return {"id": call_id, "type": "function", "function": function}


_USER: Message = {"role": "user", "content": "probe question"}
_USER_2: Message = {"role": "user", "content": "probe request two"}
_ANSWER: Message = {"role": "assistant", "content": "probe answer"}
_EMPTY: Message = {"role": "assistant", "content": ""}
_CALL: Message = {"role": "assistant", "content": "", "tool_calls": [_tool_call("call_0")]}
_RESULT: Message = {"role": "tool", "content": "probe result", "tool_call_id": "call_0", "name": _PROBE_NAME}

_EMPTY_RESULT: Message = {**_RESULT, "content": ""}


@dataclass(frozen=True)
class _Situation:
    """Messages that follow a sampled turn.

    Attributes:
        name: Shown to people.
        history: Up to the sampled message.
        new: What follows it.
        reasoning: Reasoning of the sampled message.
        usual: Whether this follows most turns of an episode.
    """

    name: str
    history: list[Message]
    new: list[Message]
    reasoning: str = ""
    usual: bool = False

    def with_reasoning(self) -> _Situation:
        """The same after a turn with reasoning."""
        return replace(self, name=f"{self.name}, with reasoning", reasoning="probe thought")


_PLAIN_SITUATIONS = (
    _Situation("a tool result", [_USER, _CALL], [_RESULT], usual=True),
    _Situation("a user message", [_USER, _ANSWER], [_USER_2]),
    _Situation("a tool result and a user message", [_USER, _CALL], [_RESULT, _USER_2]),
)
_SITUATIONS = [each for plain in _PLAIN_SITUATIONS for each in (plain, plain.with_reasoning())]
