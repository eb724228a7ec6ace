"""Disks that are full, that fail, and that lose their power."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign import Campaign, wait_until
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from faults import Ext4, FailingDisk, ext4
from history import Place
from storm import Storm, create_topics, places, read_all, value_of

from ottla.testing import BrokerProcess

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.client]

_MEGABYTE = 1 << 20
#: how long a broker may take to notice that there is room again, on a machine that is busy with other things
_RESUME_S_MAX = 15
_TOPICS = {"rolls": {"segment.bytes": "262144"}, "large": {"segment.bytes": "2097152"}}


@pytest.fixture
def disk(tmp_path: Path, campaign: Campaign) -> Iterator[Ext4]:
    """A disk of 64 MB; brokers on it end before it is taken away."""
    with ext4(tmp_path, 64) as made:
        try:
            yield made
        finally:
            campaign.close()


def answer_to_produce(broker: BrokerProcess, place: Place) -> int:
    """The error code that one produce without retries is answered with, 0 when it is stored."""
    answers: list[KafkaError | None] = []
    producer = Producer({
        "bootstrap.servers": broker.bootstrap, "enable.idempotence": False, "retries": 0, "acks": "all", "log_level": 0,
    })  # fmt: skip
    producer.produce(
        place.topic, value_of("probe", 10), partition=place.partition, on_delivery=lambda e, _: answers.append(e)
    )
    assert producer.flush(30) == 0
    (error,) = answers
    return 0 if error is None else int(error.code())


def is_refused(broker: BrokerProcess) -> bool:
    return answer_to_produce(broker, Place("probes", 0)) == KafkaError.KAFKA_STORAGE_ERROR


# -- full -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reserve", [8 * _MEGABYTE, 0], ids=["with-a-reserve", "to-the-last-byte"])
def test_a_full_disk_refuses_produces_until_there_is_room(campaign: Campaign, disk: Ext4, reserve: int) -> None:
    broker = campaign.start({"log.dir.free.bytes.min": str(reserve)}, data=disk.path / "data")
    create_topics(broker.bootstrap, {"probes": {}})
    ballast = disk.path / "ballast"
    with Storm(broker.bootstrap, campaign.seed, topics=_TOPICS, others=False, refusals=False) as storm:
        ballast.write_bytes(bytes(disk.free_bytes() - reserve - 6 * _MEGABYTE))
        wait_until(lambda: is_refused(broker), 60, "produces are refused")
        readable = read_all(broker.bootstrap, places(_TOPICS))
        assert sum(map(len, readable.records.values())) > 0
        assert broker.running
        ballast.unlink()
        freed = time.monotonic()
        wait_until(lambda: not is_refused(broker), _RESUME_S_MAX, "produces are taken again")
        campaign.say(f"resumed {time.monotonic() - freed:.1f} s after space was freed")
        history = storm.finish()
    assert campaign.verdict(storm, history) == {}
    assert "Traceback" not in broker.errors()
    assert broker.stop() == 0


@pytest.mark.parametrize("reserve", [8 * _MEGABYTE, 0], ids=["with-a-reserve", "to-the-last-byte"])
def test_a_broker_that_is_killed_on_a_full_disk_starts_again(campaign: Campaign, disk: Ext4, reserve: int) -> None:
    broker = campaign.start({"log.dir.free.bytes.min": str(reserve)}, data=disk.path / "data")
    create_topics(broker.bootstrap, {"probes": {}})
    ballast = disk.path / "ballast"
    with Storm(broker.bootstrap, campaign.seed, topics=_TOPICS, others=False, refusals=False) as storm:
        ballast.write_bytes(bytes(disk.free_bytes() - reserve - 6 * _MEGABYTE))
        wait_until(lambda: is_refused(broker), 60, "produces are refused")
        broker.kill()
        campaign.relaunch(broker)
        assert sum(map(len, read_all(broker.bootstrap, places(_TOPICS)).records.values())) > 0
        ballast.unlink()
        history = storm.finish()
    assert campaign.verdict(storm, history) == {}
    assert "Traceback" not in broker.errors()


def test_deleting_a_topic_makes_room(campaign: Campaign, disk: Ext4) -> None:
    broker = campaign.start({"log.dir.free.bytes.min": str(8 * _MEGABYTE)}, data=disk.path / "data")
    create_topics(broker.bootstrap, {"probes": {}, "ballast": {}})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 2000, "log_level": 0})
    while not is_refused(broker):
        for _ in range(50):
            producer.produce("ballast", bytes(100_000), partition=0)
        producer.flush(30)
    AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0}).delete_topics(["ballast"])["ballast"].result(30)
    wait_until(lambda: not is_refused(broker), _RESUME_S_MAX, "produces are taken again")
    assert broker.stop() == 0


# -- failed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["fdatasync", "pwrite"])
def test_a_broker_whose_only_disk_fails_ends_and_has_acknowledged_nothing_that_is_not_there(
    campaign: Campaign, disk: Ext4, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    failing = FailingDisk(campaign.directory)
    failing.install(monkeypatch)
    broker = campaign.start(data=disk.path / "data")
    with Storm(broker.bootstrap, campaign.seed, topics=_TOPICS, others=False, refusals=False, tail=False) as storm:
        threading.Event().wait(campaign.rng.uniform(0.3, 1.0))
        failing.fail(call, disk.path / "data")
        wait_until(lambda: not broker.running, 30, "the broker ends")
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


@pytest.mark.parametrize("failing_dir", ["first", "second"])
@pytest.mark.parametrize("call", ["fdatasync", "pwrite"])
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
        assert answer_to_produce(broker, place) == 0
    failed, sound = ([p for p in everywhere if (dirs[name] / f"{p.topic}-{p.partition}").exists()]
                     for name in sorted(dirs, key=lambda name: name != failing_dir))  # fmt: skip
    assert failed and sound and len(failed) + len(sound) == len(everywhere)

    failing.fail(call, dirs[failing_dir])
    wait_until(
        lambda: answer_to_produce(broker, failed[0]) in
        (KafkaError.KAFKA_STORAGE_ERROR, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._MSG_TIMED_OUT),
        30, "the directory is offline",
    )  # fmt: skip
    for place in failed:
        assert answer_to_produce(broker, place) != 0
    for place in sound:
        assert answer_to_produce(broker, place) == 0
    assert len(read_all(broker.bootstrap, sound).records) == len(sound)
    assert broker.running
    assert "Traceback" not in broker.errors()

    failing.heal()
    broker.stop()
    campaign.relaunch(broker)
    for place in everywhere:
        assert answer_to_produce(broker, place) == 0


# -- power ----------------------------------------------------------------------------------------------------------


def test_a_power_cut_takes_nothing_that_was_acknowledged(campaign: Campaign, tmp_path: Path) -> None:
    rng = campaign.rng
    cuts = max(campaign.kills // 10, 1)
    with ext4(tmp_path, 1024) as disk:
        broker = campaign.start({"log.flush.offset.checkpoint.interval.ms": "300"}, data=disk.path / "data")
        try:
            with Storm(broker.bootstrap, campaign.seed, others=False, tail=False) as storm:
                for _ in range(cuts):
                    threading.Event().wait(rng.uniform(0.3, 1.5))
                    if rng.random() < 0.3:
                        broker.stop()
                    disk.cut_power()
                    broker.kill()
                    disk.unmount()
                    disk.mount()
                    campaign.relaunch(broker)
                history = storm.finish()
            campaign.say(f"{cuts} power cuts")
            assert campaign.verdict(storm, history) == {}
        finally:
            campaign.close()
