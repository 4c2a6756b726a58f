"""RetailDesk-v0: serve a customer by the rules of a store."""

from llmgym_environments.retail_desk.env import RetailDeskEnv
from llmgym_environments.retail_desk.expert import RetailDeskExpert
from llmgym_environments.retail_desk.tasks import generate_tasks

__all__ = ["RetailDeskEnv", "RetailDeskExpert", "generate_tasks"]
