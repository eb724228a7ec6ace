"""`ottla txn`, `ottla group delete --offsets`, and the small client under them, against brokers that live in memory."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any

import pytest
import yaml

from ottla.admin import client as admin_client
from ottla.cli import txn
from ottla.cli.cluster import ClusterClient
from ottla.cli.connection import ClusterOptions
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition as CommittedName
from ottla.wire import APIS, decode, encode, request_class, request_header_version, response_header_version
from ottla.wire.frame import frame_reply
from ottla.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.wire.messages.describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from ottla.wire.messages.describe_transactions import DescribeTransactionsResponse, TopicData
from ottla.wire.messages.describe_transactions import TransactionState as Described
from ottla.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from ottla.wire.messages.list_transactions import ListTransactionsResponse
from ottla.wire.messages.list_transactions import TransactionState as Listed
from ottla.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.wire.messages.offset_delete import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
_START = Struct(">hhih")

# -- a cluster in memory ----------------------------------------------------------------------------------------------


class FakeBrokers:
    """Brokers 1 and 2. Every transaction is broker 2's, and so is every odd partition."""

    def __init__(self) -> None:
        self.versions = {key: api.versions for key, api in APIS.items()}
        self.topics: dict[str, int] = {}
        self.leaderless: set[tuple[str, int]] = set()
        self.ids: dict[str, Described] = {}
        self.open: dict[tuple[str, int], list[ProducerState]] = {}
        self.asked: list[tuple[int, Any]] = []
        self.down: dict[int, Exception] = {}
        #: answers that a broker gives before it comes to its senses, by the name of the API
        self.codes: dict[str, list[int]] = {}
        self.raw_answer: bytes | None = None
        self.before_list: Callable[[], None] = lambda: None

    def connect(self, address: tuple[str, int], timeout: float | None = None) -> FakeSocket:
        broker_id = address[1] - 9000
        if broker_id in self.down:
            raise self.down[broker_id]
        return FakeSocket(self, broker_id)

    def requests(self, name: str) -> list[Any]:
        return [request for _, request in self.asked if type(request).__name__ == f"{name}Request"]

    def markers(self) -> list[tuple[int, Any]]:
        return [(node, r.markers[0]) for node, r in self.asked if type(r).__name__ == "WriteTxnMarkersRequest"]

    def answer(self, broker_id: int, request: Any) -> Any:
        self.asked.append((broker_id, request))
        name = type(request).__name__.removesuffix("Request")
        code = self.codes[name].pop(0) if self.codes.get(name) else 0
        handler: Callable[[int, Any, int], Any] = getattr(self, f"_{name}")
        return handler(broker_id, request, code)

    def _ApiVersions(self, broker_id: int, request: Any, code: int) -> Any:
        rows = [ApiVersion(api_key=k, min_version=v[0], max_version=v[1]) for k, v in self.versions.items()]
        return ApiVersionsResponse(api_keys=rows)

    def _Metadata(self, broker_id: int, request: Any, code: int) -> Any:
        assert not request.allow_auto_topic_creation
        names = list(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        topics = [
            MetadataResponseTopic(name=name, error_code=0 if name in self.topics else 3, partitions=[
                MetadataResponsePartition(
                    partition_index=number, leader_id=-1 if (name, number) in self.leaderless else 1 + number % 2
                )
                for number in range(self.topics.get(name, 0))
            ])
            for name in names
        ]  # fmt: skip
        brokers = [MetadataResponseBroker(node_id=number, host="fake", port=9000 + number) for number in (1, 2)]
        return MetadataResponse(brokers=brokers, topics=topics)

    def _FindCoordinator(self, broker_id: int, request: Any, code: int) -> Any:
        rows = [Coordinator(key=key, node_id=2, host="fake", port=9002, error_code=code)
                for key in request.coordinator_keys]  # fmt: skip
        return FindCoordinatorResponse(coordinators=rows)

    def _ListTransactions(self, broker_id: int, request: Any, code: int) -> Any:
        self.before_list()
        found = [
            Listed(transactional_id=one, producer_id=row.producer_id, transaction_state=row.transaction_state)
            for one, row in self.ids.items()
            if broker_id == 2 and (not request.producer_id_filters or row.producer_id in request.producer_id_filters)
        ]
        return ListTransactionsResponse(error_code=code, transaction_states=[] if code else found)

    def _DescribeTransactions(self, broker_id: int, request: Any, code: int) -> Any:
        assert broker_id == 2
        unknown = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        rows = [self.ids.get(one) or Described(transactional_id=one, error_code=unknown)
                for one in request.transactional_ids]  # fmt: skip
        return DescribeTransactionsResponse(transaction_states=rows)

    def _DescribeProducers(self, broker_id: int, request: Any, code: int) -> Any:
        topics = [
            TopicResponse(name=topic.name, partitions=[
                PartitionResponse(
                    partition_index=number,
                    error_code=code or (0 if broker_id == 1 + number % 2 else ErrorCode.NOT_LEADER_OR_FOLLOWER),
                    active_producers=self.open.get((topic.name, number), []),
                )
                for number in topic.partition_indexes
            ])
            for topic in request.topics
        ]  # fmt: skip
        return DescribeProducersResponse(topics=topics)

    def _WriteTxnMarkers(self, broker_id: int, request: Any, code: int) -> Any:
        (marker,) = request.markers
        rows = [WritableTxnMarkerPartitionResult(partition_index=marker.topics[0].partition_indexes[0],
                                                 error_code=code)]  # fmt: skip
        topics = [WritableTxnMarkerTopicResult(name=marker.topics[0].name, partitions=rows)]
        return WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)])

    def _OffsetDelete(self, broker_id: int, request: Any, code: int) -> Any:
        topics = [
            OffsetDeleteResponseTopic(name=topic.name, partitions=[
                OffsetDeleteResponsePartition(
                    partition_index=row.partition_index,
                    error_code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic.name == "subscribed" else 0,
                )
                for row in topic.partitions
            ])
            for topic in request.topics
        ]  # fmt: skip
        return OffsetDeleteResponse(error_code=code, topics=topics)


