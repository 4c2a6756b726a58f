"""docs/checking.md describes every code there is, and no other, in the words of the report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmgym.checking import CHECKS, CODES

PAGE = (Path(__file__).parents[2] / "docs" / "checking.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^#### (\S+ \(\w+\))\n(.*?)(?=^###|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_the_page_and_the_code_name_the_same_codes():
    assert list(SECTIONS) == [f"{code.name} ({code.level})" for code in CODES.values()]


def test_the_page_and_the_code_name_the_same_checks():
    assert re.findall(r"^### Check `(\S+)`$", PAGE, re.MULTILINE) == [check.name for check in CHECKS]


@pytest.mark.parametrize("code", CODES.values(), ids=list(CODES))
def test_a_section_says_all_of_it(code):
    section = SECTIONS[f"{code.name} ({code.level})"]
    assert f"\n{code.title[0].upper()}{code.title[1:]}.\n" in section
    assert f"- Why it hurts: {code.why}\n" in section
    assert f"- How to mend it: {code.mend}\n" in section
    assert re.search(r"^- What was sent: .", section, re.MULTILINE)
    assert re.search(r"^- What came back, for example: .", section, re.MULTILINE)


def test_no_code_belongs_to_two_checks():
    assert sum(len(check.codes) for check in CHECKS) == len(CODES)
