"""Check that LoRA training works on this machine's GPU, and measure how fast. Needs no model hub, data or other file.

Builds a tokenizer and a random model of the Qwen3 architecture, fine-tunes it on scripted episodes, and trains an
adapter with `train_multi_turn`: two steps in fp32, then some in bf16. It exits with status 1 when sampler and trainer
disagree about the log-probabilities of what was sampled, or when nothing was trained.

    python examples/gpu_check.py          # one GPU, at most four minutes
    python examples/gpu_check.py --cpu    # the same code with small sizes, a minute or two
"""

import argparse
import random
import resource
import statistics
import string
import sys
import tempfile
import time
from dataclasses import dataclass

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from llmgym import Episode, EpisodeLimits, Message, Policy, Task, ToolEnv, ToolSpec, run_episode, tool
from llmgym._util.aio import run_sync
from llmgym_trainer import GRPOConfig, train_multi_turn
from llmgym_trainer.models.builtin.tiny import TinyRecipe, build_tokenizer
from llmgym_trainer.models.lora import default_lora
from llmgym_trainer.runs.folder import read_metrics
from llmgym_trainer.sft.sft import encode_episode, train_on_rows
from llmgym_trainer.tokens.codec import Codec


@dataclass(frozen=True)
class Sizes:
    """What differs between GPU and CPU."""

    hidden: int
    layers: int
    heads: int
    sft_steps: int
    sft_learning_rate: float
    tasks_a_step: int
    episodes: int
    steps: int


GPU = Sizes(1024, 12, 16, 200, 3e-4, 8, 16, 8)
CPU = Sizes(64, 2, 4, 60, 5e-3, 2, 4, 2)
MEAN_DIFFERENCE = {"fp32": 1e-4, "bf16": 0.03}
"""Bounds of the mean difference in log-probability, in nats: bf16 keeps 8 bits, so a logit of 10 is known to 0.04."""
MAX_DIFFERENCE = {"fp32": 1e-3, "bf16": 0.5}
"""Bounds of the largest difference of one token."""


class LettersEnv(ToolEnv):
    """Note two words with the tool, then say a third. The reward is the share of letters from a to m in all three."""

    system_prompt = "Note two words, then say one."

    async def setup(self) -> None:
        self.words: list[str] = []

    @tool
    async def note(self, word: str) -> str:
        """Note a word."""
        self.words.append(word)
        return "noted"

    async def score(self, message: Message) -> float:
        letters = "".join([*self.words, message["content"]])[:200]
        return sum(letter in "abcdefghijklm" for letter in letters) / max(len(letters), 1)


