"""Tool-use environments for language models, Gymnasium-compatible. Light: never imports torch."""

from llmgym._util.seeding import derive_seed
from llmgym._util.versions import __version__ as __version__
from llmgym._util.versions import provenance
from llmgym.checking import CheckReport, check_env
from llmgym.env import Env, StepResult
from llmgym.episode import Episode, EpisodeLimits, StopReason, Turn, TurnTokens, Usage
from llmgym.evaluation.comparison import compare_reports
from llmgym.evaluation.config import EvalConfig
from llmgym.evaluation.report import Report, load_report
from llmgym.evaluation.runner import run_and_report
from llmgym.gym.env import MessageEnv
from llmgym.gym.from_gym import from_gym
from llmgym.gym.spaces import MessageSpace
from llmgym.messages import Message, ToolCall, ToolSpec, normalize_message
from llmgym.policies.sources import PolicySource, ScriptedSource, expert_source
from llmgym.policy import Policy, PolicyTurn, ScriptedPolicy
from llmgym.records import EpisodeWriter, compare_replay, iter_episodes, read_episodes, replay, write_episodes
from llmgym.registry import expert_policy, register, registered_ids, tasks
from llmgym.rewards import weighted_reward
from llmgym.rollout import run_episode
from llmgym.scoring import CachedScorer
from llmgym.task import Task, load_tasks, save_tasks
from llmgym.tool_env import ToolEnv
from llmgym.tools import Tool, ToolResult, tool, tool_to_spec

__all__ = [
    "CachedScorer",
    "CheckReport",
    "Env",
    "Episode",
    "EpisodeLimits",
    "EpisodeWriter",
    "EvalConfig",
    "Message",
    "MessageEnv",
    "MessageSpace",
    "Policy",
    "PolicySource",
    "PolicyTurn",
    "Report",
    "ScriptedPolicy",
    "ScriptedSource",
    "StepResult",
    "StopReason",
    "Task",
    "Tool",
    "ToolCall",
    "ToolEnv",
    "ToolResult",
    "ToolSpec",
    "Turn",
    "TurnTokens",
    "Usage",
    "check_env",
    "compare_replay",
    "compare_reports",
    "derive_seed",
    "expert_policy",
    "expert_source",
    "from_gym",
    "iter_episodes",
    "load_report",
    "load_tasks",
    "normalize_message",
    "provenance",
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

register(
    "RetailDesk-v0",
    env="llmgym_environments.retail_desk:RetailDeskEnv",
    tasks="llmgym_environments.retail_desk:generate_tasks",
    expert="llmgym_environments.retail_desk:RetailDeskExpert",
)
register(
    "ToolUseGame-v0",
    env="llmgym_environments.tool_use_game:ToolUseGameEnv",
    tasks="llmgym_environments.tool_use_game:generate_tasks",
    expert="llmgym_environments.tool_use_game:ToolUseGameExpert",
)
register(
    "CalculatorMath-v0",
    env="llmgym_environments.calculator_math:CalculatorMathEnv",
    tasks="llmgym_environments.calculator_math:generate_tasks",
    expert="llmgym_environments.calculator_math:CalculatorMathExpert",
)
register(
    "DocSearch-v0",
    env="llmgym_environments.doc_search:DocSearchEnv",
    tasks="llmgym_environments.doc_search:generate_tasks",
    expert="llmgym_environments.doc_search:DocSearchExpert",
)
register(
    "Mastermind-v0",
    env="llmgym_environments.mastermind:MastermindEnv",
    tasks="llmgym_environments.mastermind:generate_tasks",
    expert="llmgym_environments.mastermind:MastermindExpert",
)
register(
    "PythonLab-v0",
    env="llmgym_environments.python_lab:PythonLabEnv",
    tasks="llmgym_environments.python_lab:generate_tasks",
    expert="llmgym_environments.python_lab:PythonLabExpert",
)
register(
    "SqlAnalyst-v0",
    env="llmgym_environments.sql_analyst:SqlAnalystEnv",
    tasks="llmgym_environments.sql_analyst:generate_tasks",
    expert="llmgym_environments.sql_analyst:SqlAnalystExpert",
)
register(
    "FileWorkspace-v0",
    env="llmgym_environments.file_workspace:FileWorkspaceEnv",
    tasks="llmgym_environments.file_workspace:generate_tasks",
    expert="llmgym_environments.file_workspace:FileWorkspaceExpert",
)
