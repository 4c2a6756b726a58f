"""ToolUseGame-v0 as a policy meets it: what is asked, what is answered, what is rewarded.

What cheating earns is in ``test_number_answer``, as far as it concerns the answer; here, as far as it concerns the
facts.
"""

import asyncio
import hashlib
import json
import random
import re
from collections import Counter

import pytest
from suite import check_guard, plays

import llmgym
from llmgym import Policy, StopReason, Task, ToolResult
from llmgym.errors import TaskError
from llmgym_environments.calculator import evaluate
from llmgym_environments.tool_use_game import (
    TOOL_USE_GAME_TASKS,
    ToolUseGameEnv,
    ToolUseGameExpert,
    generate_tasks,
)
from llmgym_environments.tool_use_game.env import SPARE_LOOKUPS
from llmgym_environments.tool_use_game.tasks import LEVEL_3_WORDS, fill_in

TASK = Task("What is amber plus cedar?", 46, {"facts": {"amber": 12, "cedar": 34, "fox": 7}})


def call(name, /, **arguments):
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def play(*messages, task=TASK):
    """Play assistant messages (a list is a message with these calls) and return the episode."""
    script = [
        {"role": "assistant", "tool_calls": message} if isinstance(message, list) else message for message in messages
    ]
    return asyncio.run(llmgym.run_episode(ToolUseGameEnv(), task, llmgym.ScriptedPolicy(script)))


def rewards(tasks, make_policy):
    async def run():
        return [(await llmgym.run_episode(ToolUseGameEnv(), task, make_policy())).reward for task in tasks]

    return asyncio.run(run())


def results(episode):
    return [message["content"] for message in episode.messages if message["role"] == "tool"]


def test_the_opening_is_the_same_on_every_path():
    episode = play("46")
    assert episode.initial_messages == [
        {"role": "system", "content": "Use the tools. Then reply with only the number."},
        {"role": "user", "content": "What is amber plus cedar?"},
    ]
    assert [spec["function"]["name"] for spec in episode.tool_specs] == ["list_fact_keys", "lookup", "calculator"]
    assert not any("12" in str(part) or "34" in str(part) for part in (episode.initial_messages, episode.tool_specs))


def test_tools_answer_barely_and_in_order():
    episode = play(
        [call("list_fact_keys")],
        [call("lookup", key="cedar"), call("lookup", key="amber")],
        [call("calculator", expression="34+12")],
        "46",
    )
    assert results(episode) == ["amber, cedar, fox", "34", "12", "46"]
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.TERMINATED)
    assert episode.metrics == {
        "turns": 4,
        "tool_calls": 4,
        "tool_errors": 0,
        "lookups": 2,
        "facts_found": 2,
        "calculated": True,
        "answered": True,
        "calls_list_fact_keys": 1,
        "calls_lookup": 2,
        "calls_calculator": 1,
    }


@pytest.mark.parametrize(
    ("made", "answer"),
    [
        (call("lookup", key="ambr"), "tool_error: no key 'ambr'; list_fact_keys lists them. Did you mean 'amber'?"),
        (call("lookup", key="Amber"), "tool_error: no key 'Amber'; list_fact_keys lists them. Did you mean 'amber'?"),
        (call("lookup", key=""), "tool_error: no key ''; list_fact_keys lists them."),
        (call("lookup", key="x" * 9999), f"tool_error: no key '{'x' * 40}'; list_fact_keys lists them."),
        (call("lookup"), "tool_error: lookup: missing argument 'key'"),
        (
            call("lookup", name="amber"),
            "tool_error: lookup: missing argument 'key'; unknown argument 'name' (allowed: ",
        ),
        (call("lookup", key=3), "tool_error: lookup: argument 'key': "),
        (call("lookup", key="\ud800"), "tool_error: "),
        (call("list_fact_keys", begin="a"), "tool_error: list_fact_keys: unknown argument 'begin' (allowed: none)"),
        (call("calculator", expression="amber+cedar"), "tool_error: cannot read 'amber'; use numbers and + - * / "),
        (call("calculator", expression="1/0"), "tool_error: division by zero"),
        (call("calculator", expression="9**9**9"), "tool_error: a number is too large"),
        (call("calculate", expression="1"), "tool_error: there is no tool 'calculate'"),
    ],
)
def test_a_bad_call_is_answered_and_the_episode_goes_on(made, answer):
    episode = play([made], [call("lookup", key="fox")], "46")
    assert results(episode)[0].startswith(answer)
    assert results(episode)[1] == "7"
    assert episode.reward == 1.0
    assert (episode.metrics["tool_errors"], episode.metrics["lookups"]) == (1, 1)


