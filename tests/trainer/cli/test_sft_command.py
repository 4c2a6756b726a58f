"""SFT: where episodes come from, what is learned from them, and the command."""

import asyncio
import json

import pytest
import torch
from toys import IM_END, TASKS, LetterEnv, full_logps, letter_reward

from llmgym import EpisodeLimits, PolicyTurn, ScriptedPolicy, StopReason, Task, run_episode, write_episodes
from llmgym.cli.main import main
from llmgym.errors import ConfigError
from llmgym_trainer.models.load import load_model
from llmgym_trainer.sft.episodes import best_samples, recorded_episodes
from llmgym_trainer.sft.sft import run_sft
from llmgym_trainer.tokens.codec import Codec

LIMITS = EpisodeLimits(max_turns=2, max_model_length=120, parse_retries=1)


@pytest.fixture
def loaded(model_dir):
    model, tokenizer = load_model(str(model_dir), dtype=torch.float32)
    return model, tokenizer, Codec(tokenizer, extra_stop_ids=[IM_END])


def said(*texts, task=TASKS[0], index=0):
    """An episode of LetterEnv with these answers."""
    return asyncio.run(run_episode(LetterEnv(), task, ScriptedPolicy(texts), LIMITS, episode_index=index))


def test_the_model_learns_to_say_what_was_said(loaded, tmp_path):
    model, tokenizer, codec = loaded
    out = tmp_path / "warm"
    result = run_sft(
        model, tokenizer, codec, [said("abba")], out, steps=12, batch_size=1, learning_rate=3e-3, max_length=120
    )
    assert (result.path, result.episodes, result.rows, result.too_long) == (out, 1, 1, 0)
    assert result.losses[-1] < result.losses[0] / 2
    warm, _ = load_model(str(out), dtype=torch.float32)
    prompt = codec.render([{"role": "user", "content": TASKS[0].prompt}], [])
    answer = codec.encode_turn(
        [{"role": "user", "content": TASKS[0].prompt}], {"role": "assistant", "content": "abba"}, []
    )
    spoken = full_logps(warm, prompt + answer)[len(prompt) - 1 :]
    assert -spoken.mean() < result.losses[0] / 2
    assert json.loads((out / "sft.json").read_text())["rows"] == 1
    with pytest.raises(ConfigError, match="exists; give another --out"):
        run_sft(model, tokenizer, codec, [said("a")], out, steps=1, batch_size=1, learning_rate=1e-3)


def test_malformed_turns_are_not_learnt(loaded, tmp_path, monkeypatch):
    model, tokenizer, codec = loaded
    rows = []

    def stand_in(model, found, **settings):
        rows.extend(found)
        return [1.0]

    monkeypatch.setattr("llmgym_trainer.sft.sft.train_on_rows", stand_in)
    bad = PolicyTurn(stop=StopReason.PARSE_FAILURE, detail="no call", raw_text="zzz")
    run_sft(model, tokenizer, codec, [said(bad, "abba")], tmp_path / "a", steps=1, batch_size=1, learning_rate=1e-3)
    (row,) = rows
    learnt = codec.decode([index for index, bit in zip(row.ids, row.mask, strict=True) if bit])
    assert (learnt, "zzz" in codec.decode(row.ids)) == ("abba<|im_end|>", True)


def test_long_rows_are_left_out_and_none_is_cut(loaded, tmp_path):
    model, tokenizer, codec = loaded
    short = len(codec.render([{"role": "user", "content": TASKS[0].prompt}], [])) + 3
    settings = {"steps": 1, "batch_size": 1, "learning_rate": 1e-3}
    episodes = [said("abcdefghijklmnop" * 4), said("a")]
    result = run_sft(model, tokenizer, codec, episodes, tmp_path / "a", max_length=short, **settings)
    assert (result.episodes, result.rows, result.too_long) == (2, 1, 1)
    with pytest.raises(ConfigError, match="no training row of at most 3 tokens"):
        run_sft(model, tokenizer, codec, episodes, tmp_path / "b", max_length=3, **settings)
    with pytest.raises(ConfigError, match="steps must be at least 1, got 0"):
        run_sft(model, tokenizer, codec, episodes, tmp_path / "b", **settings | {"steps": 0})
    assert not (tmp_path / "b").exists()


def test_recorded_episodes(tmp_path):
    file = tmp_path / "episodes.jsonl"
    episodes = [said("ax"), said("aa", index=1), said("xx", task=TASKS[1])]
    write_episodes(file, episodes)
    assert [e.reward for e in recorded_episodes(file)] == [0.5, 1, 0]
    assert [e.reward for e in recorded_episodes(file, min_reward=0.5)] == [0.5, 1]
    assert [e.reward for e in recorded_episodes(file, best_per_task=True)] == [1, 0]
    assert len(recorded_episodes(file, limit=2)) == 2
    with pytest.raises(ConfigError, match="of 3, 0 were not ended by their environment and 3 have a reward below 2"):
        recorded_episodes(file, min_reward=2)


