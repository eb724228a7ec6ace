"""Transactions as Python's clients use them: all of it is there or nothing, whoever reads, and whatever befalls."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import itertools
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from drivers import CODECS, DEADLINE_S, Place, Record, Refused, await_group_offsets
from drivers.aio_transactions import AiokafkaTransactions
from drivers.confluent import Confluent
from drivers.confluent_transactions import ConfluentTransactions
from drivers.kafka_python_transactions import KafkaPythonTransactions

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.client

_CLIENTS = {
    "confluent": ConfluentTransactions,
    "aiokafka": AiokafkaTransactions,
    "kafka-python": KafkaPythonTransactions,
}
_END = b"end"
#: PRODUCER_FENCED, and as what it is known: INVALID_PRODUCER_EPOCH, librdkafka's own _FENCED
_FENCED = {90, 47, -144}
_ILLEGAL_GENERATION = 22
_numbers = itertools.count()

every_client = pytest.mark.parametrize("client", _CLIENTS, indirect=True)
#: how a broker ends; a kill is the harder one
_in_campaign = pytest.mark.skipif(
    "OTTLA_LONG" not in os.environ, reason="only in a longer campaign: make campaign NAME=transactions"
)
every_end = pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=_in_campaign)])

Begin = Callable[..., Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    settings = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100", "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
    }  # fmt: skip
    with BrokerProcess.start(settings=settings) as broker:
        yield broker
        assert " ERROR " not in broker.errors()


@pytest.fixture
def writer(broker: BrokerProcess) -> Confluent:
    return Confluent(broker.bootstrap)


@pytest.fixture
def topic(writer: Confluent, unused_name: str) -> str:
    writer.create_topic(unused_name, partitions=3)
    return unused_name


@pytest.fixture
def client(request: pytest.FixtureRequest, broker: BrokerProcess) -> Any:
    return _CLIENTS[request.param](broker.bootstrap)


@pytest.fixture
def transactional(client: Any, unused_name: str) -> Iterator[Begin]:
    """Makes producers with a transactional id, the same for all unless another is named."""
    made = []

    def start(transactional_id: str = unused_name, **options: Any) -> Any:
        producer = client.transactional(transactional_id, **options)
        made.append(producer)
        return producer

    yield start
    for producer in made:
        # One that was fenced says so once more.
        with contextlib.suppress(Refused):
            producer.close()


# -- one transaction --------------------------------------------------------------------------------------------------


@every_client
def test_committed_records_are_there_for_every_reader(
    transactional: Begin, broker: BrokerProcess, writer: Confluent, topic: str
) -> None:
    producer = transactional()
    producer.begin()
    for partition in range(3):
        producer.send(Place(topic, partition), b"one", b"two")
    producer.commit()
    _mark_ends(writer, topic)
    for read_committed in (False, True):
        for found in _read_by_all(broker, topic, read_committed=read_committed):
            assert found == {partition: [b"one", b"two"] for partition in range(3)}


@every_client
def test_aborted_records_are_there_for_those_who_want_them(
    transactional: Begin, broker: BrokerProcess, writer: Confluent, topic: str
) -> None:
    producer = transactional()
    for result in ("abort", "commit", "abort"):
        producer.begin()
        for partition in range(3):
            producer.send(Place(topic, partition), f"{result} 1".encode(), f"{result} 2".encode())
        getattr(producer, result)()
    _mark_ends(writer, topic)
    committed, aborted = [b"commit 1", b"commit 2"], [b"abort 1", b"abort 2"]
    for found in _read_by_all(broker, topic, read_committed=True):
        assert found == dict.fromkeys(range(3), committed)
    for found in _read_by_all(broker, topic, read_committed=False):
        assert found == {partition: [*aborted, *committed, *aborted] for partition in range(3)}


@every_client
def test_open_transaction_holds_back_what_comes_after_it(
    transactional: Begin, broker: BrokerProcess, writer: Confluent, topic: str
) -> None:
    writer.produce(topic, [Record(value=b"before")])
    producer = transactional()
    producer.begin()
    producer.send(Place(topic, 0), b"in it")
    writer.produce(topic, [Record(value=b"after")])
    members = [_reader(each(broker.bootstrap), topic, [0], read_committed=True) for each in _CLIENTS.values()]
    found: list[list[bytes]] = [[] for _ in members]
    try:
        # Two rounds: whoever reads on has had its chance.
        _poll_until(members, found, lambda: all(len(each) == 1 for each in found))
        _poll(members, found)
        assert found == [[b"before"]] * 3
        producer.commit()
        _poll_until(members, found, lambda: all(len(each) == 3 for each in found))
        assert found == [[b"before", b"in it", b"after"]] * 3
    finally:
        for member in members:
            member.close()


@every_client
def test_transactions_of_many_topics_and_partitions_are_whole(
    transactional: Begin, broker: BrokerProcess, writer: Confluent, unused_name: str
) -> None:
    topics = {f"{unused_name}-wide": 30, f"{unused_name}-narrow": 1}
    for name, partitions in topics.items():
        writer.create_topic(name, partitions=partitions)
    producer = transactional()
    for number, result in enumerate(("commit", "abort", "commit")):
        producer.begin()
        for name, partitions in topics.items():
            for partition in range(partitions):
                producer.send(Place(name, partition), b"%d" % number)
        getattr(producer, result)()
    for name, partitions in topics.items():
        _mark_ends(writer, name, partitions)
        found = _read(ConfluentTransactions(broker.bootstrap), name, partitions, read_committed=True)
        assert found == {partition: [b"0", b"2"] for partition in range(partitions)}


@every_client
@pytest.mark.parametrize("codec", CODECS)
def test_transactions_are_compressed_with_every_codec(
    transactional: Begin, broker: BrokerProcess, writer: Confluent, topic: str, codec: str
) -> None:
    producer = transactional(codec=codec)
    values = [b"%d " % number * 50 for number in range(20)]
    for result in ("abort", "commit"):
        producer.begin()
        producer.send(Place(topic, 0), *(result.encode() + value for value in values))
        getattr(producer, result)()
    _mark_ends(writer, topic)
    for found in _read_by_all(broker, topic, read_committed=True):
        assert found[0] == [b"commit" + value for value in values]


@every_client
def test_empty_transactions_end(transactional: Begin, broker: BrokerProcess, writer: Confluent, topic: str) -> None:
    producer = transactional()
    for result in ("commit", "abort", "abort", "commit"):
        producer.begin()
        getattr(producer, result)()
    producer.begin()
    producer.send(Place(topic, 0), b"x")
    producer.commit()
    _mark_ends(writer, topic)
    assert _read(ConfluentTransactions(broker.bootstrap), topic, 3, read_committed=True)[0] == [b"x"]


@every_client
def test_hundred_transactions_follow_one_another(
    transactional: Begin, broker: BrokerProcess, writer: Confluent, topic: str
) -> None:
    """As fast as the client can: each is begun while the markers of the one before are on their way."""
    producer = transactional()
    for number in range(100):
        producer.begin()
        producer.send(Place(topic, number % 3), b"%d" % number)
        if number % 5 == 4:
            producer.abort()
        else:
            producer.commit()
        if number % 5 == 0:  # an empty transaction, ended while markers are being written
            producer.begin()
            producer.abort()
    _mark_ends(writer, topic)
    wanted = {p: [b"%d" % n for n in range(100) if n % 3 == p and n % 5 != 4] for p in range(3)}
    for found in _read_by_all(broker, topic, read_committed=True):
        assert found == wanted


# -- offsets ----------------------------------------------------------------------------------------------------------


@every_client
def test_consume_transform_produce_does_each_record_once(
    client: Any, transactional: Begin, broker: BrokerProcess, writer: Confluent, topic: str, group: str
) -> None:
    """Every second transaction is aborted, and its records are read again by the member that comes next."""
    output = f"{topic}-out"
    writer.create_topic(output)
    writer.produce(topic, [Record(value=b"%d" % number) for number in range(20)])
    done = 0
    for attempt in range(10):
        producer = transactional()
        member = client.member(group, read_committed=True)
        try:
            member.subscribe(topic)
            taken = _take(member, 5)
            assert taken[0].offset == done, "it goes on at what was committed"
            producer.begin()
            producer.send(Place(output, 0), *(b"done " + (each.value or b"") for each in taken))
            producer.send_offsets({Place(topic, 0): taken[-1].offset + 1}, producer.standing(member), group)
            if attempt % 2:
                producer.commit()
                done = taken[-1].offset + 1
            else:
                producer.abort()
        finally:
            member.close()
        if done >= 20:
            break
    _mark_ends(writer, output, 1)
    await_group_offsets(client, group, {Place(topic, 0): 20})
    for found in _read_by_all(broker, output, 1, read_committed=True):
        assert found == {0: [b"done %d" % number for number in range(20)]}


@pytest.mark.parametrize("client", ["confluent", "kafka-python"], indirect=True)
def test_member_of_an_older_generation_cannot_commit_in_a_transaction(
    client: Any, transactional: Begin, writer: Confluent, topic: str, group: str
) -> None:
    """aiokafka does not say which generation it has."""
    writer.produce(topic, [Record(value=b"x")])
    first, second = client.member(group), client.member(group)
    producer = transactional()
    try:
        first.subscribe(topic)
        _take(first, 1)
        before = producer.standing(first)
        second.subscribe(topic)
        deadline = time.monotonic() + DEADLINE_S
        while not (second.assignment() and first.assignment()):
            assert time.monotonic() < deadline
            first.poll()
            second.poll()
        producer.begin()
        producer.send(Place(topic, 1), b"done")
        with pytest.raises(Refused) as refused:
            producer.send_offsets({Place(topic, 0): 1}, before, group)
        producer.abort()
        assert refused.value.code == _ILLEGAL_GENERATION
        assert client.group_offsets(group) == {}
        producer.begin()
        producer.send_offsets({Place(topic, 0): 1}, producer.standing(first), group)
        producer.commit()
        await_group_offsets(client, group, {Place(topic, 0): 1})
    finally:
        for member in (first, second):
            member.close()


# -- fencing ----------------------------------------------------------------------------------------------------------


@every_client
def test_second_owner_of_the_id_fences_the_first(
    transactional: Begin, broker: BrokerProcess, writer: Confluent, topic: str
) -> None:
    zombie = transactional()
    zombie.begin()
    zombie.send(Place(topic, 0), b"of the zombie")
    owner = transactional()
    owner.begin()
    owner.send(Place(topic, 0), b"of the owner")
    # It learns of it when it asks for anything, and that is not the same for all clients.
    with pytest.raises(Refused) as refused:  # noqa: PT012
        zombie.send(Place(topic, 1), b"late")
        zombie.commit()
    assert refused.value.code in _FENCED, refused.value
    owner.commit()
    _mark_ends(writer, topic)
    for found in _read_by_all(broker, topic, read_committed=True):
        assert found == {0: [b"of the owner"], 1: [], 2: []}


@every_client
def test_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(
    transactional: Begin, broker: BrokerProcess, writer: Confluent, topic: str
) -> None:
    slow = transactional(timeout_ms=1000)
    slow.begin()
    slow.send(Place(topic, 0), b"too late")
    writer.produce(topic, [Record(value=b"after")])
    # It is out of the way when a reader of committed records gets what came after it.
    member = _reader(ConfluentTransactions(broker.bootstrap), topic, [0], read_committed=True)
    found: list[list[bytes]] = [[]]
    try:
        _poll_until([member], found, lambda: bool(found[0]))
    finally:
        member.close()
    assert found == [[b"after"]]
    with pytest.raises(Refused):
        slow.commit()


# -- a broker that goes away ------------------------------------------------------------------------------------------


@every_client
@every_end
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_open_transactions_go_on_after_a_restart(
    transactional: Begin, broker: BrokerProcess, writer: Confluent, unused_name: str, how: str
) -> None:
    """One is committed, the other aborted."""
    topics = {result: f"{unused_name}-{result}" for result in ("commit", "abort")}
    producers = {}
    for result, topic in topics.items():
        writer.create_topic(topic, partitions=3)
        producers[result] = producer = transactional(topic)
        producer.begin()
        producer.send(Place(topic, 0), b"before")
        producer.send(Place(topic, 1), b"before")
    getattr(broker, how)()
    broker.launch()
    for result, producer in producers.items():
        producer.send(Place(topics[result], 1), b"after")
        producer.send(Place(topics[result], 2), b"after")
        getattr(producer, result)()
    wanted = {"commit": {0: [b"before"], 1: [b"before", b"after"], 2: [b"after"]}, "abort": {0: [], 1: [], 2: []}}
    for result, topic in topics.items():
        _mark_ends(Confluent(broker.bootstrap), topic)
        for found in _read_by_all(broker, topic, read_committed=True):
            assert found == wanted[result]
    gc.collect()


@every_client
@every_end
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_offsets_of_an_open_transaction_survive_a_restart(
    client: Any, transactional: Begin, broker: BrokerProcess, topic: str, group: str, how: str
) -> None:
    Confluent(broker.bootstrap).produce(topic, [Record(value=b"x")] * 5)
    member = client.member(group)
    try:
        member.subscribe(topic)
        _take(member, 5)
        producer = transactional()
        producer.begin()
        producer.send(Place(topic, 1), b"done")
        producer.send_offsets({Place(topic, 0): 3}, producer.standing(member), group)
    finally:
        member.close()
    getattr(broker, how)()
    broker.launch()
    # librdkafka 2.16 would hang if it sent more offsets now, also at Kafka.
    producer.commit()
    await_group_offsets(_CLIENTS["confluent"](broker.bootstrap), group, {Place(topic, 0): 3})
    gc.collect()


@every_client
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_nothing_is_half_visible_when_the_broker_is_killed_again_and_again(
    client: Any, broker: BrokerProcess, topic: str, unused_name: str
) -> None:
    """A producer that counts up in three partitions at once; what it could not commit it says again."""
    committed: list[bytes] = []
    doubtful: set[bytes] = set()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(_count_up, client, unused_name, topic, 35, committed, doubtful)
        for kill in range(2):
            while len(committed) < 10 * kill + 5 and not ended.done():
                concurrent.futures.wait([ended], 0.01)
            broker.kill()
            broker.launch()
        ended.result(2.5 * DEADLINE_S)
    _mark_ends(Confluent(broker.bootstrap), topic)
    found = _read(ConfluentTransactions(broker.bootstrap), topic, 3, read_committed=True)
    assert found[0] == found[1] == found[2], "a transaction is half visible"
    assert set(committed) <= set(found[0]) <= set(committed) | doubtful
    assert len(found[0]) == len(set(found[0]))
    gc.collect()


def _count_up(
    client: Any, transactional_id: str, topic: str, count: int, committed: list[bytes], doubtful: set[bytes]
) -> None:
    """Fills in what was committed, and of what that is not known."""
    producer = None
    # Every kill may leave kafka-python stuck, which takes its driver a while to see.
    number, deadline = 0, time.monotonic() + 2 * DEADLINE_S
    while number < count:
        assert time.monotonic() < deadline, f"{number} of {count}"
        value = b"%d.%d" % (number, next(_numbers))
        step = "begin"
        try:
            if producer is None:
                producer = client.transactional(transactional_id, timeout_ms=20_000)
            producer.begin()
            for partition in range(3):
                producer.send(Place(topic, partition), value)
            step = "commit"
            producer.commit()
            committed.append(value)
            number += 1
        except Refused:
            if step == "commit":
                doubtful.add(value)
                number += 1
            if producer is not None:
                with contextlib.suppress(Refused):
                    producer.close()
            producer = None
    if producer is not None:
        producer.close()


# -- what the tests share ----------------------------------------------------------------------------------------------


def _mark_ends(writer: Confluent, topic: str, partitions: int = 3) -> None:
    """A record that is in no transaction: who has it has all that is before it."""
    for partition in range(partitions):
        writer.produce(topic, [Record(value=_END)], partition=partition)


def _read_by_all(
    broker: BrokerProcess, topic: str, partitions: int = 3, *, read_committed: bool
) -> list[dict[int, list[bytes]]]:
    return [
        _read(each(broker.bootstrap), topic, partitions, read_committed=read_committed) for each in _CLIENTS.values()
    ]


def _read(client: Any, topic: str, partitions: int, *, read_committed: bool) -> dict[int, list[bytes]]:
    """By partition, up to the end mark."""
    member = _reader(client, topic, range(partitions), read_committed=read_committed)
    found: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
    ended: set[int] = set()
    deadline = time.monotonic() + DEADLINE_S
    try:
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"{client.name} has {found}"
            for read in member.poll():
                if read.value == _END:
                    ended.add(read.place.partition)
                else:
                    found[read.place.partition].append(read.value)
    finally:
        member.close()
    return found


def _reader(client: Any, topic: str, partitions: Any, *, read_committed: bool) -> Any:
    member = client.member(f"reader-{next(_numbers)}", read_committed=read_committed)
    member.assign(*(Place(topic, partition) for partition in partitions))
    return member


def _poll(members: list[Any], found: list[list[bytes]]) -> None:
    for member, values in zip(members, found, strict=True):
        values += [read.value for read in member.poll()]


def _poll_until(members: list[Any], found: list[list[bytes]], satisfied: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not satisfied():
        assert time.monotonic() < deadline, found
        _poll(members, found)


def _take(member: Any, count: int) -> list[Any]:
    """The next records, no more than that many."""
    taken: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(taken) < count:
        assert time.monotonic() < deadline, taken
        taken += member.poll()
    return taken[:count]
