"""The generated pages of the environments that ship."""

import re
import runpy
from pathlib import Path

import pytest
from suite import SHIPPED

from llmgym import Episode, StopReason, Task, Turn

GENERATOR = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "generate_environments.py"))


def test_every_environment_has_a_page_that_comes_out_the_same_again():
    pages = GENERATOR["pages"]()
    assert [text.split("\n")[0] for text in pages.values()] == [f"# {env_id}" for env_id in sorted(SHIPPED)]
    assert "environments/tool_use_game.md" in pages
    assert GENERATOR["pages"]() == pages


@pytest.mark.parametrize("env_id", SHIPPED)
def test_a_page_holds_the_docstring_a_solved_episode_and_the_notes(env_id):
    page = GENERATOR["page"](env_id)
    sections = re.findall(r"^## (.+)$", page, flags=re.MULTILINE)
    assert sections[:9] == [
        *("Description", "Tools", "Observation", "Action", "Rewards", "Episode End", "Arguments"),
        *("Metrics", "Version History"),
    ]
    assert sections[9] == "An episode" and "What does not pay" in sections[10:]
    assert "the reward is 1.0." in page and "| **assistant** | " in page
    assert re.search(r"^\| `level` \| 1 \|", page, flags=re.MULTILINE)
    assert not re.search(r":\w+:`", page)


def test_rows_of_an_episode():
    made = {"id": "a", "type": "function", "function": {"name": "grep", "arguments": '{"text": "a|b", "first": 2}'}}
    messages = [
        {"role": "user", "content": "if x:\n    y | z"},
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "assistant", "content": "done"},
    ]
    turns = [Turn(message) for message in messages[1:]]
    episode = Episode(Task("?"), StopReason.TERMINATED, turns=turns, initial_messages=messages[:1])
    assert list(GENERATOR["rows"](episode)) == [
        r"| user | if x:<br>&nbsp;&nbsp;&nbsp;&nbsp;y \| z |",
        r'| **assistant** | `grep(text="a\|b", first=2)` |',
        "| **assistant** | done |",
    ]
