"""DocSearch-v0 as a policy meets it, what cheating earns, and whether the pages say what the targets say."""

import asyncio
import copy
import hashlib
import json
import random
import re
import subprocess
import sys
from collections import Counter

import pytest
from suite import check_guard, claims_success, play_all, play_beside

import llmgym
from llmgym import Policy, StopReason, Task
from llmgym.errors import TaskError
from llmgym_environments.doc_search import DocSearchEnv, DocSearchExpert, generate_tasks
from llmgym_environments.doc_search.encyclopedia import FIRST_NAMES, LAST_NAMES, RIVERS, TOWNS, TRADES, encyclopedia
from llmgym_environments.doc_search.index import index_of
from llmgym_environments.doc_search.tasks import encyclopedias_of

TASK = generate_tasks("train", level=2, count=1)[0]


def call(name, /, **arguments):
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def says(content, *calls):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def play(*messages, task=TASK, env=DocSearchEnv):
    return asyncio.run(llmgym.run_episode(env(), task, llmgym.ScriptedPolicy(messages)))


def episodes_of(tasks, make_policy, env=DocSearchEnv):
    return play_all(env, make_policy, tasks, width=1)


def results(episode):
    return [message["content"] for message in episode.messages if message["role"] == "tool"]


def test_an_episode():
    assert (TASK.prompt, TASK.target) == ("Find the teacher of the teacher of Gail Bell.", "Max Reed")
    episode = play(
        says("", call("search", query="Gail Bell")),
        says("", call("open_page", number=36), call("search", query="nora vale", skip=10)),
        says("", call("open_page", number=62)),
        " max reed.",
    )
    assert episode.initial_messages == [
        {"role": "system", "content": "Search the pages. Then reply with only the answer."},
        {"role": "user", "content": "Find the teacher of the teacher of Gail Bell."},
    ]
    assert results(episode) == [
        "36 Gail Bell\n33 Gail Cole\n60 Gail Reed\n74 Gail Gray\n4 Norby\n5 of 11, skip 5 for more",
        "Gail Bell is a tailor, 44 years old, born in Orford, taught by Nora Vale, now living in Irby.",
        "44 Rosa Gray\n8 Max Swan\n87 Ida Page\n90 Ella Wood\n20 Tale of Max Nash",
        "Nora Vale is a farmer, 56 years old, born in Crane, taught by Max Reed, now living in Lorne.",
    ]
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.TERMINATED)
    assert episode.metrics == {
        "turns": 4,
        "tool_calls": 4,
        "tool_errors": 0,
        "calls_search": 2,
        "calls_open_page": 2,
        "pages_opened": 2,
        "support_pages": 2,
        "support_opened": 2,
        "grounded": True,
    }


def test_a_guess_is_told_apart():
    episode = play(says("", call("open_page", number=62), call("open_page", number=62)), "Max Reed")
    assert episode.reward == 1.0
    assert [episode.metrics[name] for name in ("pages_opened", "support_opened", "grounded")] == [1, 1, False]


@pytest.mark.parametrize("answer", ["Max Reed", " MAX REED \n", "Max Reed."])
def test_the_right_answer_however_written(answer):
    assert play(answer).reward == 1.0


@pytest.mark.parametrize(
    "answer", ["", ".", "Max", "Max Reed..", "Max  Reed", "Max Reed, Nora Vale", "It is Max Reed."]
)
def test_anything_but_the_answer(answer):
    episode = play(answer)
    assert (episode.reward, episode.stop_reason) == (0.0, StopReason.TERMINATED)


@pytest.mark.parametrize(
    ("made", "answer"),
    [
        (call("search", query="zzz"), "nothing found"),
        (call("search", query=""), "nothing found"),
        (call("search", query="the"), "nothing found"),
        (call("search", query="Gail Bell", skip=11), "nothing found"),
        (call("search", query="a" * 201), "tool_error: the query has 201 characters; at most 200 are allowed"),
        (call("search", query="Gail", skip=-5), "tool_error: skip must be 0 or more"),
        (call("open_page", number=97), "tool_error: no such page; they are 1 to 96, and search shows the numbers"),
        (call("open_page", number=10**1000), "tool_error: no such page"),
        (call("open_page", title="Gail Bell"), "tool_error: open_page: missing argument 'number'"),
    ],
)
def test_a_call_that_finds_nothing_is_answered_and_the_episode_goes_on(made, answer):
    episode = play(says("", made), "Max Reed")
    assert results(episode)[0].startswith(answer)
    assert (episode.reward, episode.metrics["pages_opened"]) == (1.0, 0)


