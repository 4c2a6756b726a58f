"""The data of the page and the file around it. What a browser makes of it is in test_page.py."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import random
import re
from pathlib import Path

import pytest
from recorded import episode, write_training_run

from llmgym import Turn
from llmgym.cli import main as cli
from llmgym.episode import StopReason
from llmgym.errors import ConfigError, RecordError
from llmgym.records import write_episodes
from llmgym.viewer import write_view
from llmgym.viewer.collect import collect, evenly_spaced
from llmgym.viewer.sources import find_source


def unpack(text):
    """What the page does; NaN and Infinity are no JSON there."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(gzip.decompress(base64.b64decode(text)), parse_constant=refuse)


def data_of(path, token_episodes=0, max_chars=10**7):
    data = collect(find_source(path), token_episodes, max_chars)
    return data, unpack(data.index)


def blocks(page: Path) -> dict[str, str]:
    return dict(re.findall(r'<script type="text/plain" id="([\w-]+)">([\w+/=]*)</script>', page.read_text()))


def test_the_index_of_a_training_run(tmp_path):
    data, index = data_of(write_training_run(tmp_path / "run"))
    assert (index["name"], index["kind"], data.num_episodes) == ("run", "training", 9)
    assert [task["id"] for task in index["tasks"]] == ["fern", "lily", "rose"]
    assert index["phases"] == ["val", "train0"]
    columns = index["columns"]
    assert columns["task"] == [0, 1, 1, 2, 2, 2, 2, 2, 2]
    assert columns["step"] == [0, 1, 1, 1, 1, 2, 2, 2, 2]  # as in metrics.jsonl
    assert columns["group"] == [0, 1, 1, 2, 2, 3, 3, 4, 4]  # rose was drawn twice in step 1
    assert columns["reward"] == [0, 1, 0, 0, 0, 1, 0, 0, 1]
    assert columns["advantage"] == [None, 0.7, -0.7, 0, 0, 0.7, -0.7, -0.7, 0.7]
    assert columns["trained"] == [None, True, True, False, False, True, True, True, True]
    assert [index["stops"][place] for place in columns["stop"]] == ["terminated"] * 7 + ["max_turns"] * 2
    assert columns["answer"] == ["no idea"] + ["48"] * 8
    assert columns["sampled_tokens"] == [3] * 9
    assert columns["policy_s"] == [1.5] * 9
    assert columns["env_s"] == [0.25] * 9
    assert [line["step"] for line in index["metrics"]] == [0, 1, 2]  # a line being written is left out
    assert "success_reward: 0.9" in index["settings"]


def test_chunks_hold_conversations_in_the_order_of_the_episodes(tmp_path):
    file = tmp_path / "e.jsonl"
    write_episodes(file, [episode("a", answer=f"answer {number} " + "x" * 9_000) for number in range(20)])
    data, index = data_of(file)
    chunk_of = index["columns"]["chunk"]
    assert len(data.chunks) > 1
    for number in range(20):
        body = unpack(data.chunks[str(chunk_of[number])])[number - chunk_of.index(chunk_of[number])]
        assert body["turns"][1]["message"]["content"].startswith(f"answer {number} ")
    assert body["turns"][0]["message"]["tool_calls"] == [
        {"id": "call_0", "name": "lookup", "arguments": '{"key": "rose"}'}
    ]
    assert json.loads(index["shared"][body["tool_specs"]])[0]["function"]["name"] == "lookup"


def test_tokens_are_shown_for_whole_groups_whose_rewards_differ(tmp_path):
    run = write_training_run(tmp_path / "run")
    assert list(data_of(run, 0)[0].tokens) == []
    assert list(data_of(run, 1)[0].tokens) == []  # no group is that small
    assert list(data_of(run, 2)[0].tokens) == ["7", "8"]
    data, index = data_of(run, 5)
    assert list(data.tokens) == ["1", "2", "7", "8"]  # the first group and the last; rose in step 0 does not differ
    assert index["columns"]["tokens"] == [0, 1, 1, 0, 0, 0, 0, 1, 1]
    assert unpack(data.tokens["1"]) == [
        {"context_ids": [1, 2], "completion_ids": [3, 4], "logprobs": [-0.5, -3.0], "extends": False,
         "finish_reason": "stop", "policy_version": 0},
        {"context_ids": [5], "completion_ids": [6], "logprobs": [-0.25], "extends": True,
         "finish_reason": "stop", "policy_version": 0},
    ]  # fmt: skip


