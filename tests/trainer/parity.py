"""Ten raw completions that every kind of policy must read alike, with an environment and a model that says them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import torch
from families import ScriptedEngine, build_codec, ids_of
from transformers import LlamaConfig, LlamaForCausalLM

import llmgym
from llmgym import Episode, EpisodeLimits, PolicySource, Task, run_episode
from llmgym_trainer.algorithm.rows import build_rows
from llmgym_trainer.tokens.codec import Codec
from llmgym_trainer.tokens.policy import ModelPolicy

END = "<|im_end|>"
LIMITS = EpisodeLimits(max_completion_length=80)


def _call(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


_GOOD = '{"name": "lookup", "arguments": {"key": "amber"}}'

COMPLETIONS: dict[str, str] = {
    "good": _call(_GOOD) + END,
    "truncated": '<tool_call>{"name": "lookup", "arguments": {"key": "' + "amber" * 100,
    "bad JSON": _call('{"name": "lookup", "arguments": {"key": amber}}') + END,
    "unknown tool": _call('{"name": "search", "arguments": {"key": "amber"}}') + END,
    "two calls": _call(_GOOD) + _call(_GOOD.replace("amber", "cobalt")) + END,
    "empty": END,
    "text and call": "I look it up." + _call(_GOOD) + END,
    "unfinished reasoning": "<think>I should look up amber first." + END,
    "a list as arguments": _call('{"name": "lookup", "arguments": ["amber"]}') + END,
    "wrong argument type": _call('{"name": "lookup", "arguments": {"key": 7}}') + END,
}
"""By name, which is also the prompt. After a tool result the model says ``7`` and stops."""

STOPS = {
    "truncated": "context_overflow",
    "bad JSON": "parse_failure",
    "unfinished reasoning": "parse_failure",
    "a list as arguments": "parse_failure",
}
"""How an episode stops in training; all others are terminated by the environment."""


class LookupEnv(llmgym.ToolEnv):
    """One tool; the right answer is 7."""

    @llmgym.tool
    async def lookup(self, key: str) -> str:
        """Look up a fact.

        Args:
            key: Its name.
        """
        return {"amber": "7", "cobalt": "9"}[key]

    async def score(self, message: llmgym.Message) -> float:
        return float(message["content"] == "7")


def play_ids(codec: Codec, name: str) -> Episode:
    """Run a completion as sampled token ids."""
    engine = ScriptedEngine([ids_of(codec, COMPLETIONS[name]), ids_of(codec, "7" + END)])
    policy = ModelPolicy(codec, engine, LIMITS, key=name, rng=random.Random(0))
    return asyncio.run(run_episode(LookupEnv(), Task(name), policy, LIMITS))


def play_all(source: PolicySource, names: list[str] | None = None) -> dict[str, Episode]:
    """Run one episode a completion, one after another, with the policies of a source."""

    async def run() -> dict[str, Episode]:
        episodes = {}
        for name in names or COMPLETIONS:
            policy = source.policy(Task(name), episode_index=0, seed=0, limits=LIMITS)
            episodes[name] = await run_episode(LookupEnv(), Task(name), policy, LIMITS)
        await source.close()
        return episodes

    return asyncio.run(run())


def outcome(episode: Episode) -> tuple[Any, ...]:
    """What must be the same: messages (with calls numbered in order), reward, stop reason."""
    numbers: dict[str, int] = {}
    messages: list[Any] = []
    for message in episode.messages:
        shown: dict[str, Any] = dict(message)
        if "tool_calls" in message:
            shown["tool_calls"] = [
                (numbers.setdefault(call["id"], len(numbers)), call["function"]) for call in message["tool_calls"]
            ]
        if "tool_call_id" in message:
            shown["tool_call_id"] = numbers[message["tool_call_id"]]
        messages.append(shown)
    return messages, episode.reward, episode.stop_reason


def build_model(path: Path, *, limit_steps: int = 300) -> None:
    """Save a small Llama that says the ten completions word for word, greedily, with a template for its replies."""
    codec = build_codec("compact")
    rows = [row for name in COMPLETIONS for row in build_rows(play_ids(codec, name))]
    width = max(len(row.ids) for row in rows)
    pad = codec.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    ids = torch.tensor([row.ids + [pad] * (width - len(row.ids)) for row in rows])
    labels = torch.tensor(
        [
            [index if trained else -100 for index, trained in zip(row.ids, row.mask, strict=True)]
            + [-100] * (width - len(row.ids))
            for row in rows
        ]
    )
    torch.manual_seed(0)
    stop = codec.tokenizer.eos_token_id
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=128,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=128,
            vocab_size=len(codec.tokenizer),
            max_position_embeddings=512,
            tie_word_embeddings=True,
            initializer_range=0.05,
            eos_token_id=stop,
            pad_token_id=pad,
            bos_token_id=None,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    for _ in range(limit_steps):
        output = model(input_ids=ids, labels=labels)
        right = (output.logits[:, :-1].argmax(-1) == labels[:, 1:]) | (labels[:, 1:] == -100)
        if right.all() and output.loss < 0.02:
            break
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    else:
        raise AssertionError(f"the model did not learn its completions in {limit_steps} steps: loss {output.loss:.3f}")
    model.eval().save_pretrained(path)
    codec.tokenizer.chat_template = codec.template
    codec.tokenizer.response_template = RESPONSE_TEMPLATE
    codec.tokenizer.save_pretrained(path)


RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": END, "content": "text"},
    },
}
"""How ``transformers serve`` parses what this model says."""