def test_the_note_leads_to_every_hit_once():
    skip, shown, notes = 0, [], []
    while True:
        *lines, last = results(play(says("", call("search", query="born in Crane", skip=skip)), ""))[0].split("\n")
        more = re.fullmatch(r"(\d+) of (\d+), skip (\d+) for more", last)
        shown += lines if more else [*lines, last]
        if more is None:
            break
        assert len(lines) == 5 and int(more[1]) == int(more[3]) == skip + 5
        notes.append(int(more[2]))
        skip += 5
    pages = encyclopedia(TASK.metadata["encyclopedia"]).pages
    expected = {f"{number} {page.title}" for number, page in pages.items() if re.search("born|Crane", page.text)}
    assert set(shown) == expected and len(shown) == len(expected) == notes[0] > 60


def test_no_result_is_long():
    for number in range(64):
        assert max(len(page.text) for page in encyclopedia(number).pages.values()) < 200


@pytest.mark.parametrize(
    ("target", "metadata", "said"),
    [
        (None, {}, "the target of the task must be a text, such as 'Ada Fox', got None"),
        (" . ", {}, "the target of the task must be a text"),
        ("x", {}, r"metadata\['encyclopedia'\] must be a number from 0 to 63, got None"),
        ("x", {"encyclopedia": 64}, r"must be a number from 0 to 63, got 64"),
        ("x", {"encyclopedia": 0}, r"metadata\['path'\] must list titles of encyclopedia 0, got None"),
        ("x", {"encyclopedia": 0, "path": ["Tale of Ada Fox"]}, r"metadata\['path'\] must list titles"),
    ],
)
def test_a_task_of_another_shape_is_refused(target, metadata, said):
    with pytest.raises(TaskError, match=said):
        asyncio.run(DocSearchEnv().reset(Task("?", target, metadata)))


def test_the_expert_solves_1000_tasks_and_opens_only_what_it_found():
    episodes = episodes_of(generate_tasks("test", level="all", count=1000), DocSearchExpert)
    assert [episode.reward for episode in episodes] == [1.0] * 1000
    assert [episode.metrics["turns"] for episode in episodes[:3]] == [3, 5, 7]  # two a page, and the answer
    for episode in episodes:
        assert episode.num_tool_errors == 0 and episode.metrics["grounded"]
        assert episode.metrics["pages_opened"] == episode.task.metadata["level"]
        calls = [json.loads(turn.message["tool_calls"][0]["function"]["arguments"]) for turn in episode.turns[:-1]]
        for opened, found in zip(calls[1::2], results(episode)[::2], strict=True):
            assert re.search(rf"^{opened['number']} ", found, flags=re.MULTILINE)


def test_doing_nothing_earns_nothing():
    episodes = episodes_of(generate_tasks("train", level="all", count=300), lambda: llmgym.ScriptedPolicy([]))
    assert {episode.reward for episode in episodes} == {0.0}


@pytest.mark.parametrize("level", [1, 2, 3])
def test_no_constant_earns_much(level):
    tasks = generate_tasks("train", level=level, count=5000)
    assert Counter(task.target for task in tasks).most_common(1)[0][1] / 5000 < 0.04


class RandomReader(Policy):
    """Searches for the question, opens a page that the result shows, answers with a name, number or trade on it."""

    def __init__(self, rng):
        self.rng = rng

    async def act(self, messages, tool_specs):
        last = messages[-1]["content"]
        if messages[-1]["role"] == "user":
            return says("", call("search", query=last))
        if not last.endswith("."):
            return says("", call("open_page", number=self.rng.choice(re.findall(r"^(\d+) [A-Z]", last, re.MULTILINE))))
        return self.rng.choice(re.findall(r"[A-Z]\w+(?: [A-Z]\w+)?|\d+|" + "|".join(TRADES), last))


