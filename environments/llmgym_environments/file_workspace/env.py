"""The environment FileWorkspace-v0: find, move and edit files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmgym import Message, ToolEnv, ToolResult, tool
from llmgym.errors import TaskError, ToolError
from llmgym_environments.file_workspace.tree import MissingError, Tree, folders_above, page


class FileWorkspaceEnv(ToolEnv):
    """
    ## Description
    A task asks for changes to a small tree of text files, kept in memory: find the right ones, move them, edit them,
    and spoil no other. No path reaches the machine's own files.

    | level | files | request, for example |
    | --- | --- | --- |
    | 1 | 6 in 3 folders | Move plum.txt to attic. Write 42 into plum.txt. |
    | 2 | 9 in 3 folders | Move all files with owner fox to attic. In the file with code 731, change size to 40. |
    | 3 | 12 in 4 folders | Move each file to the folder that its line shelf names. Change owner fox to wren. |

    At level 1 the folder of the file has to be found. From level 2 on files have lines such as `owner: fox`, which have
    to be searched; one owner's name may begin with another's (`rose`, `rosemary`). Level 3 asks for many files at once.

    ## Tools
    - `list_dir(path, first=1)`: names in a folder, `/` for the top; those of folders end with `/`.
    - `read_file(path, first=1)`: the text of a file.
    - `write_file(path, text)`: makes a file or replaces its text. Answers `ok`.
    - `move(source, target)`: moves a file into a folder that exists, or to a new path. Answers with the path it has
      now.
    - `grep(text, first=1)`: the lines that hold a text, as `path:number: line`, or `no lines`. No pattern: the text
      itself.

    At most 4 calls of an episode may list, read or move what is not there (a file that was moved away does not
    count); one more ends the episode with 0. Their errors suggest a similar name in the same folder, and no other.

    Long results are cut after 50 lines or 2,000 characters, with a note that names the `first` of the rest. Nothing
    can be deleted. At most 200 files, 200 folders, 200,000 characters in all, 500 a line and 100 a path. Several
    calls in one message are allowed; results come in their order.

    ## Observation
    The opening is a system message and the request as a user message. Each tool call adds one tool message with its
    id: a bare result, or `tool_error: …`.

    ## Action
    One assistant message. With tool calls it runs them; without, it says that the work is done, in whatever words.

    ## Rewards
    1.0 when the final tree is right, else 0.0, also after a fifth call for what is not there; nothing in between. Right
    means, by the task's `target`:

    1. each path with a text there is a file with this text (blanks at its end aside);
    2. each path with null there is gone;
    3. every other file is where and what it was at the beginning, to the last blank, and there is no further file,
       nor a further folder that is in no path of the target.

    What is said or shown on the way does not count.

    ## Episode End
    1. Termination: an assistant message without tool calls.
    2. Termination: a fifth call for what is not there.
    3. Truncation: none by the environment; limits on turns and tokens belong to whoever drives it.

    ## Arguments
    None. Tasks take `level`, `count` and `seed`
    (:class:`~llmgym_environments.task_generation.TaskGenerator`); splits never share a tree, whatever the seeds.

    ## Metrics
    - `turns`: assistant messages.
    - `tool_calls`, and `calls_<tool>` for each tool that was called.
    - `tool_errors`: calls answered with an error.
    - `missing`: calls for what is not there, and was not moved away before.
    - `changes`: paths in the target; `changes_made`: those that are right at the end.
    - `files_spoiled`: other files that were changed, moved away or made, and folders that nobody asked for.

    ## Version History
    - v0: first version.
    """

    system_prompt = "Change the files with the tools. Then reply done."
    max_missing = 4

    async def setup(self) -> None:
        """Take files and target from the task. Raises :class:`TaskError` when one is missing or out of shape."""
        files: Any = self.task.metadata.get("files")
        changes: Any = self.task.target
        for name, value, kinds in (("metadata['files']", files, str), ("target", changes, str | None)):
            if not isinstance(value, dict) or not value or not all(isinstance(text, kinds) for text in value.values()):
                raise TaskError(f"{name} of the task must map paths to texts, got {value!r:.80}")
        try:
            self._tree = Tree(files)
            odd = {*files, *changes} - {*Tree({**files, **dict.fromkeys(changes, "")}).files}
        except ToolError as error:
            raise TaskError(f"the files or the target of the task: {error}") from error
        if odd:
            raise TaskError(f"write the paths of a task plainly, such as 'garden/plum.txt', got {sorted(odd)!r:.80}")
        self._changes: dict[str, str | None] = dict(changes)  # a copy: whoever holds the task cannot edit the check
        self._others = {path: text for path, text in self._tree.files.items() if path not in changes}
        self._folders = self._tree.folders.union(*map(folders_above, changes))
        self._missing = 0
        self._made, self._spoiled = self._look()
        if self._made == len(changes):
            raise TaskError(
                "the files are as the target wants them from the beginning; then doing nothing would be right"
            )

    @tool
    async def list_dir(self, path: str, first: int = 1) -> ToolResult:
        """List a folder. At most 4 calls of an episode, of all tools, may name what is not there."""
        return self._find(lambda: page(self._tree.entries(path), first) or "empty")

    @tool
    async def read_file(self, path: str, first: int = 1) -> ToolResult:
        """Read a file."""
        return self._find(lambda: page(self._tree.read(path).split("\n"), first))

    @tool
    async def write_file(self, path: str, text: str) -> str:
        """Make a file or replace its text."""
        self._tree.write(path, text)
        return "ok"

    @tool
    async def move(self, source: str, target: str) -> ToolResult:
        """Move a file into a folder or to a new path."""
        return self._find(lambda: self._tree.move(source, target))

    @tool
    async def grep(self, text: str, first: int = 1) -> str:
        """Find the lines that hold a text."""
        return page(self._tree.find(text), first) or "no lines"

    async def score(self, message: Message) -> float:
        """1.0 or 0.0, see the class."""
        self._made, self._spoiled = self._look()
        return float(self._missing <= self.max_missing and self._made == len(self._changes) and self._spoiled == 0)

    def metrics(self) -> dict[str, Any]:
        """See the class's section Metrics."""
        return {
            **super().metrics(),
            "missing": self._missing,
            "changes": len(self._changes),
            "changes_made": self._made,
            "files_spoiled": self._spoiled,
        }

    def _find(self, use: Callable[[], str]) -> ToolResult:
        """The result of a call for what should be there; one too many for what is not ends the episode."""
        try:
            return ToolResult(use())
        except MissingError:
            self._missing += 1
            if self._missing <= self.max_missing:
                raise
            return ToolResult("not there, and that once too often", should_stop=True)

    def _look(self) -> tuple[int, int]:
        """The number of wanted changes in the tree, and of other files and folders that changed or are new."""
        files = self._tree.files
        made = sum(_same(files.pop(path, None), wanted) for path, wanted in self._changes.items())
        spoiled = sum(files.get(path) != self._others.get(path) for path in {*files, *self._others})
        return made, spoiled + len(self._tree.folders - self._folders)


def _same(one: str | None, other: str | None) -> bool:
    return one == other if one is None or other is None else one.rstrip() == other.rstrip()
