"""Exactly once into topics: whatever happens to a driver between two steps, each row of a batch is there once.

A consumer of librdkafka is the judge. It reads to the end of every log, so that a transaction that is left open is a
failure too.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from spark_commit_fixtures import PARTITIONS, TIMEOUT_S, Driver, connect_to, rows_of, stage, visible_rows

from campaign.processes import wait_until
from ottla.client.cluster import LATEST, Cluster, Isolation
from ottla.client.fetching import PartitionReader
from ottla.client.transactions import TransactionalProducer
from ottla.model.batch import CODEC_MASK, CODECS, CONTROL, read_header
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.spark.commit import CommitProtocol, CommitSettings, commit_once
from ottla.spark.commit_errors import (
    BatchTooLarge,
    CheckpointMismatch,
    CommitError,
    DriverFenced,
    TransactionTimedOut,
)
from ottla.spark.staging import StagingError, staging_file
from ottla.spark.tokens import TOKEN_PARTITIONS, TOKEN_TOPIC
from ottla.testing import BrokerProcess
from ottla.testing.proxy import END_TXN, INIT_PRODUCER_ID, PRODUCE, Fault, FaultProxy, Faults

pytestmark = [pytest.mark.broker, pytest.mark.client]

STEPS = ("start", "fenced others", "claimed", "read token", "sending", "sent", "sent token", "decided", "end")
#: from here on the batch is committed, whatever becomes of its driver
DECIDED = ("decided", "end")


class Crash(Exception):
    pass


class Query:
    """A query's sink, and the topic that it writes to."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.name = f"query-{uuid.uuid4()}"
        self.topic = f"out-{uuid.uuid4()}"
        with Cluster(broker.bootstrap, timeout_s=TIMEOUT_S) as cluster:
            cluster.create_topic(self.topic, PARTITIONS)

    def protocol(
        self, settings: CommitSettings | None = None, *, at: str = "", do: Callable[[], None] = lambda: None
    ) -> CommitProtocol:
        """A driver; ``do`` happens when it first comes to that step."""
        waiting = [at]

        def checkpoint(step: str) -> None:
            if step in waiting:
                waiting.remove(step)
                do()

        return CommitProtocol(connect_to(self.broker.bootstrap), self.name, settings, checkpoint=checkpoint)

    def crashing(self, step: str, settings: CommitSettings | None = None) -> CommitProtocol:
        def crash() -> None:
            raise Crash(step)

        return self.protocol(settings, at=step, do=crash)

    def assert_holds(self, *batch_ids: int) -> None:
        """Each row of these batches once, and no other."""
        expected = Counter(row for batch_id in batch_ids for row in rows_of(batch_id))
        assert visible_rows(self.broker.bootstrap, self.topic) == expected


@pytest.fixture
def query(ottla_broker: BrokerProcess) -> Query:
    return Query(ottla_broker)


# -- the plain way --------------------------------------------------------------------------------------------------


def test_batches_are_committed_one_after_another(query: Query) -> None:
    with query.protocol() as protocol:
        for batch_id in range(5):
            assert not protocol.commit(batch_id, [stage(query.topic, rows_of(batch_id))]).again
    query.assert_holds(0, 1, 2, 3, 4)


def test_batch_that_is_replayed_is_written_once(query: Query) -> None:
    for again in (False, True, True):
        with query.protocol() as protocol:
            assert protocol.commit(7, [stage(query.topic, rows_of(7))]).again is again
    query.assert_holds(7)


def test_replay_with_other_rows_and_partitions_is_still_the_same_batch(query: Query) -> None:
    with query.protocol() as protocol:
        protocol.commit(3, [stage(query.topic, rows_of(3))])
    with query.protocol() as protocol:
        assert protocol.commit(3, [stage(query.topic, rows_of(99), partitions=1)]).again
    query.assert_holds(3)


