"""The built-in model ``tiny``: a small Llama with a tokenizer of its own, fine-tuned on scripted episodes.

It learns look-ups within a minute on two cores, because:

1. Every number, key and sign of the game is one token, the same one everywhere: words, numbers and the text between
   them never share a token.
2. Attention heads start as copiers: value and output projections are ``g Q`` and ``g Q^T`` with ``Q`` orthogonal, and
   embeddings are large and tied. Whatever token a head attends to becomes more likely from the first step on, so
   training only has to find where to look. Without this the success stays at 0.
3. Correct episodes come first. Episodes with a deliberate mistake are mixed in at the end; they leave room for
   reinforcement learning.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich import print as rich_print
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from llmgym import Episode
from llmgym_trainer.models.builtin.cache import cached_model, recipe_key
from llmgym_trainer.models.builtin.scripted import scripted_episodes
from llmgym_trainer.sft.sft import encode_episode, train_on_rows
from llmgym_trainer.tokens.codec import Codec, load_chat_template

END_OF_TURN, PADDING = "<|im_end|>", "<|endoftext|>"
_SPECIAL = (PADDING, "<|im_start|>", END_OF_TURN, "<tool_call>", "</tool_call>")
_PIECE = r"\d+|[A-Za-z_]+|[^A-Za-z0-9_]+"


@dataclass(frozen=True)
class TinyRecipe:
    """Everything the tiny model depends on besides the seed.

    Attributes:
        env_id: The environment whose scripted episodes it learns from.
        template: Name of the chat template.
        vocab_size: Tokens at most; there are fewer when the episodes hold fewer different pieces.
        numbers: The whole numbers from 0 up to this one are single tokens.
        hidden_size: Width.
        intermediate_size: Width of the feed-forward layers.
        layers: Transformer layers.
        heads: Attention heads per layer.
        embedding_std: Standard deviation of the initial embeddings.
        copy_gain: The factor ``g`` of the heads' initial projections.
        right_episodes: Scripted episodes without a mistake.
        mixed_episodes: Scripted episodes of which ``flawed_share`` hold a mistake.
        flawed_share: See ``mixed_episodes``.
        right_steps: Optimizer steps on the correct episodes.
        mixed_steps: Optimizer steps on the mixed episodes; 0 leaves them out.
        batch_size: Episodes per step.
        right_learning_rate: AdamW's highest learning rate on the correct episodes.
        mixed_learning_rate: The same on the mixed episodes.
    """

    env_id: str = "ToolUseGame-v0"
    template: str = "compact"
    vocab_size: int = 1000
    numbers: int = 198
    hidden_size: int = 128
    intermediate_size: int = 384
    layers: int = 3
    heads: int = 4
    embedding_std: float = 0.1
    copy_gain: float = 0.7
    right_episodes: int = 800
    mixed_episodes: int = 600
    flawed_share: float = 0.65
    right_steps: int = 300
    mixed_steps: int = 120
    batch_size: int = 16
    right_learning_rate: float = 5e-3
    mixed_learning_rate: float = 2e-3


def tiny_recipe(env_id: str) -> TinyRecipe:
    """The recipe for an environment that has a scripted expert.

    The first two games have few different words in few places. Others take more steps, on tasks that do not repeat: a
    model of this size memorises 800 episodes before it learns to copy. Mastermind takes twice as many, because a guess
    follows from several answers.
    """
    if env_id in ("ToolUseGame-v0", "CalculatorMath-v0"):
        return TinyRecipe(env_id=env_id)
    steps = 1600 if env_id == "Mastermind-v0" else 800
    return TinyRecipe(env_id=env_id, right_episodes=10 * steps, right_steps=steps, right_learning_rate=3e-3)


def tiny_model(seed: int = 42, *, recipe: TinyRecipe | None = None, cache_dir: str | Path | None = None) -> Path:
    """Return the folder of the tiny model; build and fine-tune it first if it is not cached.

    Args:
        seed: Seed of weights, scripted episodes and order. Each seed gives another model.
        recipe: How to build it; None is the default recipe.
        cache_dir: See :func:`llmgym_trainer.models.builtin.cache.cached_model`.

    Returns:
        A folder that ``AutoModelForCausalLM`` and ``AutoTokenizer`` load.
    """
    recipe = recipe or TinyRecipe()

    def build(folder: Path) -> None:
        right = scripted_episodes(recipe.env_id, recipe.right_episodes, flawed_share=0.0, seed=seed)
        mixed = scripted_episodes(recipe.env_id, recipe.mixed_episodes, flawed_share=recipe.flawed_share, seed=seed + 1)
        rich_print(
            f"Building the tiny model (seed {seed}): {len(right)} scripted episodes without a mistake, then "
            f"{len(mixed)} of which {recipe.flawed_share:.0%} contain a deliberate mistake"
        )
        tokenizer = build_tokenizer(recipe, right[:300])
        codec = Codec(tokenizer)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = build_llama(recipe, tokenizer)
        stages = [("right episodes", right, recipe.right_steps, recipe.right_learning_rate)]
        if recipe.mixed_steps:
            stages.append(("mixed episodes", mixed, recipe.mixed_steps, recipe.mixed_learning_rate))
        for label, episodes, steps, learning_rate in stages:
            rows = [row for episode in episodes for row in encode_episode(episode, codec)]
            train_on_rows(
                model,
                rows,
                steps=steps,
                batch_size=recipe.batch_size,
                learning_rate=learning_rate,
                seed=seed,
                label=f"SFT, {label}",
            )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return cached_model("tiny", recipe_key(recipe, seed, sys.modules[__name__]), build, cache_dir=cache_dir)


def build_tokenizer(recipe: TinyRecipe, episodes: Iterable[Episode]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on episodes, in which words, numbers and the text between them never share a token."""
    blank = _fast_tokenizer(recipe, [])  # bytes only: renders, and reads back what it renders
    codec = Codec(blank)
    texts = [
        codec.decode(codec.render(episode.messages, episode.tool_specs, add_generation_prompt=False))
        for episode in episodes
    ]
    return _fast_tokenizer(recipe, [*texts, *map(str, range(recipe.numbers + 1))])


def build_llama(recipe: TinyRecipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Make the model with initial weights from torch's global generator."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=recipe.hidden_size,
            intermediate_size=recipe.intermediate_size,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.heads,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0.0, recipe.embedding_std)
        for layer in model.model.layers:
            directions, _ = torch.linalg.qr(torch.randn(recipe.hidden_size, recipe.hidden_size))
            layer.self_attn.v_proj.weight.copy_(recipe.copy_gain * directions)
            layer.self_attn.o_proj.weight.copy_(recipe.copy_gain * directions.T)
    return model


def _fast_tokenizer(recipe: TinyRecipe, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocab_size,
        special_tokens=list(_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END_OF_TURN, pad_token=PADDING, clean_up_tokenization_spaces=False
    )
    fast.chat_template = load_chat_template(recipe.template)
    return fast