class FakeSocket:
    """A connection whose other end answers within the same call."""

    def __init__(self, brokers: FakeBrokers, broker_id: int) -> None:
        self._brokers = brokers
        self._broker_id = broker_id
        self._received = b""

    def sendall(self, data: bytes) -> None:
        if self._brokers.raw_answer is not None:
            self._received = self._brokers.raw_answer
            return
        api_key, version, correlation_id, length = _START.unpack_from(data, 4)
        position = 4 + _START.size + length + (1 if request_header_version(api_key, version) == 2 else 0)
        request, end = decode(request_class(api_key), version, data, position)
        assert end == len(data), "a request ends with its frame"
        body = encode(self._brokers.answer(self._broker_id, request), version)
        self._received += frame_reply(correlation_id, body, response_header_version(api_key, version))

    def recv_into(self, buffer: memoryview) -> int:
        # In small pieces, as a network may deliver them.
        size = min(len(buffer), 7)
        piece, self._received = self._received[:size], self._received[size:]
        buffer[: len(piece)] = piece
        return len(piece)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        pass

    def settimeout(self, timeout_s: float) -> None:
        assert timeout_s > 0

    def close(self) -> None:
        pass


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBrokers]:
    fake = FakeBrokers()
    monkeypatch.setattr(socket, "create_connection", fake.connect)
    monkeypatch.setattr(admin_client, "_RETRY_S", 0.0)
    monkeypatch.setattr(txn, "current_time_ms", lambda: NOW_MS)
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "UTC")
        time.tzset()
        yield fake
    time.tzset()


@pytest.fixture
def run(ottla: Any, brokers: FakeBrokers) -> Callable[..., Any]:
    """Run a verb of `ottla txn` and check how it ends."""

    def run(*words: str, code: int = 0) -> Any:
        result = ottla("txn", *words, "-b", "fake:9001")
        assert result.exit_code == code, result.output
        return result

    return run


def producer(producer_id: int = 7, start: int = 12, age_ms: int = HOUR_MS, **fields: Any) -> ProducerState:
    return ProducerState(
        producer_id=producer_id, current_txn_start_offset=start, last_timestamp=NOW_MS - age_ms,
        **{"producer_epoch": 3, "coordinator_epoch": 5} | fields,
    )  # fmt: skip


