"""Suggestions: a slip of the fingers gets one, another name gets none."""

from __future__ import annotations

import pytest
from suite import SHIPPED

from llmgym.errors import did_you_mean

SETTINGS = ["learning_rate", "max_turns", "num_steps", "temperature"]


@pytest.mark.parametrize(
    ("given", "allowed", "meant"),
    [
        ("ToolUsGame-v0", SHIPPED, "ToolUseGame-v0"),
        ("Mastermid-v0", SHIPPED, "Mastermind-v0"),
        ("Mastermind", SHIPPED, "Mastermind-v0"),
        ("DocSearch-v7", SHIPPED, "DocSearch-v0"),
        ("num_step", SETTINGS, "num_steps"),
        ("learning_rat", SETTINGS, "learning_rate"),
    ],
)
def test_a_slip_gets_what_was_meant(given, allowed, meant):
    assert did_you_mean(given, allowed) == f" Did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("given", "allowed"),
    [("Nope-v0", SHIPPED), ("CartPole-v0", SHIPPED), ("Go-v0", ["No-v0"]), ("lr", SETTINGS), ("", SETTINGS)],
)
def test_another_name_gets_none(given, allowed):
    assert did_you_mean(given, allowed) == ""


def test_of_two_versions_the_nearer_is_meant():
    assert did_you_mean("Gam-v1", ["Game-v0", "Game-v1", "Game-v2"]) == " Did you mean 'Game-v1'?"


def test_a_tool_guesses_further():
    assert did_you_mean("tide", ["tiger"]) == ""  # 3 + 3 of 4 + 5 letters alike: 0.67
    assert did_you_mean("tide", ["tiger"], likeness=0.5) == " Did you mean 'tiger'?"
