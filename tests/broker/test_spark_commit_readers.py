"""What readers see of a commit on its way, and of one whose driver or task comes to no good end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from spark_commit_fixtures import PARTITIONS, TIMEOUT_S, connect_to, rows_of, stage, visible_rows

from ottla.client.cluster import Cluster
from ottla.spark.commit import CommitProtocol, CommitSettings
from ottla.spark.staging import staging_file, sweep
from ottla.testing import BrokerProcess

pytestmark = [pytest.mark.broker, pytest.mark.client]

OPEN_STEPS = ("sending", "sent", "sent token")


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """One that looks at its transactions often."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with BrokerProcess.start(settings=settings) as broker:
        yield broker


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    name = f"out-{uuid.uuid4()}"
    with Cluster(broker.bootstrap, timeout_s=TIMEOUT_S) as cluster:
        cluster.create_topic(name, PARTITIONS)
    return name


def test_reader_that_waits_for_no_decision_finds_whole_batches_at_every_step(broker: BrokerProcess, topic: str) -> None:
    seen = {}

    def look(step: str) -> None:
        seen[step] = visible_rows(broker.bootstrap, topic, isolation="read_uncommitted")

    with CommitProtocol(connect_to(broker.bootstrap), topic, checkpoint=look) as protocol:
        protocol.commit(0, [stage(topic, rows_of(0))])
    expected = Counter(rows_of(0))
    assert all(rows <= expected for rows in seen.values())
    assert (seen["start"], seen["sent token"], seen["end"]) == (Counter(), expected, expected)


@pytest.mark.parametrize("step", OPEN_STEPS)
def test_readers_get_on_when_a_killed_driver_has_no_successor(broker: BrokerProcess, topic: str, step: str) -> None:
    driver = multiprocessing.get_context("spawn").Process(target=_die_at, args=(broker.bootstrap, topic, step))
    driver.start()
    driver.join(TIMEOUT_S)
    assert driver.exitcode == -signal.SIGKILL
    # Reads to the end of every log, which nobody can before the broker has ended the transaction.
    assert visible_rows(broker.bootstrap, topic) == Counter()


def _die_at(bootstrap: str, topic: str, step: str) -> None:
    def die(at: str) -> None:
        if at == step:
            os.kill(os.getpid(), signal.SIGKILL)

    settings = CommitSettings(transaction_timeout_ms=500)
    CommitProtocol(connect_to(bootstrap), topic, settings, checkpoint=die).commit(0, [stage(topic, rows_of(0))])


def test_task_that_was_paused_until_its_batch_was_committed_adds_no_row(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    def attempt(batch_id: int) -> str:
        return staging_file(str(tmp_path), topic, batch_id)

    with CommitProtocol(connect_to(broker.bootstrap), topic) as protocol:
        protocol.commit(0, [stage(topic, rows_of(0), file=attempt(0), inline_bytes_max=0)])
        late = stage(topic, rows_of(0), file=attempt(0), inline_bytes_max=0)
        protocol.commit(1, [stage(topic, rows_of(1), file=attempt(1), inline_bytes_max=0)])
    assert visible_rows(broker.bootstrap, topic) == Counter(rows_of(0) + rows_of(1))
    assert late.file is not None and os.path.exists(late.file)
    assert sweep(str(tmp_path), topic, 1) == 1
    assert not os.path.exists(late.file)
