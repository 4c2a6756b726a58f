"""The outcome of a check: findings, the status of each check, and how both are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pydantic

from llmgym._util.text import printable
from llmgym.checking.codes import CHECKS, CODES, Code, Level

if TYPE_CHECKING:
    from rich.console import Console


class Status(StrEnum):
    """The outcome of one check."""

    PASSED = "passed"
    FAILED = "failed"
    WARNING = "warning"
    NOT_CHECKED = "not checked"


@dataclass
class Finding:
    """One kind of fault, with its first occurrence.

    Attributes:
        code: A key of :data:`~llmgym.checking.codes.CODES`, which holds level, reason and fix.
        sent: What the environment was given.
        got: What came back.
        count: How many times it was seen.
    """

    code: str
    sent: str
    got: str
    count: int = 1

    @property
    def about(self) -> Code:
        """Level, title, reason and fix of the code."""
        return CODES[self.code]

    def to_json(self) -> dict[str, Any]:
        """Everything as one JSON object."""
        about = self.about
        return {**asdict(self), "level": about.level, "title": about.title, "why": about.why, "fix": about.fix}


@dataclass
class CheckResult:
    """One check and how it went.

    Attributes:
        name: Name of the check.
        status: How it went.
        detail: What was done, or why it was not checked.
    """

    name: str
    status: Status
    detail: str = ""


@dataclass
class CheckReport:
    """What :func:`llmgym.check_env` returns.

    Attributes:
        env_id: The environment.
        checks: All checks, in order.
        findings: The faults, one per code.
        environment_calls: Calls of ``reset``, ``step`` and ``close``; a whole episode counts as one.
        hostile_actions: Hostile actions that were sent.
        seconds: How long it took.
    """

    env_id: str
    checks: list[CheckResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    environment_calls: int = 0
    hostile_actions: int = 0
    seconds: float = 0.0

    @property
    def errors(self) -> list[Finding]:
        """The findings of level error."""
        return [finding for finding in self.findings if finding.about.level is Level.ERROR]

    @property
    def ok(self) -> bool:
        """Whether there are no errors; there may be warnings."""
        return not self.errors

    def to_json(self) -> dict[str, Any]:
        """Everything as one JSON object."""
        return {
            "env_id": self.env_id,
            "ok": self.ok,
            "checks": [asdict(check) for check in self.checks],
            "findings": [finding.to_json() for finding in self.findings],
            "environment_calls": self.environment_calls,
            "hostile_actions": self.hostile_actions,
            "seconds": round(self.seconds, 3),
        }


def report_from_json(value: Any) -> CheckReport:
    """Read :meth:`CheckReport.to_json` back."""
    return pydantic.TypeAdapter(CheckReport).validate_python(value)


class Findings:
    """Collects findings: the first occurrence of each code is kept, further ones are counted."""

    def __init__(self, known: Iterable[Finding] = ()) -> None:
        self._by_code = {finding.code: finding for finding in known}

    def add(self, code: str, *, sent: str, got: str) -> None:
        """Note an occurrence of ``code``."""
        assert code in CODES
        if code in self._by_code:
            self._by_code[code].count += 1
        else:
            self._by_code[code] = Finding(code, _shown(sent), _shown(got))

    def __contains__(self, code: str) -> bool:
        return code in self._by_code

    def all(self) -> list[Finding]:
        """Errors first, otherwise in the order they were found."""
        return sorted(self._by_code.values(), key=lambda finding: finding.about.level is not Level.ERROR)


def conclude(findings: Iterable[Finding], ran: Mapping[str, CheckResult], otherwise: str) -> list[CheckResult]:
    """Give every check its status: findings decide, then how it ran.

    Args:
        findings: All findings.
        ran: How each check ran, by name: ``PASSED`` or ``NOT_CHECKED``.
        otherwise: Why the other checks are not checked.
    """
    found = {finding.code: finding.about.level for finding in findings}
    results = []
    for check in CHECKS:
        own = {code.name: found[code.name] for code in check.codes if code.name in found}
        if own:
            status = Status.FAILED if Level.ERROR in own.values() else Status.WARNING
            results.append(CheckResult(check.name, status, ", ".join(own)))
        else:
            results.append(ran.get(check.name) or CheckResult(check.name, Status.NOT_CHECKED, otherwise))
    return results


def _shown(text: str, limit: int = 400) -> str:
    return printable(text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)")


def print_report(report: CheckReport, console: Console) -> None:
    """Show a report: a table of the checks, then each finding in full."""
    from rich.table import Table
    from rich.text import Text

    styles = {Status.PASSED: "green", Status.FAILED: "bold red", Status.WARNING: "yellow", Status.NOT_CHECKED: "dim"}
    titles = {check.name: check.title for check in CHECKS}
    table = Table(title=Text(f"llmgym check {report.env_id}"), title_justify="left", show_lines=False)
    table.add_column("check", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("meaning")
    for check in report.checks:
        meaning = titles[check.name] + (f" ({check.detail})" if check.detail else "")
        table.add_row(check.name, Text(check.status, style=styles[check.status]), Text(meaning))
    console.print(table)
    for finding in report.findings:
        about = finding.about
        style = "bold red" if about.level is Level.ERROR else "yellow"
        times = f" ({finding.count} times)" if finding.count > 1 else ""
        console.print()
        console.print(Text.assemble((f"{about.level} {finding.code}", style), f": {about.title}{times}"))
        for name, text in (
            ("sent", finding.sent),
            ("came back", finding.got),
            ("why it hurts", about.why),
            ("how to fix it", about.fix),
        ):
            console.print(Text.assemble((f"  {name}: ", "bold"), text.replace("\n", "\n    ")))
    warnings = len(report.findings) - len(report.errors)
    console.print()
    console.print(
        Text(
            f"{len(report.errors)} errors, {warnings} warnings; {report.environment_calls} calls of the environment, "
            f"{report.hostile_actions} hostile actions, {report.seconds:.1f} s"
        )
    )
