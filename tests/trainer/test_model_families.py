"""Small random models of many families: what is trained has the probability with which it was sampled."""

from __future__ import annotations

import pytest
import torch
import transformers
from peft import LoraConfig
from toys import SHAPE, LetterEnv, build_tokenizer, make_trainer

SMALL = {key: value for key, value in SHAPE.items() if key != "num_key_value_heads"}
HEADS = {"head_dim": 16}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
FAMILIES = {
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},  # learned positions, dropout 0.1
    "OPT": {  # functional dropout 0.1
        "hidden_size": 64,
        "ffn_dim": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "word_embed_proj_dim": 64,
    },
    "Bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4},
    "GPTNeoX": SMALL,
    "Falcon": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    "Llama": {**SHAPE, "attention_dropout": 0.5},
    "Granite": {**SHAPE, "attention_dropout": 0.1},
    "Mistral": {**SHAPE, **HEADS, "sliding_window": 8},
    "Mixtral": {**SHAPE, "num_local_experts": 4, "num_experts_per_tok": 2, "router_jitter_noise": 0.3},
    "Qwen2": {**SHAPE, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "Qwen3Moe": {**SHAPE, **HEADS, **EXPERTS, "num_experts": 4},
    "Qwen3_5Text": {**SHAPE, **HEADS, **LINEAR},
    "Gemma2": {**SHAPE, **HEADS, "sliding_window": 8},
    "Gemma3Text": {**SHAPE, **HEADS, "sliding_window": 8},
    "GptOss": {**SHAPE, **HEADS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "Phi3": SHAPE,
    "Cohere": SHAPE,
    "Olmo2": SHAPE,
    "Glm4": {**SHAPE, **HEADS},
    "Lfm2": SHAPE,
}


class ThreeTurns(LetterEnv):
    turns = 3


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [False, True], ids=["all", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_trained_was_sampled_with_the_same_probability(family, adapter, tmp_path):
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        **{"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
        | {"vocab_size": len(tokenizer)}
        | FAMILIES[family]
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    dropout = 0.0 if "num_experts_per_tok" in FAMILIES[family] else 0.1  # peft has none for experts
    lora = LoraConfig(target_modules="all-linear", lora_dropout=dropout) if adapter else None
    trainer = make_trainer(
        tmp_path / "model", tmp_path / "runs", ThreeTurns, peft_config=lora, num_steps=2, logging_steps=1
    )
    trainer.train()
    steps = [line for line in trainer.state.log_history if "sampling/sampling_logp_difference/max" in line]
    assert len(steps) == 2
    assert max(line["sampling/sampling_logp_difference/max"] for line in steps) < 1e-4