def test_tokens_are_shown_when_no_rewards_differ(tmp_path):
    write_episodes(tmp_path / "e.jsonl", [episode("a", tokens=True), episode("b", tokens=True), episode("c")])
    assert list(data_of(tmp_path / "e.jsonl", 9)[0].tokens) == ["0", "1"]


@pytest.mark.parametrize(
    ("length", "count", "places"),
    [(3, 5, [0, 1, 2]), (5, 0, []), (5, 1, [4]), (5, 2, [0, 4]), (9, 3, [0, 4, 8]), (0, 4, [])],
)
def test_evenly_spaced(length, count, places):
    assert evenly_spaced(length, count) == places


def test_a_large_run_leaves_out_conversations_evenly_but_no_episode(tmp_path):
    rng = random.Random(1)
    noise = ["".join(rng.choices("abcdefghijklmnop", k=8_000)) for _ in range(200)]
    write_episodes(tmp_path / "e.jsonl", [episode(f"t{n}", answer=text) for n, text in enumerate(noise)])
    whole = write_view(tmp_path / "e.jsonl", tmp_path / "whole.html")
    assert whole.num_bytes > 1_000_000
    assert whole.num_conversations == 200
    small = write_view(tmp_path / "e.jsonl", tmp_path / "small.html", max_chars=700_000)
    assert small.num_bytes == (tmp_path / "small.html").stat().st_size <= 700_000
    assert small.num_episodes == 200
    assert 40 < small.num_conversations < 160
    there = blocks(tmp_path / "small.html")
    chunks = unpack(there["index"])["columns"]["chunk"]
    assert "chunk-0" in there
    assert f"chunk-{chunks[-1]}" in there


def test_a_long_text_is_cut_in_the_middle(tmp_path):
    write_episodes(tmp_path / "e.jsonl", [episode("a", result="<" * 15_000 + "." * 30_000 + ">" * 5_000)])
    data, _ = data_of(tmp_path / "e.jsonl")
    content = unpack(data.chunks["0"])[0]["turns"][0]["observation"][0]["content"]
    assert content == "<" * 15_000 + "\n[… 30,000 characters left out …]\n" + ">" * 5_000


def test_turns_have_their_own_advantages(tmp_path):
    one, two, odd = episode("a"), episode("b"), episode("c")
    one.provenance["turn_advantages"] = [0.5, float("nan"), -0.25]  # more than there are turns
    odd.provenance["turn_advantages"] = 7
    write_episodes(tmp_path / "e.jsonl", [one, two, odd])
    data, _ = data_of(tmp_path / "e.jsonl")
    bodies = unpack(data.chunks["0"])
    assert [[turn["advantage"] for turn in body["turns"]] for body in bodies] == [
        [0.5, None],
        [None, None],
        [None, None],
    ]
    assert len({body["provenance"] for body in bodies}) == 1  # what all have in common


def test_values_that_json_or_utf8_cannot_hold_are_shown(tmp_path):
    odd = episode("a", answer="half \ud83d of a pair, line\u2028separator, 数", reward=1.0)
    odd.metrics = {"loss": float("nan"), "best": float("inf")}
    odd.initial_messages = ["no message", {"role": "user", "content": ["a list"]}, {"role": 7}]
    odd.turns[0].message = {"role": "assistant", "content": "", "tool_calls": ["no call", {"function": 3}]}
    odd.turns.append(Turn(raw_text="<tool_call>", failure="cut"))
    write_episodes(tmp_path / "e.jsonl", [odd])
    data, index = data_of(tmp_path / "e.jsonl")
    (body,) = unpack(data.chunks["0"])
    assert body["metrics"] == {"loss": "nan", "best": "inf"}
    assert body["initial_messages"] == [
        {"role": "", "content": "no message"},
        {"role": "user", "content": '["a list"]'},
        {"role": "7"},
    ]
    assert [call["arguments"] for call in body["turns"][0]["message"]["tool_calls"]] == ["no call", '{"function":3}']
    assert body["turns"][1]["message"]["content"] == "half \ud83d of a pair, line\u2028separator, 数"
    assert index["columns"]["answer"] == ["<tool_call>"]


def test_only_the_pages_own_script_and_style_may_run(tmp_path):
    write_episodes(tmp_path / "<img src=x onerror=alert(1)>.jsonl", [episode("a")])
    view = write_view(tmp_path / "<img src=x onerror=alert(1)>.jsonl", tmp_path / "page.html")
    page = view.path.read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    of_script, of_style = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)
    )
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{of_script}'; style-src 'sha256-{of_style}'; base-uri 'none'; "
        "form-action 'none'"
    )
    assert page.count("<script") == 1 + len(blocks(view.path))
    assert "<img" not in page
    assert "innerHTML" not in script


