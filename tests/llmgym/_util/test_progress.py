import io
import sys

import pytest

from llmgym._util.progress import ProgressBar


@pytest.mark.parametrize(
    ("total", "shown_at"),
    [
        (1000, [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]),
        (12, [2, 3, 4, 5, 6, 8, 9, 10, 11, 12]),
        (3, [1, 2, 3]),
    ],
)
def test_in_a_file_each_tenth_is_one_line(capsys, total, shown_at):
    with ProgressBar("Job", total) as bar:
        for done in range(1, total + 1):
            bar.update(done, f"note [{done}]")
    printed = capsys.readouterr()
    assert printed.err == "".join(f"Job: {done}/{total}, note [{done}]\n" for done in shown_at)
    assert printed.out == ""


def test_work_done_in_large_pieces_is_not_printed_twice(capsys):
    with ProgressBar("Job", 10) as bar:
        for done in (5, 5, 10):
            bar.update(done)
    assert capsys.readouterr().err == "Job: 5/10\nJob: 10/10\n"


@pytest.mark.parametrize("quiet", [{"shown": False}, {"lines": False}])
def test_lines_can_be_turned_off(capsys, quiet):
    with ProgressBar("Job", 10, **quiet) as bar:
        bar.update(10)
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_it_is_a_bar_and_printed_lines_stay_whole(monkeypatch):
    terminal, file = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", file)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar("Job", 4) as bar:
        bar.update(3, "note [a]")
        print("a result")
    assert all(part in terminal.getvalue() for part in ("Job", "3/4", "note [a]"))
    assert file.getvalue() == "a result\n", "output sent to a file does not go to the terminal"
