"""Evaluations: what runs, what is kept, how they end, and how they go on. Endpoints are servers of the tests."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import gymnasium
import pytest
from adding_env import ENV_ID, AddingEnv
from servers import DROP, FaultServer, call, completion, error

import llmgym
from llmgym import Policy, ScriptedPolicy, StopReason, Task, load_report, read_episodes, run_and_report
from llmgym.errors import ConfigError, EndpointLostError, TaskError, UnknownEnvironmentError
from llmgym.evaluation.config import EvalConfig
from llmgym.evaluation.runner import EvaluationRun
from llmgym.policies.hosted import HostedSource, Retries

TASKS = [Task(f"What is {number} + 1?", str(number + 1), id=f"sum-{number}") for number in range(3)]
QUICK = Retries(attempts=2, first_wait_s=0.001, total_s=5.0)


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)


class AnswerTwo(Policy):
    """Right in the second of three tasks."""

    async def act(self, messages, tool_specs):
        return "2"


class Alternating(Policy):
    """Reads the system message, in which the environment shows its draw: right when that is even."""

    async def start(self, task):
        self.task = task

    async def act(self, messages, tool_specs):
        draw = int(messages[0]["content"].removeprefix("draw "))
        return self.task.target if draw % 2 == 0 else "no"


def keys(folder):
    """How often each episode stands in the record."""
    return Counter((found.task.id, found.episode_index) for found in read_episodes(Path(folder) / "episodes.jsonl"))


def evaluate(policy=AnswerTwo, env=AddingEnv, **settings):
    return run_and_report(env, **{"tasks": TASKS, "policy": policy, "episodes_per_task": 2, "out": "run", **settings})


# -- what runs ----------------------------------------------------------------


def test_a_policy_in_a_class_of_environments():
    report = evaluate()
    assert [(row.id, row.rewards) for row in report.tasks] == [
        ("sum-0", [0.0, 0.0]),
        ("sum-1", [1.0, 1.0]),
        ("sum-2", [0.0, 0.0]),
    ]
    assert (report.reward.mean, report.env_id, report.policy) == (1 / 3, "adding_env:AddingEnv", "AnswerTwo")
    assert report.stopped is None
    assert keys("run") == Counter({(task.id, index): 1 for task in TASKS for index in range(2)})
    files = [".lock", "episodes.jsonl", "report.json", "report.md", "settings.json"]
    assert sorted(os.listdir("run")) == files
    assert load_report("run") == report
    assert Path("run/report.md").read_text() == report.to_markdown()


def test_the_expert_of_a_registered_environment():
    report = run_and_report("ToolUseGame-v0", policy="expert", limit=5, episodes_per_task=1, out="run")
    assert (report.episodes, report.success.mean) == (5, 1.0)
    assert [row.id for row in report.tasks] == [task.id for task in llmgym.tasks("ToolUseGame-v0", "val")[:5]]


def test_split_and_task_options_choose_the_tasks():
    report = evaluate(env=ENV_ID, tasks=None, split="test", task_options={"level": 3}, limit=2)
    assert [row.prompt for row in report.tasks] == ["What is 600 + 1?", "What is 603 + 1?"]


def test_an_environment_from_a_file(tmp_path):
    (tmp_path / "my_env.py").write_text(
        "import llmgym\nclass MyEnv(llmgym.ToolEnv):\n    async def score(self, message): return 0.5\n"
    )
    assert evaluate(env="my_env.py:MyEnv").reward.mean == 0.5


class GymGreeting(gymnasium.Env):
    """A Gymnasium environment over messages that knows nothing of llmgym."""

    def reset(self, *, seed=None, options=None):
        self.history = [{"role": "user", "content": options["task"].prompt}]
        return self.history, {}

    def step(self, action):
        return [*self.history, *action], float(action[0]["content"] == "2"), True, False, {}


def test_a_gymnasium_environment_over_messages():
    assert evaluate(env=GymGreeting).success.mean == 1.0


def test_a_function_that_makes_the_environment():
    made = []

    def make(task):
        made.append(task.id)
        return AddingEnv()

    evaluate(env=make)
    assert sorted(made) == sorted([task.id for task in TASKS] * 2)


def test_each_episode_has_its_own_chance_and_a_run_repeats():
    first = evaluate(Alternating, episodes_per_task=8, out="one", concurrency=8)
    second = evaluate(Alternating, episodes_per_task=8, out="two", concurrency=1)
    other = evaluate(Alternating, episodes_per_task=8, out="three", seed=43)
    assert [row.rewards for row in first.tasks] == [row.rewards for row in second.tasks]
    assert [row.rewards for row in first.tasks] != [row.rewards for row in other.tasks]
    assert 0 < first.reward.mean < 1


def test_no_more_episodes_at_once_than_asked():
    alive, most = 0, 0

    class Counting(Policy):
        async def act(self, messages, tool_specs):
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            await asyncio.sleep(0.001)
            alive -= 1
            return "2"

    evaluate(Counting, episodes_per_task=10, concurrency=3)
    assert most == 3


def test_limits_end_episodes_as_in_training():
    endless = {"role": "assistant", "tool_calls": [call("add", '{"a": 1, "b": 1}')]}
    report = evaluate(lambda: ScriptedPolicy([endless] * 9), max_turns=3)
    assert report.stop_reasons == {StopReason.MAX_TURNS: 6}
    assert report.turns == 3
    report = evaluate(lambda: ScriptedPolicy(["<tool_call>"]), out="run2")
    assert (report.stop_reasons, report.reward.mean) == ({StopReason.PARSE_FAILURE: 6}, pytest.approx(-0.1))


def test_a_failing_environment_is_counted_and_the_run_goes_on():
    report = evaluate(lambda: ScriptedPolicy(["break"]))
    assert (report.failed, report.reward.mean, report.reward_failed_as_0.mean) == (6, None, 0.0)
    assert "the disk is on fire" in report.failures[0].detail

    def make(task):
        if task.id == "sum-0":
            raise OSError("no room")
        return AddingEnv()

    report = evaluate(env=make, out="run2")
    assert (report.failed, report.reward.mean, report.reward_failed_as_0.mean) == (2, 0.5, pytest.approx(1 / 3))
    assert "env_factory raised OSError: no room" in report.failures[0].detail


class Broken(AddingEnv):
    """Fails at some tasks."""

    bad: frozenset[str] = frozenset()

    async def setup(self):
        if self.task.id in self.bad:
            raise OSError("no room")
        await super().setup()


def test_tools_that_no_record_can_hold_fail_their_episode_alone():
    class Odd(AddingEnv):
        @property
        def tool_specs(self):
            return [{"type": "function", "function": {"name": "odd", "parameters": {"enum": {1, 2}}}}]

    report = evaluate(env=lambda task: Odd() if task.id == "sum-0" else AddingEnv())
    assert (report.episodes, report.failed, report.stopped) == (6, 2, None)
    assert "after reset: TypeError: Object of type set is not JSON serializable" in report.failures[0].detail


def test_an_environment_that_only_fails_ends_the_run_early():
    many = [Task(f"What is {number} + 1?", str(number + 1), id=f"sum-{number}") for number in range(50)]

    class Dead(Broken):
        bad = frozenset(task.id for task in many)

    report = evaluate(env=Dead, tasks=many, episodes_per_task=4, concurrency=1)
    assert (report.episodes, report.failed) == (10, 10)  # ten in a row, of tasks 0 to 2
    assert report.stopped == (
        "the last 10 episodes, of 3 tasks, all failed, and the last one because: reset raised OSError: no room. Fix "
        "that and start again in another folder; --resume runs the rest only"
    )
    assert report.warnings[0].startswith("Not complete, 10 of 200 episodes: the last 10 episodes")
    assert len(keys("run")) == 10

    Dead.bad = frozenset()
    report = evaluate(env=Dead, tasks=many, episodes_per_task=4, resume=True)
    assert (report.episodes, report.failed, report.stopped) == (200, 10, None)


def test_one_bad_task_ends_no_run():
    class OneBad(Broken):
        bad = frozenset({"sum-0"})

    report = evaluate(env=OneBad, episodes_per_task=20, concurrency=1)
    assert (report.episodes, report.failed, report.stopped) == (60, 20, None)


def test_with_few_tasks_all_of_them_must_fail():
    class Dead(Broken):
        bad = frozenset({"sum-0", "sum-1"})

    report = evaluate(env=Dead, tasks=TASKS[:2], episodes_per_task=10, concurrency=1)
    assert (report.episodes, report.failed) == (11, 11)  # the eleventh is the first of the second task


def test_a_run_that_fails_to_its_very_end_is_complete():
    class Dead(Broken):
        bad = frozenset(task.id for task in TASKS)

    report = evaluate(env=Dead, episodes_per_task=4, concurrency=12)
    assert (report.episodes, report.failed, report.stopped) == (12, 12, None)


def test_it_works_where_an_event_loop_runs():
    async def notebook():
        return evaluate()

    assert asyncio.run(notebook()).episodes == 6


def test_without_a_folder_one_is_made():
    report = evaluate(out=None)
    assert Path(report.folder).parent == Path("runs")
    assert Path(report.folder, "report.json").is_file()


# -- endpoints ----------------------------------------------------------------


def test_a_model_behind_an_endpoint():
    with FaultServer(lambda body: completion("2", usage=(50, 5))) as server:
        report = evaluate(
            policy=None, model="m", base_url=server.url, temperature=0.5, price_in=2.0, price_out=10.0, max_turns=4
        )
    assert (report.policy, report.reward.mean) == ("m", 1 / 3)
    assert (report.prompt_tokens, report.completion_tokens) == (300, 30)
    assert report.cost == pytest.approx((300 * 2 + 30 * 10) / 1e6)
    assert {body["temperature"] for body in server.bodies} == {0.5}
    assert len({body["seed"] for body in server.bodies}) == 6
    assert report.settings["policy"] == {"policy": "hosted", "model": "m", "base_url": server.url, "temperature": 0.5}
    assert report.settings["limits"]["max_turns"] == 4


class Dying:
    """Answers so many requests, then refuses the key, until it is told otherwise."""

    def __init__(self, answers, refusal=None):
        self.left, self.refusal = answers, refusal or error(401, "no such key")

    def __call__(self, body):
        self.left -= 1
        return completion("2") if self.left >= 0 else self.refusal


@pytest.mark.parametrize("refusal", [error(401, "no such key"), error(503, "down"), DROP])
def test_a_lost_endpoint_ends_the_run_and_resume_goes_on(refusal):
    dying = Dying(4, refusal)
    with FaultServer(dying) as server:

        def part(**settings):
            return evaluate(HostedSource("m", server.url, retries=QUICK), concurrency=1, **settings)

        report = part()
        assert report.stopped.startswith("the endpoint was lost: ")
        assert report.warnings[0].startswith("Not complete, 4 of 6 episodes: the endpoint was lost")
        assert (report.episodes, report.failed) == (4, 0)  # the episode that the loss cut short counts for nothing
        assert load_report("run") == report

        dying.left = 10**6
        before = len(server.bodies)
        report = part(resume=True)
        assert (report.stopped, report.episodes, report.failed) == (None, 6, 0)
        assert len(server.bodies) - before == 2
        assert set(keys("run").values()) == {1}
        assert len(keys("run")) == 6

        assert part(resume=True).episodes == 6  # nothing is left to do
        assert len(server.bodies) - before == 2


def test_episodes_under_way_when_the_endpoint_is_lost_are_kept_only_if_they_end():
    with FaultServer(Dying(5)) as server:
        report = evaluate(HostedSource("m", server.url, retries=QUICK), concurrency=6)
    assert (report.episodes, report.failed) == (5, 0)


def test_an_endpoint_that_never_answers_leaves_nothing_behind_that_is_in_the_way():
    with FaultServer(error(401, "no such key")) as server, pytest.raises(EndpointLostError, match="no such key"):
        evaluate(policy=None, model="m", base_url=server.url)
    assert keys("run") == {}
    assert not Path("run/report.json").exists()
    assert evaluate().episodes == 6  # without resume, and with another policy


def test_no_episode_begins_that_may_cost_too_much():
    # 7 + 3 tokens at a price of 1 each: 10 an episode. The first runs alone. Then 10 is spent and two more may begin,
    # as 30 is not above 35; a fourth would make it 40.
    alive, most, answered = 0, [], 0

    def answer(body):
        nonlocal alive, answered
        alive += 1
        most.append(alive)
        time.sleep(0.02)
        alive -= 1
        answered += 1
        return completion("2", usage=(7, 3))

    with FaultServer(answer) as server:
        source = {"policy": None, "model": "m", "base_url": server.url}
        prices = {"price_in": 1e6, "price_out": 1e6}
        report = evaluate(**source, **prices, max_cost=35, concurrency=4)
        assert (report.episodes, report.cost) == (3, 30.0)
        assert max(most) <= 2
        assert report.stopped == "30.0000 is spent, and one more episode may exceed max_cost=35"
        report = evaluate(**source, **prices, max_cost=50, resume=True)  # what was spent before counts
        assert (report.episodes, report.cost) == (5, 50.0)
        report = evaluate(**source, resume=True)
        assert (report.episodes, report.cost, report.stopped) == (6, None, None)
        assert answered == 6


def test_until_an_episode_has_cost_something_one_runs_at_a_time():
    started, most = 0, 0

    class Free(AddingEnv):
        async def setup(self):
            nonlocal started, most
            started += 1
            most = max(most, started)
            await asyncio.sleep(0.001)
            started -= 1
            raise OSError("no")

    settings = {"price_in": 1.0, "price_out": 1.0, "max_cost": 5.0}
    assert evaluate(env=Free, **settings).failed == 6
    assert most == 1


class SpendThenFail:
    """Answers each first request with a tool call of 10 tokens, and each second one as told."""

    def __init__(self, second):
        self.second = second

    def __call__(self, body):
        if len(body["messages"]) == 2:
            return completion(tool_calls=[call("add", '{"a": 1, "b": 1}')], usage=(7, 3))
        return self.second


def test_failed_episodes_are_paid_for_and_those_cut_short_by_a_lost_endpoint_are_not():
    answer = SpendThenFail(error(400, "odd"))
    with FaultServer(answer) as server:

        def part(**settings):
            source = HostedSource("m", server.url, retries=QUICK)
            return evaluate(source, concurrency=1, price_in=1e6, price_out=1e6, **settings)

        # Each episode costs 10 and fails: 30 is spent after three, and a fourth would make it 40.
        report = part(max_cost=35)
        assert (report.episodes, report.failed, report.cost) == (3, 3, 30.0)
        assert report.stopped == "30.0000 is spent, and one more episode may exceed max_cost=35"

        answer.second = error(401, "no such key")  # the fourth spends 10 and has no record
        report = part(max_cost=45, resume=True)
        assert (report.episodes, report.cost) == (3, 30.0)
        assert load_report("run") == report

        answer.second = completion("2", usage=(7, 3))
        report = part(max_cost=100, resume=True)
        assert (report.episodes, report.cost) == (6, 10 * 3 + 3 * 20)


def test_an_expert_needs_no_limit_of_cost():
    with pytest.raises(ConfigError, match="max_cost is for a model; the expert costs nothing"):
        run_and_report("ToolUseGame-v0", policy="expert", price_in=1.0, price_out=1.0, max_cost=5.0, out="run")


def test_without_token_counts_no_cost_can_be_kept():
    with FaultServer(completion("2", usage=None)) as server:
        settings = {"price_in": 1.0, "price_out": 1.0, "max_cost": 5.0}
        report = evaluate(policy=None, model="m", base_url=server.url, **settings)
    assert report.episodes == 1
    assert report.stopped == "the endpoint reports no token counts, so that max_cost cannot be kept"


# -- interrupted, killed, resumed ---------------------------------------------


def test_an_interrupted_run_writes_its_report_and_closes_its_environments():
    class Hanging(AnswerTwo):
        async def start(self, task):
            if task.id == "sum-2":
                await asyncio.Event().wait()

    async def interrupted():
        config = EvalConfig(AddingEnv, tasks=TASKS, policy=Hanging, episodes_per_task=1, out="run")
        running = asyncio.create_task(EvaluationRun(config).run())
        while not Path("run/episodes.jsonl").is_file() or len(keys("run")) < 2:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    AddingEnv.closed.clear()
    asyncio.run(interrupted())
    assert sorted(AddingEnv.closed) == [task.prompt for task in TASKS]
    report = load_report("run")
    assert (report.episodes, report.stopped) == (2, "it was interrupted; --resume runs the rest")


SCRIPT = """
import sys
from llmgym import run_and_report, load_tasks
report = run_and_report("my_env.py:MyEnv", tasks=load_tasks("tasks.jsonl"), model="m", base_url=sys.argv[1],
                        episodes_per_task=4, concurrency=3, out="run", resume=sys.argv[2] == "resume")
