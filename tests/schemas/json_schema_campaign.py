"""Random pairs of JSON schemas and documents that check their verdicts: ``make schemas``."""

from __future__ import annotations

import argparse
import time

from tests.unit.schemas.json_schema_samples import Tally, check_pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each pair has its own")
    arguments = parser.parse_args()
    started = time.monotonic()
    tally = Tally()
    for seed in range(arguments.seed, arguments.seed + arguments.pairs):
        try:
            check_pair(seed, tally)
        except AssertionError as error:
            raise SystemExit(f"JSON Schema, seed {seed}: {error}") from None
    print(
        f"JSON Schema: {tally.pairs:,} pairs, {tally.compatible:,} of them compatible, {tally.documents:,} documents. "
        f"No document of a writer is invalid for a compatible reader, all {tally.relaxed:,} relaxed schemas are "
        f"compatible, all {tally.restricted:,} restricted ones are not. {tally.proven:,} of the "
        f"{tally.pairs - tally.compatible:,} incompatible pairs have a document that shows it. "
        f"{time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
