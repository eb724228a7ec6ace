"""kill -9, SIGTERM and SIGSTOP while many clients produce: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from crash_campaign import Campaign, launch_and_kill
from storm import Storm

from campaign.faults import traced
from campaign.processes import wait_until
from ottla.testing import BrokerProcess

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.client]

#: checkpoints between kills too, so that recovery begins where one says
_SETTINGS = {"log.flush.offset.checkpoint.interval.ms": "700"}


def test_killed_brokers_keep_what_they_acknowledged(campaign: Campaign) -> None:
    rng = campaign.rng
    broker = campaign.start(_SETTINGS)
    pause = threading.Event()
    killed_while_starting = 0
    with Storm(broker.bootstrap, campaign.seed) as storm:
        for _ in range(campaign.kills):
            pause.wait(rng.uniform(0.1, 1.6))
            campaign.kill(broker)
            while rng.random() < 0.3:
                killed_while_starting += launch_and_kill(broker, rng.uniform(0.0, 0.8))
            campaign.relaunch(broker)
        history = storm.finish()
    campaign.say(f"{campaign.kills} kills, {killed_while_starting} more while starting")
    assert campaign.verdict(storm, history) == {}


def test_clean_restarts_are_not_noticed_by_producers(campaign: Campaign) -> None:
    rng = campaign.rng
    broker = campaign.start(_SETTINGS)
    pause = threading.Event()
    with Storm(broker.bootstrap, campaign.seed, refusals=False) as storm:
        for _ in range(max(campaign.kills // 2, 2)):
            pause.wait(rng.uniform(0.2, 1.5))
            assert broker.stop() == 0
            assert "Traceback" not in broker.errors(), broker.errors()
            campaign.relaunch(broker)
        history = storm.finish()
    assert campaign.verdict(storm, history) == {}


def test_a_broker_that_stood_still_goes_on(campaign: Campaign) -> None:
    broker = campaign.start(_SETTINGS)
    pause = threading.Event()
    with Storm(broker.bootstrap, campaign.seed, others=False) as storm:
        pause.wait(0.7)
        os.kill(broker.pid, signal.SIGSTOP)
        pause.wait(3)
        os.kill(broker.pid, signal.SIGCONT)
        pause.wait(0.7)
        history = storm.finish()
    assert campaign.verdict(storm, history) == {}


def test_a_start_after_a_clean_stop_reads_no_segment(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = campaign.start(_SETTINGS)
    with Storm(broker.bootstrap, campaign.seed, confluent=1, others=False, tail=False, refusals=False) as storm:
        storm.await_acks()
        storm.settle()
    assert broker.stop() == 0
    segments = list(Path(broker.data).rglob("*.log"))
    with traced(monkeypatch, campaign.directory, "--seccomp-bpf", "-e", "trace=openat") as output:
        campaign.relaunch(broker)
        opened = output.read_text()
    assert len(segments) >= 3
    assert "meta.properties" in opened
    assert [str(path) for path in segments if str(path) in opened] == []


@pytest.mark.long
def test_idle_connections_cannot_take_the_descriptors_that_logs_need(campaign: Campaign) -> None:
    broker = campaign.start(_SETTINGS)
    topics = {"rolls": {"segment.bytes": "1048576"}}
    with (
        Storm(broker.bootstrap, campaign.seed, topics=topics, others=False, refusals=False, tail=False) as storm,
        ExitStack() as flood,
    ):
        storm.await_acks()
        limit_descriptors(broker, spare=100)
        for _ in range(300):
            flood.enter_context(closing(socket.create_connection(("127.0.0.1", broker.port), timeout=60)))
        segments = len(list(Path(broker.data).rglob("*.log")))
        wait_until(lambda: len(list(Path(broker.data).rglob("*.log"))) > segments + 2, "segments roll", 60)
        flood.close()
        history = storm.finish()
    assert campaign.verdict(storm, history) == {}
    assert "no file descriptor is left" not in broker.errors()


@pytest.mark.long
def test_a_broker_without_file_descriptors_waits_for_some(campaign: Campaign) -> None:
    broker = campaign.start(_SETTINGS)
    with Storm(broker.bootstrap, campaign.seed, others=False, refusals=False, tail=False) as storm:
        storm.await_acks()
        limit_descriptors(broker, spare=0)
        wait_until(lambda: "no file descriptor is left" in broker.errors(), "segments roll until none is left", 60)
        threading.Event().wait(1.5)
        assert broker.running
        limit_descriptors(broker, spare=4000)
        history = storm.finish()
    assert campaign.verdict(storm, history) == {}
    assert "Traceback" not in broker.errors()


def limit_descriptors(broker: BrokerProcess, spare: int) -> None:
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{broker.pid}/fd")) + spare, hard))