print(report.episodes)
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_without_repeating_an_episode(tmp_path):
    (tmp_path / "my_env.py").write_text(
        "import llmgym\nclass MyEnv(llmgym.ToolEnv):\n    async def score(self, message): return 1.0\n"
    )
    llmgym.save_tasks([Task(f"task {number}") for number in range(5)], tmp_path / "tasks.jsonl")

    def answer(body):
        time.sleep(0.02)
        return completion("done")

    def command(mode, url):
        return [sys.executable, "-c", SCRIPT, url, mode]

    with FaultServer(answer) as server:
        process = subprocess.Popen(command("new", server.url))
        record = Path("run/episodes.jsonl")
        while not record.is_file() or record.read_bytes().count(b"\n") < 6:
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with record.open("ab") as file:  # as if the kill had come in the middle of a line
            file.write(record.read_bytes().splitlines()[0][:100])
        saved = len(read_episodes(record, skip_cut_line=True))
        asked = len(server.bodies)
        done = subprocess.run(command("resume", server.url), capture_output=True, text=True, check=True)
        assert done.stdout == "20\n"
        # The server may read what the dead process asked for last, three requests at most, after that.
        assert 0 <= len(server.bodies) - asked - (20 - saved) <= 3
    assert len(keys("run")) == 20
    assert set(keys("run").values()) == {1}


