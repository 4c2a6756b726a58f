"""DocSearch-v0: search an encyclopedia, open pages, answer."""

from llmgym_environments.doc_search.env import DocSearchEnv
from llmgym_environments.doc_search.expert import DocSearchExpert
from llmgym_environments.doc_search.tasks import generate_tasks

__all__ = ["DocSearchEnv", "DocSearchExpert", "generate_tasks"]
