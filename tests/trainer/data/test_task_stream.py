import pytest
from toys import TASKS, LetterEnv, TalkEnv, settings

from llmgym import Task, read_episodes
from llmgym.errors import ConfigError, TaskError
from llmgym_trainer import GRPOConfig, TaskSource, train_multi_turn
from llmgym_trainer.data.task_stream import Mixture, TaskStream
from llmgym_trainer.runs.folder import read_metrics


def source(name="a", count=3, **fields) -> TaskSource:
    return TaskSource(name, [Task(f"{name}{number}") for number in range(count)], LetterEnv, **fields)


def stream(*sources, batch_size=4, seed=1, shuffle=False):
    return Mixture(sources).stream(seed=seed, shuffle=shuffle, batch_size=batch_size)


def take(stream, count, start=0):
    return [stream[position] for position in range(start, start + count)]


def prompts(tasks):
    return [task.prompt for task in tasks]


def test_every_task_is_used_once_an_epoch():
    taken = take(TaskStream(TASKS, seed=1), 80)
    for start in range(0, 80, 8):
        assert {task.id for task in taken[start : start + 8]} == {task.id for task in TASKS}


def test_the_order_follows_from_the_seed_and_differs_between_epochs():
    first, again, other = (take(TaskStream(TASKS, seed=seed), 24) for seed in (1, 1, 2))
    assert first == again != other
    assert first[:8] != first[8:16]
    assert take(TaskStream(TASKS, seed=1, shuffle=False), 10) == TASKS + TASKS[:2]


def test_a_stream_needs_no_more_than_a_position():
    whole = take(TaskStream(TASKS, seed=3), 22)
    later = TaskStream(TASKS, seed=3)
    assert take(later, 9, start=13) == whole[13:]
    assert take(later, 9) == whole[:9]


def test_tasks_come_in_the_proportion_of_the_weights():
    # Shares 0.75 and 0.25. Gains before each choice: (0.75, 0.25) a; (0.5, 0.5) a, the first of equals;
    # (0.25, 0.75) b; (1, 0) a; and then as at the beginning.
    found = prompts(take(stream(source("a", weight=3), source("b")), 8))
    assert [prompt[0] for prompt in found] == ["a", "a", "b", "a"] * 2
    assert found == ["a0", "a1", "b0", "a2", "a0", "a1", "b1", "a2"]


def test_positions_of_a_mixture_can_be_read_in_any_order():
    sources = [source("a", 5, weight=2.0), source("b", 3, weight=0.7), source("c", 1, weight=0.3)]
    whole = prompts(take(stream(*sources, shuffle=True), 60))
    again = stream(*sources, shuffle=True)
    assert prompts(take(again, 20, start=40)) == whole[40:]
    assert prompts(take(again, 40)) == whole[:40]
    assert whole != prompts(take(stream(*sources, shuffle=True, seed=2), 60))
    assert [sum(prompt.startswith(name) for prompt in whole) for name in "abc"] == [40, 14, 6]


def test_one_source_is_a_plain_stream():
    tasks = [Task(f"a{number}") for number in range(5)]
    mixture = stream(TaskSource("a", tasks, LetterEnv))
    assert prompts(take(mixture, 11)) == prompts(take(TaskStream(tasks, seed=0, shuffle=False), 11))


def test_a_curriculum_changes_sources_by_step():
    # Batches of two: steps 0 and 1 are easy, step 2 mixes, from step 3 on all are hard.
    easy, hard = source("e", until_step=3), source("h", from_step=2)
    found = [prompt[0] for prompt in prompts(take(stream(easy, hard, batch_size=2), 10))]
    assert found[:4] == ["e"] * 4
    assert sorted(found[4:6]) == ["e", "h"]
    assert found[6:] == ["h"] * 4


def test_the_same_task_in_two_environments():
    task = Task("say amber")
    mixture = Mixture([TaskSource("one", [task], LetterEnv), TaskSource("two", [task], TalkEnv, val_tasks=[task])])
    assert [task.id for task in mixture.tasks] == [f"one/{task.id}", f"two/{task.id}"]
    assert [type(mixture.make_env(task)) for task in mixture.tasks] == [LetterEnv, TalkEnv]
    assert [mixture.source_of(task) for task in mixture.val_tasks] == ["two"]


@pytest.mark.parametrize(
    ("sources", "text"),
    [
        ([], "at least one TaskSource"),
        ([source("a"), source("a")], "two TaskSources have the name 'a'"),
        ([source("a/b")], "without '/', got 'a/b'"),
        ([source(count=0)], "'a' has no tasks"),
        ([source(weight=0.0)], "weight=0.0; it must be positive"),
        ([source(weight=float("inf"))], "weight=inf; it must be positive and finite"),
        ([source(weight=float("nan"))], "weight=nan"),
        ([source(from_step=3, until_step=3)], "which is never"),
        ([source(from_step=1)], "no TaskSource is on at step 0"),
        ([source(until_step=5), source("b", from_step=6)], "no TaskSource is on at step 5"),
    ],
)
def test_mistakes(sources, text):
    with pytest.raises(ConfigError) as caught:
        Mixture(sources)
    assert text in str(caught.value)


def test_ids_are_unique_within_a_source():
    with pytest.raises(TaskError, match="'x'"):
        Mixture([TaskSource("a", [Task("1", id="x"), Task("2", id="x")], LetterEnv)])


def test_sources_stand_alone(tmp_path):
    config = GRPOConfig(**settings("/nowhere/model", tmp_path / "runs"))
    with pytest.raises(ConfigError, match="either sources, or tasks and env_factory"):
        train_multi_turn(config, sources=[source()], tasks=TASKS)
    with pytest.raises(ConfigError, match="give tasks and env_factory, or sources"):
        train_multi_turn(config, tasks=TASKS)
    with pytest.raises(ConfigError, match="there are 1 tasks but batch_size=2"):
        train_multi_turn(config, sources=[source(count=1)])
    assert not (tmp_path / "runs").exists()


def test_two_environments_in_one_run(model_dir, tmp_path):
    sources = [
        TaskSource("letter", TASKS[:4], LetterEnv, val_tasks=TASKS[4:5]),
        TaskSource("talk", TASKS[:4], TalkEnv, val_tasks=TASKS[4:6]),
    ]
    config = GRPOConfig(
        **settings(
            model_dir, tmp_path, num_steps=2, metric_for_best_model="val/by_env/talk/reward", success_reward=-1.0
        )
    )
    result = train_multi_turn(config, sources=sources)
    lines = read_metrics(result.run_dir)
    for line in (line for line in lines if "reward" in line):
        assert (line["by_env/letter/share"], line["by_env/talk/share"]) == (0.5, 0.5)
        assert line["by_env/letter/turns_per_episode"] == 1 < line["by_env/talk/turns_per_episode"] <= 3
        assert line["by_env/letter/success"] == 1
        both = [line["by_env/letter/reward"], line["by_env/talk/reward"]]
        assert line["reward"] == pytest.approx(sum(both) / 2)
    validations = [line for line in lines if "val/reward" in line]
    assert all(line["val/by_env/talk/share"] == pytest.approx(2 / 3) for line in validations)
    best = max(validations, key=lambda line: line["val/by_env/talk/reward"])  # the first of equals
    assert result.best_checkpoint == (result.run_dir / f"checkpoint-{best['step']}" if best["step"] else None)
    episodes = read_episodes(result.run_dir / "episodes" / "train-000000.jsonl")
    assert {e.env_id for e in episodes} == {"letter", "talk"}
    assert all(e.task.id.startswith(f"{e.env_id}/") for e in episodes)
