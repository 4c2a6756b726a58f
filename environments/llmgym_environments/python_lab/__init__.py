"""PythonLab-v0: write a function, test it, submit it."""

from llmgym_environments.python_lab.env import PythonLabEnv
from llmgym_environments.python_lab.expert import PythonLabExpert
from llmgym_environments.python_lab.tasks import generate_tasks

__all__ = ["PythonLabEnv", "PythonLabExpert", "generate_tasks"]
