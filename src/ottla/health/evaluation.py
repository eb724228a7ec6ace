"""Run all checks on a picture of a cluster."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.health.checks import CHECKS, Check
from ottla.health.findings import Finding, Severity
from ottla.health.types import ClusterPicture
from ottla.model.figures import format_count
from ottla.model.printable import shown

#: the check of findings about parts that could not be read
NOT_CHECKED = "not-checked"


def evaluate(picture: ClusterPicture, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """Return what is wrong with the cluster, the worst first, then the parts that could not be checked."""
    table = list(checks)
    findings = [finding for check in table if check.can_run(picture) for finding in check.run(picture)]
    findings += [_not_checked(picture, part, table) for part in picture.unknown if _needs(table, part)]
    return sorted(findings, key=lambda finding: -finding.severity)


def _needs(checks: Iterable[Check], part: str) -> list[Check]:
    return [check for check in checks if part in check.needs]


def _not_checked(picture: ClusterPicture, part: str, checks: Iterable[Check]) -> Finding:
    skipped = [check.name for check in _needs(checks, part)]
    return Finding(
        check=NOT_CHECKED,
        severity=Severity.INFO,
        text=shown(f"{part} are not known: {picture.unknown[part]}"),  # type: ignore[index]
        advice=f"{format_count(len(skipped), 'check')} did not run: {', '.join(skipped)}",
        kind="cluster",
    )
