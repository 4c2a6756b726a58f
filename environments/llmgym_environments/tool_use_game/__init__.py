"""ToolUseGame-v0: look facts up, calculate, answer."""

from llmgym_environments.tool_use_game.env import ToolUseGameEnv
from llmgym_environments.tool_use_game.expert import ToolUseGameExpert
from llmgym_environments.tool_use_game.tasks import TOOL_USE_GAME_TASKS, generate_tasks

__all__ = ["TOOL_USE_GAME_TASKS", "ToolUseGameEnv", "ToolUseGameExpert", "generate_tasks"]
