"""The path of `llmgym train … --lora` with a small Qwen3, in both precisions."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file
from toys import TASKS, build_qwen3, build_tokenizer, full_logps, sampled, teach_to_stop
from transformers import AutoModelForCausalLM, AutoTokenizer

from llmgym.cli.main import main
from llmgym_trainer import train as train_module
from llmgym_trainer.runs.folder import read_metrics

pytestmark = pytest.mark.slow

MERGE = Path(__file__).parents[2] / "examples" / "merge_adapter.py"
PRECISIONS = {"bf16": ["--bf16", "--gradient-checkpointing"], "fp32": []}


@pytest.fixture(scope="module")
def qwen3_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen3")
    tokenizer = build_tokenizer()
    model = build_qwen3(len(tokenizer))
    teach_to_stop(model, tokenizer, steps=40)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module", params=PRECISIONS)
def run(request, qwen3_dir, tmp_path_factory):
    """Two steps with --lora: the precision, the run's folder, and the model as it was in memory at the end."""
    here = tmp_path_factory.mktemp(request.param)
    (here / "tasks.jsonl").write_text("".join(json.dumps({"prompt": task.prompt}) + "\n" for task in TASKS))
    loaded = []

    def load_model(*args, **kwargs):
        loaded.append(load(*args, **kwargs))
        return loaded[0]

    load = train_module.load_model
    with sampled(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "load_model", load_model)
        small = {"max-turns": 3, "batch-size": 2, "episodes-per-task": 4, "num-steps": 2, "max-model-length": 160}
        options = [text for name, value in small.items() for text in (f"--{name}", str(value))]
        options += ["--learning-rate", "0.01"]
        where = ["--tasks", str(here / "tasks.jsonl"), "--runs-dir", str(here), "--run-name", "a", "--use-cpu"]
        status = main(
            ["train", "toys:TalkEnv", "--model", str(qwen3_dir), "--lora", *options, *where, *PRECISIONS[request.param]]
        )
    assert status == 0
    return request.param, here / "a", loaded[0][0]


def test_every_projection_of_attention_and_mlp_has_an_adapter_of_rank_16(run):
    _, folder, _ = run
    weights = load_file(folder / "checkpoint-2" / "adapter_model.safetensors")
    names = {name.split(".")[-3] for name in weights}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert len(weights) == 2 * 7 * 2  # layers, projections, A and B
    assert {min(weight.shape) for weight in weights.values()} == {16}


def test_the_base_is_in_the_runs_precision_and_does_not_move_and_the_adapter_is_fp32(run, qwen3_dir):
    precision, _, model = run
    start = load_file(qwen3_dir / "model.safetensors")
    base = {name.replace(".base_layer", ""): p for name, p in model.named_parameters() if "lora_" not in name}
    adapter = {name: p for name, p in model.named_parameters() if "lora_" in name}
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    assert base.keys() == start.keys()
    for name, parameter in base.items():
        assert parameter.dtype == dtype
        torch.testing.assert_close(parameter.detach(), start[name].to(dtype), rtol=0, atol=0)
    assert {p.dtype for p in adapter.values()} == {torch.float32}
    assert all(p.detach().abs().sum() > 0 for name, p in adapter.items() if "lora_B" in name)  # they begin as 0


def test_sampler_and_trainer_agree(run):
    precision, folder, _ = run
    steps = read_metrics(folder)
    assert [step["step"] for step in steps] == [1, 2]
    mean, highest = (0.01, 0.2) if precision == "bf16" else (1e-4, 1e-3)
    for step in steps:
        assert step["trained_tokens"] > 0
        assert step["sampling/sampling_logp_difference/mean"] < mean
        assert step["sampling/sampling_logp_difference/max"] < highest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_adapter_loads_back_and_merges_into_one_folder(run, qwen3_dir, tmp_path, monkeypatch, dtype):
    _, folder, _ = run
    adapted = AutoPeftModelForCausalLM.from_pretrained(folder / "checkpoint-2", dtype=torch.float32)
    monkeypatch.setattr(sys, "argv", ["merge_adapter.py", str(folder), str(tmp_path / "merged"), "--dtype", dtype])
    runpy.run_path(str(MERGE), run_name="__main__")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=getattr(torch, dtype))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    start = AutoModelForCausalLM.from_pretrained(qwen3_dir, dtype=torch.float32)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "say amber"}], return_dict=False)
    tolerance = 1e-4 if dtype == "float32" else 0.1
    torch.testing.assert_close(full_logps(merged, ids), full_logps(adapted, ids), atol=tolerance, rtol=0)
    assert not torch.allclose(full_logps(adapted, ids), full_logps(start, ids), atol=1e-3)
