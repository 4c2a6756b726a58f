import json
import shutil

import pytest
import torch
from toys import build_llama, build_tokenizer

from llmgym.errors import ConfigError
from llmgym_trainer.models.load import load_model, resolve_model
from llmgym_trainer.runs.checkpoints import STATE_FILE, last_checkpoint
from llmgym_trainer.tokens.codec import Codec


def test_a_run_folder_stands_for_its_last_checkpoint(tmp_path):
    for step in (2, 10, 9):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-old").mkdir()
    (tmp_path / "config.yaml").write_text("")
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert resolve_model(str(tmp_path), 0) == str(tmp_path / "checkpoint-10")


def test_a_run_without_a_checkpoint(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match="holds no checkpoint: a run writes one every save_steps steps"):
        resolve_model(str(tmp_path), 0)


def test_a_folder_that_is_none_of_a_model(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no model: there is neither config\.json nor adapter_config\.json"):
        resolve_model(str(tmp_path), 0)
    for file in ("episodes.jsonl", "settings.json", "report.json"):
        (tmp_path / file).touch()
    with pytest.raises(
        ConfigError, match=r"is the folder of an evaluation, with episodes and no model.*one of its checkpoints"
    ):
        resolve_model(str(tmp_path), 0)
    (tmp_path / "config.json").touch()
    assert resolve_model(str(tmp_path), 0) == str(tmp_path)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/model", "~/nowhere", "a/b/c"])
def test_a_directory_that_is_not_there(name):
    with pytest.raises(ConfigError, match=f"there is no model directory '{name}'"):
        resolve_model(name, 0)


def test_a_hub_name_stays_as_it_is():
    assert resolve_model("Qwen/Qwen3-0.6B", 0) == "Qwen/Qwen3-0.6B"


def test_a_model_that_cannot_be_loaded_says_what_may_be_given(tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)cannot load model 'nobody/nothing'.*Give a model directory"):
        load_model("nobody/nothing", dtype=torch.float32)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"cannot load model .*empty"):
        load_model(str(tmp_path / "empty"), dtype=torch.float32)


def test_a_model_loads_in_the_dtype_asked_for(model_dir):
    for dtype in (torch.float32, torch.bfloat16):
        model, tokenizer = load_model(str(model_dir), dtype=dtype)
        assert model.dtype == dtype
    assert tokenizer.chat_template == build_tokenizer().chat_template


def test_a_checkpoint_refuses_another_chat_template(model_dir, tmp_path):
    checkpoint = tmp_path / "checkpoint-1"
    shutil.copytree(model_dir, checkpoint)
    trained = Codec(build_tokenizer()).template_hash
    (checkpoint / STATE_FILE).write_text(json.dumps({"template_hash": trained}))
    load_model(str(checkpoint), dtype=torch.float32)
    template = checkpoint / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_start|>assistant\\n' }}", "<|im_start|>assistant' }}"))
    with pytest.raises(ConfigError, match=f"trained with chat template {trained} but its tokenizer now has"):
        load_model(str(checkpoint), dtype=torch.float32)


def test_an_adapter_is_merged_into_its_base_model(model_dir, tmp_path):
    from peft import LoraConfig, get_peft_model

    base, tokenizer = load_model(str(model_dir), dtype=torch.float32)
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.05)
    adapted.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    merged, _ = load_model(str(tmp_path / "adapter"), dtype=torch.float32)
    assert all(parameter.requires_grad for parameter in merged.parameters())
    assert type(merged) is type(build_llama(8))
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(
            merged(input_ids=ids).logits, adapted.eval()(input_ids=ids).logits, atol=1e-4, rtol=0
        )
        plain, _ = load_model(str(model_dir), dtype=torch.float32)
        assert (merged(input_ids=ids).logits - plain(input_ids=ids).logits).abs().max() > 1e-2


@pytest.mark.parametrize(("name", "builder"), [("tiny", "tiny.tiny_model"), ("smollm2", "smollm2.smollm2_model")])
def test_a_built_in_model_is_warmed_up_on_the_environment_it_is_for(monkeypatch, name, builder):
    def build(seed, *, recipe):
        return f"{seed}-{recipe.env_id if recipe else 'default'}"

    monkeypatch.setattr(f"llmgym_trainer.models.builtin.{builder}", build)
    assert resolve_model(name, 3, "CalculatorMath-v0") == "3-CalculatorMath-v0"
    for without_expert in ("", "no such environment", "tests/no_file.py:Env", "toys:LetterEnv"):
        assert resolve_model(name, 3, without_expert) == "3-default"
