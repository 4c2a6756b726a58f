"""The page of each environment that ships: its episode is what its expert plays, and its curves are those measured."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from suite import SHIPPED, page_of, page_rows

import llmgym
from llmgym.registry import find

DOCS = Path(__file__).parents[2] / "docs"
MEASURED = {
    runs[0]["env"]: [
        f"{run['validation'][0][1]:.3f} → {run['validation'][-1][1]:.3f}" for run in runs if not run["shuffled"]
    ]
    for runs in (json.loads(file.read_text()) for file in (DOCS / "learning").rglob("results.json"))
    if runs[0]["model"] == "tiny"
}


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


@pytest.mark.parametrize("env_id", SHIPPED)
def test_success_before_and_after_training_is_what_was_measured(env_id):
    found = re.compile(r"0\.\d{3} → 0\.\d{3}")
    row = re.search(rf"^\| `{env_id}` \|.*$", (DOCS / "learning.md").read_text(encoding="utf-8"), re.MULTILINE)[0]
    assert found.findall(row) == MEASURED[env_id]
    assert found.findall(page_of(env_id).split("## Training\n")[1].split("\n## ")[0]) == MEASURED[env_id]