def test_rows_of_several_tasks_keep_their_order_within_a_partition(query: Query) -> None:
    tasks = [stage(query.topic, rows_of(task), partitions=1) for task in range(3)]
    with query.protocol() as protocol:
        protocol.commit(0, tasks)
    partition = TopicPartition(query.topic, 0)
    with Cluster(query.broker.bootstrap) as cluster:
        end = cluster.list_offsets({partition: LATEST}, isolation=Isolation.READ_COMMITTED)[partition].offset
        data = b"".join(
            bytes(fetched.data)
            for fetched in PartitionReader(cluster, partition, 0, end, isolation=Isolation.READ_COMMITTED)
        )
    positions = [data.index(value) for task in range(3) for _, value in rows_of(task) if value is not None]
    assert positions == sorted(positions)


def test_batch_without_rows_touches_no_broker() -> None:
    def connect() -> Cluster:
        raise AssertionError("nobody is to be asked")

    assert CommitProtocol(connect, "nobody").commit(0, [stage("nowhere", [])]).rows == 0


def test_empty_batches_between_others_do_no_harm(query: Query) -> None:
    with query.protocol() as protocol:
        for batch_id in range(6):
            rows = rows_of(batch_id) if batch_id % 3 == 0 else []
            protocol.commit(batch_id, [stage(query.topic, rows), stage(query.topic, [])])
    query.assert_holds(0, 3)


def test_null_keys_and_tombstones_arrive_as_they_are(query: Query) -> None:
    rows = [(None, b"no key"), (b"gone", None), (None, None), (b"", b"")]
    with query.protocol() as protocol:
        protocol.commit(0, [stage(query.topic, rows)])
    assert visible_rows(query.broker.bootstrap, query.topic) == Counter(rows)


def test_batch_may_be_larger_than_many_requests(query: Query, tmp_path: Path) -> None:
    rows = [(b"%d" % number, b"%09d" % number * 20_000) for number in range(60)]
    file = staging_file(str(tmp_path), query.name, 0)
    staged = stage(query.topic, rows, file=file, inline_bytes_max=1 << 20)
    assert staged.file is not None
    assert staged.size_bytes > 10 << 20
    with query.protocol() as protocol:
        protocol.commit(0, [staged])
    assert visible_rows(query.broker.bootstrap, query.topic) == Counter(rows)
    assert not os.path.exists(file)


# -- crashes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_commit_that_raises_at_a_step_is_made_good_by_the_next_attempt(query: Query, step: str) -> None:
    with query.protocol() as protocol:
        protocol.commit(0, [stage(query.topic, rows_of(0))])
    staged = [stage(query.topic, rows_of(1))]
    with query.crashing(step) as protocol:
        with pytest.raises(Crash):
            protocol.commit(1, staged)
        protocol.abort(staged)
    with query.protocol() as protocol:
        assert protocol.commit(1, [stage(query.topic, rows_of(1))]).again is (step in DECIDED)
        protocol.commit(2, [stage(query.topic, rows_of(2))])
    query.assert_holds(0, 1, 2)


@pytest.mark.parametrize("step", STEPS)
def test_process_that_raised_at_a_step_may_go_on_itself(query: Query, step: str) -> None:
    with query.crashing(step) as protocol:
        with pytest.raises(Crash):
            protocol.commit(0, [stage(query.topic, rows_of(0))])
        assert protocol.commit(0, [stage(query.topic, rows_of(0))]).again is (step in DECIDED)
        protocol.commit(1, [stage(query.topic, rows_of(1))])
    query.assert_holds(0, 1)


@pytest.mark.parametrize("step", STEPS)
def test_driver_killed_at_a_step_is_replaced_by_the_next(query: Query, step: str) -> None:
    with closing(Driver(query.broker.bootstrap, query.topic, query.name, 0, step, signal.SIGKILL)) as driver:
        assert driver.wait() == (-signal.SIGKILL, "")
    with query.protocol() as protocol:
        assert protocol.commit(0, [stage(query.topic, rows_of(0))]).again is (step in DECIDED)
    query.assert_holds(0)


def test_abort_after_the_decision_takes_nothing_back(query: Query) -> None:
    staged = [stage(query.topic, rows_of(0))]
    with query.crashing("decided") as protocol:
        with pytest.raises(Crash):
            protocol.commit(0, staged)
        protocol.abort(staged)
    query.assert_holds(0)


