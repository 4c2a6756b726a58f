"""llmgym new: what it writes passes as it is, and after the change that the docs make to it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from test_docs import DOCS, blocks, changed

from llmgym import cli
from llmgym.errors import ConfigError
from llmgym.new import stem, write_environment

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


def pytest_says(folder):
    """Run the tests of the folder in another process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, env=os.environ)
    return ran.stdout


def change(path, diff):
    path.write_text(changed(path.read_text(encoding="utf-8"), diff), encoding="utf-8")


def test_what_it_writes_passes_as_it_is(folder, monkeypatch, capsys):
    assert "5 passed" in pytest_says(folder)
    monkeypatch.chdir(folder)
    command = blocks(PAGE, "bash")[1].splitlines()[-1]
    assert command == "llmgym check price_list.py:PriceList-v0"
    assert cli.main(command.split()[1:]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        assert "my_env" not in text
        assert "MyEnv" not in text


def test_the_page_builds_one_from_it(folder):
    tasks, digest = blocks(PAGE, "diff")
    change(folder / "price_list.py", tasks)
    said = pytest_says(folder)
    assert "1 failed, 4 passed" in said
    assert "FAILED test_price_list.py::test_tasks_never_change_and_splits_are_apart" in said
    change(folder / "test_price_list.py", digest)
    assert "5 passed" in pytest_says(folder)


@pytest.mark.parametrize(
    ("name", "expected"), [("my_env", "My"), ("price_list", "PriceList"), ("a_b_env", "AB"), ("env", "Env")]
)
def test_names_of_classes(name, expected):
    assert stem(name) == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MyEnv", "must be one of a Python module, such as my_env; got 'MyEnv'"),
        ("my-env", "got 'my-env'"),
        ("../my_env", "got '../my_env'"),
        ("class", "got 'class'"),
        ("", "got ''"),
        ("json", "'json' is the name of a module already; choose another, such as json_env"),
        ("there", "there' is there already"),
    ],
)
def test_a_bad_name_is_refused_before_anything_is_written(name, said, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match=said):
        write_environment(name, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