def ongoing(transactional_id: str = "app", producer_id: int = 7, **changed: Any) -> Described:
    fields: dict[str, Any] = {
        "producer_epoch": 3,
        "transaction_state": "Ongoing",
        "transaction_timeout": 60_000,
        "transaction_start_time": NOW_MS - 15_000,
        "topics": [TopicData(topic="orders", partitions=[1, 0])],
    }
    return Described(transactional_id=transactional_id, producer_id=producer_id, **{**fields, **changed})


@pytest.fixture
def hung(brokers: FakeBrokers) -> FakeBrokers:
    """One transaction of producer 7 hangs in orders-1."""
    brokers.topics["orders"] = 2
    brokers.open["orders", 1] = [producer(), producer(8, start=-1)]
    return brokers


# -- list -------------------------------------------------------------------------------------------------------------


def test_list_shows_the_ids_of_all_coordinators(run: Any, brokers: FakeBrokers) -> None:
    brokers.ids = {"b": ongoing("b", 8), "a": ongoing("a", 7, transaction_state="CompleteCommit")}
    assert run("list").stdout.splitlines() == [
        "TRANSACTIONAL-ID  PRODUCER-ID  STATE           COORDINATOR",
        "a                           7  CompleteCommit            2",
        "b                           8  Ongoing                   2",
    ]
    assert {node for node, request in brokers.asked if type(request).__name__ == "ListTransactionsRequest"} == {1, 2}


def test_list_passes_its_filters_on(run: Any, brokers: FakeBrokers) -> None:
    run("list", "--state", "ongoing", "--producer-id", "7", "--longer-than", "1m30s", "--pattern", "app-.*")
    request = brokers.requests("ListTransactions")[0]
    assert list(request.state_filters) == ["Ongoing"]
    assert list(request.producer_id_filters) == [7]
    assert (request.duration_filter, request.transactional_id_pattern) == (90_000, "app-.*")


def test_longer_than_means_transactions_that_are_under_way(run: Any, brokers: FakeBrokers) -> None:
    run("list", "--longer-than", "1h")
    assert list(brokers.requests("ListTransactions")[0].state_filters) == ["Ongoing", "PrepareCommit", "PrepareAbort"]


def test_list_as_names_escapes_what_could_steer_a_terminal(run: Any, brokers: FakeBrokers) -> None:
    brokers.ids = {"a\n\x1b[2J": ongoing("a\n\x1b[2J")}
    assert run("list", "-o", "name").stdout == "a\\x0a\\x1b[2J\n"


def test_a_pattern_that_the_cluster_cannot_read_is_wrong_usage(run: Any, brokers: FakeBrokers) -> None:
    brokers.codes["ListTransactions"] = [ErrorCode.INVALID_REGULAR_EXPRESSION]
    assert "'[' is not a regular expression" in run("list", "--pattern", "[", code=2).stderr


def test_a_broker_that_is_too_old_for_a_filter_is_named(run: Any, brokers: FakeBrokers) -> None:
    brokers.versions[66] = (0, 1)
    assert (
        "ListTransactions in version 2 or newer, and broker at fake:9001 has versions 0 to 1"
        in run("list", "--pattern", "a", code=1).stderr
    )
    del brokers.versions[66]
    assert "does not have it" in run("list", code=1).stderr


def test_a_coordinator_that_loads_is_asked_again(run: Any, brokers: FakeBrokers) -> None:
    brokers.ids = {"app": ongoing()}
    brokers.codes["ListTransactions"] = [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NONE,
        ErrorCode.NOT_COORDINATOR,
    ]
    assert run("list", "-o", "name").stdout == "app\n"


def test_a_coordinator_that_never_gets_ready_is_not_healthy(ottla: Any, brokers: FakeBrokers) -> None:
    brokers.codes["ListTransactions"] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 1_000_000
    result = ottla("txn", "list", "-b", "fake:9001", "--timeout", "0.1")
    assert result.exit_code == 4
    assert "COORDINATOR_LOAD_IN_PROGRESS; try again in a moment" in result.stderr


def test_list_without_the_ids_of_an_offline_coordinator_says_so(run: Any, brokers: FakeBrokers) -> None:
    brokers.ids = {"app": ongoing()}
    brokers.topics |= {"__transaction_state": 3, "orders": 2}
    brokers.leaderless = {("__transaction_state", 1), ("orders", 0)}
    # The leader is elected while the list is made, and its ids are missing all the same.
    brokers.before_list = brokers.leaderless.clear
    result = run("list", "-o", "name", code=4)
    assert result.stdout == "app\n"
    assert "warning: the list is not complete: partition 1 of topic __transaction_state has no leader" in result.stderr


