"""The service: readings become messages, the state survives a restart, the file of rules is read again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from alert_fixtures import LATE, MINUTE, START

from ottla.edge.monitor.alerts import service as alert_service
from ottla.edge.monitor.alerts.bodies import Origin
from ottla.edge.monitor.alerts.delivery import PAUSE_S_MAX, Delivery
from ottla.edge.monitor.alerts.grouping import Message
from ottla.edge.monitor.alerts.rules import Receiver, ReceiverKind
from ottla.edge.monitor.alerts.sending import DeliveryFailed
from ottla.edge.monitor.alerts.service import AlertService
from ottla.edge.monitor.reading import ClusterReading
from ottla.env.metrics import Page
from ottla.env.tasks import Tasks
from ottla.health.findings import Finding, Severity
from ottla.model.errors import StartError

OFFLINE = '[[rule]]\nname = "down"\ncheck = "cluster-not-read"\n[grouping]\nwait = "0"\ninterval = "1s"\n'
HOOK = '[[receiver]]\nname = "hook"\nurl = "http://127.0.0.1:1/"\n'


class Clock:
    def __init__(self) -> None:
        self.ms = START

    def __call__(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class Room:
    """A service whose messages end in a list."""

    def __init__(self, path: Path, folder: Path, clock: Clock) -> None:
        self.clock = clock
        self.tasks = Tasks()
        self.sent: list[str] = []
        self.problem: DeliveryFailed | None = None
        self.delivery = Delivery(
            self.tasks, send_one=self._send, now_ms=clock, monotonic=clock.monotonic, vary=lambda: 1.0
        )
        self.service = AlertService(
            str(path), {"main": "a:9092"}, folder, interval_s=10, now_ms=clock, tasks=self.tasks, delivery=self.delivery
        )

    def _send(self, message: Message, origin: Origin, now_ms: int) -> None:
        self.sent.append(f"{origin.cluster}: {len(message.opened)} open, {len(message.closed)} closed")
        if self.problem is not None:
            raise self.problem

    async def round(self, problem: str = "", after_ms: int = 1000) -> None:
        """A reading arrives, and all messages are answered."""
        self.clock.ms += after_ms
        self.service.offer(ClusterReading(cluster="main", number=1, problem=problem))
        await self.step()

    async def step(self) -> None:
        await self.service.step()
        while any(each.is_busy for each in self.delivery.states.values()):
            await asyncio.sleep(0.001)

    def alerts(self) -> list[dict[str, Any]]:
        (cluster,) = self.service.view()["clusters"]
        return list(cluster["alerts"])


@asynccontextmanager
async def opened(path: Path, folder: Path, clock: Clock | None = None) -> AsyncIterator[Room]:
    room = Room(path, folder, clock or Clock())
    try:
        yield room
    finally:
        await room.tasks.stop()
        room.service.close()


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "alerts.toml"
    path.write_text(OFFLINE + HOOK)
    return path


def run(test: Callable[[], Any]) -> None:
    asyncio.run(test())


def test_reading_opens_an_alert_and_a_message_is_sent(rules: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(rules, tmp_path) as room:
            await room.round("no broker answers")
            assert room.sent == ["main: 1 open, 0 closed"]
            assert [each["text"] for each in room.alerts()] == ["the cluster cannot be read: no broker answers"]
            await room.round()
            await room.round(after_ms=MINUTE)
            assert room.sent == ["main: 1 open, 0 closed", "main: 0 open, 1 closed"]

    run(test)


def test_state_survives_a_restart(rules: Path, tmp_path: Path) -> None:
    async def test() -> None:
        clock = Clock()
        async with opened(rules, tmp_path, clock) as room:
            await room.round("away")
            await room.step()  # stores what the receiver knows
        async with opened(rules, tmp_path, clock) as room:
            assert [each["state"] for each in room.alerts()] == ["open"]
            await room.round("away")
            assert room.sent == []
            await room.round()
            await room.round(after_ms=MINUTE)
            assert room.sent == ["main: 0 open, 1 closed"]

    run(test)


def test_message_is_sent_after_a_restart_if_it_was_not_accepted_before(rules: Path, tmp_path: Path) -> None:
    async def test() -> None:
        clock = Clock()
        async with opened(rules, tmp_path, clock) as room:
            room.problem = DeliveryFailed("away")
            await room.round("away")
            assert room.service.view()["receivers"][0]["problem"] == "away"
        async with opened(rules, tmp_path, clock) as room:
            await room.round("away")
            assert room.sent == ["main: 1 open, 0 closed"]

    run(test)


def test_state_that_cannot_be_used_is_set_aside(rules: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(rules, tmp_path) as room:
            await room.round("away")
        (file,) = tmp_path.glob("alerts-*.json")
        assert file.stat().st_mode & 0o777 == 0o600
        file.write_bytes(file.read_bytes()[:-10])
        async with opened(rules, tmp_path) as room:
            assert room.alerts() == []
        assert len(list(tmp_path.glob("*.unusable"))) == 1

    run(test)


def test_pauses_after_failures_grow_and_a_refused_message_does_not_block_others(rules: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(rules, tmp_path) as room:
            room.problem = DeliveryFailed("away")
            await room.round("away")
            attempts = []
            for second in range(1, 70):
                room.clock.ms += 1000
                before = len(room.sent)
                await room.step()
                attempts += [second] if len(room.sent) > before else []
            assert attempts == [1, 3, 7, 15, 31, 63]
            room.problem = None
            room.clock.ms += int(PAUSE_S_MAX * 1000)
            await room.step()
            assert room.service.view()["receivers"][0] == {
                "type": "webhook", "name": "hook", "problem": "", "failures": 0, "accepted": 1,
                "accepted_ms": room.clock.ms,
            }  # fmt: skip

    run(test)


def test_refused_message_waits_behind_the_others_of_its_receiver() -> None:
    async def test() -> None:
        tasks, said = Tasks(), []
        clock = Clock()
        receiver = Receiver(name="r", kind=ReceiverKind.WEBHOOK, url="http://h/")

        def send_one(message: Message, origin: Origin, now_ms: int) -> None:
            said.append(message.group[0][1])
            if message.group[0][1] == "bad":
                raise DeliveryFailed("400", is_final=True)

        delivery = Delivery(tasks, send_one=send_one, now_ms=clock, monotonic=clock.monotonic)
        for _ in range(4):
            messages = [
                Message(receiver=receiver, group=(("rule", name),), opened=(), closed=()) for name in ("bad", "good")
            ]
            origin = Origin(cluster="main")
            delivery.offer(
                [alert_service.Outgoing(message=each, origin=origin, accepted=lambda _: None) for each in messages]
            )
            while delivery.state_of("r").is_busy:
                await asyncio.sleep(0.001)
            clock.ms += int(PAUSE_S_MAX * 1000)
        assert said == ["bad", "good", "good", "good"]
        await tasks.stop()
        delivery.close()

    run(test)


def test_changed_file_is_read_again_and_a_wrong_one_changes_nothing(rules: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(rules, tmp_path) as room:
            _write(rules, "[[rule]\n")
            await room.round("away")
            assert "not TOML" in room.service.view()["problems"][0] and len(room.alerts()) == 1
            _write(rules, LATE)
            await room.round("away")
            assert room.service.view()["problems"] == [] and room.alerts() == []

    run(test)


def _write(path: Path, text: str) -> None:
    before = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(before + 1_000_000, before + 1_000_000))


def test_state_directory_that_cannot_be_written_stops_the_start(rules: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def test() -> None:
        with pytest.raises(StartError, match=r"choose a directory with -X data\.dir=DIR"):
            Room(rules, tmp_path / "file", Clock())

    run(test)


def test_wrong_file_stops_the_start(tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(StartError, match=r"alerts\.file: .*cannot be read"):
            Room(tmp_path / "missing.toml", tmp_path, Clock())

    run(test)


def test_metrics_count_alerts_and_messages(rules: Path, tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(rules, tmp_path) as room:
            await room.round("away")
            page = Page(1000)
            room.service.fill(page)
            text = b"".join(page.pieces()).decode()
            assert 'ottla_alerts{cluster="main",rule="down",state="open"} 1\n' in text
            assert 'ottla_alert_messages_total{receiver="hook",outcome="accepted"} 1\n' in text

    run(test)


def test_findings_of_a_reading_open_alerts_once_its_picture_was_read(tmp_path: Path) -> None:
    path = tmp_path / "alerts.toml"
    path.write_text('[[rule]]\nname = "offline"\ncheck = "offline-partitions"\n')
    finding = Finding(
        check="offline-partitions", severity=Severity.ERROR, text="x", advice="y", kind="partition", names=("a-0",)
    )

    async def test() -> None:
        async with opened(path, tmp_path) as room:
            room.service.offer(ClusterReading(cluster="main", number=1, findings=(finding,), picture_problem="slow"))
            await room.step()
            assert room.alerts() == []

    run(test)
