"""Scripted episodes, right and flawed; their tokens; and the SFT loop."""

import asyncio
import importlib
import json
import random

import pytest
import torch
import torch.nn.functional as F
from toys import build_llama, build_tokenizer

from llmgym import EpisodeLimits, Policy, ScriptedPolicy, StopReason, Task, ToolEnv, run_episode, tool
from llmgym.errors import ConfigError
from llmgym.registry import EnvEntry, find
from llmgym_environments.mastermind import MastermindEnv, MastermindExpert
from llmgym_environments.tool_use_game import ToolUseGameEnv, ToolUseGameExpert
from llmgym_trainer.algorithm.rows import Row, build_rows
from llmgym_trainer.engines.base import Sample
from llmgym_trainer.errors import NonFiniteError
from llmgym_trainer.models.builtin.cache import recipe_key
from llmgym_trainer.models.builtin.scripted import FlawedReplay, _with_texts, scripted_episodes, training_tasks
from llmgym_trainer.models.builtin.tiny import TinyRecipe
from llmgym_trainer.sft.sft import encode_episode, train_on_rows
from llmgym_trainer.tokens.codec import Codec
from llmgym_trainer.tokens.policy import ModelPolicy

FACTS = {"amber": 3, "cedar": 4, "fox": 50, "rain": 60}
TASK = Task("What is amber plus cedar?", 7, {"level": 1, "facts": FACTS, "expression": "amber+cedar"})


class Chosen(random.Random):
    """Draws the given turn and the given kind of mistake, and always the first of several choices."""

    def __init__(self, turn: int, kind: float) -> None:
        super().__init__()
        self.turn, self.kind = turn, kind

    def randrange(self, *args):
        return self.turn

    def random(self):
        return self.kind

    def choice(self, items):
        return items[0]


def play(policy):
    return asyncio.run(run_episode(ToolUseGameEnv(), TASK, policy))


def said(episode):
    """What each assistant message holds: the arguments of its calls, or its content."""
    return [
        "".join(call["function"]["arguments"] for call in turn.message.get("tool_calls", [])) or turn.message["content"]
        for turn in episode.turns
    ]


def test_the_expert_as_the_other_tests_take_it():
    right = play(ToolUseGameExpert())
    assert said(right) == ['{"key": "amber"}', '{"key": "cedar"}', '{"expression": "3+4"}', "7"]


@pytest.mark.parametrize(
    ("turn", "kind", "expected"),
    [
        (0, 0.9, ['{"key": "cedar"}', '{"key": "cedar"}', '{"expression": "4+4"}', "8"]),
        (2, 0.9, ['{"key": "amber"}', '{"key": "cedar"}', '{"expression": "4+4"}', "8"]),
        (3, 0.9, ['{"key": "amber"}', '{"key": "cedar"}', '{"expression": "3+4"}', "4"]),
        (0, 0.0, ["0"]),
        (1, 0.0, ['{"key": "amber"}', "3"]),
        (2, 0.0, ['{"key": "amber"}', '{"key": "cedar"}', "4"]),
        (3, 0.0, ['{"key": "amber"}', '{"key": "cedar"}', '{"expression": "3+4"}', "4"]),
        (1, 0.35, ['{"key": "amber"}', "<tool_call>"]),
    ],
)
def test_one_mistake_and_then_on_with_what_is_seen(turn, kind, expected):
    flawed = play(FlawedReplay(play(ToolUseGameExpert()), Chosen(turn, kind), ToolUseGameExpert()))
    assert said(flawed) == expected
    unreadable = kind == 0.35
    assert flawed.stop_reason is (StopReason.PARSE_FAILURE if unreadable else StopReason.TERMINATED)
    assert flawed.reward == (-0.1 if unreadable else 0.0)


def test_a_changed_sign_is_another_sign():
    class LastPlace(Chosen):
        def choice(self, items):
            return items[1] if len(items) == 3 else items[0]  # the three places of "3+4"; else the first other sign

    flawed = play(FlawedReplay(play(ToolUseGameExpert()), LastPlace(2, 0.9), ToolUseGameExpert()))
    assert said(flawed)[2:] == ['{"expression": "3-4"}', "-1"]


def test_without_tools_the_expert_itself_goes_on():
    colours = ["red", "blue", "green", "grey"]
    rules = {"colours": colours, "places": 2, "repeats": False, "guesses": 6, "par": 3}
    task = Task("Colours: red, blue, green, grey.", "green grey", rules)

    def guesses(policy):
        return said(asyncio.run(run_episode(MastermindEnv(), task, policy)))

    right = asyncio.run(run_episode(MastermindEnv(), task, MastermindExpert()))
    assert said(right) == ["red blue", "green grey"]  # neither red nor blue is in it
    flawed = guesses(FlawedReplay(right, Chosen(0, 0.9), MastermindExpert()))
    # No blue. Of the six codes left "red green" splits best; one of its colours is right, in the wrong place.
    assert flawed == ["blue blue", "red green", "green grey"]