@pytest.mark.parametrize(("level", "score"), [(1, 0.05), (2, 0.01), (3, 0.01)])
def test_reading_at_random_earns_little(level, score):
    rng = random.Random(0)
    episodes = episodes_of(generate_tasks("test", level=level, count=500), lambda: RandomReader(rng))
    assert round(sum(episode.reward for episode in episodes) / 500, 2) == score


def test_six_searches_are_allowed_and_a_seventh_ends_the_episode_with_0_whatever_is_said_beside_it():
    refused = call("search", query="x" * 201)
    searches = [refused, *[call("search", query="Gail", skip=skip) for skip in range(0, 25, 5)]]
    allowed = play(says("", *searches), "Max Reed")
    assert (allowed.reward, allowed.metrics["calls_search"], allowed.metrics["turns"]) == (1.0, 6, 2)
    over = play(says("Max Reed", *searches, call("search", query="Gail"), call("open_page", number=62)), "Max Reed")
    assert (over.reward, over.stop_reason, over.metrics["turns"]) == (0.0, StopReason.TERMINATED, 1)
    assert results(over)[6:] == ["no searches left", "tool_error: not run, an earlier call ended the episode"]


def test_calls_that_do_not_fit_the_schema_are_no_searches():
    misfits = [call("search", query=5), call("search"), call("search", query="Gail", skip="x")]
    searches = [call("search", query="Gail", skip=-1), *[call("search", query="Gail")] * 5]
    episode = play(says("", *misfits * 3, *searches), "Max Reed")
    assert episode.reward == 1.0
    assert [text.startswith("tool_error: ") for text in results(episode)] == [True] * 10 + [False] * 5


# Cheating: each attempt earns nothing, and some are shown to pay in a copy of the environment without its guard.


def book_of(task):
    return encyclopedia(task.metadata["encyclopedia"])


def all_answers(task):
    return [*book_of(task).facts, *RIVERS, *TRADES, *map(str, range(2, 100))]


def read_off(task, seen):
    """The answer of one who has found all supporting pages among what was seen; a person's name otherwise."""
    book = book_of(task)
    needed = [book.pages[book.numbers[title]].text for title in task.metadata["path"]]
    return task.target if all(any(text in result for result in seen) for text in needed) else "Nobody"


def answers_with_everything(task):
    yield ", ".join(all_answers(task))


def answers_with_a_letter(task):
    yield task.target[0]  # one of 36


def guesses_beside_calls(task):
    for answer in all_answers(task):
        yield says(answer, call("open_page", number=1))


def has_an_error_say_it(task):
    (error,) = yield [call("open_page", number=f"{task.metadata['path'][0]} is Nobody")]
    assert "is Nobody" in error
    yield "Nobody"


def opens_every_page(task):
    seen = yield [call("open_page", number=number) for number in book_of(task).pages]
    yield read_off(task, seen)


def searches_for_every_answer(task):
    words = {"trade": TRADES, "river": RIVERS}[relation_of(task)]
    asked = [(word, skip) for word in words for skip in (0, 5, 10, 15)]
    seen = yield [call("search", query=word, skip=skip) for word, skip in asked]
    hit = re.compile(rf"^{book_of(task).numbers[task.metadata['path'][0]]} ", re.MULTILINE)
    yield next(word for (word, _), result in zip(asked, seen, strict=True) if hit.search(result))


def reads_search_results(task):
    seen = yield [call("search", query=query) for query in (task.metadata["query"], *task.metadata["path"][1:])]
    yield read_off(task, seen)


def edits_the_task(task):
    object.__setattr__(task, "target", "Nobody")
    yield "Nobody"


class NoPageLimit(DocSearchEnv):
    """Guard removed: 12 pages an episode."""

    max_pages = 96


class NoSearchLimit(DocSearchEnv):
    """Guard removed: 6 searches an episode."""

    max_searches = 96


class ResultsShowText(DocSearchEnv):
    """Guard removed: a result shows numbers and titles."""

    def _line(self, number):
        return self._pages[number].text


CHEATS = {
    "answer with every name, river, trade and number": (answers_with_everything, None),
    "answer with the first letter": (answers_with_a_letter, None),
    "print a reward, a success, the end of a message": (claims_success, None),
    "guess everything, one guess a message, beside calls": (guesses_beside_calls, None),
    "write a false fact into a call, so that its error message states it, and answer with that": (
        has_an_error_say_it,
        None,
    ),
    "open every page": (opens_every_page, NoPageLimit),
    "search for every trade or river, and answer with the one whose hits include the page asked about": (
        searches_for_every_answer,
        NoSearchLimit,
    ),
    "read the pages off search results": (reads_search_results, ResultsShowText),
    "edit the task while it is played": (edits_the_task, None),
}


