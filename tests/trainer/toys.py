"""A tiny chat model built in seconds, a scripted engine, small environments with simple rewards, and short runs."""

from __future__ import annotations

import asyncio
import contextlib
import random
import string
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from llmgym import Env, Message, StepResult, Task
from llmgym_trainer import GRPOConfig, MultiTurnGRPOTrainer
from llmgym_trainer.engines import make_engine
from llmgym_trainer.engines.base import Sample, SamplingParams
from llmgym_trainer.models.load import load_model
from llmgym_trainer.runs.folder import RunFolder
from llmgym_trainer.runs.reporting import Reporter
from llmgym_trainer.tokens.codec import load_chat_template

SPECIAL = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<pad>"]
IM_END = 1
TASKS = [Task(f"say {word}") for word in ("amber", "cobalt", "delta", "ember", "flint", "garnet", "hazel", "indigo")]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of 320 tokens with the compact template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["assistant user tool system go on say arguments name lookup key "] * 10, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<pad>")
    fast.chat_template = load_chat_template("compact")
    return fast


SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "eos_token_id": IM_END,
    "pad_token_id": 4,
    "bos_token_id": None,
}


def build_llama(vocab_size: int, seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """A random Llama of two layers."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SHAPE | {"vocab_size": vocab_size} | changes))


def build_qwen3(vocab_size: int, seed: int = 0) -> Qwen3ForCausalLM:
    """A random Qwen3 of two layers."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, vocab_size=vocab_size, head_dim=16))


def teach_to_stop(model: Any, tokenizer: PreTrainedTokenizerFast, steps: int = 80) -> None:
    """Teach a random model to answer with a few letters and stop, so that its episodes have several turns."""
    chance = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model.train()
    for _ in range(steps):
        texts = []
        for _ in range(8):
            said = ["".join(chance.choices(string.ascii_lowercase, k=chance.randint(1, 12))) for _ in range(3)]
            turns = "<|im_start|>user\ngo on<|im_end|>\n".join(
                f"<|im_start|>assistant\n{text}<|im_end|>\n" for text in said
            )
            texts.append(f"<|im_start|>user\nsay {said[0]}<|im_end|>\n{turns}")
        batch = tokenizer(texts, return_tensors="pt", padding=True)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


class LetterEnv(Env):
    """Talks for ``turns`` assistant turns. The reward is the share of letters a to m in everything said."""

    turns = 1

    async def reset(self, task: Task) -> list[Message]:
        self._messages: list[Message] = [{"role": "user", "content": task.prompt}]
        return list(self._messages)

    async def step(self, message: Message) -> StepResult:
        self._messages.append(message)
        said = [m["content"] for m in self._messages if m["role"] == "assistant"]
        done = len(said) == self.turns
        if not done:
            self._messages.append({"role": "user", "content": "go on"})
        return StepResult(done, False, list(self._messages), letter_reward(said), {"said": len(said)} if done else {})

    @property
    def tool_specs(self):
        return []

    @property
    def messages(self) -> list[Message]:
        return list(self._messages)


class TalkEnv(LetterEnv):
    """Three assistant turns."""

    turns = 3


class SameEnv(LetterEnv):
    """Rewards every answer alike."""

    async def step(self, message: Message) -> StepResult:
        result = await super().step(message)
        result.reward = 0.5
        return result


def letter_reward(said: list[str]) -> float:
    letters = "".join(said)
    return sum(letter in "abcdefghijklm" for letter in letters) / max(len(letters), 1)


def settings(model_dir: Path | str, runs_dir: Path | str, **changes: Any) -> dict[str, Any]:
    """Settings of a run that takes about a second."""
    return {
        "model": str(model_dir),
        "runs_dir": str(runs_dir),
        "batch_size": 2,
        "episodes_per_task": 4,
        "num_steps": 1,
        "max_turns": 4,
        "max_model_length": 160,
        "learning_rate": 1e-3,
        **changes,
    }


def make_trainer(
    model_dir: Path | str,
    runs_dir: Path | str,
    env: Any = LetterEnv,
    tasks: list[Task] = TASKS,
    val_tasks: list[Task] | None = None,
    peft_config: Any = None,
    **changes: Any,
) -> MultiTurnGRPOTrainer:
    """The trainer that ``train_multi_turn`` would build, before its first step."""
    config = GRPOConfig(**settings(model_dir, runs_dir, **changes))
    folder = RunFolder.create(runs_dir, None)
    config.output_dir = str(folder.path)
    model, tokenizer = load_model(str(model_dir), dtype=torch.float32)
    reporter = Reporter(config, folder, is_main=True)
    return MultiTurnGRPOTrainer(
        model,
        config,
        tasks=tasks,
        env_factory=lambda task: env(),
        tokenizer=tokenizer,
        reporter=reporter,
        val_tasks=val_tasks,
        peft_config=peft_config,
    )


def full_logps(model: Any, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probability of each token but the first, from one plain forward pass, shape (len(ids) - 1,)."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].float() / temperature
    model.train(was_training)
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1)


Say = Callable[[str, int, random.Random], str]
"""Text of a turn, without its end, from the key of its episode (see :func:`member`), the number of the turn and the
episode's generator."""


class ScriptedEngine:
    """Says what a test tells it, with the log-probabilities that the model gives to that: rows and gradients are real,
    and what was said does not depend on the processor.

    Args:
        model: Gives the log-probabilities.
        say: What is said.
    """

    def __init__(self, model: Any, say: Say) -> None:
        self._model, self._say = model, say
        self._tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
        self._turns: Counter[str] = Counter()
        self._version = 0

    async def sample(self, prompt_ids: list[int], params: SamplingParams, key: str, rng: random.Random) -> Sample:
        text, stop = self._say(key, self._turns[key], rng), self._tokenizer.eos_token_id
        self._turns[key] += 1
        ids = [*self._tokenizer(text, add_special_tokens=False)["input_ids"], stop][: params.max_new_tokens]
        logprobs = full_logps(self._model, prompt_ids + ids, params.temperature or 1.0)[-len(ids) :].tolist()
        await asyncio.sleep(0)  # others have their turn, as with an engine that samples in another thread
        return Sample(ids, logprobs, "stop" if ids[-1] == stop else "length", self._version)

    def release(self, key: str) -> None:
        self._turns.pop(key, None)

    def abort(self, key: str) -> None:
        pass

    def sync(self, version: int) -> None:
        self._version = version

    def close(self) -> None:
        pass


def member(key: str) -> int:
    """Which episode of its group an engine's key names."""
    return int(key.split("/")[-2])


def say_letters(key: str, turn: int, rng: random.Random) -> str:
    """One to twelve letters."""
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(1, 12)))


def scripted(say: Say = say_letters) -> contextlib.AbstractContextManager[None]:
    """What is made in this block samples from a :class:`ScriptedEngine`, as the trainer's tests do by default."""
    return _engines(lambda model, **_: ScriptedEngine(model, say))


def sampled() -> contextlib.AbstractContextManager[None]:
    """What is made in this block samples from its model, so a test can say little about the result."""
    return _engines(make_engine)


@contextlib.contextmanager
def _engines(make: Any) -> Iterator[None]:
    with contextlib.ExitStack() as patches:
        for module in ("trainer", "sft.episodes"):
            patches.enter_context(mock.patch(f"llmgym_trainer.{module}.make_engine", make))
        yield
