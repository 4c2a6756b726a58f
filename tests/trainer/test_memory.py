import contextlib
import dataclasses

import pytest
import torch
from toys import TASKS, LetterEnv, settings
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from llmgym.errors import ConfigError
from llmgym_trainer import GRPOConfig, train_multi_turn
from llmgym_trainer.memory import MemoryEstimate, check_memory, estimate_memory
from llmgym_trainer.models.lora import default_lora

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "intermediate_size": 112,
}
# q and o 64 x 80, k and v 64 x 40, three of 64 x 112 in the feed-forward layer, two norms of 64
LLAMA_LAYER = 2 * 64 * 80 + 2 * 64 * 40 + 3 * 64 * 112 + 2 * 64
QWEN3_LAYER = LLAMA_LAYER + 2 * 20  # norms of queries and keys
LORA_LAYER = 16 * (2 * (64 + 80) + 2 * (64 + 40) + 3 * (64 + 112))


def config(**changes):
    return GRPOConfig(
        **{"max_turns": 3, "batch_size": 2, "episodes_per_task": 4, "max_model_length": 500, "use_cpu": True, **changes}
    )


def test_parameters_of_a_small_qwen3_with_lora():
    estimate = estimate_memory(
        Qwen3Config(**SHAPE, tie_word_embeddings=True),
        config(bf16=True),
        peft_config=default_lora(),
        dtype=torch.bfloat16,
    )
    assert estimate.parameters == 300 * 64 + 2 * QWEN3_LAYER + 64 == 93_328
    assert estimate.trained_parameters == 2 * LORA_LAYER == 32_768
    assert estimate.weights == 93_328 * 2 + 32_768 * 4
    assert estimate.optimizer == 32_768 * (4 + 4 + 4)


def test_parameters_of_a_small_llama_that_trains_whole():
    llama = LlamaConfig(**SHAPE, tie_word_embeddings=False)
    estimate = estimate_memory(llama, config())
    assert estimate.parameters == estimate.trained_parameters == 2 * 300 * 64 + 2 * LLAMA_LAYER + 64 == 112_448
    assert (estimate.weights, estimate.optimizer) == (112_448 * 4, 112_448 * 12)
    assert estimate_memory(llama, config(beta=0.1)).weights == 2 * 112_448 * 4  # with a reference model


def test_the_adapter_that_was_given_is_not_changed():
    lora = default_lora()
    estimate_memory(Qwen3Config(**SHAPE), config(), peft_config=lora)
    assert lora == default_lora()


def test_keys_and_values():
    """2 layers of 2 heads of 20 keys and as many values, in bf16: 320 bytes a token."""
    qwen3 = Qwen3Config(**SHAPE)
    bf16 = {"peft_config": default_lora(), "dtype": torch.bfloat16}
    estimate = estimate_memory(qwen3, config(bf16=True), **bf16)
    assert estimate.sampling_token == 2 * 2 * 40 * 2
    assert (estimate.episodes, estimate.batch_episodes, estimate.episode_tokens) == (8, 8, 500)
    assert estimate.sampling - estimate.sampling_fixed == 320 * 500 * 16  # kept, and once more in the batch
    assert estimate_memory(qwen3, config(bf16=True), **bf16, val_tasks=300).episodes == 300
    assert estimate_memory(qwen3, config(bf16=True), **bf16, val_tasks=300).batch_episodes == 256
    assert estimate_memory(qwen3, config(bf16=True, max_concurrent_episodes=3), **bf16, val_tasks=300).episodes == 3