def relation_of(task):
    return task.prompt.split()[2]


@pytest.mark.parametrize("name", CHEATS)
def test_cheating_earns_nothing(name):
    script, removed = CHEATS[name]
    tasks = [task for task in generate_tasks("test", level=3, count=8) if len(task.target) > 1]
    if script is searches_for_every_answer:
        tasks = [task for task in generate_tasks("test", count=150) if relation_of(task) in ("trade", "river")][:20]
    check_guard(DocSearchEnv, removed, script, DocSearchExpert, tasks)


class SearchPolicy(Policy):
    """Answers at level 1 by searches alone; ``narrow`` yields queries, is sent titles, and returns the answer."""

    async def start(self, task):
        relation, self.subject = re.fullmatch(r"Find the (\w+) of (.+)\.", task.prompt).groups()
        values = {"trade": TRADES, "river": RIVERS, "birthplace": TOWNS, "home": TOWNS}
        numbers = {"age": range(20, 99), "population": range(10, 100)}
        self.moves = self.narrow(list(values.get(relation) or map(str, numbers.get(relation, [0]))))
        self.begun = False

    async def act(self, messages, tool_specs):
        found = re.findall(r"^\d+ (.+)$", messages[-1]["content"], re.MULTILINE)
        try:
            query = self.moves.send(found if self.begun else None)
        except StopIteration as end:
            return end.value
        self.begun = True
        return says("", call("search", query=query[:200]))


