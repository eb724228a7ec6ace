"""Make faults in a live cluster, one after another: `ottla doctor` must name each, and none before and after it.

make campaign NAME=doctor FAULTS=offline-partitions,lost-records
"""

from __future__ import annotations

import time

import doctor_client_faults  # noqa: F401 (it adds its faults)
from doctor_faults import FAULTS, Fault
from doctor_place import DEADLINE_S, Place, healthy_place

from campaign.report import Report
from ottla.health.checks import CHECKS


def run(report: Report, *, faults: str) -> None:
    """Make the faults with these names, all without names."""
    named = [name for name in faults.split(",") if name]
    chosen = [each for each in FAULTS if not named or each.check in named]
    unknown = set(named) - {each.check for each in chosen}
    assert not unknown, f"there are no such faults: {', '.join(sorted(unknown))}"
    assert len({each.check for each in FAULTS}) == len(FAULTS)
    assert {each.check for each in FAULTS} <= {check.name for check in CHECKS}
    found = 0
    with healthy_place() as place:
        report.problems_found(f"healthy cluster: {text}" for text in _wait_healthy(place))
        for number, each in enumerate(chosen):
            report.progress(number, len(chosen), "faults")
            found += _check(place, each, report)
    report.figure(f"{found} of {len(chosen)} faults were named with the next step, and were gone after the repair")


def _check(place: Place, fault: Fault, report: Report) -> bool:
    """Make a fault, wait until it is found, undo it, and wait until nothing is found. Return whether that was so."""
    began = time.monotonic()
    before = len(report.problems)
    try:
        with fault.make(place):
            row = _wait_found(place, fault)
        seconds = time.monotonic() - began
        report.say(f"{fault.check}: {row['verdict']}: {row['detail']}\n    next: {row['remedy']} ({seconds:.0f} s)")
        if not row["remedy"]:
            report.problem(f"{fault.check}: no next step")
    except Exception as error:
        report.problem(f"{fault.check}: {type(error).__name__}: {error}")
    report.problems_found(f"after {fault.check}: {text}" for text in _wait_healthy(place))
    return len(report.problems) == before


def _wait_found(place: Place, fault: Fault) -> dict[str, str]:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = place.findings(fault.compare_s)
        if fault.check in found:
            return found[fault.check]
        if time.monotonic() > deadline:
            raise TimeoutError(f"not found; the doctor found {', '.join(found) or 'nothing'}")


def _wait_healthy(place: Place) -> list[str]:
    """Return what the doctor still finds after the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := place.findings()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [f"{row['name']}: {row['detail']}" for row in found.values()]
