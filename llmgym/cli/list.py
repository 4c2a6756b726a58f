"""``llmgym list``: the registered environments with their tools, tasks and levels."""

from __future__ import annotations

import contextlib
import inspect
import re
import textwrap
from collections.abc import Sequence

from llmgym.cli.options import CommandParser
from llmgym.errors import TaskError
from llmgym.registry import SPLITS, EnvEntry, find, registered_ids
from llmgym.task import Task


def main(argv: Sequence[str]) -> int:
    """Run ``llmgym list`` and return 0."""
    CommandParser(prog="llmgym list", description="Show the registered environments.").parse_args(argv)
    for id in registered_ids():
        try:
            lines = _describe(find(id))
        except Exception as error:  # noqa: BLE001 - one broken environment must not hide the others
            lines = [f"cannot be shown: {type(error).__name__}: {error}"]
        print(id)
        for line in lines:
            print(textwrap.fill(line, 80, initial_indent="  ", subsequent_indent="    "))
    return 0


def _describe(entry: EnvEntry) -> list[str]:
    by_split = {}
    for split in SPLITS:
        with contextlib.suppress(TaskError):  # not every environment has tasks, or every split
            by_split[split] = entry.load_tasks(split)
    environment = entry.make_env(next(iter(by_split.get("train", [])), Task("")))
    page = inspect.cleandoc(type(environment).__doc__ or "no docstring")
    text = re.sub(r"^#.*\n+", "", page, flags=re.MULTILINE)
    about = re.split(r"(?<=[.!?])\s|\n\n", text, maxsplit=1)[0].replace("\n", " ")
    tools = ", ".join(spec["function"]["name"] for spec in environment.tool_specs)
    sizes = ", ".join(f"{split} {len(tasks)}" for split, tasks in by_split.items())
    table = page.partition("| level |")[2].partition("\n\n")[0]
    levels = ", ".join(re.findall(r"^\| (\w+) ", table, re.MULTILINE))
    of_levels = f" (levels {levels})" if levels else ""
    return [about, f"tools: {tools or 'none'}", f"tasks: {sizes or 'none'}{of_levels}"]
