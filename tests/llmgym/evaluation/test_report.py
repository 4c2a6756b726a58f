"""The report of an evaluation against figures worked out by hand, and how it is written and shown."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from adding_env import AddingEnv, call
from rich.console import Console

import llmgym
from llmgym import Episode, ScriptedPolicy, StopReason, Task, Turn
from llmgym.episode import Usage
from llmgym.errors import ConfigError
from llmgym.evaluation.comparison import compare_reports
from llmgym.evaluation.report import Failure, PassRow, ToolCount, load_report
from llmgym.evaluation.summary import build_report, summarize


def episode(task="a", index=0, reward=0.0, stop=StopReason.TERMINATED, detail="", turns=2, **fields):
    """An episode whose turns cost 100 prompt tokens and 10 completion tokens, 0.5 s in the policy, 0.25 s outside."""
    made = [Turn({"role": "assistant", "content": "x"}, policy_s=0.5, env_s=0.25, usage=Usage(100, 10))] * turns
    return Episode(
        Task("?", id=task), stop, reward, made, episode_index=index, stop_detail=detail, reset_s=0.125, **fields
    )


def report(*episodes, tasks="ab", planned=4, **arguments):
    fields = {"env_id": "Env-v0", "policy": "model", "settings": {"episodes_per_task": 2}, **arguments}
    prompts = {id: f"prompt of {id}" for id in tasks}
    return build_report([summarize(given) for given in episodes], prompts, planned=planned, **fields)


@pytest.fixture
def mixed():
    """Task a: 1, 0; task b: 1, failed; task c: -0.1 by a parse failure, 0 by max_turns."""
    return report(
        episode("a", 0, 1.0),
        episode("a", 1, 0.0, turns=4),
        episode("b", 1, stop=StopReason.ERROR, detail="reset raised OSError: no\n disk", turns=0),
        episode("b", 0, 1.0, turns=1),
        episode("c", 0, -0.1, StopReason.PARSE_FAILURE, "not JSON", turns=1),
        episode("c", 1, 0.0, StopReason.MAX_TURNS),
        tasks="abc",
        planned=6,
        prices=(10.0, 100.0),
    )


def test_the_two_means(mixed):
    assert mixed.reward.mean == pytest.approx(1.9 / 5)
    assert mixed.reward_failed_as_0.mean == pytest.approx(1.9 / 6)
    assert (mixed.planned, mixed.episodes, mixed.failed) == (6, 6, 1)
    # Sums of deviations from 1.9/6 = 0.316667: 1 - 0.633333 = 0.366667 twice, -0.1 - 0.633333 = -0.733333. Squares
    # 0.134444 + 0.134444 + 0.537778 = 0.806667, times 3/2 = 1.21; root 1.1, / 6 = 0.183333, times 4.302653.
    assert mixed.reward_failed_as_0.high == pytest.approx(1.9 / 6 + 4.302653 * 1.1 / 6, abs=1e-6)


def test_success_is_a_share_and_its_interval_stays_one(mixed):
    assert mixed.success.mean == pytest.approx(2 / 5)
    assert (mixed.success.low, mixed.success.high) == (0.0, 1.0)


def test_pass_rates_leave_out_tasks_with_too_few_episodes(mixed):
    # k = 1: 1/2, 1/1, 0/2. k = 2: tasks a and c only.
    assert mixed.passes == [PassRow(1, 0.5, 0.5, 3), PassRow(2, 0.5, 0.0, 2)]


def test_the_other_figures(mixed):
    assert mixed.turns == pytest.approx((2 + 4 + 1 + 1 + 2) / 5)
    assert (mixed.prompt_tokens, mixed.completion_tokens) == (1000, 100)
    assert mixed.cost == pytest.approx(1000 * 10 / 1e6 + 100 * 100 / 1e6)
    assert mixed.policy_s == pytest.approx(10 * 0.5 / 5)
    assert mixed.env_s == pytest.approx((10 * 0.25 + 5 * 0.125) / 5)
    assert mixed.stop_reasons == {
        StopReason.TERMINATED: 3,
        StopReason.MAX_TURNS: 1,
        StopReason.PARSE_FAILURE: 1,
        StopReason.ERROR: 1,
    }
    assert sorted(mixed.failures, key=lambda failure: failure.detail) == [
        Failure(StopReason.PARSE_FAILURE, "not JSON", 1),
        Failure(StopReason.ERROR, "reset raised OSError: no disk", 1),
    ]
    rows = [(row.id, row.prompt, row.rewards, row.mean_reward, row.successes, row.turns) for row in mixed.tasks]
    assert rows == [
        ("a", "prompt of a", [1.0, 0.0], 0.5, 1, 3.0),
        ("b", "prompt of b", [1.0, None], 1.0, 1, 1.0),
        ("c", "prompt of c", [-0.1, 0.0], -0.05, 0, 1.5),
    ]


def test_another_bound_of_success():
    made = report(episode("a", 0, 0.5), episode("a", 1, 0.4), success_reward=0.5)
    assert made.success.mean == 0.5


def test_without_prices_there_is_no_cost(mixed):
    assert report(episode()).cost is None


def group(task, *rewards):
    return [episode(task, index, reward) for index, reward in enumerate(rewards)]


@pytest.mark.parametrize(
    ("groups", "share", "begins"),
    [
        ([(1, 0), (1, 1), (0, 0)], 1 / 3, "Go: in 1 of 3 tasks"),
        ([(1, 1), (1, 1), (0, 0)], 0.0, "Too easy: in 3 of 3 tasks all episodes score alike, 2 of them always with"),
        ([(1, 1), (0, 0), (0, 0)], 0.0, "Too hard: in 3 of 3 tasks all episodes score alike, 2 of them never with"),
        ([(0.5, 0.5)], 0.0, "Too hard"),
        ([(0.2, 0.3)], 1.0, "Go"),
        ([(1, 0), *[(0, 0)] * 10], 1 / 11, "Too hard: in 10 of 11 tasks"),
        ([(1,), (0,)], None, "Not known"),
    ],
)
def test_the_trainable_share_and_its_advice(groups, share, begins):
    ids = [str(number) for number in range(len(groups))]
    episodes = [made for id, rewards in zip(ids, groups, strict=True) for made in group(id, *rewards)]
    trainable = report(*episodes, tasks=ids).trainable
    assert trainable.share == pytest.approx(share)
    assert trainable.advice.startswith(begins)


def test_failed_episodes_make_no_variance():
    trainable = report(*group("a", 1, 1), episode("a", 2, 0.0, StopReason.ERROR)).trainable
    assert (trainable.tasks, trainable.varied, trainable.all_succeed, trainable.none_succeeds) == (1, 0, 1, 0)


def test_an_expert_gets_no_advice_on_its_training():
    assert report(*group("a", 1, 1), policy="expert").trainable.advice.startswith("The expert is scripted")


def test_a_constant_reward_is_a_loud_warning():
    assert "CONSTANT REWARD: each of the 3 episodes earned 0." in report(*group("a", 0, 0), *group("b", 0)).warnings[0]
    assert report(*group("a", 0, 0), *group("b", 0.1)).warnings == []
    assert report(episode()).warnings == []  # one episode is no pattern


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"stopped": "the endpoint was lost"}, "Not complete, 3 of 4 episodes: the endpoint was lost"),
        ({"settings": {"policy": {"temperature": 0}, "episodes_per_task": 2}}, "At temperature 0"),
    ],
)
def test_what_the_reader_must_know(arguments, text):
    made = report(*group("a", 0, 1), *group("b", 1), **arguments)
    assert [warning[: len(text)] for warning in made.warnings] == [text]


def test_failed_episodes_changed_environments_and_missing_token_counts_are_warned_of():
    unknown = episode("b", 0, 1.0, provenance={"environment_sha256": "other"})
    unknown.turns = [Turn({"role": "assistant", "content": "x"})]
    made = report(*group("a", 0), unknown, episode("b", 1, stop=StopReason.ERROR), prices=(1.0, 1.0))
    assert [warning.split(":")[0][:30] for warning in made.warnings] == [
        "1 of 3 episodes failed, and if",
        "1 turns came without a token c",
        "The environment's source file ",
    ]
    assert "400 in, 40 out; 1 turns uncounted" in made.to_markdown()


def test_a_metric_that_is_not_finite_spoils_no_other():
    first = episode("a", 0, metrics={"speed": 1.0, "good": True, "note": "text", "odd": float("nan")})
    second = episode("a", 1, metrics={"speed": 2.0, "good": False, "odd": float("inf")})
    assert report(first, second).metrics == {"speed": 1.5, "good": 0.5}


class TroubleEnv(AddingEnv):
    """A tool for each way to fail."""

    tool_timeout_s = 1.0

    @llmgym.tool
    async def slow(self) -> str:
        """Take too long."""
        await asyncio.sleep(10)
        return "never"

    @llmgym.tool
    async def picky(self) -> str:
        """Refuse."""
        raise llmgym.errors.ToolError("there is no such record")

    @llmgym.tool
    async def divide(self) -> str:
        """Fail."""
        return str(1 / 0)

    @llmgym.tool
    async def stop(self) -> llmgym.ToolResult:
        """End the episode."""
        return llmgym.ToolResult("bye", should_stop=True)


def test_tool_calls_and_their_errors_by_type():
    calls = [
        ("add", '{"a": 1, "b": 1}'),
        ("add", '{"a": 1}'),
        ("add", '{"a": 1, "b": "many"}'),
        ("add", '{"a": 1, "b": 1, "c": 1}'),
        ("fly", "{}"),
        ("swim", "{}"),
        ("slow", "{}"),
        ("picky", "{}"),
        ("divide", "{}"),
        ("stop", "{}"),
        ("add", "{}"),
    ]
    entries = [{**call(name, text)[0]["tool_calls"][0], "id": str(i)} for i, (name, text) in enumerate(calls)]
    policy = ScriptedPolicy([{"role": "assistant", "tool_calls": entries}])
    played = asyncio.run(llmgym.run_episode(TroubleEnv(), Task("?", id="a"), policy))
    made = report(played)
    assert made.tools == {
        "add": ToolCount(5, 4),
        "(no such tool)": ToolCount(2, 2),
        "divide": ToolCount(1, 1),
        "picky": ToolCount(1, 1),
        "slow": ToolCount(1, 1),
        "stop": ToolCount(1, 0),
    }
    assert made.tool_errors == {
        "invalid_arguments": 3,
        "unknown_tool": 2,
        "timeout": 1,
        "tool_error": 1,
        "ZeroDivisionError": 1,
        "not_run": 1,
    }


def test_a_report_comes_back_from_its_file(mixed, tmp_path):
    (tmp_path / "report.json").write_text(mixed.to_json())
    assert load_report(tmp_path) == load_report(tmp_path / "report.json") == mixed
    assert json.loads(mixed.to_json())["stop_reasons"]["max_turns"] == 1


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1]", b"\xff"])
def test_what_is_no_report_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "report.json").write_bytes(content)
    with pytest.raises(ConfigError, match="report"):
        load_report(tmp_path)


def shown(printed, *arguments, width=150):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    printed(*arguments, console)
    return console.file.getvalue()


def test_the_report_shows_all_of_it(mixed):
    text = shown(mixed.print)
    for part in (
        "0.380",
        "0.317",
        "1 failed",
        "pass^k",
        "parse_failure",
        "16.7%",
        "not JSON",
        "1 failed",
        "prompt of c",
    ):
        assert part in text
    markdown = mixed.to_markdown()
    assert "| mean reward | 0.380 \\[" in markdown
    assert "| c | -0.050 | -0.1 0 | 1.5 | prompt of c |" in markdown
    assert mixed.trainable.advice in markdown
    assert mixed._repr_markdown_() == markdown


def test_a_terminal_shows_twenty_tasks_and_the_file_all():
    ids = [f"task-{number:02}" for number in range(23)]
    made = report(*(episode(id, 0, float(id > "task-05")) for id in ids), tasks=ids)
    assert "task-19" in shown(made.print)
    assert "task-20" not in shown(made.print)
    assert "3 more are in report.md" in shown(made.print)
    assert "task-22" in made.to_markdown()


def test_hostile_text_stays_text():
    evil = "<script>x</script>\x1b[31m|`[red]boom[/red]\ud800"
    made = report(
        episode(evil, 0, 1.0),
        episode(evil, 1, stop=StopReason.ERROR, detail=evil, provenance={}),
        tasks=[evil],
        policy=evil,
    )
    text = shown(made.print)
    assert "\x1b" not in text
    assert "[red]boom" in text
    markdown = made.to_markdown()
    assert "<script>" not in markdown
    assert "\x1b" not in markdown
    rows = [line.replace("\\|", "") for line in markdown.splitlines() if "script" in line and line.startswith("|")]
    assert [row.count("|") for row in rows] == [4, 6]  # three cells and five


# -- comparison ---------------------------------------------------------------


def test_the_comparison_pairs_the_tasks():
    before = report(*group("a", 0, 1), *group("b", 0), *group("c", 0, 0), *group("d", 1), tasks="abcd")
    after = report(*group("a", 1, 1), *group("b", 1), *group("c", 1, 0), *group("e", 1), tasks="abce")
    compared = compare_reports(before, after)
    assert compared.tasks == 3
    # Differences of the means: 0.5, 1, 0.5. Their mean is 2/3, their sample deviation sqrt((1/36 + 1/9 + 1/36) / 2) =
    # 0.288675, so the interval is 4.302653 * 0.288675 / sqrt(3) to each side. Two of eight sign assignments reach 2.
    assert compared.difference.mean == pytest.approx(2 / 3)
    assert compared.difference.high == pytest.approx(2 / 3 + 4.302653 * 0.288675 / 3**0.5, abs=1e-5)
    assert (compared.p_value, compared.test) == (0.25, "exact sign-flip test over 3 differing tasks")


def test_failed_episodes_are_not_compared():
    before = report(*group("a", 0, 1), episode("b", 0, 0.0, StopReason.ERROR))
    after = report(*group("a", 1, 1), *group("b", 1))
    assert compare_reports(before, after).tasks == 1


def test_evaluations_without_a_common_task_cannot_be_compared():
    with pytest.raises(ConfigError, match="no task in common"):
        compare_reports(report(episode("a")), report(episode("b")))


def test_the_comparison_says_what_differs_beside_the_policy():
    before = report(*group("a", 0, 1), settings={"seed": 1, "tasks_sha256": "x"})
    after = report(*group("a", 0, 1), *group("b", 1), env_id="Other-v0", settings={"seed": 2, "tasks_sha256": "y"})
    assert compare_reports(before, after).warnings == [
        "The environments differ: Env-v0 and Other-v0.",
        "The tasks differ; 1 with the same id are compared, of 1 and 2.",
        "They ran with different seed.",
    ]


def test_the_comparison_shows_both_sides_and_the_test():
    before = report(*group("a", 0, 0.5), policy="small")
    after = report(*group("a", 1), episode("b", 0, 0.0, StopReason.MAX_TURNS), policy="large")
    text = shown(compare_reports(before, after).print)
    assert "A: small" in text
    assert "B: large" in text
    assert "stopped: max_turns" in text
    assert "50.0%" in text
    assert "B - A: +0.750 mean reward over 1 common tasks, p = 1 (exact sign-flip test over 1 differing tasks)" in text
