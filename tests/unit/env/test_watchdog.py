"""An event loop that stands still is reported with the file that it waits for."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.env.disk import RealDisk
from ottla.env.disk import writes as ottla_writes
from ottla.env.watchdog import LoopWatchdog


class Watched:
    """A watchdog whose time is set by the test."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = 0.0
        self.reports: list[tuple[float, str]] = []
        self.watchdog = LoopWatchdog(
            loop,
            stall_s=5.0,
            interval_s=0.5,
            monotonic=lambda: self.now,
            report=lambda *seen: self.reports.append(seen),
        )

    def checks(self, until: float) -> None:
        """Let the thread look every half second until this time."""
        while self.now < until:
            self.now += 0.5
            self.watchdog.check()


@pytest.fixture
def watched() -> Iterator[Watched]:
    loop = asyncio.new_event_loop()
    yield Watched(loop)
    loop.close()


def test_loop_that_turns_is_not_reported(watched: Watched) -> None:
    for second in range(1, 20):
        watched.checks(second)
        watched.watchdog.turn()
    assert watched.reports == []
    assert watched.watchdog.longest_s == 0.5


def test_stall_is_reported_once_and_its_length_is_kept(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    watched.checks(9)
    assert watched.reports == [(5.0, "unknown")]
    watched.watchdog.turn()
    assert watched.watchdog.longest_s == 8.5
    assert "the event loop turns again after seconds=9.0" in caplog.text
    watched.checks(30)
    assert [seconds for seconds, _ in watched.reports] == [5.0, 5.0]


def test_pause_of_the_process_is_not_reported(watched: Watched) -> None:
    watched.checks(2)
    watched.now += 60
    watched.watchdog.check()
    watched.watchdog.turn()
    watched.checks(65)
    assert watched.reports == []
    assert watched.watchdog.longest_s == 61.5


@pytest.mark.parametrize("call", ["pwrite", "fdatasync", "read_file"])
def test_report_names_the_file_of_the_call_that_hangs(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The call returns when the report was made."""
    released = threading.Event()
    places: list[str] = []

    def report(seconds: float, place: str) -> None:
        places.append(place)
        released.set()

    def hang(*_: object) -> int:
        assert released.wait(60)
        return 4

    disk, path = RealDisk(), str(tmp_path / "file")
    fd = disk.open(path, create=True)

    def use() -> None:
        if call == "pwrite":
            monkeypatch.setattr(os, "pwrite", hang)
            disk.pwrite(fd, b"data", 0)
        elif call == "fdatasync":
            hanging: object = ottla_writes(hang)
            hanging(fd)  # type: ignore[operator]
        else:
            os.mkfifo(path + ".fifo")
            threading.Thread(
                target=lambda: released.wait(60) and os.close(os.open(path + ".fifo", os.O_WRONLY))
            ).start()
            disk.read_file(path + ".fifo")

    async def main() -> None:
        watchdog = LoopWatchdog(asyncio.get_running_loop(), stall_s=0.05, interval_s=0.02, report=report)
        watchdog.start()
        use()
        await asyncio.sleep(0)
        watchdog.stop()

    asyncio.run(main())
    disk.close(fd)
    assert places == [path + ".fifo" if call == "read_file" else path]