def test_a_micro_batch():
    qwen3 = Qwen3Config(**SHAPE)
    assert estimate_memory(qwen3, config()).micro_batch_tokens == 8 * 500  # there are no more tokens than that
    assert estimate_memory(qwen3, config(micro_batch_tokens=900)).micro_batch_tokens == 900
    assert estimate_memory(qwen3, config(micro_batch_tokens=100)).micro_batch_tokens == 500  # a row is never cut
    layer = 4 * (4 * 112 + 5 * 80 + 40 + 5 * 64 + 500) + 4 * (2 * 64 + 80 + 40)
    assert estimate_memory(qwen3, config()).training_token == 3 * layer + 12 * 64
    checkpointing = estimate_memory(qwen3, config(gradient_checkpointing=True))
    assert checkpointing.training_token == 2 * 64 * 4 + 2 * layer + 12 * 64


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize(("kind", "model_class"), [(Qwen3Config, Qwen3ForCausalLM), (LlamaConfig, LlamaForCausalLM)])
def test_activations_are_about_what_autograd_keeps(kind, model_class, bf16, lora):
    shape = kind(**SHAPE | {"num_hidden_layers": 6, "vocab_size": 64})
    model = model_class(shape)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    if lora:
        from peft import get_peft_model

        model = get_peft_model(model.to(torch.bfloat16 if bf16 else torch.float32), default_lora())
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids = torch.randint(0, 64, (4, 100))
    mask = torch.ones(4, 100, dtype=torch.long)
    mask[0, :10] = 0
    autocast = torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
        model(input_ids=ids, attention_mask=mask, labels=ids, fused_lm_head=True)
    autograd = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    estimate = estimate_memory(
        shape,
        config(bf16=bf16, micro_batch_tokens=400, max_model_length=100),
        peft_config=default_lora() if lora else None,
        dtype=torch.bfloat16 if bf16 and lora else torch.float32,
    )
    assert autograd < estimate.training < 1.6 * autograd  # a gradient on its way comes on top


# What cannot fit is refused, with the setting to change.

GIB = 2**30
NEEDS = MemoryEstimate(
    parameters=10**9,
    trained_parameters=10**7,
    weights=2 * GIB,
    optimizer=GIB,
    training_fixed=GIB,
    training_token=GIB // 1000,
    micro_batch_tokens=16_000,
    sampling_fixed=GIB,
    sampling_token=GIB // 2000,
    episodes=64,
    batch_episodes=64,
    episode_tokens=1000,
)


@pytest.mark.parametrize(
    ("free", "changes", "text"),
    [
        (3, {}, r"need 3.00 GiB, but the device has 3.00 GiB free; take a smaller model"),
        (3, {"trained_parameters": 10**9}, r"train an adapter \(--lora\)"),
        (14, {}, r"over 16000 tokens needs 20 GiB .* lower micro_batch_tokens=16384 \(about 10000 fit\)"),
        (14, {}, r"gradient_checkpointing=True"),
        (4.5, {}, r"lower micro_batch_tokens=16384 and max_model_length=1000 \(about 500 fit\)"),
        (4, {}, r"or take a smaller model"),
        (
            4.8,
            {"training_fixed": 0, "training_token": 1},
            r"one episode of 1000 tokens needs 5.00 GiB .* max_concurrent",
        ),
    ],
)
def test_what_cannot_fit(free, changes, text):
    with pytest.raises(ConfigError, match=text):
        check_memory(dataclasses.replace(NEEDS, **changes), int(free * GIB), config(), where="the device")


def test_many_long_episodes_are_a_warning():
    """3 GiB always, 1 for logits, and 1 for each of 64 episodes: 67 full ones do not fit into 40, but 36 do."""
    warning = check_memory(NEEDS, 40 * GIB, config(), where="the device")
    assert "max_concurrent_episodes=36" in warning
    assert check_memory(NEEDS, 69 * GIB, config(), where="the device") is None


def test_a_run_says_what_it_needs_before_the_model_loads(model_dir, tmp_path, monkeypatch, capsys):
    def not_yet(*args, **kwargs):
        raise OSError("loads")

    monkeypatch.setattr("llmgym_trainer.train.load_model", not_yet)
    run = GRPOConfig(**settings(model_dir, tmp_path / "runs"))
    with pytest.raises(OSError, match="loads"):
        train_multi_turn(run, tasks=TASKS, env_factory=LetterEnv)
    assert "memory: up to " in capsys.readouterr().err
    monkeypatch.setattr("llmgym_trainer.train.free_memory", lambda config: (1000, "this machine"))
    with pytest.raises(ConfigError, match=r"this machine has 0 MiB free; train an adapter"):
        train_multi_turn(run, tasks=TASKS, env_factory=LetterEnv)
    assert not any((tmp_path / "runs").iterdir())


def test_quantized_weights_are_not_estimated(model_dir, tmp_path, monkeypatch, capsys):
    def not_yet(*args, quantization_config, **kwargs):
        raise OSError(f"loads with {quantization_config}")

    monkeypatch.setattr("llmgym_trainer.train.load_model", not_yet)
    run = GRPOConfig(
        **settings(model_dir, tmp_path / "runs", model_init_kwargs={"quantization_config": {"load_in_4bit": True}})
    )
    with pytest.raises(OSError, match=r"loads with .*load_in_4bit"):
        train_multi_turn(run, tasks=TASKS, env_factory=LetterEnv)
    assert "memory:" not in capsys.readouterr().err