class Doubling(ToolEnv):
    """Doubles a number; ``begin`` takes nothing."""

    class Expert(Policy):
        async def act(self, messages, tool_specs):
            turn = sum(message["role"] == "assistant" for message in messages)
            call = [("begin", "{}"), ("double", '{"number": 21}')][turn] if turn < 2 else None
            if call is None:
                return messages[-1]["content"]
            function = {"name": call[0], "arguments": call[1]}
            return {"role": "assistant", "content": "", "tool_calls": [
                {"id": f"call_{turn}_0", "type": "function", "function": function}
            ]}  # fmt: skip

    def tools(self):
        return [begin, double]

    async def score(self, message):
        return 1.0


@tool
def begin() -> str:
    """Begin."""
    return "20 or 21"


@tool
def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


def test_whole_numbers_are_changed_too_and_a_turn_without_anything_to_change_stays_right():
    def episode(policy):
        return asyncio.run(run_episode(Doubling(), Task("What is twice 21?"), policy))

    right = episode(Doubling.Expert())
    assert said(right) == ["{}", '{"number": 21}', "42"]
    # The first place that can be wrong is the call of double; of the numbers seen before, 20 is the last other one.
    assert said(episode(FlawedReplay(right, Chosen(0, 0.9), Doubling.Expert()))) == ["{}", '{"number": 20}', "40"]


@pytest.mark.parametrize(("text", "argument"), [("-7", -7), ("20", 20), ("*7", "*7"), ("none left", "none left")])
def test_what_takes_the_place_of_a_number_may_be_none(text, argument):
    function = {"name": "double", "arguments": '{"number": -21}'}
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "a", "type": "function", "function": function}],
    }
    changed = _with_texts(message, [text])
    assert json.loads(changed["tool_calls"][0]["function"]["arguments"]) == {"number": argument}


def test_more_episodes_than_tasks_by_default_take_more_tasks():
    generated, listed = find("CalculatorMath-v0"), EnvEntry("Listed-v0", Doubling, tasks=[Task("What is twice 21?")])
    assert [len(training_tasks(generated, count)) for count in (10, 2500)] == [2000, 2500]
    assert training_tasks(listed, 10) == listed.load_tasks("train")


def test_the_stated_share_is_flawed_and_all_others_are_right():
    assert all(episode.reward == 1 for episode in scripted_episodes("ToolUseGame-v0", 20, flawed_share=0.0, seed=5))
    half = scripted_episodes("ToolUseGame-v0", 40, flawed_share=0.5, seed=5)
    right = sum(episode.reward == 1 for episode in half)
    assert 20 <= right <= 21  # a wrong look-up may find the same number
    assert [said(episode) for episode in half] == [
        said(episode) for episode in scripted_episodes("ToolUseGame-v0", 40, flawed_share=0.5, seed=5)
    ]
    assert {episode.task.id for episode in half} != {
        episode.task.id for episode in scripted_episodes("ToolUseGame-v0", 40, flawed_share=0.5, seed=6)
    }


def test_a_share_is_between_0_and_1():
    with pytest.raises(ConfigError, match=r"flawed_share=1.5"):
        scripted_episodes("ToolUseGame-v0", 1, flawed_share=1.5, seed=0)


@pytest.fixture(scope="module")
def codec():
    return Codec(build_tokenizer())


def test_rows_hold_token_for_token_what_a_rollout_would(codec):
    written = [
        '<tool_call>{"name": "lookup", "arguments": {"key": "amber"}}</tool_call><|im_end|>',
        '<tool_call>{"name": "lookup", "arguments": {"key": "cedar"}}</tool_call><|im_end|>',
        '<tool_call>{"name": "calculator", "arguments": {"expression": "3+4"}}</tool_call><|im_end|>',
        "7<|im_end|>",
    ]

    class Types:
        """Samples the texts above, whatever the prompt."""

        def __init__(self):
            self.left = iter(written)

        async def sample(self, prompt_ids, params, key, rng):
            ids = codec.tokenizer(next(self.left), add_special_tokens=False)["input_ids"]
            return Sample(ids, [0.0] * len(ids), "stop", 0)

        def release(self, key):
            pass

    limits = EpisodeLimits(max_model_length=2000)
    rollout = asyncio.run(
        run_episode(ToolUseGameEnv(), TASK, ModelPolicy(codec, Types(), limits, key="0", rng=random.Random(0)), limits)
    )
    (row,) = encode_episode(play(ToolUseGameExpert()), codec)
    assert [row] == build_rows(rollout)

    assert codec.decode(row.ids) == (
        "<|im_start|>system\nUse the tools. Then reply with only the number.\n"
        "list_fact_keys()\nlookup(key)\ncalculator(expression)<|im_end|>\n"
        "<|im_start|>user\nWhat is amber plus cedar?<|im_end|>\n"
        f"<|im_start|>assistant\n{written[0]}\n<|im_start|>tool\n3<|im_end|>\n"
        f"<|im_start|>assistant\n{written[1]}\n<|im_start|>tool\n4<|im_end|>\n"
        f"<|im_start|>assistant\n{written[2]}\n<|im_start|>tool\n7<|im_end|>\n"
        f"<|im_start|>assistant\n{written[3]}"
    )
    trained = [token for token, trains in zip(row.ids, row.mask, strict=True) if trains]
    assert codec.decode(trained) == "".join(written)


