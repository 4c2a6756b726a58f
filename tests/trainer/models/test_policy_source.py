"""A local source finds models, checkpoints and run folders, adapters included, and samples as training does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch
import yaml
from toys import TASKS, LetterEnv, make_trainer
from transformers import AutoModelForCausalLM, AutoTokenizer

from llmgym import EpisodeLimits, run_episode
from llmgym.episode import Usage
from llmgym.errors import ConfigError
from llmgym_trainer.models.policy_source import LocalSource

LIMITS = EpisodeLimits(max_model_length=120, max_completion_length=20)


def play(source, *, indices=(0, 1), seed=0, limits=LIMITS, task=TASKS[0]):
    async def run():
        episodes = await asyncio.gather(
            *(
                run_episode(
                    LetterEnv(), task, source.policy(task, episode_index=index, seed=seed, limits=limits), limits
                )
                for index in indices
            )
        )
        await source.close()
        return episodes

    return asyncio.run(run())


def said(episodes):
    return [[turn.tokens.completion_ids for turn in episode.turns] for episode in episodes]


@pytest.fixture(scope="module")
def source(model_dir):
    return LocalSource(str(model_dir))


def test_episodes_record_tokens_and_usage(source):
    for episode in play(source):
        (turn,) = episode.turns
        assert turn.usage == Usage(len(turn.tokens.context_ids), len(turn.tokens.completion_ids))


def test_chance_comes_from_seed_and_episode_alone(source):
    first = said(play(source, indices=range(6)))
    assert any(other != first[0] for other in first)
    assert said(play(source, indices=range(5, -1, -1))) == first[::-1]
    assert said(play(source, indices=range(6), seed=1)) != first


def test_temperature_zero_takes_the_most_likely(model_dir):
    one, two = said(play(LocalSource(str(model_dir), temperature=0.0)))
    assert one == two


def test_an_episode_ends_where_the_model_does(model_dir, tmp_path):
    model, tokenizer = (kind.from_pretrained(model_dir) for kind in (AutoModelForCausalLM, AutoTokenizer))
    model.config.max_position_embeddings = 30
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for limits in (EpisodeLimits(), EpisodeLimits(max_model_length=1000)):
        (episode,) = play(LocalSource(str(tmp_path)), indices=[0], limits=limits)
        assert sum(len(turn.tokens.context_ids + turn.tokens.completion_ids) for turn in episode.turns) <= 30
        assert "Error" not in episode.stop_detail


def write_checkpoint(trainer, run: Path) -> Path:
    """What training leaves: a checkpoint in a run folder with its settings."""
    trainer.train()
    (run / "config.yaml").write_text(yaml.safe_dump({"chat_template_kwargs": {"system": ""}}))
    return run / "checkpoint-1"


@pytest.mark.parametrize("lora", [False, True])
def test_a_run_folder_and_its_checkpoint(model_dir, tmp_path, lora):
    from peft import LoraConfig

    adapter = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None
    trainer = make_trainer(model_dir, tmp_path, peft_config=adapter, save_steps=1)
    run = Path(trainer.args.output_dir)
    checkpoint = write_checkpoint(trainer, run)
    assert (checkpoint / "adapter_config.json").is_file() == lora
    from_run, from_checkpoint = LocalSource(str(run), temperature=0.0), LocalSource(str(checkpoint), temperature=0.0)
    assert from_run.provenance == {
        "policy": "local",
        "model": str(run),
        "checkpoint": "checkpoint-1",
        "template_hash": json.loads((checkpoint / "llmgym.json").read_text())["template_hash"],
        "chat_template_kwargs": {"system": ""},
        "temperature": 0.0,
    }
    trained = trainer.accelerator.unwrap_model(trainer.model)
    if lora:
        trained = trained.merge_and_unload()
    for made in (from_run, from_checkpoint):
        loaded = made._engine._model.state_dict()
        for name, weights in trained.state_dict().items():
            torch.testing.assert_close(loaded[name], weights, msg=name)
        assert made._codec._template_kwargs == {"system": ""}
    assert said(play(from_run)) == said(play(from_checkpoint))
    assert LocalSource(str(run), chat_template_kwargs={}).provenance["chat_template_kwargs"] == {}


def test_there_is_no_such_model(tmp_path):
    with pytest.raises(ConfigError, match="there is no model directory"):
        LocalSource(str(tmp_path / "missing"))
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        LocalSource(str(tmp_path))


def test_a_template_that_ignores_tools(model_dir, tmp_path):
    file = tmp_path / "plain.jinja"
    file.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    with pytest.raises(ConfigError, match="the chat template ignores tools"):
        LocalSource(str(model_dir), chat_template=str(file))
