"""Small tokenizers with the special tokens of real model families, TRL's template files, and a scripted engine."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from importlib import resources
from itertools import groupby
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from llmgym import Env, StepResult, Task
from llmgym.messages import Message, ToolSpec
from llmgym_trainer.algorithm.rows import Row
from llmgym_trainer.engines.base import Sample, SamplingParams
from llmgym_trainer.tokens.codec import Codec, load_chat_template

CORPUS = [
    "user assistant system tool result answer question What is the value of amber and cobalt? The answer is 42.",
    '{"name": "lookup", "arguments": {"key": "amber"}}, {"name": "lookup", "parameters": {"key": "cobalt"}}',
    "\n\n\n\n I should look up amber first.\n\n",
] * 4

# How Llama 3 and Qwen cut text before merging: newlines stay together, whatever follows them.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

LOOKUP: ToolSpec = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look up a fact.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
    },
}
LOOKUP_JSON = (
    '{"type": "function", "function": {"name": "lookup", "description": "Look up a fact.", '
    '"parameters": {"type": "object", "properties": {"key": {"type": "string"}}}}}'
)


def build_tokenizer(special: list[str], plain: list[str], eos: str, bos: str | None = None) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 400 tokens, so that texts have more than one tokenization."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, bos_token=bos)


def chatml_tokenizer() -> PreTrainedTokenizerFast:
    tags = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    return build_tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], tags, eos="<|im_end|>")


def llama_tokenizer() -> PreTrainedTokenizerFast:
    names = ["begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id", "eom_id", "python_tag"]
    return build_tokenizer([f"<|{name}|>" for name in names], [], eos="<|eot_id|>", bos="<|begin_of_text|>")


def trl_template(name: str) -> str:
    return (resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def build_codec(name: str, **template_kwargs: Any) -> Codec:
    """The codec of ``compact``, ``hermes`` or one of TRL's templates, with a tokenizer of that family."""
    tokenizer = llama_tokenizer() if name.startswith("llama") else chatml_tokenizer()
    template = load_chat_template(name) if name in ("compact", "hermes") else trl_template(name)
    return Codec(tokenizer, chat_template=template, template_kwargs=template_kwargs)


def ids_of(codec: Codec, text: str) -> list[int]:
    return list(codec.tokenizer(text, add_special_tokens=False)["input_ids"])


def segments(codec: Codec, row: Row) -> list[tuple[int, str]]:
    """A row as (mask, text) pieces."""
    pairs = groupby(zip(row.mask, row.ids, strict=True), key=lambda pair: pair[0])
    return [(mask, codec.decode([index for _, index in piece])) for mask, piece in pairs]


def call(index: int, turn: int = 0, key: str = "amber") -> Any:
    function = {"name": "lookup", "arguments": f'{{"key": "{key}"}}'}
    return {"id": f"call_{turn}_{index}", "type": "function", "function": function}


def result(content: str, index: int = 0, turn: int = 0) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": f"call_{turn}_{index}", "name": "lookup"}


@dataclass
class ScriptedEngine:
    """Returns given completions; the n-th token it ever samples has the log-probability -n / 100."""

    completions: list[list[int]]
    finish_reason: str = "stop"
    prompts: list[list[int]] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    count: int = 0

    async def sample(self, prompt_ids: list[int], params: SamplingParams, key: str, rng: random.Random) -> Sample:
        self.prompts.append(list(prompt_ids))
        self.params.append(params)
        ids = self.completions[len(self.prompts) - 1]
        cut = len(ids) >= params.max_new_tokens
        ids = ids[: params.max_new_tokens]
        logprobs = [-(self.count + index + 1) / 100 for index in range(len(ids))]
        self.count += len(ids)
        return Sample(ids, logprobs, "length" if cut else self.finish_reason, policy_version=len(self.prompts))

    def release(self, key: str) -> None:
        self.released.append(key)

    def abort(self, key: str) -> None: ...

    def sync(self, version: int) -> None: ...

    def close(self) -> None: ...


class ScriptedEnv(Env):
    """Opens with given messages, adds given observations, and terminates with reward 1 after the last."""

    def __init__(self, opening: list[Message], observations: list[list[Message]]) -> None:
        self._messages, self._observations = list(opening), list(observations)

    async def reset(self, task: Task) -> list[Message]:
        return self.messages

    async def step(self, message: Message) -> StepResult:
        self._messages.append(message)
        done = not self._observations
        self._messages += [] if done else self._observations.pop(0)
        return StepResult(done, False, self.messages, reward=float(done))

    @property
    def tool_specs(self) -> list[ToolSpec]:
        return [LOOKUP]

    @property
    def messages(self) -> list[Message]:
        return list(self._messages)