def test_a_line_that_stands_twice_counts_once():
    evaluate()
    record = Path("run/episodes.jsonl")
    record.write_bytes(record.read_bytes() + record.read_bytes().splitlines(keepends=True)[0])
    report = evaluate(resume=True)
    assert (report.episodes, report.reward.mean) == (6, 1 / 3)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"episodes_per_task": 3}, "episodes_per_task was 2 and is now 3"),
        ({"tasks": TASKS[:2]}, "tasks was 3 and is now 2"),
        ({"tasks": [*TASKS[:2], Task("else", id="sum-2")]}, "tasks_sha256 was"),
        ({"seed": 1}, "seed was 42 and is now 1"),
        ({"max_turns": 3}, "limits was"),
        ({"policy": Alternating}, "policy was"),
        ({"env": GymGreeting}, "env was"),
    ],
)
def test_resume_takes_the_same_settings_only(settings, named):
    evaluate()
    before = Path("run/episodes.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=named):
        evaluate(resume=True, **settings)
    assert Path("run/episodes.jsonl").read_bytes() == before


# -- two processes in one folder ----------------------------------------------


@pytest.mark.slow
def test_a_folder_in_use_is_refused_and_a_dead_process_does_not_block_it(tmp_path):
    (tmp_path / "my_env.py").write_text(
        "import llmgym\nclass MyEnv(llmgym.ToolEnv):\n    async def score(self, message): return 1.0\n"
    )
    tasks = [Task(f"task {number}") for number in range(3)]
    llmgym.save_tasks(tasks, tmp_path / "tasks.jsonl")
    release = threading.Event()

    def answer(body):
        if len(server.bodies) > 2:
            release.wait(60)
        return completion("done", usage=(7, 3))

    with FaultServer(answer) as server:
        first = subprocess.Popen([sys.executable, "-c", SCRIPT, server.url, "new"])
        try:
            while len(server.bodies) < 5:  # two have been answered, three wait
                assert first.poll() is None
                time.sleep(0.01)
            before = len(server.bodies)
            settings = {"tasks": tasks, "policy": None, "model": "m", "base_url": server.url, "episodes_per_task": 4}
            for resume in (True, False):
                with pytest.raises(ConfigError, match="an evaluation in 'run' is running; wait until it has ended"):
                    evaluate(env="my_env.py:MyEnv", resume=resume, **settings)
            assert len(server.bodies) == before
        finally:
            first.kill()
            first.wait()
        release.set()
        report = evaluate(env="my_env.py:MyEnv", resume=True, **settings)
    assert (report.episodes, set(keys("run").values())) == (12, {1})


def test_a_folder_that_another_has_filled_meanwhile_is_refused():
    late = EvaluationRun(EvalConfig(AddingEnv, tasks=TASKS, policy=AnswerTwo, out="run"))
    evaluate()
    before = Path("run/episodes.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="holds an evaluation already"):
        asyncio.run(late.run())
    assert Path("run/episodes.jsonl").read_bytes() == before


# -- refused before it costs anything -----------------------------------------


def test_a_folder_that_cannot_be_written_is_refused():
    Path("run/.lock").mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot write into 'run'"):
        evaluate()


def test_a_folder_that_cannot_be_made_is_refused():
    Path("file").write_text("x")
    with pytest.raises(ConfigError, match="cannot make the folder 'file/run'"):
        evaluate(out="file/run")


def test_another_run_is_not_written_into():
    evaluate()
    with pytest.raises(ConfigError, match="holds an evaluation already"):
        evaluate()
    Path("training").mkdir()
    Path("training/config.yaml").write_text("model: tiny")
    with pytest.raises(ConfigError, match=r"is not empty.*config\.yaml"):
        evaluate(out="training")
    with pytest.raises(ConfigError, match="holds no evaluation to resume"):
        evaluate(out="training", resume=True)
    with pytest.raises(ConfigError, match="is a file"):
        evaluate(out="training/config.yaml")
    with pytest.raises(ConfigError, match="resume needs the folder"):
        evaluate(out=None, resume=True)


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"env": "NoSuch-v0"}, UnknownEnvironmentError, "NoSuch-v0"),
        ({"env": AddingEnv()}, ConfigError, "fresh environment"),
        ({"env": dict}, ConfigError, "env must be an id"),
        ({"env": 7}, ConfigError, "env must be an id"),
        ({"tasks": []}, TaskError, "no tasks"),
        ({"tasks": [TASKS[0], TASKS[0]]}, TaskError, "listed twice"),
        ({"tasks": [TASKS[0], Task("else", id="sum-0")]}, TaskError, "sum-0"),
        ({"tasks": None}, TaskError, "no tasks of its own"),
        ({"tasks": None, "env": ENV_ID, "split": "holdout"}, TaskError, "holdout"),
        ({"task_options": {"level": 2}}, TaskError, "task options"),
        ({"policy": None}, ConfigError, "a policy .* or a model"),
        ({"model": "m"}, ConfigError, "not both"),
        ({"policy": "random"}, ConfigError, "'random'"),
        ({"policy": "expert"}, ConfigError, "'expert' needs a registered"),
        ({"policy": "expert", "env": ENV_ID}, UnknownEnvironmentError, "without a scripted expert"),
        ({"policy": 3}, ConfigError, "policy must be"),
        ({"base_url": "http://127.0.0.1/v1"}, ConfigError, "name the model"),
        ({"policy": None, "model": "m", "base_url": "nonsense"}, ConfigError, "nonsense"),
        ({"policy": None, "model": "m", "base_url": "https://api.example.com/v1"}, ConfigError, "OPENAI_API_KEY"),
        ({"chat_template": "hermes"}, ConfigError, "chat_template is for a local model"),
        ({"chat_template_kwargs": {}}, ConfigError, "chat_template_kwargs is for a local model"),
        ({"episodes_per_task": 0}, ConfigError, "episodes_per_task must be .* got 0"),
        ({"concurrency": 1.5}, ConfigError, "concurrency must be"),
        ({"limit": 0}, ConfigError, "limit must be"),
        ({"max_turns": 0}, ConfigError, "max_turns must be"),
        ({"timeout_s": -1}, ConfigError, "^timeout_s must be"),
        ({"temperature": float("nan")}, ConfigError, "temperature must be"),
        ({"seed": "x"}, ConfigError, "seed must be"),
        ({"success_reward": None}, ConfigError, "success_reward must be"),
        ({"price_in": 1.0}, ConfigError, "both prices"),
        ({"price_in": -1.0, "price_out": 1.0}, ConfigError, "price_in must be"),
        ({"max_cost": 1.0}, ConfigError, "max_cost needs the prices"),
        ({"max_cost": 0, "price_in": 1.0, "price_out": 1.0}, ConfigError, "above 0"),
    ],
)
def test_refused_before_anything_is_made(settings, kind, text):
    with pytest.raises(kind, match=text):
        evaluate(**settings)
    assert not Path("run").exists()


@pytest.mark.parametrize("content", ["{", "7"])
def test_unreadable_settings_are_refused_when_resuming(content):
    evaluate()
    Path("run/settings.json").write_text(content)
    with pytest.raises(ConfigError, match=r"settings\.json' cannot be read .*start again in another folder"):
        evaluate(resume=True)


def test_the_settings_are_readable():
    evaluate()
    settings = json.loads(Path("run/settings.json").read_text())
    assert settings["env"] == "adding_env:AddingEnv"
    assert (settings["tasks"], settings["episodes_per_task"], settings["seed"]) == (3, 2, 42)


def test_every_setting_is_an_argument_of_the_function():
    """Editors and ``help`` show the settings of EvalConfig, which is the only place that lists them."""
    parameters = inspect.signature(run_and_report).parameters
    assert list(parameters) == [field.name for field in dataclasses.fields(EvalConfig)]
    assert parameters["env"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert parameters["limit"].kind is inspect.Parameter.KEYWORD_ONLY
    with pytest.raises(TypeError, match="limt"):
        run_and_report(AddingEnv, limt=3)
