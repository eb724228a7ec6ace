"""The authorizer against its reference on very many random cases."""

from __future__ import annotations

from tests.unit.security.acl_reference import compare

from campaign.report import Report

_CASES_PER_SEED = 50_000


def compare_acls(report: Report, *, cases: int, seed: int) -> None:
    """Compare decisions; ``seed`` is the first seed, and each seed has 50,000 cases."""
    done = allowed = changes = 0
    while done < cases:
        report.progress(done, cases, "decisions")
        try:
            tally = compare(seed, min(_CASES_PER_SEED, cases - done))
        except AssertionError as error:
            report.problem(f"seed {seed}: the authorizer differs from the reference: {error}")
            return
        done, allowed, changes = done + tally.cases, allowed + tally.allowed, changes + tally.changes
        seed += 1
    report.figure(
        f"{done:,} decisions after {changes:,} changes of ACLs, all as the reference, {allowed / done:.0%} allow"
    )
