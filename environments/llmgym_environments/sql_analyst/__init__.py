"""SqlAnalyst-v0: explore an unknown database, query it, answer."""

from llmgym_environments.sql_analyst.env import SqlAnalystEnv
from llmgym_environments.sql_analyst.expert import SqlAnalystExpert
from llmgym_environments.sql_analyst.tasks import generate_tasks

__all__ = ["SqlAnalystEnv", "SqlAnalystExpert", "generate_tasks"]