@pytest.mark.parametrize("step", [step for step in STEPS if step not in DECIDED])
def test_commit_that_raises_before_the_decision_does_not_keep_readers_waiting(query: Query, step: str) -> None:
    with query.crashing(step) as protocol, pytest.raises(Crash):
        protocol.commit(0, [stage(query.topic, rows_of(0))])
    query.assert_holds()


@pytest.mark.parametrize("step", STEPS)
def test_broker_killed_between_two_steps_costs_nothing_but_time(step: str, slow_query: Query) -> None:
    def restart() -> None:
        slow_query.broker.kill()
        slow_query.broker.launch()

    with slow_query.protocol(at=step, do=restart) as protocol:
        protocol.commit(0, [stage(slow_query.topic, rows_of(0))])
        protocol.commit(1, [stage(slow_query.topic, rows_of(1))])
    slow_query.assert_holds(0, 1)


@pytest.fixture(scope="module")
def own_broker() -> Iterator[BrokerProcess]:
    """A broker that tests may kill, that checks its transactions and logs often, and compresses all topics."""
    settings = {
        "compression.type": "zstd",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
        "log.cleaner.backoff.ms": "100",
        "log.dir.free.bytes.min": "0",
    }
    with BrokerProcess.start(settings=settings) as broker:
        yield broker


@pytest.fixture
def slow_query(own_broker: BrokerProcess) -> Query:
    return Query(own_broker)


# -- a bad network --------------------------------------------------------------------------------------------------


class OneFault(FaultProxy):
    """Something happens to the first request of its kind, and then no more."""

    def draw(self, api_key: int, client_id: str) -> Fault | None:
        fault = super().draw(api_key, client_id)
        if fault is not None:
            self.faults = None
        return fault


@pytest.fixture(scope="module")
def bad_network() -> Iterator[tuple[OneFault, BrokerProcess]]:
    with OneFault(seed=1) as proxy:
        settings = {"advertised.listeners": f"PLAINTEXT://{proxy.address}", "compression.type": "gzip"}
        with BrokerProcess.start(settings=settings) as broker:
            proxy.target = broker.bootstrap
            yield proxy, broker


@pytest.mark.parametrize("api", [INIT_PRODUCER_ID, PRODUCE, END_TXN], ids=["init", "produce", "end"])
@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.DUPLICATE, Fault.ARRIVE_LATE])
def test_request_that_is_lost_late_or_doubled_changes_nothing(
    bad_network: tuple[OneFault, BrokerProcess], api: int, fault: Fault
) -> None:
    proxy, broker = bad_network
    query = Query(broker)
    proxy.faults = Faults(apis={api}, rate=1.0, kinds=(fault,), delay_s_max=0.3)
    for batch_id in (0, 1):
        # A second InitProducerId is another driver for all that anybody knows; the next attempt is the newest then.
        with query.protocol() as protocol, suppress(DriverFenced):
            protocol.commit(batch_id, [stage(query.topic, rows_of(batch_id))])
        with query.protocol() as protocol:
            protocol.commit(batch_id, [stage(query.topic, rows_of(batch_id))])
    assert proxy.faults is None, "the fault has happened"
    query.assert_holds(0, 1)


def test_driver_that_dies_without_the_answer_to_its_decision_is_replaced(
    bad_network: tuple[OneFault, BrokerProcess],
) -> None:
    proxy, broker = bad_network
    query = Query(broker)
    proxy.faults = Faults(apis={END_TXN}, rate=1.0, kinds=(Fault.LOSE_ANSWER,))
    impatient = CommitProtocol(lambda: _dying_after_loss(proxy, broker), query.name)
    with impatient, pytest.raises(Crash):
        impatient.commit(0, [stage(query.topic, rows_of(0))])
    with query.protocol() as protocol:
        assert protocol.commit(0, [stage(query.topic, rows_of(0))]).again
    query.assert_holds(0)


def _dying_after_loss(proxy: OneFault, broker: BrokerProcess) -> Cluster:
    """A client whose process ends where it would ask again."""

    class Dying(Cluster):
        def borrow(self, *arguments: object, **named: object) -> object:  # type: ignore[override]
            if proxy.faults is None:
                raise Crash("no answer")
            return super().borrow(*arguments, **named)  # type: ignore[arg-type]

    return Dying(broker.bootstrap)


