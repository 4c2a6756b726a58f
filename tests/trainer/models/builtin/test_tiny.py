"""The built-in tiny model: its tokenizer, its first weights, and that it is built once."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from llmgym_environments.tool_use_game.tasks import WORDS
from llmgym_trainer.models.builtin import tiny
from llmgym_trainer.models.builtin.scripted import scripted_episodes
from llmgym_trainer.sft.sft import encode_episode
from llmgym_trainer.tokens.codec import Codec, load_chat_template

SHORT = tiny.TinyRecipe(
    hidden_size=32,
    intermediate_size=48,
    layers=1,
    heads=2,
    right_episodes=40,
    mixed_episodes=12,
    flawed_share=0.25,
    right_steps=12,
    mixed_steps=3,
    batch_size=4,
)


@pytest.fixture(scope="module")
def tokenizer():
    episodes = scripted_episodes("ToolUseGame-v0", 300, flawed_share=0.0, seed=1)
    return tiny.build_tokenizer(tiny.TinyRecipe(), episodes)


def test_numbers_and_keys_are_one_token_the_same_in_every_place(tokenizer):
    vocabulary = tokenizer.get_vocab()
    for piece in (*WORDS, *map(str, range(199))):
        assert piece in vocabulary, piece
        places = (
            f"What is {piece} plus {piece}?",
            f'{{"key": "{piece}"}}',
            f"a, {piece}, b",
            f"-{piece}",
            f"{piece}+1",
        )
        for text in places:
            assert vocabulary[piece] in tokenizer(text)["input_ids"], text


def test_any_text_can_be_written(tokenizer):
    text = "Ünïcode ☃ and\ttabs, 12345.678e9\n\n<|im_start|> <tool_call>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_tokenizer_is_short_and_its_template_trains(tokenizer):
    codec = Codec(tokenizer)
    report = codec.probe()
    assert (report.call_format, report.end_of_turn, report.rewrites) == ("hermes", ("<|im_end|>",), ())
    (episode,) = scripted_episodes("ToolUseGame-v0", 1, flawed_share=0.0, seed=2)
    (row,) = encode_episode(episode, codec)
    assert row.prompt_length <= 60
    assert len(row.ids) <= 160


def test_heads_begin_as_copiers(tokenizer):
    recipe = tiny.TinyRecipe()
    model = tiny.build_llama(recipe, tokenizer)
    for layer in model.model.layers:
        passed_on = layer.self_attn.o_proj.weight @ layer.self_attn.v_proj.weight
        assert torch.allclose(passed_on, recipe.copy_gain**2 * torch.eye(recipe.hidden_size), atol=1e-5)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.num_parameters() < 800_000


def test_it_is_built_once_for_a_seed_and_loads(monkeypatch, capsys, tmp_path):
    chance = torch.get_rng_state()
    first = tiny.tiny_model(1, recipe=SHORT, cache_dir=tmp_path)
    assert torch.equal(torch.get_rng_state(), chance)
    assert "25% contain a deliberate mistake" in " ".join(capsys.readouterr().out.split())

    model, tokenizer = AutoModelForCausalLM.from_pretrained(first), AutoTokenizer.from_pretrained(first)
    assert tokenizer.chat_template == load_chat_template("compact")
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.dtype == torch.float32
    assert len(tokenizer) == model.config.vocab_size

    other = tiny.tiny_model(2, recipe=SHORT, cache_dir=tmp_path)
    again = AutoModelForCausalLM.from_pretrained(other).model.embed_tokens.weight
    assert not torch.equal(model.model.embed_tokens.weight[: len(again)], again[: len(tokenizer)])

    monkeypatch.setattr(tiny, "scripted_episodes", None)
    assert tiny.tiny_model(1, recipe=SHORT, cache_dir=tmp_path) == first != other


def test_the_same_seed_builds_the_same_model(tmp_path):
    one, two = (
        AutoModelForCausalLM.from_pretrained(tiny.tiny_model(1, recipe=SHORT, cache_dir=tmp_path / name)).state_dict()
        for name in "ab"
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
