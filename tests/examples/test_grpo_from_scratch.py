"""The loop in one file: it runs, and its gradient is the trainer's."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from toys import TASKS, SameEnv, ScriptedEngine, TalkEnv, make_trainer, say_letters, scripted

from llmgym import Task

FILE = Path(__file__).parents[2] / "examples" / "grpo_from_scratch.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location(FILE.stem, FILE)
    module = sys.modules[FILE.stem] = importlib.util.module_from_spec(spec)  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("micro_batch_tokens", [1, 400, 100_000])
def test_its_gradient_is_that_of_the_trainer(example, model_dir, tmp_path, micro_batch_tokens):
    class Mixed(TalkEnv):
        """Rewards all episodes of one task alike, so that its group is dropped."""

        async def step(self, message):
            result = await super().step(message)
            result.reward = 0.5 if "amber" in str(self.messages[0]) else result.reward
            return result

    with scripted():
        trainer = make_trainer(model_dir, tmp_path, env=Mixed, tasks=TASKS[:3], batch_size=3, micro_batch_tokens=400)
    groups = trainer.sampler.sample(0)
    theirs = trainer._rows(groups)
    mine = example.make_rows([group.episodes for group in groups])
    assert len(mine) == 8
    assert [(row.row.ids, row.row.mask) for row in mine] == [(row.row.ids, row.row.mask) for row in theirs]

    gradients = []
    for backward in (
        lambda: trainer._backward(trainer.model, theirs),
        lambda: example.backward(trainer.model, mine, micro_batch_tokens),
    ):
        trainer.model.zero_grad()
        backward()
        gradients.append({name: p.grad.clone() for name, p in trainer.model.named_parameters()})
    assert max(gradient.abs().max() for gradient in gradients[0].values()) > 1e-3
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("env", "trains"), [(TalkEnv, True), (SameEnv, False)])
def test_two_steps(example, model_dir, capsys, monkeypatch, env, trains):
    monkeypatch.setattr(example, "make_engine", lambda model: ScriptedEngine(model, say_letters))
    config = example.Config(model=str(model_dir), steps=2, tasks_per_step=2, episodes_per_task=3, max_model_length=160)
    before, after = example.train(config, lambda task: env(), TASKS[:3], [Task("say it")])
    assert 0 <= before <= 1 and 0 <= after <= 1
    printed = capsys.readouterr().out
    assert ("gradient norm" in printed) == trains
    assert ("all groups alike, nothing to learn" in printed) == (not trains)
    assert "step 2/2: reward" in printed