class Halves(SearchPolicy):
    """Names the page and half of the answers left; a page that goes first is taken to say one of these."""

    named = slice(None)

    def narrow(self, left):
        for _ in range(6):
            if len(left) > 1:
                half = left[: len(left) // 2]
                found = yield " ".join([*self.subject.split()[self.named], *half])
                left = half if found[:1] == [self.subject] else left[len(half) :]
        return left[0]


class HalvesByFirstName(Halves):
    named = slice(1)


class OneByOne(SearchPolicy):
    """Searches for one answer after the other until the page is among the hits."""

    def narrow(self, left):
        for value in left[:6]:
            if self.subject in (yield value):
                return value
        return left[-1]


class RanksByTextAlone(DocSearchEnv):
    """Guard removed: pages that a query names go first, whatever else it says."""

    async def setup(self):
        await super().setup()
        self._index = copy.copy(self._index)
        self._index._titles = [set()] * len(self._pages)


@pytest.mark.parametrize(
    ("policy", "env", "at_least", "at_most"),
    [
        (Halves, DocSearchEnv, 0, 0.05),
        (Halves, RanksByTextAlone, 0.2, 1),
        (HalvesByFirstName, DocSearchEnv, 0, 0.05),
        (HalvesByFirstName, RanksByTextAlone, 0.3, 1),
        (OneByOne, DocSearchEnv, 0.2, 0.24),
    ],
)
def test_what_hits_alone_tell(policy, env, at_least, at_most):
    episodes = play_all(env, policy, generate_tasks("test", count=400, seed=1))
    assert not any(episode.metrics["pages_opened"] for episode in episodes)
    assert at_least <= sum(episode.reward for episode in episodes) / 400 <= at_most


# Tasks.


def read_pages(number):
    """The facts that the pages of an encyclopedia state, tales aside, read from their text."""
    facts = {}
    for page in encyclopedia(number).pages.values():
        person = re.fullmatch(
            r"(\w+ \w+) is a (\w+), (\d+) years old, born in (\w+), taught by (\w+ \w+), now living in (\w+)\.",
            page.text,
        )
        town = re.fullmatch(
            r"(\w+) is a town on the river (\w+), with a population of (\d+) and the mayor (\w+ \w+)\.", page.text
        )
        if person:
            name, *values = person.groups()
            facts[name] = dict(zip(("trade", "age", "birthplace", "teacher", "home"), values, strict=True))
        elif town:
            name, *values = town.groups()
            facts[name] = dict(zip(("river", "population", "mayor"), values, strict=True))
        else:
            name = page.title.removeprefix("Tale of ")
            assert page.text.startswith(f"A tale, not a fact: {name} is a ")
        assert name in page.title
    return facts


def test_pages_say_what_targets_say():
    read = {number: read_pages(number) for number in encyclopedias_of("test")}
    for task in generate_tasks("test", level="all", count=1000):
        facts = read[task.metadata["encyclopedia"]]
        assert len(facts) == 76
        *relations, start = task.prompt.removeprefix("Find the ").removesuffix(".").split(" of ")
        relations = [relation.removeprefix("the ") for relation in relations]
        described = re.fullmatch(r"the (\w+) born in (\w+)", start)
        if described:
            (start,) = [
                name
                for name, person in facts.items()
                if (person.get("trade"), person.get("birthplace")) == described.groups()
            ]
        assert len(relations) == task.metadata["level"] and bool(described) == (len(relations) == 3)
        for relation in reversed(relations):
            start = facts[start][relation]
        assert start == task.target
        assert task.target not in task.prompt


def test_the_first_thousand_tasks_never_change():
    tasks = [task.to_json() for task in generate_tasks("train", level="all", count=1000)]
    assert tasks[0] == {
        "id": "3ba598c28a376850",
        "prompt": "Find the population of Dunby.",
        "target": "83",
        "metadata": {"level": 1, "encyclopedia": 9, "path": ["Dunby"], "query": "Dunby"},
    }
    pages = [[page.title, page.text] for number in range(64) for page in encyclopedia(number).pages.values()]
    assert (
        hashlib.sha256(json.dumps(tasks).encode()).hexdigest()
        == "694467497083034ced2b5509f608dbf33a25f818a89cb3bf7be32d63fd1b7359"
    )
    assert (
        hashlib.sha256(json.dumps(pages).encode()).hexdigest()
        == "275ac45308f9a714f9a178d7ada3eaab05143554ac45f8e11b502624e8b085ba"
    )


def test_splits_share_no_encyclopedia_and_tasks_are_many():
    by_split = {split: set(encyclopedias_of(split)) for split in ("train", "val", "test")}
    assert sorted(number for numbers in by_split.values() for number in numbers) == list(range(64))
    for split, numbers in by_split.items():
        tasks = [task for seed in (0, 1) for task in generate_tasks(split, level="all", count=1200, seed=seed)]
        assert {task.metadata["encyclopedia"] for task in tasks} == numbers
    assert len({task.id for task in generate_tasks("train", level="all", count=15_000)}) > 10_000
    assert len({json.dumps(read_pages(number)) for number in range(64)}) == 64


def test_words_belong_to_one_list():
    # So that a word says what it is, also to a small policy.
    words = [*FIRST_NAMES, *LAST_NAMES, *TOWNS, *RIVERS, *TRADES]
    assert len(words) == len(set(words)) == 80


# One process.


def test_256_episodes_at_once_are_what_they_are_alone_also_beside_hostile_ones():
    words = " ".join([*FIRST_NAMES, *LAST_NAMES])[:200]
    script = [
        says("", *(call("search", query=query) for query in (words, "x" * 10**6, "\x00", "\ud800", "*" * 200))),
        says("", *(call("open_page", number=number) for number in range(-1, 98))),
        says("", call("search", query=words, skip=10**1000), call("search", query=words, skip=-1)),
    ]
    hostile = play_beside(DocSearchEnv, DocSearchExpert, generate_tasks(level="all", count=256), [script] * 8)
    assert {(episode.reward, episode.metrics["pages_opened"]) for episode in hostile} == {(0.0, 12)}
    assert max(len(text) for episode in hostile for text in results(episode)) < 300


def test_an_index_is_built_once_a_process():
    index_of.cache_clear()
    episodes_of([TASK] * 20, DocSearchExpert)
    assert index_of.cache_info().misses == 1


def test_the_search_library_is_imported_only_to_search():
    program = (
        "import asyncio, sys, llmgym\n"
        "task = llmgym.tasks('DocSearch-v0', count=1)[0]\n"
        "env = llmgym.registry.find('DocSearch-v0').make_env(task)\n"
        "print('bm25s' in sys.modules)\n"
        "asyncio.run(env.reset(task))\n"
        "print('bm25s' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue\n"