def test_half_a_list_does_not_pass_for_a_whole_one(run: Any, brokers: FakeBrokers) -> None:
    brokers.ids = {"app": ongoing()}
    brokers.down[2] = ConnectionRefusedError(111, "Connection refused")
    result = run("list", code=4)
    assert result.stdout == ""
    assert "broker 2 at fake:9002 cannot be reached (connection refused)" in result.stderr


# -- describe ---------------------------------------------------------------------------------------------------------


def test_describe_shows_age_time_left_and_partitions(run: Any, brokers: FakeBrokers) -> None:
    brokers.ids = {"app": ongoing()}
    assert run("describe", "app").stdout.splitlines() == [
        "TRANSACTIONAL ID  app",
        "COORDINATOR       2 (fake:9002)",
        "PRODUCER ID       7",
        "PRODUCER EPOCH    3",
        "STATE             Ongoing",
        "TIMEOUT           1m00s",
        "STARTED           2027-01-15 07:59:45 (15.0s ago)",
        "TIME LEFT         45.0s",
        "",
        "TOPIC   PARTITIONS",
        "orders  0,1",
    ]


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_describe_for_programs(run: Any, brokers: FakeBrokers, output: str, load: Any) -> None:
    brokers.ids = {"app": ongoing()}
    (row,) = load(run("describe", "app", "-o", output).stdout)
    assert row == {
        "transactional_id": "app", "coordinator": {"broker_id": 2, "host": "fake", "port": 9002}, "producer_id": 7,
        "producer_epoch": 3, "state": "Ongoing", "timeout_ms": 60_000, "started_ms": NOW_MS - 15_000,
        "age_ms": 15_000, "time_left_ms": 45_000,
        "partitions": [{"topic_name": "orders", "partition_id": 0}, {"topic_name": "orders", "partition_id": 1}],
    }  # fmt: skip


def test_an_overdue_transaction_says_so(run: Any, brokers: FakeBrokers) -> None:
    brokers.ids = {"app": ongoing(transaction_start_time=NOW_MS - 65_000)}
    assert "TIME LEFT         none, overdue by 5.0s" in run("describe", "app").stdout


def test_an_id_without_a_transaction_has_neither_age_nor_partitions(run: Any, brokers: FakeBrokers) -> None:
    brokers.ids = {"app": ongoing(transaction_state="Empty", transaction_start_time=-1, topics=[])}
    told = run("describe", "app").stdout
    assert "STARTED" not in told and "TIME LEFT" not in told and told.endswith("no partitions\n")


def test_a_missing_id_does_not_hide_the_others(run: Any, brokers: FakeBrokers) -> None:
    brokers.ids = {"app": ongoing()}
    result = run("describe", "gone", "app", "-o", "name", code=3)
    assert result.stdout == "app\n"
    assert result.stderr == "error: transactional id gone does not exist; see 'ottla txn list'\n"


def test_a_coordinator_that_is_being_chosen_is_asked_for_again(run: Any, brokers: FakeBrokers) -> None:
    brokers.ids = {"app": ongoing()}
    brokers.codes["FindCoordinator"] = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert run("describe", "app", "-o", "name").stdout == "app\n"


# -- hanging ----------------------------------------------------------------------------------------------------------


def test_an_open_transaction_that_nobody_knows_hangs(run: Any, hung: FakeBrokers) -> None:
    assert run("hanging").stdout.splitlines() == [
        "TOPIC   PARTITION  PRODUCER-ID  PRODUCER-EPOCH  COORDINATOR-EPOCH  START-OFFSET  LAST-RECORD          AGE",
        "orders          1            7               3                  5            12  2027-01-15 07:00:00  1h00m",
    ]


def test_a_transaction_that_its_coordinator_will_end_does_not_hang(run: Any, hung: FakeBrokers) -> None:
    hung.ids = {"app": ongoing()}
    assert run("hanging", "-o", "name").stdout == ""


