import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toys import make_trainer

from llmgym_trainer.algorithm.batches import pack, to_tensors
from llmgym_trainer.algorithm.loss import LOSS_TYPES, LossScale, StepTotals
from llmgym_trainer.algorithm.rows import Row, TrainRow

CPU = torch.device("cpu")


def row(prompt: int, *segments: tuple[int, int], episode: int = 0, advantage: float = 1.0, tokens: int | None = None):
    """A row with ids 10, 11, …: ``prompt`` tokens, then (sampled, context) pairs."""
    mask, turns = [0] * prompt, [-1] * prompt
    for number, (sampled, context) in enumerate(segments):
        mask += [1] * sampled + [0] * context
        turns += [number] * sampled + [-1] * context
    ids = list(range(10, 10 + len(mask)))
    logprobs = [-0.5 * bit for bit in mask]
    built = Row(episode, 0, ids, mask, logprobs, prompt, turns)
    return TrainRow(built, [advantage] * len(segments), built.num_trained if tokens is None else tokens)


def test_tensors_are_padded_on_the_right():
    rows = [row(2, (2, 1), (1, 0)), row(3, (1, 0), advantage=-2.0)]
    rows[0].advantages = [0.5, -0.25]  # of its two turns
    tensors = to_tensors(rows, LossScale(False, 1, 4.0), count=2, pad_token_id=9, device=CPU)
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        "prompt_ids": [[10], [10]],
        "prompt_mask": [[1], [1]],
        "completion_ids": [[11, 12, 13, 14, 15], [11, 12, 13, 9, 9]],
        "completion_mask": [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]],
        "tool_mask": [[0, 1, 1, 0, 1], [0, 0, 1, 0, 0]],
        "sampling_per_token_logps": [[0, -0.5, -0.5, 0, -0.5], [0, 0, -0.5, 0, 0]],
        "advantages": [[0, 0.5, 0.5, 0, -0.25], [0, 0, -2, 0, 0]],
    }


def test_weights_by_length_stand_in_the_tool_mask():
    # The longest episode of the step has 6 trained tokens; this one has 3 in two rows, so each weighs 2.
    rows = [row(1, (2, 1), tokens=3), row(1, (1, 0), tokens=3)]
    tensors = to_tensors(rows, LossScale(True, 6, 12.0), count=2, pad_token_id=9, device=CPU)
    assert tensors["tool_mask"].tolist() == [[2, 2, 0], [2, 0, 0]]


