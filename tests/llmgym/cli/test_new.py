"""``llmgym new``: the scaffold passes as it is, and after the changes that the docs make to it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from test_docs import DOCS, blocks, changed

from llmgym.cli import main as cli
from llmgym.cli.new import stem, write_environment
from llmgym.errors import ConfigError

PAGE = (DOCS / "template.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    """What the first command of the page writes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command appends the folder it runs in
    assert blocks(PAGE, "bash")[0] == "llmgym new price_list\n"
    assert cli.main(["new", "price_list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        *(f"wrote price_list/{name}" for name in ("price_list.md", "price_list.py", "test_price_list.py")),
        "next: cd price_list && pytest && llmgym check price_list.py:PriceList-v0",
    ]
    return tmp_path / "price_list"


def pytest_says(folder, *options):
    """Run the tests of the folder in another process, and one that its page shows what the expert plays."""
    (folder / "test_page.py").write_text(PAGE_TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "."]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, env=os.environ)
    return ran.stdout


PAGE_TEST = f"""
import runpy
import test_price_list

rows = runpy.run_path({str(DOCS / "generate_environments.py")!r})["rows"]

def test_the_page_shows_what_the_expert_plays():
    played = test_price_list.play(test_price_list.PriceListExpert())
    table = "\\n".join(["| | |", "| --- | --- |", *rows(played)])
    with open("price_list.md", encoding="utf-8") as page:
        assert f"## An episode\\n\\n{{table}}\\n\\n" in page.read()
"""


def change(path, diff):
    path.write_text(changed(path.read_text(encoding="utf-8"), diff), encoding="utf-8")


@pytest.mark.slow
def test_the_scaffold_passes_as_it_is(folder):
    assert "llmgym check price_list.py:PriceList-v0\n" in blocks(PAGE, "bash")[1]  # its last test checks just that
    assert "8 passed" in pytest_says(folder)
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        assert "my_env" not in text
        assert "MyEnv" not in text


@pytest.mark.slow
def test_the_changes_of_the_page_work(folder):
    environment, played, cheating, digest, page = blocks(PAGE, "diff")
    change(folder / "price_list.py", environment)
    failed = re.findall(r"^FAILED test_price_list.py::(\w+)", pytest_says(folder, "-k", "not check"), re.MULTILINE)
    assert set(failed) == {"test_cheating_earns_nothing", "test_tasks_never_change_and_splits_share_none"}
    for diff in (played, cheating, digest):
        change(folder / "test_price_list.py", diff)
    change(folder / "price_list.md", page)
    assert "8 passed" in pytest_says(folder)


@pytest.mark.parametrize(
    ("name", "expected"), [("my_env", "My"), ("price_list", "PriceList"), ("a_b_env", "AB"), ("env", "Env")]
)
def test_names_of_classes(name, expected):
    assert stem(name) == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MyEnv", "must be a Python module name, such as my_env: a lowercase letter, .* got 'MyEnv'"),
        ("my-env", "got 'my-env'"),
        ("../my_env", "got '../my_env'"),
        ("class", "got 'class'"),
        ("", "got ''"),
        ("json", "'json' is already the name of a module; choose another, such as json_env"),
        ("there", "there' exists already"),
        ("a" * 65, "at most 64 characters, and not a keyword; got 'aaa"),
        ("mastermind", "makes the id Mastermind-v0 and the class MastermindEnv, and llmgym has one"),
        ("tool_env", "the class ToolEnv, and llmgym has one of that name; choose another, such as my_tool_env"),
    ],
)
def test_a_bad_name_is_refused_before_anything_is_written(name, said, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match=said):
        write_environment(name, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/never_made' cannot be created \(Not a directory\)"):
        write_environment("never_made", tmp_path / "file")


def test_help_explains_the_name(capsys):
    with pytest.raises(SystemExit):
        cli.main(["new", "--help"])
    assert "the class MyEnv and the id My-v0" in " ".join(capsys.readouterr().out.split())
