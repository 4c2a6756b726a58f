import re
from pathlib import Path

import pytest
from toys import TASKS, TalkEnv, settings

from llmgym import Episode, StopReason, Task, Turn
from llmgym.episode import TurnTokens, Usage
from llmgym_trainer import GRPOConfig, TaskSource, train_multi_turn
from llmgym_trainer.metrics import RATIOS, EpisodeStats, rollout_metrics
from llmgym_trainer.runs.folder import read_metrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def call(name: str) -> dict:
    return {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}


def turn(sampled: int, context: int, calls: int = 0, errors: int = 0, **fields) -> Turn:
    results = [{"role": "tool", "content": "tool_error: no" if i < errors else "7"} for i in range(calls)]
    return Turn(
        message={"role": "assistant", "content": "", "tool_calls": [call(str(i)) for i in range(calls)]},
        observation=results,
        tokens=TurnTokens([5] * context, [6] * sampled, [0.0] * sampled, False, "stop"),
        usage=Usage(prompt_tokens=context, completion_tokens=sampled),
        **fields,
    )


MALFORMED = Turn(failure="no call", observation=[{"role": "user", "content": "once more"}])


def stats(group: int, reason: StopReason, reward: float, *turns: Turn, cost: float = 0.0, **fields) -> EpisodeStats:
    episode = Episode(Task("x"), reason, reward, list(turns), **fields)
    return EpisodeStats.of(episode, (0, group), reward - cost)


def test_metrics_by_hand():
    found = rollout_metrics(
        [
            stats(0, StopReason.TERMINATED, 1.0, turn(4, 10, calls=2, errors=1), turn(2, 3), metrics={"lookups": 2}),
            stats(0, StopReason.MAX_TURNS, 0.0, turn(6, 10), cost=0.5, close_error="OSError: gone"),
            stats(1, StopReason.TERMINATED, 0.5, turn(3, 10, calls=1), metrics={"lookups": 1, "kind": "a"}),
            stats(1, StopReason.PARSE_FAILURE, 0.5, turn(9, 10, history_edited=True), MALFORMED, metrics={"won": True}),
            stats(1, StopReason.ERROR, 0.0),
        ],
        success_reward=1.0,
    )
    std = 1.5 / 2**0.5  # rewards 1.0 and -0.5 after the penalty
    assert found == pytest.approx(
        {
            "terminated_ratio": 2 / 5,
            "context_overflow_ratio": 0,
            "max_turns_ratio": 1 / 5,
            "env_truncated_ratio": 0,
            "parse_failure_ratio": 1 / 5,
            "timeout_ratio": 0,
            "error_ratio": 1 / 5,
            "close_error_ratio": 1 / 5,
            "truncated_ratio": 2 / 4,
            "reward": 2.0 / 4,
            "reward_std": (std + 0) / 2,
            "success": 1 / 4,
            "overlong_cost": 0.5 / 4,
            "frac_reward_zero_std": 1 / 2,
            "groups/best_reward": (1.0 + 0.5) / 2,
            "groups/with_success": 1 / 2,
            "turns_per_episode": 6 / 4,
            "parse_retries_per_episode": 1 / 4,
            "tools/call_frequency": 3 / 4,
            "tools/errors_per_episode": 1 / 4,
            "tools/failure_frequency": 1 / 3,
            "completions/mean_length": (6 + 6 + 3 + 9) / 4,
            "completions/min_length": 3,
            "completions/max_length": 9,
            "history_edited_ratio": 1 / 4,
            "env/lookups": 1.5,
            "env/won": 1.0,
        }
    )


def test_every_stop_reason_has_a_ratio():
    assert RATIOS.keys() == set(StopReason)
    found = rollout_metrics([stats(0, reason, 0.0, turn(1, 1)) for reason in StopReason], 1.0)
    assert sum(found[name] for name in RATIOS.values()) == pytest.approx(1)


def test_failed_episodes_only_and_none_at_all():
    found = rollout_metrics([stats(0, StopReason.ERROR, 0.0)] * 2, 1.0)
    assert found["error_ratio"] == 1
    assert "reward" not in found
    assert rollout_metrics([], 1.0) == {}


# The page that explains them.


def documented() -> dict[str, set[str]]:
    """Names in the first column of each section's table."""
    sections: dict[str, set[str]] = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        cells = [line.split("|")[1] for line in body.splitlines() if line.startswith("| `")]
        sections[title] = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    return sections


def generic(names) -> set[str]:
    """Names of an environment's own metrics as the page writes them."""
    names = {re.sub(r"^(val/)?env/.+", r"\1env/<name>", name) for name in names}
    return {re.sub(r"^by_env/[^/]+/", "by_env/<env>/", name) for name in names}


def keys(result) -> tuple[set[str], set[str]]:
    """Keys of the steps and of the validations of a run."""
    lines = [generic(line.keys() - {"step"}) for line in read_metrics(result.run_dir)]
    validations = [line for line in lines if "val/time" in line]
    steps = [line for line in lines if "val/time" not in line]
    assert validations and steps
    return set.union(*steps), set.union(*validations)


def run(model_dir, tmp_path, **changes):
    return train_multi_turn(
        GRPOConfig(**settings(model_dir, tmp_path, **changes)), tasks=TASKS, env_factory=TalkEnv, val_tasks=TASKS[:1]
    )


def test_the_page_explains_exactly_the_metrics_of_a_run(model_dir, tmp_path):
    page = documented()
    steps, validations = keys(run(model_dir, tmp_path, num_steps=2))
    assert steps == page["Episodes"] | page["Groups"] | page["Training"] | page["Time"]
    assert validations == {f"val/{name}" for name in page["Episodes"]} | page["Validation"]


def test_the_page_explains_what_some_settings_add(model_dir, tmp_path):
    page = documented()
    changes = {"loss_type": "cispo", "epsilon_high": 5.0, "beta": 0.1, "entropy_coef": 0.01}
    sources = [TaskSource(name, TASKS, TalkEnv, val_tasks=TASKS[:1]) for name in ("one", "two")]
    steps, _ = keys(train_multi_turn(GRPOConfig(**settings(model_dir, tmp_path, **changes)), sources=sources))
    usual = page["Episodes"] | page["Groups"] | page["Training"] | page["Time"]
    assert steps - usual == page["Only with some settings"] - {"aux_loss"}
    assert {name.partition("/")[0] for name in usual - steps} == {"clip_ratio"}


def test_every_sentence_of_the_page_stands_in_a_table_of_three_columns():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert len(rows) > 50
    assert all(line.count("|") == 4 for line in rows)
