"""Tool-use environments for language models, Gymnasium-compatible. Importing it never imports torch."""

from llmgym._util.seeding import derive_seed
from llmgym._util.versions import __version__ as __version__
from llmgym.checking import check_env
from llmgym.env import Env, StepResult
from llmgym.episode import Episode, EpisodeLimits, StopReason, Turn
from llmgym.evaluation.comparison import compare_reports
from llmgym.evaluation.config import EvalConfig
from llmgym.evaluation.report import Report, load_report
from llmgym.evaluation.runner import run_and_report
from llmgym.from_gymnasium import from_gym
from llmgym.messages import Message, ToolCall, ToolSpec, normalize_message
from llmgym.policies.sources import PolicySource
from llmgym.policy import Policy, PolicyTurn, ScriptedPolicy
from llmgym.records import read_episodes, replay, write_episodes
from llmgym.registry import expert_policy, register, registered_ids, tasks
from llmgym.rollout import run_episode
from llmgym.scoring import CachedScorer
from llmgym.task import Task, load_tasks, save_tasks
from llmgym.tool_env import ToolEnv, weighted_reward
from llmgym.tools import Tool, ToolResult, tool, tool_to_spec

__all__ = [
    "CachedScorer",
    "Env",
    "Episode",
    "EpisodeLimits",
    "EvalConfig",
    "Message",
    "Policy",
    "PolicySource",
    "PolicyTurn",
    "Report",
    "ScriptedPolicy",
    "StepResult",
    "StopReason",
    "Task",
    "Tool",
    "ToolCall",
    "ToolEnv",
    "ToolResult",
    "ToolSpec",
    "Turn",
    "check_env",
    "compare_reports",
    "derive_seed",
    "expert_policy",
    "from_gym",
    "load_report",
    "load_tasks",
    "normalize_message",
    "read_episodes",
    "register",
    "registered_ids",
    "replay",
    "run_and_report",
    "run_episode",
    "save_tasks",
    "tasks",
    "tool",
    "tool_to_spec",
    "weighted_reward",
    "write_episodes",
]

_SHIPPED = {
    "CalculatorMath": "calculator_math",
    "DocSearch": "doc_search",
    "FileWorkspace": "file_workspace",
    "Mastermind": "mastermind",
    "PythonLab": "python_lab",
    "RetailDesk": "retail_desk",
    "SqlAnalyst": "sql_analyst",
    "ToolUseGame": "tool_use_game",
}
for _name, _module in _SHIPPED.items():
    _where = f"llmgym_environments.{_module}:"
    register(f"{_name}-v0", env=f"{_where}{_name}Env", tasks=f"{_where}generate_tasks", expert=f"{_where}{_name}Expert")