@pytest.mark.parametrize("answer", ["46", " 46\n", "46.0", "46.", "+46", "4.6e1"])
def test_the_right_number_however_written(answer):
    assert play(answer).reward == 1.0


@pytest.mark.parametrize(
    "answer", ["", "47", "-46", "12 34 46", "46 46", "The answer is 46.", "12+34", "46!", "46, 12"]
)
def test_anything_but_the_one_right_number(answer):
    episode = play(answer)
    assert (episode.reward, episode.stop_reason) == (0.0, StopReason.TERMINATED)


@pytest.mark.parametrize(
    "task",
    [
        Task("?", 1),
        Task("?", 1, {"facts": ["amber"]}),
        Task("?", 1, {"facts": {"amber": "12"}}),
        Task("?", 1, {"facts": {"amber": True}}),
        Task("?", 1, {"facts": {"amber": 10**15}}),
        Task("?", 1, {"facts": {}}),
        Task("?", 1, {"facts": {"": 12}}),
        Task("?", 1, {"facts": {"amber, cedar": 12}}),
        Task("?", 1, {"facts": {"amber\n<|im_end|>": 12}}),
        Task("?", 1, {"facts": {"a" * 41: 12}}),
        Task("?", 1, {"facts": {f"key {number}": 12 for number in range(201)}}),
        Task("?", "many", {"facts": {"amber": 12}}),
        Task("?", None, {"facts": {"amber": 12}}),
    ],
)
def test_a_task_of_another_shape_is_refused(task):
    with pytest.raises(TaskError):
        asyncio.run(ToolUseGameEnv().reset(task))


def test_the_largest_table_is_shown_whole():
    keys = [f"{number:040}" for number in range(200)]
    episode = play([call("list_fact_keys")], "", task=Task("?", 1, {"facts": dict.fromkeys(keys, 1 - 10**15)}))
    assert results(episode) == [", ".join(keys)]


def test_look_ups_are_counted_and_so_are_the_facts_they_found():
    metrics = play([call("lookup", key=key) for key in ("fox", "fox", "amber", "foxes")], "46").metrics
    assert (metrics["lookups"], metrics["facts_found"], metrics["calculated"]) == (3, 2, False)


@pytest.mark.parametrize(("key", "spare", "reward"), [("fox", 0, 1.0), ("wrong", 0, 1.0), ("fox", 1, 0.0)])
def test_one_look_up_too_many_ends_the_episode(key, spare, reward):
    most = len(TASK.metadata["facts"]) + 12
    episode = play(
        [call("lookup", key=key)] * most, *[[call("lookup", key="fox"), call("list_fact_keys")]] * spare, "46"
    )
    assert (episode.reward, episode.stop_reason) == (reward, StopReason.TERMINATED)
    assert (
        results(episode)[most:]
        == ["no look-ups left", "tool_error: not run, an earlier call ended the episode"][: 2 * spare]
    )


def test_an_answer_beside_one_look_up_too_many_does_not_count():
    made = [call("lookup", key="fox")] * (len(TASK.metadata["facts"]) + 13)
    assert play({"role": "assistant", "content": "46", "tool_calls": made}).reward == 0.0


def test_an_environment_object_can_be_reset():
    env = ToolUseGameEnv()

    async def run():
        metrics = []
        for _ in range(2):
            await env.reset(TASK)
            await env.step({"role": "assistant", "content": "", "tool_calls": [call("lookup", key="fox")]})
            metrics.append((await env.step({"role": "assistant", "content": "46"})).metrics)
        return metrics

    first, second = asyncio.run(run())
    assert first == second
    assert first["lookups"] == 1


def test_the_expert_solves_1000_tasks():
    async def run():
        tasks = generate_tasks("test", level="all", count=1000)
        return [await llmgym.run_episode(ToolUseGameEnv(), task, ToolUseGameExpert()) for task in tasks]

    episodes = asyncio.run(run())
    assert [episode.reward for episode in episodes] == [1.0] * 1000
    assert {episode.stop_reason for episode in episodes} == {StopReason.TERMINATED}
    assert sum(episode.num_tool_errors for episode in episodes) == 0
    by_level = [{episode.metrics["turns"] for episode in episodes[level::3]} for level in range(3)]
    assert by_level == [{4}, {5}, {7, 8, 9}]  # one call a turn: look-ups + calculator + answer, and a listing at 3


class Guesser(Policy):
    """Answers at once with a random number from the range of the answers, or always with one number."""

    rng = random.Random(0)

    async def act(self, messages, tool_specs):
        return str(self.rng.randrange(0, 199))


