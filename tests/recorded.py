"""Episodes and run folders that tests of the viewer look at. Made by hand; no environment runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmgym.episode import Episode, StopReason, Turn, TurnTokens, Usage
from llmgym.messages import Message
from llmgym.records import write_episodes
from llmgym.task import Task

SPECS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Get a number.",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
        },
    }
]


def message_with_call(name: str, arguments: str, content: str = "") -> Message:
    """An assistant message with one call, ``call_0``."""
    call: Any = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def episode(
    task_id: str,
    index: int = 0,
    *,
    reward: float = 0.0,
    stop: StopReason = StopReason.TERMINATED,
    prompt: str = "What is rose?",
    answer: str = "48",
    result: str = "48",
    tokens: bool = False,
    **provenance: Any,
) -> Episode:
    """Two turns: a call of ``lookup`` and its result, then the answer.

    With ``tokens``, the first turn has context 1 2 and samples 3 4, the second extends it with context 5 and sample 6.
    """
    first, second = None, None
    if tokens:
        first = TurnTokens([1, 2], [3, 4], [-0.5, -3.0], extends=False, finish_reason="stop")
        second = TurnTokens([5], [6], [-0.25], extends=True, finish_reason="stop")
    turns = [
        Turn(
            message_with_call("lookup", '{"key": "rose"}'),
            [{"role": "tool", "content": result, "tool_call_id": "call_0", "name": "lookup"}],
            tokens=first,
            usage=Usage(2, 2),
            policy_s=0.5,
            env_s=0.25,
        ),
        Turn({"role": "assistant", "content": answer}, reward=reward, tokens=second, usage=Usage(5, 1), policy_s=1.0),
    ]
    return Episode(
        Task(prompt, target=48, id=task_id),
        stop,
        reward,
        turns,
        initial_messages=[{"role": "user", "content": prompt}],
        tool_specs=SPECS,
        env_id="Hand-v0",
        episode_index=index,
        provenance=provenance,
    )


def write_training_run(path: Path) -> Path:
    """A run of two steps with a validation before: nine episodes.

    Step 0 has task ``lily`` (rewards 1 and 0, trained) and task ``rose`` (0 and 0, not trained); step 1 has ``rose``
    twice in one step (1 and 0; 0 and 1). The validation has ``fern`` alone.
    """

    def pair(task_id: str, step: int, rewards: tuple[float, float], trained: bool, **more: Any) -> list[Episode]:
        return [
            episode(
                task_id, index, reward=reward, tokens=True, phase="train0", step=step, attempt=0, trained=trained,
                shaped_reward=reward, advantage=(0.7 if reward else -0.7) if trained else 0.0,
                prompt=f"What is {task_id}?", **more,
            )
            for index, reward in enumerate(rewards)
        ]  # fmt: skip

    folder = path / "episodes"
    write_episodes(folder / "val-000000.jsonl", [episode("fern", phase="val", step=0, attempt=0, answer="no idea")])
    write_episodes(
        folder / "train-000000.jsonl", pair("lily", 0, (1.0, 0.0), True) + pair("rose", 0, (0.0, 0.0), False)
    )
    write_episodes(
        folder / "train-000001.jsonl",
        pair("rose", 1, (1.0, 0.0), True) + pair("rose", 1, (0.0, 1.0), True, stop=StopReason.MAX_TURNS),
    )
    lines = [
        {"step": 0, "val/reward": 0.0},
        {"step": 1, "reward": 0.25, "loss": None},
        {"step": 2, "reward": 0.5, "val/reward": 1.0},
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "rew')
    (path / "config.yaml").write_text("run_name: hand\nsuccess_reward: 0.9\n")
    return path