class RandomWords(Policy):
    """Plays the episode correctly, with random words."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> Message:
        word = "".join(self._rng.choices(string.ascii_lowercase, k=self._rng.randint(2, 6)))
        if sum(message["role"] == "tool" for message in messages) == 2:
            return {"role": "assistant", "content": word}
        call = {"id": "", "type": "function", "function": {"name": "note", "arguments": f'{{"word": "{word}"}}'}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}


def scripted(count: int) -> list[Episode]:
    """Correct episodes."""

    async def play() -> list[Episode]:
        rng, limits = random.Random(0), EpisodeLimits(max_turns=4, max_model_length=2048)
        task = Task(prompt="begin")
        return [await run_episode(LettersEnv(), task, RandomWords(rng), limits=limits) for _ in range(count)]

    return run_sync(play())


def build_model(sizes: Sizes, folder: str, device: str) -> float:
    """Write a model that can play an episode, and return its number of parameters in millions."""
    episodes = scripted(300)
    tokenizer = build_tokenizer(TinyRecipe(), episodes)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=sizes.hidden,
            intermediate_size=3 * sizes.hidden,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.heads // 2,
            head_dim=sizes.hidden // sizes.heads,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).to(device)
    codec = Codec(tokenizer)
    rows = [row for episode in episodes for row in encode_episode(episode, codec)]
    train_on_rows(model, rows, steps=sizes.sft_steps, batch_size=16, learning_rate=sizes.sft_learning_rate, seed=0)
    model.cpu().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6


def train(precision: str, sizes: Sizes, steps: int, model: str, runs: str, on_gpu: bool) -> bool:
    """Train an adapter, print the measurements, and return whether sampler and trainer agree and something trained."""
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    config = GRPOConfig(
        model=model,
        runs_dir=runs,
        run_name=precision,
        max_turns=4,
        max_model_length=256,
        max_completion_length=48,
        batch_size=sizes.tasks_a_step,
        episodes_per_task=sizes.episodes,
        num_steps=steps,
        learning_rate=1e-4,
        bf16=precision == "bf16",
        gradient_checkpointing=True,
        use_cpu=not on_gpu,
    )
    tasks = [Task(prompt=f"begin {number}") for number in range(4 * sizes.tasks_a_step)]
    result = train_multi_turn(config, tasks=tasks, env_factory=LettersEnv, peft_config=default_lora())
    lines = [line for line in read_metrics(result.run_dir) if "reward" in line]
    after_the_first = lines[1:]  # the first step pays for kernels and allocations
    episodes = sizes.tasks_a_step * sizes.episodes
    sampled = sum(line["completions/mean_length"] * episodes for line in after_the_first)
    trained = sum(line["trained_tokens"] for line in after_the_first)
    mean = max(line.get("sampling/sampling_logp_difference/mean", 0.0) for line in lines)
    highest = max(line.get("sampling/sampling_logp_difference/max", 0.0) for line in lines)
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    agrees = mean < MEAN_DIFFERENCE[precision] and highest < MAX_DIFFERENCE[precision]
    print(
        f"{precision}: {'fidelity holds' if agrees else 'SAMPLER AND TRAINER DISAGREE'}: log-probabilities differ by "
        f"{mean:.2g} in the mean (bound {MEAN_DIFFERENCE[precision]:g}), {highest:.2g} at most (bound "
        f"{MAX_DIFFERENCE[precision]:g})\n"
        f"  {sampled / sum(line['time/sampling'] for line in after_the_first):,.0f} sampled tokens/s, "
        f"{trained / sum(line['time/training'] for line in after_the_first):,.0f} trained tokens/s, "
        f"{statistics.median(line['step_time'] for line in after_the_first):.2f} s a step of {episodes} episodes, "
        f"peak {peak / 2**30:.2f} GiB {'on the GPU' if on_gpu else 'of this process'}"
    )
    if not any(line["trained_tokens"] for line in lines):
        print(f"  NOTHING WAS TRAINED: {lines[-1]['frac_reward_zero_std']:.0%} of the groups had no reward variance")
        return False
    return agrees


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Check LoRA training on one GPU.")
    parser.add_argument("--cpu", action="store_true", help="small sizes on the CPU")
    on_gpu = not parser.parse_args(argv).cpu
    if on_gpu and not (torch.cuda.is_available() and torch.cuda.is_bf16_supported()):
        print("there is no CUDA device with bf16 here; --cpu runs the same code with small sizes")
        return 1
    began, sizes = time.perf_counter(), GPU if on_gpu else CPU
    where = torch.cuda.get_device_name() if on_gpu else "CPU"
    with tempfile.TemporaryDirectory() as folder:
        model, runs = f"{folder}/model", f"{folder}/runs"
        parameters = build_model(sizes, model, "cuda" if on_gpu else "cpu")
        print(f"torch {torch.__version__}, {where}; Qwen3 architecture, {parameters:.1f} M parameters, LoRA rank 16")
        good = [train("fp32", sizes, 2, model, runs, on_gpu), train("bf16", sizes, sizes.steps, model, runs, on_gpu)]
    print(f"{time.perf_counter() - began:.0f} s in all")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
