"""PythonLab-v0: write a function, try it, submit it. Knows what the package offers, nothing more."""

from llmgym_environments.python_lab.env import PythonLabEnv
from llmgym_environments.python_lab.expert import PythonLabExpert
from llmgym_environments.python_lab.tasks import generate_tasks

__all__ = ["PythonLabEnv", "PythonLabExpert", "generate_tasks"]