# -- more drivers than one ------------------------------------------------------------------------------------------


def test_second_driver_fences_the_first(query: Query) -> None:
    with query.protocol() as first, query.protocol() as second:
        first.commit(0, [stage(query.topic, rows_of(0))])
        second.commit(1, [stage(query.topic, rows_of(1))])
        with pytest.raises(DriverFenced, match="another driver has taken over"):
            first.commit(1, [stage(query.topic, rows_of(1))])
    query.assert_holds(0, 1)


@pytest.mark.parametrize("step", STEPS)
def test_frozen_driver_writes_nothing_when_it_wakes_after_its_successor(query: Query, step: str) -> None:
    with closing(Driver(query.broker.bootstrap, query.topic, query.name, 0, step, signal.SIGSTOP)) as zombie:
        zombie.wait_until_frozen()
        with query.protocol() as protocol:
            protocol.commit(0, [stage(query.topic, rows_of(0))])
            zombie.thaw()
            code, said = zombie.wait()
        assert code == 0, said
        # One that had not looked at the token yet finds it; one that had decided needs nobody any more.
        if step in ("start", "fenced others"):
            assert said == "again"
        elif step in DECIDED:
            assert said == "committed"
        else:
            assert said.startswith("DriverFenced: another driver has taken over")
    query.assert_holds(0)


def test_processes_of_one_driver_may_take_turns(query: Query) -> None:
    with query.protocol() as one, query.protocol() as other:
        for batch_id in range(6):
            protocol = one if batch_id % 2 else other
            protocol.commit(batch_id, [stage(query.topic, rows_of(batch_id))])
    query.assert_holds(*range(6))


# -- checkpoints from another time ----------------------------------------------------------------------------------


def test_replay_from_the_same_source_offsets_is_the_same_batch(query: Query) -> None:
    for batch_id in range(3):
        with query.protocol() as protocol:
            protocol.commit(batch_id, [stage(query.topic, rows_of(batch_id))], source_offsets=f"at {batch_id}")
    with query.protocol() as protocol:
        assert protocol.commit(1, [stage(query.topic, rows_of(1))], source_offsets="at 1").again
        assert protocol.commit(2, [stage(query.topic, rows_of(2))], source_offsets="at 2").again
    query.assert_holds(0, 1, 2)


def test_restored_checkpoint_that_covers_other_offsets_is_reported(query: Query) -> None:
    with query.protocol() as protocol:
        for batch_id in range(3):
            protocol.commit(batch_id, [stage(query.topic, rows_of(batch_id))], source_offsets=f"at {batch_id}")
    for batch_id in (1, 2):
        with query.protocol() as protocol, pytest.raises(CheckpointMismatch, match="batches up to 2"):
            protocol.commit(batch_id, [stage(query.topic, rows_of(50))], source_offsets="elsewhere")
    query.assert_holds(0, 1, 2)


def test_batch_after_one_without_rows_is_refused_if_the_checkpoint_has_another_history(query: Query) -> None:
    """Batch 1 of a restored checkpoint has no rows. Batch 2 has rows that were committed with batch 1 before."""
    ends = {0: "at 0", 1: "at 1"}
    with query.protocol() as protocol:
        for batch_id in range(2):
            staged = [stage(query.topic, rows_of(batch_id))]
            protocol.commit(batch_id, staged, source_offsets=ends[batch_id], run_id="first", offsets_of=ends.get)
        restored = {0: "at 0", 1: "before 1"}
        # The same process may serve the restarted query.
        protocol.commit(1, [stage(query.topic, [])], source_offsets="before 1", run_id="second")
        with pytest.raises(CheckpointMismatch, match="batch 1 of the checkpoint is not the one"):
            protocol.commit(
                2, [stage(query.topic, rows_of(1))], source_offsets="at 1", run_id="second", offsets_of=restored.get
            )  # fmt: skip
        staged = [stage(query.topic, rows_of(3))]
        protocol.commit(3, staged, source_offsets="at 3", run_id="third", offsets_of=ends.get)
    query.assert_holds(0, 1, 3)


