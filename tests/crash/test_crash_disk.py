"""Disks that are full, that fail, and that lose their power."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from crash_campaign import Campaign, refusal_to_start
from storm import Storm, create_topics, places, read_all, value_of

from campaign.checker import check
from campaign.faults import Ext4, FailingDisk, ext4, freeze, thread_states
from campaign.history import History, Place
from campaign.processes import wait_until
from ottla.model.errors import ErrorCode
from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient, batch_of, fetch_from, fetch_request, produce_request

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.client]

_MEGABYTE = 1 << 20
#: how long a broker may take to notice that there is room again, on a machine that is busy with other things
_RESUME_S_MAX = 60
_TOPICS = {"rolls": {"segment.bytes": "262144"}, "large": {"segment.bytes": "2097152"}}


@pytest.fixture
def disk(tmp_path: Path, campaign: Campaign) -> Iterator[Ext4]:
    """A disk of 64 MB; brokers on it end before it is taken away."""
    with ext4(tmp_path, 64) as made:
        try:
            yield made
        finally:
            campaign.close()


def answer_to_produce(broker: BrokerProcess, place: Place, batch: bytes | None = None) -> tuple[int, int]:
    """The error code and the offset that one produce is answered with."""
    batch = batch or batch_of(value_of("probe", 10))
    with RawClient(broker.bootstrap) as client:
        answer = client.ask(produce_request((place.topic, place.partition, batch), acks=-1), 9)
    (partition,) = answer.responses[0].partition_responses
    return partition.error_code, partition.base_offset


def answer_to_fetch(broker: BrokerProcess, place: Place) -> tuple[int, bytes]:
    """The error code and the records that one fetch from the start is answered with."""
    with RawClient(broker.bootstrap) as client:
        answer = client.ask(fetch_request({place.topic: [fetch_from(place.partition, 0)]}), 11)
    (partition,) = answer.responses[0].partitions
    return partition.error_code, bytes(partition.records or b"")


class Probe:
    """Asks now and then whether a produce is taken; each answer is about one attempt, and so about one record."""

    place = Place("probes", 0)

    def __init__(self, broker: BrokerProcess, history: History) -> None:
        self._broker = broker
        self._history = history
        self._numbers = count()
        create_topics(broker.bootstrap, {self.place.topic: {}})

    def is_refused(self, size: int = 10) -> bool:
        send = self._history.send("probe", self.place, f"probe.{next(self._numbers)}")
        code, offset = answer_to_produce(self._broker, self.place, batch_of(value_of(send.value, size)))
        assert code in (0, ErrorCode.KAFKA_STORAGE_ERROR)
        if code:
            send.refused()
        else:
            send.acknowledged(offset)
        return code != 0

    def is_taken(self) -> bool:
        return not self.is_refused()


def fill(probe: Probe, disk: Ext4, reserve: int) -> Path:
    """Leave so little room that the storm soon uses it up, and wait until it has; the file that takes the rest."""
    ballast = disk.path / "ballast"
    ballast.write_bytes(bytes(disk.free_bytes() - reserve - 6 * _MEGABYTE))
    wait_until(probe.is_refused, "produces are refused", 60)
    return ballast


# -- full -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reserve",
    [pytest.param(8 * _MEGABYTE, id="with-a-reserve"), pytest.param(0, id="to-the-last-byte", marks=pytest.mark.long)],
)
def test_a_full_disk_refuses_produces_until_there_is_room(campaign: Campaign, disk: Ext4, reserve: int) -> None:
    broker = campaign.start({"log.dir.free.bytes.min": str(reserve)}, data=disk.path / "data")
    with Storm(broker.bootstrap, campaign.seed, topics=_TOPICS, others=False, refusals=False) as storm:
        probe = Probe(broker, storm.history)
        ballast = fill(probe, disk, reserve)
        readable = read_all(broker.bootstrap, places(_TOPICS))
        assert sum(map(len, readable.records.values())) > 0
        assert broker.running
        ballast.unlink()
        freed = time.monotonic()
        wait_until(probe.is_taken, "produces are taken again", _RESUME_S_MAX)
        campaign.say(f"resumed {time.monotonic() - freed:.1f} s after space was freed")
        history = storm.finish(Probe.place)
    assert campaign.verdict(storm, history) == {}
    assert "Traceback" not in broker.errors()
    assert broker.stop() == 0


@pytest.mark.long
def test_a_record_that_was_refused_for_want_of_room_is_not_there(campaign: Campaign, disk: Ext4) -> None:
    broker = campaign.start({"log.dir.free.bytes.min": "0"}, data=disk.path / "data")
    history = History()
    probe = Probe(broker, history)
    assert probe.is_taken()
    disk.fill_up(disk.path / "ballast")
    wait_until(lambda: probe.is_refused(20_000), "produces are refused", 60)
    # Every second the broker tries anew whether there is room.
    told = broker.errors().count("is full")
    wait_until(
        lambda: probe.is_refused(20_000) and broker.errors().count("is full") > told + 2, "it is tried again", 20
    )
    (disk.path / "ballast").unlink()
    wait_until(probe.is_taken, "produces are taken again", _RESUME_S_MAX)
    assert probe.is_taken()
    history.final = read_all(broker.bootstrap, [Probe.place])
    assert check(history) == {}


@pytest.mark.long
def test_segments_that_cannot_be_closed_properly_are_no_reason_to_end(campaign: Campaign, disk: Ext4) -> None:
    """Tiny segments: the last byte goes to an index or a snapshot as often as to a record."""
    broker = campaign.start({"log.dir.free.bytes.min": "0"}, data=disk.path / "data")
    tiny = {"tiny": {"segment.bytes": "16384"}}
    with Storm(broker.bootstrap, campaign.seed, topics=tiny, others=False, refusals=False, batch_bytes=8000) as storm:
        ballast = fill(Probe(broker, storm.history), disk, 0)
        wait_until(lambda: disk.free_bytes() < 65536 or not broker.running, "the disk is full", 60)
        threading.Event().wait(3)
        assert broker.running, broker.errors()
        ballast.unlink()
        history = storm.finish(Probe.place)
    assert campaign.verdict(storm, history) == {}
    assert "Traceback" not in broker.errors()
    assert broker.stop() == 0


@pytest.mark.long
def test_a_broker_that_is_killed_on_a_full_disk_starts_again(campaign: Campaign, disk: Ext4) -> None:
    broker = campaign.start({"log.dir.free.bytes.min": str(8 * _MEGABYTE)}, data=disk.path / "data")
    with Storm(broker.bootstrap, campaign.seed, topics=_TOPICS, others=False, refusals=False) as storm:
        ballast = fill(Probe(broker, storm.history), disk, 8 * _MEGABYTE)
        broker.kill()
        campaign.relaunch(broker)
        assert sum(map(len, read_all(broker.bootstrap, places(_TOPICS)).records.values())) > 0
        ballast.unlink()
        history = storm.finish(Probe.place)
    assert campaign.verdict(storm, history) == {}
    assert "Traceback" not in broker.errors()


@pytest.mark.long
def test_a_broker_that_has_not_one_byte_to_start_with_says_so(campaign: Campaign, disk: Ext4) -> None:
    broker = campaign.start({"log.dir.free.bytes.min": "0"}, data=disk.path / "data")
    with Storm(broker.bootstrap, campaign.seed, topics=_TOPICS, others=False, refusals=False) as storm:
        ballast = fill(Probe(broker, storm.history), disk, 0)
        broker.kill()
        disk.fill_up(ballast)
        refusal = refusal_to_start(broker)
        assert not refusal or ("exit code 1" in refusal and "space" in refusal and "Traceback" not in refusal)
        campaign.say(refusal or "started all the same")
        broker.kill()
        ballast.unlink()
        campaign.relaunch(broker)
        history = storm.finish(Probe.place)
    assert campaign.verdict(storm, history) == {}


@pytest.mark.long
def test_deleting_a_topic_makes_room(campaign: Campaign, disk: Ext4) -> None:
    broker = campaign.start({"log.dir.free.bytes.min": str(8 * _MEGABYTE)}, data=disk.path / "data")
    create_topics(broker.bootstrap, {"ballast": {}})
    probe = Probe(broker, History())
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 2000, "log_level": 0})
    while probe.is_taken():
        for _ in range(50):
            producer.produce("ballast", bytes(100_000), partition=0)
        producer.flush(30)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.delete_topics(["ballast"])["ballast"].result(30)
    wait_until(probe.is_taken, "produces are taken again", _RESUME_S_MAX)
    assert broker.stop() == 0


# -- failed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["fdatasync", pytest.param("pwrite", marks=pytest.mark.long)])
def test_a_broker_whose_only_disk_fails_ends_and_has_acknowledged_nothing_that_is_not_there(
    campaign: Campaign, disk: Ext4, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    failing = FailingDisk(campaign.directory)
    failing.install(monkeypatch)
    broker = campaign.start(data=disk.path / "data")
    with Storm(broker.bootstrap, campaign.seed, topics=_TOPICS, others=False, refusals=False, tail=False) as storm:
        storm.await_acks()
        threading.Event().wait(campaign.rng.uniform(0.0, 0.7))
        failing.fail(call, disk.path / "data")
        wait_until(lambda: not broker.running, "the broker ends", 60)
        assert broker.kill() == 1
        assert broker.errors().count("every log directory failed") == 1
        assert "Traceback" not in broker.errors()
        # What was not synced before the failure is lost for good, as it would be on the real thing.
        disk.cut_power()
        disk.unmount()
        disk.mount()
        failing.heal()
        campaign.relaunch(broker)
        history = storm.finish()
    assert campaign.verdict(storm, history) == {}


@pytest.mark.parametrize("failing_dir", [pytest.param("first", marks=pytest.mark.long), "second"])
@pytest.mark.parametrize("call", ["fdatasync", pytest.param("pwrite", marks=pytest.mark.long)])
def test_the_other_log_directory_goes_on_when_one_fails(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, call: str, failing_dir: str
) -> None:
    failing = FailingDisk(campaign.directory)
    failing.install(monkeypatch)
    dirs = {name: campaign.directory / name for name in ("first", "second")}
    broker = campaign.start({"log.dirs": ",".join(map(str, dirs.values()))}, data=dirs["first"])
    create_topics(broker.bootstrap, _TOPICS)
    everywhere = places(_TOPICS)
    for place in everywhere:
        assert answer_to_produce(broker, place) == (0, 0)
    failed, sound = ([p for p in everywhere if (dirs[name] / f"{p.topic}-{p.partition}").exists()]
                     for name in sorted(dirs, key=lambda name: name != failing_dir))  # fmt: skip
    assert failed and sound and len(failed) + len(sound) == len(everywhere)

    failing.fail(call, dirs[failing_dir])
    for place in failed:
        assert answer_to_produce(broker, place)[0] in (
            ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )  # fmt: skip
    for place in sound:
        assert answer_to_produce(broker, place) == (0, 1)
    assert len(read_all(broker.bootstrap, sound).records) == len(sound)
    assert broker.running
    assert "Traceback" not in broker.errors()

    failing.heal()
    broker.stop()
    campaign.relaunch(broker)
    for place in everywhere:
        assert answer_to_produce(broker, place)[0] == 0


def test_records_that_cannot_be_read_are_answered_with_an_error(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = FailingDisk(campaign.directory)
    failing.install(monkeypatch)
    broker = campaign.start()
    create_topics(broker.bootstrap, _TOPICS)
    sound, unreadable = places(_TOPICS)[:2]
    for place in (sound, unreadable):
        assert answer_to_produce(broker, place) == (0, 0)

    failing.fail("pread", Path(broker.data) / f"{unreadable.topic}-{unreadable.partition}")
    assert answer_to_fetch(broker, unreadable) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
    assert answer_to_fetch(broker, sound)[0] == 0
    failing.heal()
    code, records = answer_to_fetch(broker, unreadable)
    assert code == 0 and b"probe" in records
    assert broker.running
    assert "Traceback" not in broker.errors()


# -- power ----------------------------------------------------------------------------------------------------------


def test_frozen_process_has_no_thread_inside_a_system_call(tmp_path: Path) -> None:
    """Threads that sync a file all the time: once the process is frozen, its files no longer change."""
    script = (
        "import os, sys, threading\n"
        "def sync_all_the_time(path):\n"
        "    fd = os.open(path, os.O_RDWR | os.O_CREAT)\n"
        "    while True:\n"
        "        os.pwrite(fd, os.urandom(8192), 0)\n"
        "        os.fdatasync(fd)\n"
        "for number in range(4):\n"
        "    threading.Thread(target=sync_all_the_time, args=(f'{sys.argv[1]}/{number}',)).start()\n"
        "print('ready', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        for _ in range(20):
            freeze(process.pid)
            assert set(thread_states(process.pid).values()) == {"T"}
            before = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
            assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == before
            os.kill(process.pid, signal.SIGCONT)
    finally:
        process.kill()
        process.communicate()


def test_a_power_cut_takes_nothing_that_was_acknowledged(campaign: Campaign, tmp_path: Path) -> None:
    rng = campaign.rng
    cuts = max(campaign.kills // 10, 1)
    with ext4(tmp_path, 1024) as disk:
        broker = campaign.start({"log.flush.offset.checkpoint.interval.ms": "300"}, data=disk.path / "data")
        try:
            with Storm(broker.bootstrap, campaign.seed, others=False, tail=False, refused_acks="all") as storm:
                for _ in range(cuts):
                    threading.Event().wait(rng.uniform(0.3, 1.5))
                    if rng.random() < 0.3:
                        broker.stop()
                    disk.cut_power(broker.pid if broker.running else None)
                    broker.kill()
                    disk.unmount()
                    disk.mount()
                    campaign.relaunch(broker)
                history = storm.finish()
            campaign.say(f"{cuts} power cuts")
            assert campaign.verdict(storm, history) == {}
        finally:
            campaign.close()


def go_away(campaign: Campaign, broker: BrokerProcess, disk: Ext4, end: str) -> None:
    """End the broker in the way that is named, and start it again."""
    if "clean-stop" in end:
        assert broker.stop() == 0
    if "power-cut" in end:
        disk.cut_power(broker.pid if broker.running else None)
    broker.kill()
    if "power-cut" in end:
        disk.unmount()
        disk.mount()
    campaign.relaunch(broker)


_ENDS = [pytest.param(end, marks=pytest.mark.long) for end in ("clean-stop", "kill", "power-cut")]


@pytest.mark.parametrize("end", [*_ENDS, "clean-stop-and-power-cut"])
def test_a_retry_is_recognised_after_the_broker_was_away(campaign: Campaign, disk: Ext4, end: str) -> None:
    broker = campaign.start(data=disk.path / "data")
    create_topics(broker.bootstrap, {"retried": {"segment.bytes": "600"}})
    place = Place("retried", 1)
    batches = [batch_of(b"a", b"b", producer_id=77, producer_epoch=3, base_sequence=2 * n) for n in range(9)]
    for number, batch in enumerate(batches):
        assert answer_to_produce(broker, place, batch) == (0, 2 * number)
    go_away(campaign, broker, disk, end)
    for number in range(4, 9):
        # A client has up to five batches in flight, and may have missed the answers to all of them.
        assert answer_to_produce(broker, place, batches[number]) == (0, 2 * number)
    gap = batch_of(b"a", producer_id=77, producer_epoch=3, base_sequence=100)
    assert answer_to_produce(broker, place, gap)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    following = batch_of(b"a", producer_id=77, producer_epoch=3, base_sequence=18)
    assert answer_to_produce(broker, place, following) == (0, 18)


@pytest.mark.parametrize("end", [*_ENDS, "clean-stop-and-power-cut"])
def test_times_are_found_after_the_broker_was_away(campaign: Campaign, disk: Ext4, end: str) -> None:
    broker = campaign.start(data=disk.path / "data")
    create_topics(broker.bootstrap, {"timed": {"segment.bytes": "2000", "index.interval.bytes": "100"}})
    for number in range(60):
        batch = batch_of(b"value", timestamp=1_700_000_000_000 + 1000 * number)
        assert answer_to_produce(broker, Place("timed", 0), batch) == (0, number)
    go_away(campaign, broker, disk, end)
    with closing(
        Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "never-joined", "log_level": 0})
    ) as reader:
        for number in range(60):
            (found,) = reader.offsets_for_times(
                [TopicPartition("timed", 0, 1_700_000_000_000 + 1000 * number - 500)], 30
            )
            assert found.offset == number
