"""``llmgym new``: scaffolds an environment with its tests and its page from a template."""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Sequence
from pathlib import Path

import llmgym
from llmgym.cli.options import CommandParser
from llmgym.errors import ConfigError

TEMPLATE = Path(__file__).with_name("new_template")


def main(argv: Sequence[str]) -> int:
    """Run ``llmgym new`` and return 0."""
    parser = CommandParser(
        prog="llmgym new",
        description="Scaffold an environment with tests and docs in a new folder. It passes llmgym check and pytest "
        "unchanged; then make it yours.",
    )
    about = "name of the folder and the module; my_env gives the class MyEnv and the id My-v0"
    parser.add_argument("name", metavar="NAME", help=about)
    name = parser.parse_args(argv).name
    for path in write_environment(name):
        print(f"wrote {path}")
    print(f"next: cd {name} && pytest && llmgym check {name}.py:{stem(name)}-v0")
    return 0


def write_environment(name: str, folder: str | Path = ".") -> list[Path]:
    """Write the template under another name into the new folder ``folder/name`` and return the files.

    Raises:
        ConfigError: The name is not a module name, or is taken by a folder, a module, an id or a class of llmgym; or
            the folder cannot be created.
    """
    if not re.fullmatch("[a-z][a-z0-9_]{0,63}", name) or keyword.iskeyword(name):
        raise ConfigError(
            "the name must be a Python module name, such as my_env: a lowercase letter, then lowercase letters, digits "
            f"and _, at most 64 characters, and not a keyword; got {name!r:.80}"
        )
    target = Path(folder) / name
    if target.exists():
        raise ConfigError(f"{str(target)!r} exists already; choose another name or remove it")
    if importlib.util.find_spec(name) is not None:
        raise ConfigError(f"{name!r} is already the name of a module; choose another, such as {name}_env")
    id, env = f"{stem(name)}-v0", f"{stem(name)}Env"
    if id in llmgym.registered_ids() or hasattr(llmgym, env):
        raise ConfigError(
            f"{name!r} makes the id {id} and the class {env}, and llmgym has one of that name; choose another, "
            f"such as my_{name}"
        )
    try:
        target.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(
            f"{str(target)!r} cannot be created ({error.strerror}); run the command in a folder that you can write to"
        ) from error
    written = []
    for source in sorted(TEMPLATE.glob("*.template")):
        text = source.read_text(encoding="utf-8").replace("my_env", name)
        path = target / source.stem.replace("my_env", name)
        path.write_text(re.sub(r"\bMy(?=Env\b|Expert\b|-v0\b)", stem(name), text), encoding="utf-8")
        written.append(path)
    return written


def stem(name: str) -> str:
    """The start of class names and of the id: ``My`` for ``my_env``, ``PriceList`` for ``price_list``."""
    return "".join(part.capitalize() for part in name.removesuffix("_env").split("_"))