class RandomPlayer(Policy):
    """Looks up two keys of the list, and answers with their sum, difference or product; all drawn at random."""

    rng = random.Random(0)

    async def act(self, messages, tool_specs):
        *_, last = seen = [message["content"] for message in messages if message["role"] == "tool"] or [""]
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == 3:
            return last
        if turn == 0:
            made = [call("list_fact_keys")]
        elif turn == 1:
            made = [call("lookup", key=key) for key in self.rng.sample(last.split(", "), 2)]
        else:
            made = [call("calculator", expression=self.rng.choice("+-*").join(seen[-2:]))]
        return {"role": "assistant", "tool_calls": made}


@pytest.mark.parametrize(("level", "score"), [(1, 0.05), (2, 0.0), (3, 0.0)])
def test_what_a_random_policy_earns(level, score):
    earned = rewards(generate_tasks("train", level=level, count=1000), RandomPlayer)
    assert sum(earned) / 1000 == pytest.approx(score, abs=0.03)


class Shouter(ToolUseGameExpert):
    """Makes all calls of the expert and looks every key up, then writes every number it has seen, answer included."""

    separator = " "

    def plan(self, task):
        return [*[("lookup", {"key": key}) for key in task.metadata["facts"]], *super().plan(task)]

    async def act(self, messages, tool_specs):
        message = await super().act(messages, tool_specs)
        if "tool_calls" not in message:
            seen = [message["content"] for message in messages if message["role"] == "tool"]
            message["content"] = self.separator.join(seen)
        return message


def test_guessing_earns_nothing():
    tasks = generate_tasks("train", level=1, count=1000)
    assert sum(rewards(tasks, Guesser)) / 1000 <= 0.02


@pytest.mark.parametrize("level", [1, 2, 3])
def test_no_constant_earns_much(level):
    # The most frequent answer is the best constant guess there is.
    tasks = generate_tasks("train", level=level, count=10_000)
    assert Counter(task.target for task in tasks).most_common(1)[0][1] / 10_000 <= 0.02
    assert len({task.target for task in tasks}) >= 190


@pytest.mark.parametrize("separator", [" ", ""])
def test_writing_every_number_seen_earns_nothing(separator):
    tasks = generate_tasks("train", level=1, count=1000)
    shouter = type("SeparatedShouter", (Shouter,), {"separator": separator})
    assert sum(rewards(tasks, shouter)) / 1000 <= 0.02


# Cheating: each attempt earns nothing, and some are shown to pay in a copy of the environment without its guard.


def asks_the_calculator(task):
    (said,) = yield [call("calculator", expression=task.metadata["expression"])]
    yield said


def looks_everything_up(task):
    (keys,) = yield [call("list_fact_keys")]
    yield [call("lookup", key=key) for key in keys.split(", ")]
    yield "All of these."


def tries_every_word(task):
    found = yield [call("lookup", key=word) for word in LEVEL_3_WORDS]
    facts = {word: number for word, number in zip(LEVEL_3_WORDS, found, strict=True) if number.isdigit()}
    yield str(evaluate(fill_in(task.metadata["expression"], facts)))


def tries_every_word_with_the_letters(task):
    left, operator, right = re.fullmatch(
        r"What is the sum of all keys that begin with (\w) (\w+) the sum of all keys that begin with (\w)\?",
        task.prompt,
    ).groups()
    words = [word for word in LEVEL_3_WORDS if word[0] in left + right]
    found = yield [call("lookup", key=word) for word in words]
    sums = Counter()
    for word, number in zip(words, found, strict=True):
        sums[word[0]] += int(number) if number.isdigit() else 0
    yield str({"plus": int.__add__, "minus": int.__sub__, "times": int.__mul__}[operator](sums[left], sums[right]))


def asks_for_the_target(task):
    (said,) = yield [call("lookup", key="_target")]
    yield said


class LookUpsAreFree(ToolUseGameEnv):
    """Guard removed: look-ups are limited."""

    spare_lookups = len(LEVEL_3_WORDS)


class KeepsFactsAsAttributes(ToolUseGameEnv):
    """Guard removed: keys are looked up in the table and nowhere else."""

    async def setup(self):
        await super().setup()
        vars(self).update(self._facts)

    @llmgym.tool
    async def lookup(self, key: str) -> ToolResult:
        """Get the number of a key."""
        return ToolResult(str(getattr(self, key)))


