"""Run one seed of the simulation with its trace, or many seeds with progress.

make sim SEED=7
make sim SEEDS=1000 FIRST=1 BROKERS=3 PROFILE=NAME
"""

from __future__ import annotations

import gc
import hashlib
import logging
import multiprocessing
import sys
from collections.abc import Iterator
from functools import partial

from sim_profiles import PROFILES, draw_profile
from sim_world import Report as SeedReport
from sim_world import World

from campaign.report import CannotRun, Report

#: seeds of one broker that a worker takes at a time
_CHUNK = 10


def run_seed(seed: int, brokers: int = 1, profile: str = "") -> SeedReport:
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


def replay(report: Report, seed: int, brokers: int, profile: str) -> None:
    """Print the trace of a seed with the log of the broker."""
    logging.basicConfig(
        level=logging.WARNING, format="                 %(levelname)s %(name)s %(message)s", stream=sys.stdout
    )
    profile = profile or draw_profile(seed, brokers)
    found = World(seed, brokers=brokers, profile=profile, on_line=print).run()
    report.figure(
        f"seed {seed}, profile {profile}: {found.broker_seconds:.1f} broker-seconds, trace {found.trace_hash[:16]}"
    )
    report.problems_found(f"{name}: {len(lines)}, first: {lines[0]}" for name, lines in found.violations.items())


def reports(seeds: range, workers: int, brokers: int, profile: str) -> Iterator[SeedReport]:
    """Yield the report of every seed, in the order in which they end."""
    run = partial(_quiet_seed, brokers=brokers, profile=profile)
    if workers == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=_CHUNK if brokers == 1 else 1)


def _quiet_seed(seed: int, *, brokers: int, profile: str) -> SeedReport:
    logging.disable(logging.CRITICAL)
    return run_seed(seed, brokers, profile)


def run_seeds(report: Report, seeds: range, workers: int, brokers: int, profile: str) -> None:
    """Run many seeds. A seed with a violation is a problem."""
    events = 0
    broker_seconds = 0.0
    ends: dict[str, int] = {}
    hashes: dict[int, str] = {}
    for done, found in enumerate(reports(seeds, workers, brokers, profile), 1):
        broker_seconds += found.broker_seconds
        events += found.events
        hashes[found.seed] = found.trace_hash
        for cause, count in found.ends.items():
            kind = cause.split(":")[0].split(",")[0]
            ends[kind] = ends.get(kind, 0) + count
        if found.violations:
            again = f"make sim {f'BROKERS={brokers} ' if brokers > 1 else ''}SEED={found.seed}"
            again += f" PROFILE='{profile}'" if profile else ""
            report.problem(f"seed {found.seed}: {', '.join(found.violations)} ({again})")
        rate = broker_seconds / report.seconds
        report.progress(done, len(seeds), f"seeds, {len(report.problems)} failed, {rate:.0f} broker-seconds per second")
    report.say("ends of brokers: " + ", ".join(f"{count} {cause}" for cause, count in sorted(ends.items())))
    together = hashlib.sha256("".join(hashes[seed] for seed in sorted(hashes)).encode()).hexdigest()
    report.figure(f"{len(seeds)} seeds, {broker_seconds:.0f} broker-seconds, {events} events of clients")
    report.figure(f"hash of all traces: {together[:16]}")


def run(report: Report, *, seed: int | None, seeds: int, first: int, brokers: int, profile: str) -> None:
    if profile and profile not in PROFILES:
        raise CannotRun(f"there is no profile {profile!r}; there are {', '.join(PROFILES)}")
    if seed is not None:
        replay(report, seed, brokers, profile)
    else:
        run_seeds(report, range(first, first + seeds), multiprocessing.cpu_count(), brokers, profile)
