import math

import pytest
import torch
from toys import make_trainer

from llmgym_trainer.algorithm.loss import importance_ratios

RATIO = "sampling/importance_sampling_ratio"


def test_ratios_by_hand():
    # Probabilities 0.5 to 0.25, and 0.1 to 0.2; the third token is not trained, the second row has none.
    trained = torch.tensor([[1.0, 7.0, 0.0], [0.0, 0.0, 0.0]])
    ours = torch.log(torch.tensor([[0.5, 0.1, 0.9], [0.9, 0.9, 0.9]])).requires_grad_()
    theirs = torch.log(torch.tensor([[0.25, 0.2, 0.1], [0.1, 0.1, 0.1]]))
    token = importance_ratios(ours, theirs, trained, "token")
    torch.testing.assert_close(token, torch.tensor([[2.0, 0.5, 1.0], [1.0, 1.0, 1.0]]))
    assert not token.requires_grad
    # Geometric mean of 2 and 1/2 is 1; of 2 and 2 it would be 2, however long the row is.
    sequence = importance_ratios(ours, theirs, trained, "sequence")
    torch.testing.assert_close(sequence, torch.ones(2, 3))


def test_a_long_row_does_not_explode():
    # 0.012 a token over 100 tokens: the product of the ratios is exp(1.2), their geometric mean exp(0.012).
    ours, theirs = torch.full((1, 100), -1.0), torch.full((1, 100), -1.012)
    ratio = importance_ratios(ours, theirs, torch.ones(1, 100), "sequence")
    torch.testing.assert_close(ratio, torch.full((1, 100), math.exp(0.012)))


def gradients(trainer, rows):
    trainer.model.zero_grad()
    trainer._backward(trainer.model, rows)
    return trainer.model.lm_head.weight.grad.clone()


@pytest.mark.parametrize(("level", "factor"), [("off", 1.0), ("token", math.exp(0.3)), ("sequence", math.exp(0.3))])
def test_the_loss_is_weighed_by_the_ratio(model_dir, tmp_path, level, factor):
    trainer = make_trainer(model_dir, tmp_path, sampling_correction=level)
    rows = trainer._rows(trainer.sampler.sample(0))
    plain = gradients(trainer, rows)
    for row in rows:  # a sampler that gave every token exp(0.3) times less
        row.row.logprobs = [logprob - 0.3 * bit for logprob, bit in zip(row.row.logprobs, row.row.mask, strict=True)]
    torch.testing.assert_close(gradients(trainer, rows), factor * plain, atol=1e-6, rtol=1e-4)
    found = {kind: trainer._metrics["train"][f"{RATIO}/{kind}"][-1] for kind in ("min", "mean", "max")}
    assert found == pytest.approx(dict.fromkeys(found, math.exp(0.3)), rel=1e-3)


def test_a_weight_is_cut_at_the_cap_and_the_raw_ratio_logged(model_dir, tmp_path):
    trainer = make_trainer(model_dir, tmp_path, sampling_correction="token", sampling_correction_cap=1.5)
    rows = trainer._rows(trainer.sampler.sample(0))
    plain = gradients(trainer, rows)
    for row in rows:
        row.row.logprobs = [logprob - 2 * bit for logprob, bit in zip(row.row.logprobs, row.row.mask, strict=True)]
    torch.testing.assert_close(gradients(trainer, rows), 1.5 * plain, atol=1e-6, rtol=1e-4)
    assert trainer._metrics["train"][f"{RATIO}/max"][-1] == pytest.approx(math.exp(2), rel=1e-3)