@pytest.mark.slow
def test_token_texts_come_from_the_last_checkpoint_or_the_given_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")

    def save(path, words):
        model = tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0])
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model)).save_pretrained(path)

    run = write_training_run(tmp_path / "run")
    vocabulary = lambda page: unpack(blocks(page)["index"])["vocabulary"]  # noqa: E731
    view = write_view(run, tmp_path / "ids.html")
    assert not view.token_texts
    assert vocabulary(view.path) == []
    save(run / "checkpoint-5", ["z"] * 1 + list("tuvwxy"))
    save(run / "checkpoint-10", ["z"] * 1 + list("abcdef"))
    assert vocabulary(write_view(run, tmp_path / "last.html").path) == [
        [1, "a"], [2, "b"], [3, "c"], [4, "d"], [5, "e"], [6, "f"],
    ]  # fmt: skip
    given = write_view(run, tmp_path / "given.html", tokenizer=str(run / "checkpoint-5"))
    assert vocabulary(given.path)[0] == [1, "t"]
    with pytest.raises(ConfigError, match="no-such-tokenizer"):
        write_view(run, tmp_path / "none.html", tokenizer=str(tmp_path / "no-such-tokenizer"))


def test_an_evaluation_includes_its_report(tmp_path):
    write_episodes(tmp_path / "eval" / "episodes.jsonl", [episode("a", 0), episode("a", 1), episode("b", 0)])
    (tmp_path / "eval" / "report.json").write_text('{"policy": "expert"}')
    _, index = data_of(tmp_path / "eval")
    assert (index["kind"], index["report"]) == ("evaluation", {"policy": "expert"})
    assert index["columns"]["group"] == [0, 0, 1]
    assert "step" not in index["columns"]


def test_the_command(tmp_path, capsys):
    run = write_training_run(tmp_path / "run")
    assert cli.main(["view", str(run), "--token-episodes", "2"]) == 0
    assert re.fullmatch(
        rf"{re.escape(str(run))}/view\.html \(0\.\d MB\): 9 episodes, 2 of them token by token, as ids\n",
        capsys.readouterr().out,
    )
    assert cli.main(["view", str(run / "episodes" / "val-000000.jsonl")]) == 0
    assert (run / "episodes" / "val-000000.html").is_file()


@pytest.mark.parametrize("make", ["nothing", "folder", "empty"])
def test_a_path_without_episodes_is_refused(tmp_path, make, capsys):
    path = tmp_path / "x"
    if make == "folder":
        path.mkdir()
    elif make == "empty":
        path.write_text("")
    assert cli.main(["view", str(path)]) == 2
    assert repr(str(path)) in capsys.readouterr().err
    assert not path.with_suffix(".html").exists()


def test_a_line_that_is_not_an_episode_is_named(tmp_path):
    (tmp_path / "e.jsonl").write_text('{"format_version": 1}\n')
    with pytest.raises(RecordError, match=r"e\.jsonl:1"):
        write_view(tmp_path / "e.jsonl")


def test_stop_reasons_are_those_of_the_enumeration(tmp_path):
    write_episodes(tmp_path / "e.jsonl", [episode("a", stop=reason) for reason in StopReason])
    _, index = data_of(tmp_path / "e.jsonl")
    assert index["stops"] == [str(reason) for reason in StopReason]
    assert index["columns"]["stop"] == list(range(len(StopReason)))


def test_groups_of_equal_rewards_fill_the_rest_of_the_token_views(tmp_path):
    alike = [episode("a", index, reward=1.0, tokens=True, phase="train0", step=0) for index in (0, 1)]
    differing = [episode("b", index, reward=float(index), tokens=True, phase="train0", step=0) for index in (0, 1)]
    write_episodes(tmp_path / "e.jsonl", [*alike, *differing])
    assert list(data_of(tmp_path / "e.jsonl", 3)[0].tokens) == ["2", "3"]
    assert list(data_of(tmp_path / "e.jsonl", 4)[0].tokens) == ["0", "1", "2", "3"]


def test_a_failed_call_is_marked_with_its_error_type(tmp_path):
    named, marked, good = episode("a", result="no such key"), episode("b", result="tool_error: no"), episode("c")
    named.turns[0].tool_errors = {"call_0": "KeyError"}
    write_episodes(tmp_path / "e.jsonl", [named, marked, good])
    bodies = unpack(data_of(tmp_path / "e.jsonl")[0].chunks["0"])
    assert [body["turns"][0]["observation"][0].get("error") for body in bodies] == ["KeyError", "tool_error", None]
