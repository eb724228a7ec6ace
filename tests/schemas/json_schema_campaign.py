"""Random pairs of JSON schemas and documents that check their verdicts."""

from __future__ import annotations

from tests.unit.schemas.json_schema_samples import Tally, check_pair

from campaign.report import Report


def compare(report: Report, *, pairs: int, seed: int) -> None:
    """Check pairs; ``seed`` is the seed of the first, and each pair has its own."""
    tally = Tally()
    for number in range(seed, seed + pairs):
        report.progress(number - seed, pairs, "pairs of JSON schemas")
        try:
            check_pair(number, tally)
        except AssertionError as error:
            report.problem(f"JSON Schema, seed {number}: {error}")
            return
    report.figure(
        f"JSON Schema: {tally.pairs:,} pairs, {tally.compatible:,} of them compatible, {tally.documents:,} documents. "
        f"No document of a writer is invalid for a compatible reader, all {tally.relaxed:,} relaxed schemas are "
        f"compatible, all {tally.restricted:,} restricted ones are not. {tally.proven:,} of the "
        f"{tally.pairs - tally.compatible:,} incompatible pairs have a document that shows it"
    )
