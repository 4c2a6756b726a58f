"""Two evaluations side by side, with a paired test over the tasks that both ran."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmgym.episode import StopReason
from llmgym.errors import ConfigError
from llmgym.evaluation.report import Report
from llmgym.evaluation.statistics import Estimate, cluster_estimate, sign_flip_test
from llmgym.evaluation.tables import Table, estimate_text, print_tables

if TYPE_CHECKING:
    from rich.console import Console


@dataclass
class Comparison:
    """What :func:`compare_reports` returns.

    Attributes:
        first: One report.
        second: The other.
        tasks: Tasks with an episode that did not fail in both.
        difference: Mean over those tasks of the second's mean reward minus the first's; each task counts alike.
        p_value: Probability of a mean difference as large as this one or larger, were the two equally good.
        test: How it was found.
        warnings: Why the two may not measure the same thing.
    """

    first: Report
    second: Report
    tasks: int
    difference: Estimate
    p_value: float
    test: str
    warnings: list[str] = field(default_factory=list)

    def print(self, console: Console | None = None) -> None:
        """Show the two reports side by side, and the test."""
        first, second = self.first, self.second
        columns = ["", f"A: {first.policy}", f"B: {second.policy}"]
        pairs = zip(first.overview(), second.overview(), strict=True)
        rows = [[name, before, after] for (name, before), (_, after) in pairs]
        rows += [
            [f"stopped: {reason}", first.stop_share(reason), second.stop_share(reason)]
            for reason in StopReason
            if reason in first.stop_reasons or reason in second.stop_reasons
        ]
        where = [[name, report.folder] for name, report in (("A", first), ("B", second)) if report.folder]
        verdict = (
            f"B - A: {estimate_text(self.difference, sign=True)} mean reward over {self.tasks} common tasks, "
            f"p = {self.p_value:.3g} ({self.test})"
        )
        tables = [Table("comparison", columns, rows), Table("folders", ["", ""], where)]
        print_tables("", tables, self.warnings, verdict, console)


def compare_reports(first: Report, second: Report, *, seed: int = 0) -> Comparison:
    """Compare two evaluations task by task.

    The task is the unit, because its episodes are not independent: its mean reward in one report is paired with that in
    the other. The test is :func:`llmgym.evaluation.statistics.sign_flip_test`, the interval Student's t over the
    differences.

    Args:
        seed: Of the random signs, where there are too many tasks to try all.

    Raises:
        ConfigError: The two have no task in common.
    """
    means = [{row.id: row.mean_reward for row in report.tasks} for report in (first, second)]
    pairs = [(before, after) for id, before in means[0].items() if (after := means[1].get(id)) is not None]
    differences = [after - before for before, after in pairs if before is not None]
    if not differences:
        raise ConfigError(
            f"the two evaluations have no task in common ({first.env_id} and {second.env_id}): run both with the same "
            "environment, split and --limit"
        )
    p_value, test = sign_flip_test(differences, seed=seed)
    return Comparison(
        first,
        second,
        tasks=len(differences),
        difference=cluster_estimate([[difference] for difference in differences]),
        p_value=p_value,
        test=test,
        warnings=_warnings(first, second, len(differences)),
    )


def _warnings(first: Report, second: Report, common: int) -> list[str]:
    found = []
    if first.env_id != second.env_id:
        found.append(f"The environments differ: {first.env_id} and {second.env_id}.")
    if first.settings.get("tasks_sha256") != second.settings.get("tasks_sha256"):
        found.append(
            f"The tasks differ; {common} with the same id are compared, of {len(first.tasks)} and {len(second.tasks)}."
        )
    for name in ("limits", "seed"):
        if first.settings.get(name) != second.settings.get(name):
            found.append(f"They ran with different {name}.")
    for report in (first, second):
        found += [f"{report.policy}: {warning}" for warning in report.warnings]
    return found
