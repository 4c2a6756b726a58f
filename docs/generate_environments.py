"""The pages of the shipped environments: class docstring, a played episode, and the notes.

A page is made of what the code says (docstring, the expert's episode, measured curves) and of the hand-written notes in
docs/environments/notes/, which hold what was measured by hand. The output is the same on every machine.
"""

import asyncio
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import llmgym
from llmgym import Episode
from llmgym.registry import find

DOCS = Path(__file__).parent
EPISODES = {
    "CalculatorMath-v0": ("test", 3, 0),
    "DocSearch-v0": ("train", 2, 0),
    "FileWorkspace-v0": ("val", 1, 0),
    "Mastermind-v0": ("test", 1, 5),
    "PythonLab-v0": ("test", 3, 3),
    "RetailDesk-v0": ("train", 1, 0),
    "SqlAnalyst-v0": ("val", 3, 0),
    "ToolUseGame-v0": ("test", 3, 0),
}
"""For each environment the split, level and index of the task whose episode its page shows."""
OPTIONS = """\
| task option | default | meaning |
| --- | --- | --- |
| `level` | 1 | a level, or `"all"` for all levels in turn |
| `count` | 2000 train, 200 val, 200 test | number of tasks, all different |
| `seed` | 0 | another seed gives other tasks of the same split |"""


def pages() -> dict[str, str]:
    """The page of each environment, by its path below docs/."""
    return {f"environments/{page_name(env_id)}.md": page(env_id) for env_id in EPISODES}


def page_name(env_id: str) -> str:
    """The file name of a page, without its ending: ``"tool_use_game"``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", env_id.removesuffix("-v0")).lower()


def page(env_id: str) -> str:
    """The text of the page of one environment."""
    split, level, index = EPISODES[env_id]
    task = llmgym.tasks(env_id, split, level=level, count=index + 1)[index]
    env = find(env_id).make_env(task)
    episode = asyncio.run(llmgym.run_episode(env, task, llmgym.expert_policy(env_id)))
    described = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", inspect.getdoc(type(env)) or "")  # roles of Sphinx: plain code
    described = described.replace("\n\n## Metrics", f"\n\n{OPTIONS}\n\n## Metrics")
    notes = (DOCS / "environments" / "notes" / f"{page_name(env_id)}.md").read_text(encoding="utf-8")
    sections = [
        f"# {env_id}",
        f"```bash\nllmgym play {env_id}\nllmgym eval {env_id} --policy expert\nllmgym train {env_id}\n```",
        described,
        "## An episode",
        f"Level {level}, task {index} of {split}, played by the scripted expert; the reward is {episode.reward}.",
        "\n".join(["| | |", "| --- | --- |", *rows(episode)]),
        f"Metrics: `{json.dumps(episode.metrics)}`",
        *training(env_id),
        notes.strip(),
    ]
    return "\n\n".join(sections) + "\n"


def rows(episode: Episode) -> Iterator[str]:
    """The rows of an episode's table, one a message; tool calls are written as in Python."""
    for message in episode.messages:
        role, text = message["role"], message["content"]
        if role == "assistant":
            role = "**assistant**"
            for call in message.get("tool_calls", []):
                arguments = json.loads(call["function"]["arguments"]).items()
                given = ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments)
                text = f"`{call['function']['name']}({given})`"
        text = text.replace("|", r"\|").replace("    ", "&nbsp;" * 4).replace("\n", "<br>")
        yield f"| {role} | {text} |"


def training(env_id: str) -> list[str]:
    """The section on the measured learning curves of the built-in model; nothing when there are none."""
    for file in sorted((DOCS / "learning").rglob("results.json")):
        runs = [run for run in json.loads(file.read_text()) if not run["shuffled"]]
        if (runs[0]["env"], runs[0]["model"]) == (env_id, "tiny"):
            curves = ", ".join(f"{run['validation'][0][1]:.3f} → {run['validation'][-1][1]:.3f}" for run in runs)
            picture = (file.parent / "learning.png").relative_to(DOCS)
            said = (
                f"Success of the built-in model on 200 level-1 test tasks before and after training, by seed: {curves} "
                "([method and limits](../learning.md))."
            )
            return ["## Training", said, f"![held-out success by step](../{picture})"]
    return []
