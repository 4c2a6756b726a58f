"""The episode on the page of each environment that ships is what its expert plays."""

import asyncio
import json
import re

import pytest
from suite import SHIPPED, page_of, page_rows

import llmgym
from llmgym.registry import find


@pytest.mark.parametrize("env_id", SHIPPED)
def test_the_episode_on_the_page_is_what_the_expert_plays(env_id):
    section = page_of(env_id).split("## An episode\n")[1].split("\n## ")[0]
    level, place, split = re.match(
        r"\s*Level (\d), task (\d+) of (\w+), played by the scripted expert", section
    ).groups()
    task = llmgym.tasks(env_id, split, level=level, count=int(place) + 1)[int(place)]
    env, expert = find(env_id).make_env(task), llmgym.expert_policy(env_id)
    episode = asyncio.run(llmgym.run_episode(env, task, expert))
    assert episode.reward == 1.0
    table = section.split("| --- | --- |\n")[1].split("\n\n")[0]
    assert table.splitlines() == list(page_rows(episode))
    assert json.loads(re.search(r"^`(\{.*?\})`", section, re.MULTILINE | re.DOTALL)[1]) == episode.metrics
