"""Run one seed with its trace, or many seeds with progress:

python tests/sim/sim_campaign.py --seed 7
python tests/sim/sim_campaign.py --seeds 1000 [--first 1] [--workers 2] [--brokers 3] [--profile NAME]
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator
from functools import partial

from sim_profiles import PROFILES, draw_profile
from sim_world import Report, World

#: seeds of one broker that a worker takes at a time
_CHUNK = 10


def run_seed(seed: int, brokers: int = 1, profile: str = "") -> Report:
    """Run one seed, with the profile that it draws unless one is given; the report has no trace."""
    # The objects of a run refer to each other until its end. Collections during the run would find little.
    gc.disable()
    try:
        report = World(seed, brokers=brokers, profile=profile or draw_profile(seed, brokers)).run()
    finally:
        gc.enable()
    report.trace = []
    gc.collect()
    return report


def replay(seed: int, brokers: int, profile: str) -> int:
    """Print the trace of a seed with the log of the broker; return the number of violations."""
    logging.basicConfig(
        level=logging.WARNING, format="                 %(levelname)s %(name)s %(message)s", stream=sys.stdout
    )
    profile = profile or draw_profile(seed, brokers)
    report = World(seed, brokers=brokers, profile=profile, on_line=print).run()
    print(
        f"\nseed {seed}, profile {profile}: {report.broker_seconds:.1f} broker-seconds, trace {report.trace_hash[:16]}"
    )
    for name, lines in report.violations.items():
        print(f"{name}: {len(lines)}, first: {lines[0]}")
    return len(report.violations)


def reports(seeds: range, workers: int, brokers: int, profile: str) -> Iterator[Report]:
    """Yield the report of every seed, in the order in which they end."""
    run = partial(_quiet_seed, brokers=brokers, profile=profile)
    if workers == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=_CHUNK if brokers == 1 else 1)


def _quiet_seed(seed: int, *, brokers: int, profile: str) -> Report:
    logging.disable(logging.CRITICAL)
    return run_seed(seed, brokers, profile)


def campaign(seeds: range, workers: int, brokers: int, profile: str) -> int:
    """Run many seeds; print progress and what went wrong. Return the number of seeds with a violation."""
    started = time.monotonic()
    failed = events = 0
    broker_seconds = 0.0
    ends: dict[str, int] = {}
    hashes: dict[int, str] = {}
    said = started
    for done, report in enumerate(reports(seeds, workers, brokers, profile), 1):
        broker_seconds += report.broker_seconds
        events += report.events
        hashes[report.seed] = report.trace_hash
        for cause, count in report.ends.items():
            kind = cause.split(":")[0].split(",")[0]
            ends[kind] = ends.get(kind, 0) + count
        if report.violations:
            failed += 1
            again = f"make sim {f'BROKERS={brokers} ' if brokers > 1 else ''}SEED={report.seed}"
            again += f" PROFILE='{profile}'" if profile else ""
            print(f"seed {report.seed} FAILED: {', '.join(report.violations)} ({again})", flush=True)
        if (now := time.monotonic()) - said > 5 or done == len(seeds):
            said = now
            rate = broker_seconds / (now - started)
            print(f"{done}/{len(seeds)} seeds, {failed} failed, {rate:.0f} broker-seconds per second", flush=True)
    print(f"{broker_seconds:.0f} broker-seconds, {events} events of clients, {time.monotonic() - started:.0f} s")
    print("ends of brokers: " + ", ".join(f"{count} {cause}" for cause, count in sorted(ends.items())))
    together = hashlib.sha256("".join(hashes[seed] for seed in sorted(hashes)).encode()).hexdigest()
    print(f"hash of all traces: {together[:16]}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--profile", choices=list(PROFILES), default="", help="the seed draws one without this option")
    options = parser.parse_args()
    if options.seed is not None:
        return min(replay(options.seed, options.brokers, options.profile), 1)
    seeds = range(options.first, options.first + options.seeds)
    return min(campaign(seeds, options.workers, options.brokers, options.profile), 1)


if __name__ == "__main__":
    sys.exit(main())
