"""Mastermind-v0: break a code in few guesses."""

from llmgym_environments.mastermind.env import MastermindEnv
from llmgym_environments.mastermind.expert import MastermindExpert
from llmgym_environments.mastermind.tasks import generate_tasks

__all__ = ["MastermindEnv", "MastermindExpert", "generate_tasks"]
