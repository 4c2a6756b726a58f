"""FileWorkspace-v0: find, move and edit files."""

from llmgym_environments.file_workspace.env import FileWorkspaceEnv
from llmgym_environments.file_workspace.expert import FileWorkspaceExpert
from llmgym_environments.file_workspace.tasks import generate_tasks

__all__ = ["FileWorkspaceEnv", "FileWorkspaceExpert", "generate_tasks"]