def test_rows_of_padding_train_nothing():
    tensors = to_tensors([row(2, (2, 1))], LossScale(False, 1, 1.0), count=3, pad_token_id=9, device=CPU)
    assert tensors["prompt_ids"].tolist() == [[10], [9], [9]]
    assert tensors["prompt_mask"].tolist() == [[1], [1], [1]]
    assert tensors["completion_mask"].tolist() == [[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert tensors["tool_mask"].tolist() == [[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert tensors["advantages"].tolist() == [[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    nothing = to_tensors([], LossScale(False, 1, 1.0), count=1, pad_token_id=9, device=CPU)
    assert nothing["prompt_ids"].tolist() == nothing["completion_ids"].tolist() == [[9]]
    assert nothing["tool_mask"].tolist() == [[0]]


@pytest.mark.parametrize("budget", [1, 20, 50, 1000])
def test_pack_keeps_every_row_and_the_budget(budget):
    chance = random.Random(0)
    rows = [row(chance.randint(1, 15), (chance.randint(1, 30), 0), episode=i) for i in range(40)]
    batches = pack(rows, budget)
    assert sorted(r.row.episode for batch in batches for r in batch) == list(range(40))
    assert all(any(r is given for given in rows) for batch in batches for r in batch)  # none is cut or copied
    for batch in batches:
        width = max(len(r.row.ids) for r in batch)
        assert len(batch) == 1 or width * len(batch) <= budget


def test_pack_by_hand():
    # 10 tokens with padding: the two rows of 3 make 6; a row of 4 beside them would make 3 * 4 = 12.
    rows = [row(2, (2, 0), episode=0), row(1, (2, 0), episode=1), row(1, (2, 0), episode=2), row(9, (9, 0), episode=3)]
    assert [[r.row.episode for r in batch] for batch in pack(rows, 10)] == [[1, 2], [0], [3]]
    assert pack([], 10) == []


def test_totals_over_processes():
    parts = [StepTotals(10, 2, 7, (2, 5, 1)), StepTotals(4, 1, 4, (3,))]
    assert StepTotals.merge(parts) == StepTotals(14, 3, 7, (3, 5, 1))
    assert StepTotals.merge(parts).micro_batches == 3
    assert StepTotals.merge([StepTotals(0, 0, 0, ())] * 2).micro_batches == 0


@pytest.mark.parametrize(
    ("loss_type", "weight", "denominator"),
    [
        ("dapo", 1, 14),
        ("cispo", 1, 14),
        ("bnpo", 1, 14),
        ("grpo", 7 / 2, 3 * 7),
        ("dr_grpo", 1, 3 * 100),
        ("luspo", 7, 3 * 7),
    ],
)
def test_scale_of_each_loss_type(loss_type, weight, denominator):
    scale = LossScale.of(loss_type, StepTotals(14, 3, 7, (3, 5, 1)), 100)
    assert scale.weight(row(1, (1, 0), tokens=2)) == weight
    assert scale.denominator == denominator


def random_rows(vocab_size: int) -> list[TrainRow]:
    """Five episodes of one to five rows of two turns each; trained tokens of a row between 2 and 40."""
    chance = random.Random(1)
    rows = []
    for episode in range(5):
        parts = []
        for part in range(episode + 1):
            prompt, sampled, between = (
                chance.randint(1, 12),
                [chance.choice([1, 2, 20]) for _ in range(2)],
                chance.randint(1, 5),
            )
            mask = [0] * prompt + [1] * sampled[0] + [0] * between + [1] * sampled[1]
            turns = [-1] * prompt + [2 * part] * sampled[0] + [-1] * between + [2 * part + 1] * sampled[1]
            ids = [chance.randrange(5, vocab_size) for _ in mask]
            parts.append(Row(episode, 0, ids, mask, [-1.0 * bit for bit in mask], prompt, turns))
        tokens = sum(part.num_trained for part in parts)
        advantages = [chance.uniform(-2, 2) for _ in range(2 * len(parts))]
        rows += [TrainRow(part, advantages, tokens) for part in parts]
    return rows


def test_the_random_rows_are_uneven():
    rows = random_rows(300)
    per_episode = [[r for r in rows if r.row.episode == e] for e in range(5)]
    assert [len(found) for found in per_episode] == [1, 2, 3, 4, 5]
    lengths = [r.row.num_trained for r in rows]
    assert max(lengths) >= 10 * min(lengths)


def plain_loss(model, reference, rows, loss_type, max_model_length, beta):
    """The loss written out: one forward pass a row, nothing padded, nothing packed."""
    sums: dict[int, torch.Tensor] = {}
    for train_row in rows:
        ids, mask = torch.tensor([train_row.row.ids]), torch.tensor(train_row.row.mask[1:])
        logps = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
        advantages = torch.tensor([train_row.advantages[k] for k in train_row.row.turns[1:]])  # masked where k is -1
        loss = -advantages * logps  # at ratio 1 this has the gradient of the clipped objective
        if beta:
            with torch.no_grad():
                ref = torch.log_softmax(reference(input_ids=ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
            ratio = torch.exp(logps - logps.detach())  # 1, with the gradient of TRL's use_bias_correction_kl
            loss = loss + beta * ratio * (torch.exp(ref - logps) - (ref - logps) - 1)
        sums[train_row.row.episode] = sums.get(train_row.row.episode, 0) + (loss * mask).sum()
    tokens = {r.row.episode: r.episode_tokens for r in rows}
    if loss_type == "grpo":
        return sum(sums[e] / tokens[e] for e in sums) / len(sums)
    total = sum(sums.values())
    return total / {"dr_grpo": len(sums) * max_model_length, "luspo": len(sums)}.get(loss_type, sum(tokens.values()))


def plain_gradients(trainer, rows):
    """Gradients of :func:`plain_loss` under the trainer's settings, away from the reference model."""
    config, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    with torch.no_grad():  # so that the KL term has a gradient
        model.lm_head.weight.mul_(1.3)
    plain_loss(model, trainer.ref_model, rows, config.loss_type, config.max_model_length, config.beta).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert max(g.abs().max() for g in expected.values()) > 1e-3
    model.zero_grad()
    return expected


def largest_difference(model, expected):
    """The largest difference of gradients from those expected, as a share of the largest where that is above 1."""
    found = max((p.grad - expected[name]).abs().max().item() for name, p in model.named_parameters())
    model.zero_grad()
    return found / max(1.0, *(gradient.abs().max().item() for gradient in expected.values()))


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_gradients_equal_a_plain_loss(model_dir, tmp_path, loss_type, beta):
    cut = {"epsilon_high": 5.0} if loss_type == "cispo" else {}
    trainer = make_trainer(model_dir, tmp_path, loss_type=loss_type, beta=beta, max_model_length=200, **cut)
    rows = random_rows(trainer.model.config.vocab_size)
    expected = plain_gradients(trainer, rows)
    for micro_batch_tokens in (1, 150, 100_000):
        trainer.args.micro_batch_tokens = micro_batch_tokens
        trainer._backward(trainer.model, rows)
        assert largest_difference(trainer.model, expected) < 1e-5


# Not dapo and cispo: these TRL divides by the tokens of the whole step, as is done here.
@pytest.mark.parametrize("loss_type", ["bnpo", "grpo", "dr_grpo", "luspo"])
def test_the_normalisers_of_trl_fail_that_test(model_dir, tmp_path, loss_type):
    trainer = make_trainer(
        model_dir,
        tmp_path,
        loss_type=loss_type,
        max_model_length=200,
        micro_batch_tokens=150,
        max_completion_length=100,
    )
    rows = random_rows(trainer.model.config.vocab_size)
    expected = plain_gradients(trainer, rows)
    batches = pack(rows, trainer.args.micro_batch_tokens)
    trainer.current_gradient_accumulation_steps = len(batches)
    assert trainer.loss_type == loss_type
    for batch in batches:
        inputs = to_tensors(batch, LossScale(False, 1, 1.0), count=len(batch), pad_token_id=4, device=CPU)
        inputs["num_items_in_batch"] = inputs["tool_mask"].sum()
        trainer._compute_loss(trainer.model, inputs).backward()
    assert largest_difference(trainer.model, expected) > 1e-3


@pytest.mark.parametrize(("refused", "instead"), [("sapo", "grpo"), ("vespo", "dapo")])
def test_the_loss_types_refused_have_the_gradient_of_another(model_dir, tmp_path, refused, instead):
    trainer = make_trainer(model_dir, tmp_path)
    rows = random_rows(trainer.model.config.vocab_size)[:6]
    trainer.current_gradient_accumulation_steps = 1
    gradients = []
    for loss_type in (refused, instead):
        inputs = to_tensors(rows, LossScale(False, 1, 1.0), count=6, pad_token_id=4, device=CPU)
        inputs["num_items_in_batch"] = inputs["tool_mask"].sum()
        trainer.loss_type = loss_type
        trainer._compute_loss(trainer.model, inputs).backward()
        gradients.append({name: p.grad.clone() for name, p in trainer.model.named_parameters()})
        assert gradients[-1]["model.norm.weight"].abs().max() > 1e-3
        trainer.model.zero_grad()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-6, rtol=1e-4)


TWO = """
import json, os, sys
sys.path.insert(0, {here!r})
import torch
torch.set_num_threads(1)
from test_batches import largest_difference, plain_gradients, random_rows
from toys import LetterEnv, make_trainer, scripted
from llmgym_trainer.algorithm.loss import LOSS_TYPES

rank, found = int(os.environ["RANK"]), {{}}
for loss_type in LOSS_TYPES:
    changes = dict(loss_type=loss_type, beta=0.3, epsilon_high=5.0, max_model_length=200, use_cpu=True)
    trainer = make_trainer({model!r}, f"runs-{{rank}}", **changes)
    rows = random_rows(trainer.model.config.vocab_size)
    expected = plain_gradients(trainer, rows)
    model = trainer.accelerator.prepare_model(trainer.model)
    for sizes, episodes in (((1, 150, 100_000), (0, 3)), ((150,), (0, 1, 2, 3, 4))):
        mine = [r for r in rows if (r.row.episode in episodes) == (rank == 0)]
        for size in sizes:
            trainer.args.micro_batch_tokens = size
            trainer._backward(model, mine)
            inner = trainer.accelerator.unwrap_model(model)
            found[f"{{loss_type}} {{size}} {{len(episodes)}}"] = [len(mine), largest_difference(inner, expected)]

class Env(LetterEnv):
    # On the second process no group has reward variance.
    async def step(self, message):
        result = await super().step(message)
        result.reward = result.reward if rank == 0 else 0.5
        return result

settings = {{"batch_size": 4, "max_sampling_attempts": 3, "micro_batch_tokens": 100, "use_cpu": True}}
with scripted():
    trainer = make_trainer({model!r}, f"runs-{{rank}}", env=Env, **settings)
model, calls = trainer.accelerator.prepare_model(trainer.model), []
groups = trainer.sampler.sample(0)
rows = trainer._rows(groups)
model.module.register_forward_pre_hook(lambda *args: calls.append(1))
trainer._backward(model, rows)
kept = sum(not group.replaced for group in groups)
found["work"] = [kept, len(rows), len(calls), trainer._metrics["train"]["groups/sampled"]]
with open(f"found-{{rank}}.json", "w") as file:
    json.dump(found, file)
"""


@pytest.fixture(scope="module")
def two(model_dir, tmp_path_factory):
    """What each of two processes found."""
    tmp_path = tmp_path_factory.mktemp("two")
    (tmp_path / "script.py").write_text(TWO.format(here=str(Path(__file__).parent), model=str(model_dir)))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"]
    done = subprocess.run(launch, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return [json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
def test_processes_do_equal_work_when_groups_are_replaced(two):
    first, second = (found["work"] for found in two)
    assert first[0] == second[0] == 2  # groups, after three rounds on the second process
    assert first[3] == second[3] == [2 + 3 * 2]
    assert first[1] > 0 == second[1]  # rows
    assert first[2] == second[2] > 1  # forward passes


@pytest.mark.slow
def test_gradients_of_two_processes_equal_a_plain_loss(two):
    first, second = ({case: entry for case, entry in found.items() if case != "work"} for found in two)
    assert len(first) == 4 * len(LOSS_TYPES)
    # Episodes 0 and 3 are 1 + 4 rows of 15; then the second process has none at all.
    assert {(first[case][0], second[case][0]) for case in first} == {(5, 10), (15, 0)}
    for found in (first, second):
        assert {case: entry for case, entry in found.items() if entry[1] > 1e-5} == {}


def test_rows_of_padding_change_no_gradient(model_dir, tmp_path, monkeypatch):
    trainer = make_trainer(model_dir, tmp_path, loss_type="grpo", beta=0.1, micro_batch_tokens=150)
    rows = random_rows(trainer.model.config.vocab_size)
    trainer._backward(trainer.model, rows)
    expected = trainer.model.lm_head.weight.grad.clone()
    trainer.model.zero_grad()
    other = StepTotals(0, 0, 0, (20,) * 17)  # another process that needs more passes with more rows
    merge = StepTotals.merge
    monkeypatch.setattr(StepTotals, "merge", lambda parts: merge([*parts, other]))
    trainer._backward(trainer.model, rows)
    torch.testing.assert_close(trainer.model.lm_head.weight.grad, expected, atol=1e-5, rtol=1e-4)


def test_the_loss_does_not_depend_on_the_order_of_rows(model_dir, tmp_path):
    trainer = make_trainer(model_dir, tmp_path, loss_type="grpo", micro_batch_tokens=150)
    rows = random_rows(trainer.model.config.vocab_size)
    losses = [trainer._backward(trainer.model, order).item() for order in (rows, rows[::-1])]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_an_entropy_bonus_does_not_grow_with_the_number_of_micro_batches(model_dir, tmp_path):
    trainer = make_trainer(model_dir, tmp_path, entropy_coef=0.5)
    rows = [row(3, (6, 2), (4, 0), episode=i, advantage=0.0) for i in range(4)]
    gradients = []
    for micro_batch_tokens in (1, 100_000):
        trainer.args.micro_batch_tokens = micro_batch_tokens
        trainer.model.zero_grad()
        trainer._backward(trainer.model, rows)
        gradients.append(trainer.model.lm_head.weight.grad.clone())
    assert gradients[0].abs().max() > 1e-3
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-4)