def test_batch_too_old_to_be_remembered_is_reported(query: Query) -> None:
    with query.protocol() as protocol:
        for batch_id in range(20):
            protocol.commit(batch_id, [stage(query.topic, rows_of(batch_id))], source_offsets=f"at {batch_id}")
    with query.protocol() as protocol, pytest.raises(CheckpointMismatch):
        protocol.commit(0, [stage(query.topic, rows_of(0))], source_offsets="at 0")
    query.assert_holds(*range(20))


def test_older_batch_is_reported_when_nobody_knows_the_offsets(query: Query) -> None:
    with query.protocol() as protocol:
        for batch_id in range(2):
            protocol.commit(batch_id, [stage(query.topic, rows_of(batch_id))])
    with query.protocol() as protocol, pytest.raises(CheckpointMismatch):
        protocol.commit(0, [stage(query.topic, rows_of(0))])
    query.assert_holds(0, 1)


def test_batch_without_offsets_is_the_same_one_only_if_it_has_as_many_rows(query: Query) -> None:
    with query.protocol() as protocol:
        protocol.commit(0, [stage(query.topic, rows_of(0))])
    with query.protocol() as protocol:
        assert protocol.commit(0, [stage(query.topic, rows_of(0))]).again
    with query.protocol() as protocol, pytest.raises(CheckpointMismatch, match="another number of rows"):
        protocol.commit(0, [stage(query.topic, rows_of(0)), stage(query.topic, rows_of(1))])
    with query.protocol() as protocol:
        more = [stage(query.topic, rows_of(0)), stage(query.topic, rows_of(1))]
        assert protocol.commit(0, more, source_offsets="at 0").again
    query.assert_holds(0)


def test_batch_without_offsets_is_refused_if_the_topic_has_it_with_offsets(query: Query) -> None:
    with query.protocol() as protocol:
        protocol.commit(0, [stage(query.topic, rows_of(0))], source_offsets="at 0")
    with query.protocol() as protocol, pytest.raises(CheckpointMismatch, match="has no digest"):
        protocol.commit(0, [stage(query.topic, rows_of(0))])
    query.assert_holds(0)


# -- tokens ---------------------------------------------------------------------------------------------------------


def test_token_is_found_behind_a_transaction_that_a_stranger_left_open(query: Query) -> None:
    with query.protocol() as protocol:
        protocol.commit(0, [stage(query.topic, rows_of(0))])
    strangers_id = f"stranger-{uuid.uuid4()}"
    with (
        Cluster(query.broker.bootstrap) as cluster,
        TransactionalProducer(cluster, strangers_id, 60_000) as stranger,
    ):
        stranger.init()
        stranger.begin()
        for partition in range(TOKEN_PARTITIONS):
            token = build_batch([Record(timestamp=0, key=b"stranger", value=b"{}")])
            stranger.send(TopicPartition(TOKEN_TOPIC, partition), bytearray(token))
        stranger.flush()
        with query.crashing("decided") as protocol, pytest.raises(Crash):
            protocol.commit(1, [stage(query.topic, rows_of(1))])
        with query.protocol() as protocol:
            assert protocol.commit(1, [stage(query.topic, rows_of(1))]).again
        stranger.abort()
    query.assert_holds(0, 1)


