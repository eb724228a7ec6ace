"""The clocks of the operating system."""

from __future__ import annotations

import time

import pytest

from ottla.env.clock import SystemClock, boot_clock


def test_clock_of_leases_goes_on_while_the_machine_is_suspended() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = SystemClock().since_boot()
    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.parametrize("is_refused", [True, False])
def test_system_without_such_a_clock_uses_the_monotonic_one(monkeypatch: pytest.MonkeyPatch, is_refused: bool) -> None:
    def refuse(number: int) -> float:
        raise OSError(22, "Invalid argument")

    if is_refused:
        monkeypatch.setattr(time, "clock_gettime", refuse)
    else:
        monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert boot_clock() is time.monotonic
