"""The authorizer against its reference on very many random cases: ``make security``."""

from __future__ import annotations

import argparse
import time

from tests.unit.security.acl_reference import compare

_CASES_PER_SEED = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each seed has 50,000 cases")
    arguments = parser.parse_args()
    started = time.monotonic()
    done = allowed = changes = 0
    seed = arguments.seed
    while done < arguments.cases:
        try:
            tally = compare(seed, min(_CASES_PER_SEED, arguments.cases - done))
        except AssertionError as error:
            raise SystemExit(f"seed {seed}: the authorizer differs from the reference: {error}") from None
        done, allowed, changes = done + tally.cases, allowed + tally.allowed, changes + tally.changes
        seed += 1
    print(
        f"{done:,} decisions after {changes:,} changes of ACLs: none differs from the reference, "
        f"{allowed / done:.0%} allow, {time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