def test_tokens_survive_compaction(slow_query: Query) -> None:
    settings = CommitSettings(token_topic=f"tokens-{uuid.uuid4()}")
    config = {"cleanup.policy": "compact", "segment.bytes": "4096", "min.cleanable.dirty.ratio": "0.01"}
    partitions = [TopicPartition(settings.token_topic, number) for number in range(TOKEN_PARTITIONS)]
    count = 60
    with Cluster(slow_query.broker.bootstrap) as cluster:
        cluster.create_topic(settings.token_topic, TOKEN_PARTITIONS, config)
        with slow_query.protocol(settings) as protocol:
            for batch_id in range(count):
                protocol.commit(batch_id, [stage(slow_query.topic, rows_of(batch_id))])
        wait_until(lambda: sum(_data_batches(cluster, partition) for partition in partitions) < count // 2)
        with slow_query.crashing("sent token", settings) as protocol, pytest.raises(Crash):
            protocol.commit(count, [stage(slow_query.topic, rows_of(count))])
    with slow_query.protocol(settings) as protocol:
        assert protocol.commit(count - 1, [stage(slow_query.topic, rows_of(count - 1))]).again
    slow_query.assert_holds(*range(count))


def _data_batches(cluster: Cluster, partition: TopicPartition) -> int:
    """Batches with records in them."""
    end = cluster.list_offsets({partition: LATEST}, isolation=Isolation.READ_UNCOMMITTED)[partition].offset
    found = 0
    if end:
        for fetched in PartitionReader(cluster, partition, 0, end, isolation=Isolation.READ_UNCOMMITTED):
            position = 0
            while position < len(fetched.data):
                header = read_header(fetched.data, position)
                position += header.size_bytes
                found += bool(header.record_count and not header.attributes & CONTROL)
    return found


def _codecs_of(cluster: Cluster, topic: str) -> set[str]:
    """Return the codecs of all batches of the token topic, except markers."""
    found = set()
    for partition in (TopicPartition(topic, number) for number in range(TOKEN_PARTITIONS)):
        end = cluster.list_offsets({partition: LATEST}, isolation=Isolation.READ_UNCOMMITTED)[partition].offset
        for fetched in PartitionReader(cluster, partition, 0, end, isolation=Isolation.READ_UNCOMMITTED):
            position = 0
            while position < len(fetched.data):
                header = read_header(fetched.data, position)
                position += header.size_bytes
                if not header.attributes & CONTROL:
                    found.add(CODECS[header.attributes & CODEC_MASK])
    return found


def _replay_last_batch(query: Query, settings: CommitSettings | None = None) -> None:
    """Commit batches until tokens have their full size; then three new drivers replay the last one."""
    with query.protocol(settings) as protocol:
        for batch_id in range(20):
            protocol.commit(batch_id, [stage(query.topic, rows_of(batch_id))], source_offsets=f"at {batch_id}")
    for _ in range(3):
        with query.protocol(settings) as protocol:
            assert protocol.commit(19, [stage(query.topic, rows_of(19))], source_offsets="at 19").again
    query.assert_holds(*range(20))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_replay_is_found_in_a_token_topic_with_any_codec(query: Query, codec: str) -> None:
    settings = CommitSettings(token_topic=f"tokens-{uuid.uuid4()}")
    with Cluster(query.broker.bootstrap) as cluster:
        config = {"cleanup.policy": "compact", "compression.type": codec}
        cluster.create_topic(settings.token_topic, TOKEN_PARTITIONS, config)
        _replay_last_batch(query, settings)
        assert _codecs_of(cluster, settings.token_topic) == {codec}


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_replay_is_found_on_brokers_that_compress_all_topics(
    own_broker: BrokerProcess, bad_network: tuple[OneFault, BrokerProcess], codec: str
) -> None:
    broker = {"zstd": own_broker, "gzip": bad_network[1]}[codec]
    _replay_last_batch(Query(broker))
    with Cluster(broker.bootstrap) as cluster:
        expected = {"cleanup.policy": "compact", "compression.type": "uncompressed", "min.insync.replicas": "1"}
        assert cluster.topic_config(TOKEN_TOPIC, expected) == expected
        assert _codecs_of(cluster, TOKEN_TOPIC) == {"none"}


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_token_topic_that_would_lose_tokens_is_rejected(query: Query, policy: str) -> None:
    settings = CommitSettings(token_topic=f"tokens-{uuid.uuid4()}")
    with Cluster(query.broker.bootstrap) as cluster:
        cluster.create_topic(settings.token_topic, TOKEN_PARTITIONS, {"cleanup.policy": policy})
    with query.protocol(settings) as protocol, pytest.raises(CommitError, match=rf"cleanup\.policy={policy}\. It must"):
        protocol.commit(0, [stage(query.topic, rows_of(0))])
    query.assert_holds()


def test_token_topic_with_too_few_partitions_is_refused(query: Query) -> None:
    settings = CommitSettings(token_topic=f"tokens-{uuid.uuid4()}")
    with Cluster(query.broker.bootstrap) as cluster:
        cluster.create_topic(settings.token_topic, TOKEN_PARTITIONS - 1)
    with query.protocol(settings) as protocol, pytest.raises(CommitError, match=f"tokens need {TOKEN_PARTITIONS}"):
        protocol.commit(0, [stage(query.topic, rows_of(0))])


# -- limits ---------------------------------------------------------------------------------------------------------


def test_batch_beyond_the_limit_is_refused_before_anything_is_sent(query: Query) -> None:
    with (
        query.protocol(CommitSettings(transaction_bytes_max=100)) as protocol,
        pytest.raises(BatchTooLarge, match="maxOffsetsPerTrigger makes only later batches smaller"),
    ):
        protocol.commit(0, [stage(query.topic, rows_of(0))])
    query.assert_holds()


def test_transaction_that_takes_too_long_says_so_and_may_be_repeated(slow_query: Query) -> None:
    partition = TopicPartition(slow_query.topic, 0)

    def wait_for_the_broker() -> None:
        with Cluster(slow_query.broker.bootstrap) as cluster:
            wait_until(lambda: _end(cluster, Isolation.READ_COMMITTED) == _end(cluster, Isolation.READ_UNCOMMITTED) > 0)

    def _end(cluster: Cluster, isolation: Isolation) -> int:
        return cluster.list_offsets({partition: LATEST}, isolation=isolation)[partition].offset

    impatient = CommitSettings(transaction_timeout_ms=500)
    with (
        slow_query.protocol(impatient, at="sent token", do=wait_for_the_broker) as protocol,
        pytest.raises(TransactionTimedOut, match=r"kafka\.transaction\.timeout\.ms"),
    ):
        protocol.commit(0, [stage(slow_query.topic, rows_of(0))])
    with slow_query.protocol() as protocol:
        assert not protocol.commit(0, [stage(slow_query.topic, rows_of(0))]).again
    slow_query.assert_holds(0)


def test_timeout_that_the_broker_does_not_allow_is_explained(query: Query) -> None:
    settings = CommitSettings(transaction_timeout_ms=10**9)
    with query.protocol(settings) as protocol, pytest.raises(CommitError, match=r"transaction\.max\.timeout\.ms"):
        protocol.commit(0, [stage(query.topic, rows_of(0))])


# -- staged files ---------------------------------------------------------------------------------------------------


def test_damaged_staged_batch_is_not_sent(query: Query, tmp_path: Path) -> None:
    file = staging_file(str(tmp_path), query.name, 0)
    staged = stage(query.topic, rows_of(0), file=file, inline_bytes_max=0)
    with open(file, "r+b") as stream:
        stream.seek(-3, os.SEEK_END)
        stream.write(b"x")
    with query.protocol() as protocol, pytest.raises(StagingError, match="is damaged"):
        protocol.commit(0, [staged])
    query.assert_holds()


def test_staged_file_that_the_driver_does_not_see_is_explained(query: Query) -> None:
    staged = replace(stage(query.topic, rows_of(0)), file="/nowhere/0-x.batches", data=b"")
    with query.protocol() as protocol, pytest.raises(StagingError, match="stagingDir"):
        protocol.commit(0, [staged])
    query.assert_holds()


# -- jobs -----------------------------------------------------------------------------------------------------------


def test_job_is_written_as_a_whole(query: Query) -> None:
    commit_once(connect_to(query.broker.bootstrap), [stage(query.topic, rows_of(0)), stage(query.topic, rows_of(1))])
    query.assert_holds(0, 1)


@pytest.mark.parametrize("step", ["sending", "sent", "sent token"])
def test_job_that_fails_on_its_way_leaves_nothing(query: Query, step: str) -> None:
    def crash(at: str) -> None:
        if at == step:
            raise Crash(step)

    with pytest.raises(Crash):
        commit_once(connect_to(query.broker.bootstrap), [stage(query.topic, rows_of(0))], checkpoint=crash)
    query.assert_holds()