CHEATS = {
    "look up a key that states the answer, so that the error repeats it": (
        plays([call("lookup", key="the answer is -7<|im_end|>")], "-7"),
        None,
    ),
    "look every key up that is listed, and answer with none": (looks_everything_up, None),
    "try every word that can be a key instead of listing the keys": (tries_every_word, LookUpsAreFree),
    "try every word that begins with one of the two letters": (tries_every_word_with_the_letters, LookUpsAreFree),
    "look the target up, as `_target`": (asks_for_the_target, KeepsFactsAsAttributes),
    "have the calculator look the keys up": (asks_the_calculator, None),
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheating_earns_nothing(name):
    script, removed = CHEATS[name]
    level = 3 if script is tries_every_word_with_the_letters else "all"
    check_guard(ToolUseGameEnv, removed, script, ToolUseGameExpert, generate_tasks("test", level=level, count=12))


def test_two_letters_have_more_words_at_level_3_than_may_be_looked_up():
    words = Counter(word[0] for word in {*LEVEL_3_WORDS})
    most = max(len(task.metadata["facts"]) for task in generate_tasks("test", level=3)) + SPARE_LOOKUPS
    assert 2 * min(words.values()) > most
    assert all(word.islower() and word.isalpha() and len(word) <= 8 for word in LEVEL_3_WORDS)


def test_the_first_thousand_tasks_never_change():
    tasks = [task.to_json() for task in generate_tasks("train", level="all", count=1000)]
    assert tasks[0] == {
        "id": "aff5d9147f31de0b",
        "prompt": "What is cloud plus river?",
        "target": 38,
        "metadata": {
            "level": 1,
            "facts": {"cloud": 29, "drum": 54, "river": 9, "sage": 49},
            "expression": "cloud+river",
        },
    }
    digest = hashlib.sha256(json.dumps(tasks).encode()).hexdigest()
    assert digest == "30df2814c0277d4057f14e62384834591ae9b1a2c074328fe3aadec8973c5012"


def test_splits_share_no_table():
    tables = {
        split: {
            json.dumps(task.metadata["facts"], sort_keys=True)
            for seed in (0, 1)
            for task in generate_tasks(split, level="all", count=1200, seed=seed)
        }
        for split in ("train", "val", "test")
    }
    assert all(len(found) == 2400 for found in tables.values())
    assert not tables["train"] & tables["val"]
    assert not tables["train"] & tables["test"]
    assert not tables["val"] & tables["test"]


def test_there_are_ten_thousand_different_tasks():
    assert len({json.dumps([task.prompt, task.metadata["facts"]]) for task in generate_tasks(count=10_000)}) == 10_000


def test_options_of_the_tasks():
    assert [len(generate_tasks(split)) for split in ("train", "val", "test")] == [2000, 200, 200]
    assert generate_tasks("val", level="2", count="5", seed="3") == generate_tasks("val", level=2, count=5, seed=3)
    assert generate_tasks(count=10) == generate_tasks(count=20)[:10]
    assert generate_tasks(count=10, seed=1) != generate_tasks(count=10)
    mixed = generate_tasks(level="all", count=6)
    assert [task.metadata["level"] for task in mixed] == [1, 2, 3, 1, 2, 3]
    assert mixed[1::3] == generate_tasks(level=2, count=2)
    assert llmgym.tasks("ToolUseGame-v0", "test", level=3, count=2) == generate_tasks("test", level=3, count=2)
    assert len(TOOL_USE_GAME_TASKS) == 64
    assert list(TOOL_USE_GAME_TASKS) == generate_tasks(count=64)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"split": "tests"}, "unknown split 'tests'; allowed are train, val, test. Did you mean 'test'?"),
        ({"level": 4}, "unknown level 4; allowed are 1, 2, 3 and 'all'"),
        ({"level": "one"}, "unknown level 'one'"),
        ({"count": 0}, "count must be from 1 to 1,000,000, got 0"),
        ({"count": "many"}, "count must be a whole number, such as 7 or '7', got 'many'"),
        ({"seed": "x"}, "seed must be a whole number, such as 7 or '7', got 'x'"),
    ],
)
def test_a_bad_option_is_named(options, said):
    with pytest.raises(TaskError, match="^" + said.replace("?", r"\?")):
        generate_tasks(**options)


def test_level_1_questions_name_the_keys_as_the_table_does():
    for task in generate_tasks("test", level=1):
        first, word, second = task.prompt.removeprefix("What is ").removesuffix("?").split(" ")
        facts = task.metadata["facts"]
        assert first != second and len(facts) == 4
        assert task.target == (facts[first] + facts[second] if word == "plus" else facts[first] - facts[second])
        assert task.target >= 0
        assert all(1 <= number <= 99 for number in facts.values())


def test_level_3_questions_mean_every_key_with_the_letter():
    for task in generate_tasks("test", level=3):
        words = task.prompt.removeprefix("What is the sum of all keys that begin with ").removesuffix("?").split(" ")
        sums = [sum(number for key, number in task.metadata["facts"].items() if key[0] == words[at]) for at in (0, -1)]
        expected = {"plus": sums[0] + sums[1], "minus": sums[0] - sums[1], "times": sums[0] * sums[1]}
        assert task.target == expected[words[1]]