def test_the_best_of_several_samples(loaded):
    model, _, codec = loaded
    every = []
    settings = {"samples_per_task": 5, "on_episode": every.append}
    best = best_samples(model, codec, lambda task: LetterEnv(), TASKS[:3], LIMITS, min_reward=0.1, **settings)
    assert len(every) == 15
    for episode in best:
        own = [e for e in every if e.task == episode.task and e.stop_reason is StopReason.TERMINATED]
        assert episode.reward == max(e.reward for e in own) >= 0.1
        assert episode.reward == letter_reward([episode.turns[0].message["content"]])
        assert episode.turns[0].tokens.completion_ids
    assert len({episode.task.id for episode in best}) == len(best) > 0
    with pytest.raises(ConfigError, match=r"none of 5 sampled episodes ended with a reward of at least 2 \(the best: "):
        best_samples(model, codec, lambda task: LetterEnv(), TASKS[:1], LIMITS, min_reward=2, samples_per_task=5)


# The command.

SMALL = ["--steps", "1", "--batch-size", "2"]


def test_from_the_expert_and_from_records(model_dir, tmp_path, capsys):
    arguments = ["sft", "ToolUseGame-v0", "--model", str(model_dir), *SMALL]
    assert main([*arguments, "--episodes", "2", "--out", str(tmp_path / "a"), "--lora"]) == 0
    assert "learned from 2 episodes in 2 rows" in capsys.readouterr().err
    warm, _ = load_model(str(tmp_path / "a"), dtype=torch.float32)
    start, _ = load_model(str(model_dir), dtype=torch.float32)
    assert not torch.equal(warm.model.layers[0].mlp.up_proj.weight, start.model.layers[0].mlp.up_proj.weight)

    write_episodes(tmp_path / "e.jsonl", [said("ab"), said("xx", task=Task("other"))])
    records = ["--from", str(tmp_path / "e.jsonl"), "--min-reward", "1", "--out", str(tmp_path / "b")]
    assert main([*arguments, *records]) == 0
    assert "learned from 1 episodes in 1 rows" in capsys.readouterr().err


def test_from_samples(model_dir, tmp_path, capsys):
    (tmp_path / "letters.py").write_text("from toys import LetterEnv\n")
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"prompt": task.prompt}) + "\n" for task in TASKS[:2]))
    arguments = ["sft", f"{tmp_path / 'letters.py'}:LetterEnv", "--model", str(model_dir), *SMALL]
    samples = ["--from", "samples", "--tasks", str(tasks), "--min-reward", "0.1", "--max-model-length", "120"]
    assert main([*arguments, *samples, "--out", str(tmp_path / "a")]) == 0
    assert "2 of 2 tasks have an episode to learn from" in capsys.readouterr().err
    assert (tmp_path / "a" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["ToolUseGam-v0"], "Did you mean 'ToolUseGame-v0'?"),
        (["ToolUseGame-v0", "--stesp", "1"], "unknown option '--stesp'. Did you mean '--steps'?"),
        (["ToolUseGame-v0", "--steps", "0"], "steps must be a whole number of at least 1, got 0"),
        (["ToolUseGame-v0", "--from", "nowhere"], "nowhere"),
        (["ToolUseGame-v0", "--flawed-share", "2"], "flawed_share must be a number from 0 to 1, got 2.0"),
        (
            ["ToolUseGame-v0", "--chat-template-kwargs", "yes"],
            "chat_template_kwargs must be a mapping or None, got 'yes'",
        ),
        (["toys:LetterEnv"], "registered without a scripted expert"),
    ],
)
def test_mistakes_come_before_a_model_loads(tmp_path, capsys, arguments, text):
    assert main(["sft", *arguments, "--model", "/nowhere/model", "--out", str(tmp_path / "a")]) == 2
    assert text in capsys.readouterr().err


def test_the_output_must_be_free(tmp_path, capsys):
    assert main(["sft", "ToolUseGame-v0", "--model", "/nowhere/model", "--out", str(tmp_path)]) == 2
    assert "exists; give another --out" in capsys.readouterr().err


def test_what_learns_and_where_it_is_written_must_be_said(capsys):
    assert main(["sft", "ToolUseGame-v0", "--out", "warm"]) == 2
    assert "--model is missing; see llmgym sft --help" in capsys.readouterr().err