def test_a_transaction_whose_coordinator_has_forgotten_the_partition_hangs(run: Any, hung: FakeBrokers) -> None:
    hung.ids = {"app": ongoing(topics=[TopicData(topic="orders", partitions=[0])])}
    assert run("hanging", "-o", "name").stdout == "orders-1\n"


def test_a_transaction_that_ends_while_we_look_did_not_hang(run: Any, hung: FakeBrokers) -> None:
    hung.before_list = lambda: hung.open.update({("orders", 1): []})
    assert run("hanging", "-o", "name").stdout == ""


def test_a_young_transaction_is_left_alone(run: Any, hung: FakeBrokers) -> None:
    assert run("hanging", "--older-than", "2h", "-o", "name").stdout == ""


def test_hanging_looks_into_the_named_topics_only(run: Any, hung: FakeBrokers) -> None:
    hung.topics["other"] = 1
    hung.open["other", 0] = [producer(9)]
    assert run("hanging", "--topic", "other", "-o", "name").stdout == "other-0\n"
    assert run("hanging", "-o", "name").stdout == "orders-1\nother-0\n"


def test_a_topic_that_does_not_exist_cannot_be_looked_into(run: Any, hung: FakeBrokers) -> None:
    assert run("hanging", "--topic", "gone", code=3).stderr == (
        "error: topic gone does not exist; see 'ottla topic list'\n"
    )


def test_a_partition_without_a_leader_is_named_and_not_passed_over(run: Any, hung: FakeBrokers) -> None:
    hung.leaderless.add(("orders", 0))
    result = run("hanging", "-o", "name", code=4)
    assert result.stdout == "orders-1\n"
    assert "orders-0 could not be checked" in result.stderr


def test_brokers_are_asked_for_their_own_partitions_in_parts(run: Any, hung: FakeBrokers) -> None:
    hung.topics["wide"] = 1200
    run("hanging", "--topic", "wide")
    asked = [len(request.topics[0].partition_indexes) for request in hung.requests("DescribeProducers")]
    assert asked == [500, 100, 500, 100]


def test_a_record_from_beyond_the_calendar_is_shown(run: Any, hung: FakeBrokers) -> None:
    hung.open["orders", 1] = [producer(age_ms=NOW_MS + (1 << 62))]
    assert str(-(1 << 62)) in run("hanging").stdout


# -- abort ------------------------------------------------------------------------------------------------------------

ORDERS_1 = ("--topic", "orders", "--partition", "1")


def test_abort_writes_a_marker_at_the_leader(run: Any, hung: FakeBrokers) -> None:
    told = run("abort", *ORDERS_1, "--start-offset", "12", "--yes").stdout
    assert told == "aborted the transaction of producer 7, epoch 3, in orders-1 from offset 12 (coordinator epoch 5)\n"
    ((node, marker),) = hung.markers()
    assert (node, marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (2, 7, 3, 5)
    assert marker.transaction_result is False
    assert (marker.topics[0].name, list(marker.topics[0].partition_indexes)) == ("orders", [1])


def test_a_producer_without_a_coordinator_is_aborted_with_epoch_0(run: Any, hung: FakeBrokers) -> None:
    hung.open["orders", 1] = [producer(coordinator_epoch=-1)]
    run("abort", *ORDERS_1, "--start-offset", "12", "--yes")
    assert hung.markers()[0][1].coordinator_epoch == 0


def test_abort_takes_a_producer_and_the_epochs_it_is_given(run: Any, hung: FakeBrokers) -> None:
    run("abort", *ORDERS_1, "--producer-id", "7", "--producer-epoch", "4", "--coordinator-epoch", "6", "--yes")
    marker = hung.markers()[0][1]
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 4, 6)


def test_a_dry_run_aborts_nothing(run: Any, hung: FakeBrokers) -> None:
    (row,) = json.loads(run("abort", *ORDERS_1, "--start-offset", "12", "--dry-run", "-o", "json").stdout)
    assert (row["result"], row["producer_id"], row["start_offset"]) == ("would abort", 7, 12)
    assert not hung.markers()


def test_nothing_is_aborted_when_nobody_can_be_asked(run: Any, hung: FakeBrokers) -> None:
    assert "needs --yes" in run("abort", *ORDERS_1, "--start-offset", "12", code=2).stderr
    assert not hung.markers()


