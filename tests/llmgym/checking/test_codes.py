"""The table of codes, and the page that is generated from it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from llmgym.checking import CHECKS, CODES

GENERATOR = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "generate_checks.py"))


def test_no_code_belongs_to_two_checks():
    assert sum(len(check.codes) for check in CHECKS) == len(CODES)


def test_the_page_names_every_check_and_every_code():
    (page,) = GENERATOR["pages"]().values()
    assert re.findall(r"^## (\S+)$", page, re.MULTILINE) == [check.name for check in CHECKS]
    assert re.findall(r"^### `(\S+)`\n\n(\w+): ", page, re.MULTILINE) == [
        (code.name, code.level.capitalize()) for code in CODES.values()
    ]
    assert page.count("\n- **How to fix it**: ") == len(CODES)
