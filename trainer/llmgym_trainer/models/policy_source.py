"""The policies of an evaluation from a model that is loaded into this process."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from llmgym._util.seeding import derive_seed
from llmgym.episode import EpisodeLimits
from llmgym.policies.sources import PolicySource
from llmgym.task import Task
from llmgym_trainer.engines import make_engine
from llmgym_trainer.models.load import load_model, make_codec, resolve_model
from llmgym_trainer.runs.checkpoints import STATE_FILE
from llmgym_trainer.tokens.policy import ModelPolicy


class LocalSource(PolicySource):
    """A model loaded here, sampled with the codec and the engine of training. Use one source in one event loop.

    The model is loaded on a CUDA device in bf16 where there is one, else on the CPU in fp32. Episodes that run at the
    same time are decoded together. An episode is never longer than the model has positions, whatever its limits say.

    Args:
        model: ``"tiny"`` or ``"smollm2"``, a run folder (its last checkpoint, with the template settings of the run), a
            checkpoint, any other model directory, or a hub name. An adapter is merged into its base model.
        temperature: Sampling temperature; 0 takes the most likely token.
        chat_template: Name or file of a template that replaces the tokenizer's own.
        chat_template_kwargs: Variables of the template; None takes those of the training run that a checkpoint belongs
            to.
        seed: Seed of a built-in model.
        env_id: The environment that a built-in model learns from, see
            :func:`llmgym_trainer.models.builtin.built_in_model`.

    Raises:
        ConfigError: There is no such model, or its chat template cannot express tool use.
    """

    def __init__(
        self,
        model: str,
        *,
        temperature: float = 1.0,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        seed: int = 42,
        env_id: str = "",
    ) -> None:
        self.name = model
        self._temperature = temperature
        path = Path(resolve_model(model, seed, env_id))
        on_gpu = torch.cuda.is_available()
        loaded, tokenizer = load_model(
            str(path), dtype=torch.bfloat16 if on_gpu else torch.float32, chat_template=chat_template
        )
        loaded.to("cuda" if on_gpu else "cpu").eval()
        given = chat_template_kwargs
        if given is None:
            given = _run_settings(path).get("chat_template_kwargs") or {}
        self._template_kwargs = dict(given)
        self._codec = make_codec(loaded, tokenizer, self._template_kwargs)
        self._codec.probe()
        self._engine = make_engine(loaded)
        self._positions: int | None = getattr(loaded.config.get_text_config(), "max_position_embeddings", None)
        self._checkpoint = path.name if (path / STATE_FILE).is_file() else None

    @property
    def provenance(self) -> dict[str, Any]:
        """Model, checkpoint when it is one, hash of the chat template and its variables, and temperature."""
        return {
            "policy": "local",
            "model": self.name,
            "checkpoint": self._checkpoint,
            "template_hash": self._codec.template_hash,
            "chat_template_kwargs": self._template_kwargs,
            "temperature": self._temperature,
        }

    def policy(self, task: Task, *, episode_index: int, seed: int, limits: EpisodeLimits) -> ModelPolicy:
        """A policy for one episode.

        Raises:
            ConfigError: Neither the limits nor the model bound the length of a turn.
        """
        lengths = [length for length in (limits.max_model_length, self._positions) if length is not None]
        limits = dataclasses.replace(limits, max_model_length=min(lengths, default=None))
        return ModelPolicy(
            self._codec,
            self._engine,
            limits,
            key=f"{task.id}/{episode_index}",
            rng=random.Random(derive_seed(seed, task.id, episode_index, "sampling")),
            temperature=self._temperature,
        )

    async def close(self) -> None:
        """Stop sampling and free what is kept for it."""
        self._engine.close()


def _run_settings(path: Path) -> dict[str, Any]:
    """The settings of the training run that a checkpoint belongs to; empty for other models."""
    file = path.parent / "config.yaml"
    if not (path / STATE_FILE).is_file() or not file.is_file():
        return {}
    return yaml.safe_load(file.read_text(encoding="utf-8")) or {}