@pytest.mark.parametrize("which", [("--start-offset", "11"), ("--producer-id", "8")])
def test_a_transaction_that_is_not_open_is_not_aborted(run: Any, hung: FakeBrokers, which: tuple[str, str]) -> None:
    told = run("abort", *ORDERS_1, *which, "--yes", code=3).stderr
    assert "nothing was aborted; open there: producer 7 from offset 12" in told
    assert not hung.markers()


def test_a_transaction_that_lives_is_not_torn_apart(run: Any, hung: FakeBrokers) -> None:
    hung.ids = {"app": ongoing()}
    assert (
        "its coordinator knows it as app, Ongoing"
        in run("abort", *ORDERS_1, "--start-offset", "12", "--yes", code=1).stderr
    )
    assert not hung.markers()
    run("abort", *ORDERS_1, "--start-offset", "12", "--yes", "--force")
    assert len(hung.markers()) == 1


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, "has a newer epoch than 3"),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, "a newer coordinator than that of epoch 5"),
        (31, "does not allow this client"),
        (9999, "orders-1: Kafka's error 9999"),
    ],
)
def test_a_marker_that_is_refused_is_explained(run: Any, hung: FakeBrokers, code: int, told: str) -> None:
    hung.codes["WriteTxnMarkers"] = [code]
    result = run("abort", *ORDERS_1, "--start-offset", "12", "--yes", code=1)
    assert told in result.stderr and result.stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--start-offset", "1", "--producer-id", "1"),
        ("--start-offset", "1", "--producer-epoch", "1"),
        ("--start-offset", "1", "--coordinator-epoch", "1"),
        ("--start-offset", "-1"),
        ("--producer-id", str(1 << 63)),
        ("--producer-id", "1", "--producer-epoch", "40000"),
    ],
)
def test_abort_wants_one_way_to_name_the_transaction(run: Any, hung: FakeBrokers, words: tuple[str, ...]) -> None:
    run("abort", *ORDERS_1, *words, "--yes", code=2)
    assert not hung.asked


# -- the small client -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ("security.protocol=SASL_SSL", "choose PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ("sasl.username=me", "set it to SASL_PLAINTEXT or SASL_SSL"),
        ("ssl.ca.location=x", "set it to SSL or SASL_SSL"),
        ("ssl.ca.locaton=x", "did you mean ssl.ca.location?"),
    ],
)
def test_security_settings_are_not_silently_ignored(run: Any, brokers: FakeBrokers, setting: str, advice: str) -> None:
    assert advice in run("list", "-X", setting, code=1).stderr
    assert not brokers.asked


def test_settings_of_the_other_client_are_left_to_it(run: Any, brokers: FakeBrokers) -> None:
    run("list", "-X", "socket.keepalive.enable=true")


def test_who_asks_for_plaintext_by_name_gets_it(run: Any, brokers: FakeBrokers) -> None:
    run("list", "-X", "sasl.username=me", "-X", "security.protocol=plaintext")


def test_the_second_address_is_tried_when_the_first_is_down(ottla: Any, brokers: FakeBrokers) -> None:
    brokers.down[9] = ConnectionRefusedError(111, "Connection refused")
    assert ottla("txn", "list", "-b", "fake:9009,fake:9001").exit_code == 0


def test_no_address_that_answers_is_not_healthy(ottla: Any, brokers: FakeBrokers) -> None:
    brokers.down[1] = ConnectionRefusedError(111, "Connection refused")
    result = ottla("txn", "list", "-b", "fake:9001")
    assert (result.exit_code, "no broker reachable at fake:9001 (connection refused)" in result.stderr) == (4, True)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"",
        b"\0\0\0\x03abc",
        b"\0\0\0\x08\0\0\0\x02\0\0\0\0",
        b"\0\0\0\x0a\0\0\0\x01\0\0\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
    ],
)
def test_bytes_that_are_no_answer_end_in_one_line(run: Any, brokers: FakeBrokers, answer: bytes) -> None:
    brokers.raw_answer = answer
    told = run("list", code=4).stderr
    assert "gives no Kafka answer" in told and told.count("\n") == 1


def test_an_id_that_no_request_can_carry_is_refused_in_one_line(run: Any, brokers: FakeBrokers) -> None:
    told = run("describe", "x" * 40_000, code=1).stderr
    assert "invalid request" in told and told.count("\n") == 1


