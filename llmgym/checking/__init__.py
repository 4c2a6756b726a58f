"""``llmgym check``: does an environment keep what training relies on? This file only names what is public."""

from llmgym.checking.checker import check_env
from llmgym.checking.codes import CHECKS, CODES, Check, Code, Level
from llmgym.checking.report import CheckReport, CheckResult, Finding, Status, print_report

__all__ = [
    "CHECKS",
    "CODES",
    "Check",
    "CheckReport",
    "CheckResult",
    "Code",
    "Finding",
    "Level",
    "Status",
    "check_env",
    "print_report",
]