def test_an_unreadable_call_is_trained_as_it_is_written(codec):
    flawed = play(FlawedReplay(play(ToolUseGameExpert()), Chosen(1, 0.35), ToolUseGameExpert()))
    (row,) = encode_episode(flawed, codec)
    assert codec.decode(row.ids).endswith("<|im_start|>assistant\n<tool_call><|im_end|>")


def test_a_turn_without_a_message_is_an_error(codec):
    episode = play(ToolUseGameExpert())
    episode.turns[1].message = None
    with pytest.raises(ConfigError, match="without a message"):
        encode_episode(episode, codec)


def test_an_episode_in_which_nothing_was_said_gives_no_row(codec):
    class Refuses(ScriptedPolicy):
        async def start(self, task):
            raise RuntimeError

    assert encode_episode(play(Refuses([])), codec) == []


def rows_of(*pairs):
    return [Row(0, 0, ids=ids, mask=mask, logprobs=[0.0] * len(ids)) for ids, mask in pairs]


def test_the_loss_is_that_of_the_masked_in_tokens_alone():
    model = build_llama(320)
    short, long = [5, 6, 7, 8], [9, 10, 11, 12, 13, 14]
    surprise = []
    with torch.no_grad():
        for ids, places in ((short, [3]), (long, [2, 5])):
            logprobs = F.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
            surprise += [-logprobs[place - 1, ids[place]].item() for place in places]
    rows = rows_of((short, [0, 0, 0, 1]), (long, [0, 0, 1, 0, 0, 1]))
    (loss,) = train_on_rows(model, rows, steps=1, batch_size=2, learning_rate=1e-3, seed=0)
    assert loss == pytest.approx(sum(surprise) / 3, abs=1e-5)


def test_it_learns_what_is_masked_in_and_moves_only_what_may_move():
    model = build_llama(320)
    still = model.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    frozen = still.clone()
    rows = rows_of(([5, 6, 7, 8], [0, 0, 1, 1]), ([9, 10, 11, 12, 13], [0, 0, 0, 1, 1]))
    losses = train_on_rows(model, rows, steps=60, batch_size=2, learning_rate=1e-2, seed=0)
    assert len(losses) == 60
    assert losses[-1] < 0.05 < 4 < losses[0]
    assert torch.equal(still, frozen)
    assert model(torch.tensor([[5, 6, 7]])).logits[0, 1:].argmax(-1).tolist() == [7, 8]


@pytest.mark.parametrize(
    ("steps", "text"),
    [(6, r"the loss of step \d of 6 is (nan|inf): learning_rate=1e\+30"), (1, "the weights after 1 steps")],
)
def test_a_learning_rate_that_ruins_the_model_is_named(steps, text):
    rate = 1e30 if steps > 1 else 3e37  # weights near the largest float32, whose sum is past it
    with pytest.raises(NonFiniteError, match=text):
        train_on_rows(
            build_llama(64), rows_of(([1, 2, 3], [0, 1, 1])), steps=steps, batch_size=1, learning_rate=rate, seed=0
        )


def test_every_row_is_used_before_any_is_used_again():
    seen = []

    def watch(module, args, kwargs):
        seen.extend(ids[0].item() for ids in kwargs["input_ids"])

    model = build_llama(320)
    model.get_decoder().register_forward_pre_hook(watch, with_kwargs=True)
    rows = rows_of(*(([first, 1, 2], [0, 1, 1]) for first in range(10, 20)))
    train_on_rows(model, rows, steps=8, batch_size=3, learning_rate=1e-3, seed=0)
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10, 20))


def test_progress_shows_the_loss(capsys):
    rows = rows_of(([5, 6, 7, 8], [0, 0, 1, 1]))
    losses = train_on_rows(build_llama(320), rows, steps=2, batch_size=1, learning_rate=1e-3, seed=0, label="Start")
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(",")[0] for line in lines] == [
        f"Start: {step}/2, loss {losses[step - 1]:.3f}" for step in (1, 2)
    ]


def test_the_cache_key_knows_recipe_seed_code_and_episodes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("one", "two"):
        (tmp_path / f"build_{name}.py").write_text(f"NAME = {name!r}\n")
    one, two = importlib.import_module("build_one"), importlib.import_module("build_two")
    key = recipe_key(TinyRecipe(), 1, one)
    assert recipe_key(TinyRecipe(), 1, one) == key
    assert recipe_key(TinyRecipe(), 2, one) != key
    assert recipe_key(TinyRecipe(layers=2), 1, one) != key
    assert recipe_key(TinyRecipe(), 1, two) != key
    monkeypatch.setattr(FlawedReplay, "_mistake", lambda self, message, history: message)  # other episodes, same code
    assert recipe_key(TinyRecipe(), 1, one) != key