# -- group delete --offsets -------------------------------------------------------------------------------------------


class GroupsCluster(ClusterClient):
    """A cluster with one group, `g`."""

    def __init__(self, connection: ClusterOptions) -> None:
        super().__init__(connection)
        names = [("orders", 0), ("orders", 1), ("subscribed", 0)]
        self.committed = {CommittedName(*name): 4 for name in names}

    def describe_groups(self, names: list[str]) -> list[Any]:
        class State:
            members = ("one",)

            def __init__(self, name: str) -> None:
                self.group_id = name
                self.exists = name == "g"

        return [State(name) for name in names]

    def committed_offsets(self, group: str) -> dict[CommittedName, int]:
        return self.committed


@pytest.fixture
def delete(ottla: Any, brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr("ottla.cli.cluster.connect", GroupsCluster)

    def run(*words: str, code: int = 0) -> Any:
        result = ottla("group", "delete", *words, "-b", "fake:9001")
        assert result.exit_code == code, result.output
        return result

    return run


def deleted(brokers: FakeBrokers) -> list[tuple[str, str, list[int]]]:
    return [
        (request.group_id, topic.name, [row.partition_index for row in topic.partitions])
        for request in brokers.requests("OffsetDelete")
        for topic in request.topics
    ]


def test_commits_of_a_topic_are_deleted(delete: Any, brokers: FakeBrokers) -> None:
    told = delete("g", "--offsets", "--topic", "orders", "--yes").stdout.splitlines()
    assert told == [f"deleted offset 4 of group g in orders-{number}" for number in (0, 1)]
    assert deleted(brokers) == [("g", "orders", [0, 1])]


def test_commits_of_named_partitions_are_deleted(delete: Any, brokers: FakeBrokers) -> None:
    assert delete("g", "--offsets", "--topic", "orders:1", "--yes", "-o", "name").stdout == "orders-1\n"
    assert deleted(brokers) == [("g", "orders", [1])]


def test_a_dry_run_deletes_no_commits(delete: Any, brokers: FakeBrokers) -> None:
    (row,) = json.loads(delete("g", "--offsets", "--topic", "orders:1", "--dry-run", "-o", "json").stdout)
    assert (row["result"], row["topic_name"], row["partition_id"]) == ("would delete", "orders", 1)
    assert not deleted(brokers)


def test_commits_that_consumers_still_use_are_kept(delete: Any, brokers: FakeBrokers) -> None:
    result = delete("g", "--offsets", "--topic", "orders:0", "--topic", "subscribed", "--yes", code=1)
    assert result.stdout == "deleted offset 4 of group g in orders-0\n"
    assert "subscribed-0: consumers of group g are subscribed to the topic" in result.stderr


def test_an_active_group_of_another_kind_is_refused(delete: Any, brokers: FakeBrokers) -> None:
    brokers.codes["OffsetDelete"] = [ErrorCode.NON_EMPTY_GROUP]
    assert "group g has active members" in delete("g", "--offsets", "--topic", "orders", "--yes", code=1).stderr


@pytest.mark.parametrize("topic", ["orders:7", "orders:0,7", "gone"])
def test_commits_that_are_not_there_cannot_be_deleted(delete: Any, brokers: FakeBrokers, topic: str) -> None:
    told = delete("g", "--offsets", "--topic", topic, "--yes", code=3).stderr
    assert "has no committed offset in" in told and "nothing was deleted" in told
    assert not deleted(brokers)


@pytest.mark.parametrize("words", [("--offsets",), ("--topic", "orders"), ("--offsets", "--topic", "orders:x")])
def test_offsets_and_topic_go_together(delete: Any, brokers: FakeBrokers, words: tuple[str, ...]) -> None:
    delete("g", *words, "--yes", code=2)
    assert not brokers.asked


def test_offsets_of_a_group_that_does_not_exist(delete: Any, brokers: FakeBrokers) -> None:
    delete("gone", "--offsets", "--topic", "orders", "--yes", code=3)


def test_commits_are_not_deleted_when_nobody_can_be_asked(delete: Any, brokers: FakeBrokers) -> None:
    assert "needs --yes" in delete("g", "--offsets", "--topic", "orders", code=2).stderr
    assert not deleted(brokers)
