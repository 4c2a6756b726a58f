"""The episode on the page of each environment that ships is what its expert plays."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from suite import SHIPPED

import llmgym
from llmgym.registry import find

PAGES = Path(__file__).parents[2] / "docs" / "environments"


def page_of(env_id):
    """The section with the episode; the page's name is that of the environment."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", env_id.removesuffix("-v0")).lower()
    return (PAGES / f"{name}.md").read_text(encoding="utf-8").split("## An episode\n")[1].split("\n## ")[0]


def shown(text):
    """A text as it stands in a cell of a table."""
    return text.replace("|", r"\|").replace("    ", "&nbsp;" * 4).replace("\n", "<br>")


def rows(episode):
    """The rows of the table: a row a message, calls as a Python programmer writes them."""
    for message in episode.messages:
        role, text = message["role"], shown(message["content"])
        if role == "assistant":
            role = "**assistant**"
            for call in message.get("tool_calls", []):
                arguments = json.loads(call["function"]["arguments"]).items()
                given = ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments)
                text = f"`{call['function']['name']}({given})`".replace("|", r"\|")
        yield f"| {role} | {text} |"


@pytest.mark.parametrize("env_id", SHIPPED)
def test_the_episode_on_the_page_is_what_the_expert_plays(env_id):
    section = page_of(env_id)
    level, place, split = re.match(
        r"\s*Level (\d), task (\d+) of (\w+), played by the scripted expert", section
    ).groups()
    task = llmgym.tasks(env_id, split, level=level, count=int(place) + 1)[int(place)]
    env, expert = find(env_id).make_env(task), llmgym.expert_policy(env_id)
    episode = asyncio.run(llmgym.run_episode(env, task, expert))
    assert episode.reward == 1.0
    table = section.split("| --- | --- |\n")[1].split("\n\n")[0]
    assert table.splitlines() == list(rows(episode))
    assert json.loads(re.search(r"^`(\{.*?\})`", section, re.MULTILINE | re.DOTALL)[1]) == episode.metrics
