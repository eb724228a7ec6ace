"""The requests of the access matrix, sent to Ottla and to Apache Kafka: campaign `security` with KAFKA=1.

``tests/unit/broker/test_access_matrix.py`` compares Ottla with a description of Kafka's rules. This program compares it
with Kafka itself: each request is sent to both by a client with the same ACLs, and the error codes of the replies, with
the fields that hold them, and the resources that the replies list must be equal. ``ON_PURPOSE`` names the differences
that are wanted, each with its reason. The report has how many replies are equal, how many differ for each of these
reasons, and all others; the campaign fails if there are others.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from benchmarks import kafka_server
from benchmarks.kafka_server import KAFKA_VERSION, ApacheKafka
from benchmarks.processes import free_port
from tests.served_apis import served_apis
from tests.unit.broker.access_rules import ABSENT, FIELDS_OF, TOPIC, Acl, Names, Shape
from tests.unit.broker.memory_broker import MemoryBroker
from tests.unit.broker.test_access_matrix import SHAPES, Case, Matrix, clients_of, codes_in, is_hidden

from campaign.report import CannotRun, Report
from ottla.security.acls import ResourceType
from ottla.testing.raw import Closed, RawClient, read_answer
from ottla.wire import Message
from ottla.wire.messages import (
    add_partitions_to_txn,
    api_versions,
    consumer_group_heartbeat,
    create_acls,
    describe_acls,
    find_coordinator,
    init_producer_id,
    metadata,
    offset_commit,
)
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest

_PASSWORD = "matrix"
_ACLS_PER_REQUEST = 500
_WAIT_S_MAX = 60.0
#: Kafka replies within milliseconds
_REPLY_S_MAX = 10.0
_SHOWN_MAX = 40
#: what both brokers are started with
_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1", "group.consumer.session.timeout.ms": "600000",
    "group.consumer.max.session.timeout.ms": "600000",
}  # fmt: skip
_FIND_COORDINATOR, _DELETE_TOPICS, _DESCRIBE_CONFIGS, _DESCRIBE_CREDENTIALS = 10, 20, 32, 50
_SHARE_GROUP = 2
_BROKER_LOGGER, _CLIENT_METRICS = 8, 16
_TOPIC_REFUSED, _INVALID_REQUEST = 29, 42
#: APIs that this program uses itself to log in
_LOGIN_APIS = (17, 36)

#: (number of the shape, version, number of the client, type of the resource that does not exist)
Key = tuple[int, int, int, ResourceType | None]


class Answer(NamedTuple):
    """What is compared of a reply."""

    #: error codes with their fields, without indexes of arrays
    codes: frozenset[tuple[str, int]]
    #: for each listing of the shape, whether the reply shows the resource
    shown: tuple[bool, ...]

    def __str__(self) -> str:
        return ", ".join(f"{path}={code}" for path, code in sorted(self.codes)) + f" shows {list(self.shown)}"


CLOSED = Answer(frozenset({("connection closed", 0)}), ())
NO_REPLY = Answer(frozenset({("no reply", 0)}), ())


class Purpose(NamedTuple):
    """A difference that is wanted."""

    reason: str
    #: whether it explains the difference between the answers of Ottla and of Kafka
    explains: Callable[[Case, Answer, Answer], bool]


def _deletes_hidden_topic(case: Case, ours: Answer, theirs: Answer) -> bool:
    return (
        case.shape.api_key == _DELETE_TOPICS and is_hidden(case, TOPIC)
        and ours.codes == {("responses.error_code", _TOPIC_REFUSED)} and theirs.codes == {("responses.error_code", 0)}
    )  # fmt: skip


def _finds_share_coordinator(case: Case, ours: Answer, theirs: Answer) -> bool:
    return (
        case.shape.api_key == _FIND_COORDINATOR
        and getattr(case.shape.make(case.version, case.names), "key_type", 0) == _SHARE_GROUP
        and ("coordinators.error_code", _INVALID_REQUEST) in ours.codes
    )


def _describes(resource_type: int) -> Callable[[Case, Answer, Answer], bool]:
    def explains(case: Case, ours: Answer, theirs: Answer) -> bool:
        if case.shape.api_key != _DESCRIBE_CONFIGS:
            return False
        request: Any = case.shape.make(case.version, case.names)
        is_refused = ours.codes == {("results.error_code", _INVALID_REQUEST)}
        return is_refused and request.resources[0].resource_type == resource_type

    return explains


def _is_without_reply(case: Case, ours: Answer, theirs: Answer) -> bool:
    return case.shape.api_key == _DESCRIBE_CREDENTIALS and theirs == NO_REPLY and ours.codes == {("error_code", 31)}


ON_PURPOSE = [
    Purpose(
        "DeleteTopics by id with DELETE allowed and DESCRIBE denied: TOPIC_AUTHORIZATION_FAILED, as by name; "
        "Kafka deletes the topic, although it refuses the same by name",
        _deletes_hidden_topic,
    ),
    Purpose("FindCoordinator of a share group: there are no share groups (gaps.md)", _finds_share_coordinator),
    Purpose("DescribeConfigs of loggers of the broker: not served (gaps.md)", _describes(_BROKER_LOGGER)),
    Purpose("DescribeConfigs of client metrics: there is no telemetry (gaps.md)", _describes(_CLIENT_METRICS)),
    Purpose(
        "DescribeUserScramCredentials of all users (null) without the right: CLUSTER_AUTHORIZATION_FAILED; "
        "Kafka sends no reply",
        _is_without_reply,
    ),
]


def answer_of(case: Case, reply: Any) -> Answer:
    shown = tuple(listing.is_shown(reply, case.names) for listing in case.shape.listings)
    return Answer(frozenset(codes_in(reply)), shown)


def ordered_shapes(only: Iterable[int] = ()) -> Iterator[tuple[int, Shape]]:
    """Yield the shapes with their numbers; those that delete something come last, because others need it."""
    wanted = set(only)
    for changes_state in (False, True):
        for number, shape in enumerate(SHAPES):
            is_wanted = shape.api_key not in _LOGIN_APIS and (not wanted or shape.api_key in wanted)
            if is_wanted and shape.changes_state == changes_state:
                yield number, shape


def case_of(shape: Shape, version: int, acls: tuple[Acl, ...], names: Names, absent: ResourceType | None) -> Case:
    if absent is not None:
        names = names._replace(**{field: getattr(ABSENT, field) for field in FIELDS_OF[absent]})
    return Case(shape, version, acls, names)


# -- Ottla ------------------------------------------------------------------------------------------------------------


class OttlaMatrix(Matrix):
    """Keeps the replies instead of comparing them with the rules."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.answers: dict[Key, tuple[Case, Answer]] = {}

    async def collect(self, number: int, shape: Shape) -> None:
        clients = clients_of(shape.api_key)
        principals = [f"User:{each}" for each in range(len(clients))]
        self._put_acls(principals, clients)
        connections = [self._broker.connect(principal) for principal in principals]
        api = served_apis()[shape.api_key]
        for version in filter(shape.versions, range(api.version_min, api.version_max + 1)):
            for absent in (None, *shape.names):
                replies = await self._send(shape, version, connections, clients, absent)
                for client, reply in enumerate(replies):
                    if reply is not None:
                        case, frame = reply
                        decoded = read_answer(frame, shape.api_key, version, 7)
                        self.answers[number, version, client, absent] = case, answer_of(case, decoded)
        for connection in connections:
            connection.close()

    def _check(self, case: Case, frame: bytes) -> None:
        self.cases += 1


async def _ask_ottla(data: Path, only: Sequence[int]) -> dict[Key, tuple[Case, Answer]]:
    async with MemoryBroker(data, _SETTINGS) as broker:
        matrix = OttlaMatrix(broker)
        await matrix.create_resources()
        for number, shape in ordered_shapes(only):
            await matrix.collect(number, shape)
        return matrix.answers


# -- Kafka ------------------------------------------------------------------------------------------------------------


class KafkaMatrix:
    """Sends the same requests to Apache Kafka. Each set of ACLs has a user of its own."""

    def __init__(self, clients: Sequence[tuple[Acl, ...]]) -> None:
        self._users = {acls: f"u{number}" for number, acls in enumerate(clients)}
        self._port = free_port()
        users = " ".join(f'user_{user}="{_PASSWORD}"' for user in self._users.values())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        self._kafka = ApacheKafka(node_id=0, settings={
            **_SETTINGS,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # The listener of this program and of the broker itself knows no users.
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": f"{module} required {users};",
        })  # fmt: skip
        self._add_listener()
        self.names = Names()

    def _add_listener(self) -> None:
        settings = self._kafka._settings
        settings["listeners"] = (
            f"PLAINTEXT://127.0.0.1:{self._kafka.port},CLIENTS://127.0.0.1:{self._port},"
            f"CONTROLLER://127.0.0.1:{free_port()}"
        )
        settings["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{self._kafka.port},CLIENTS://127.0.0.1:{self._port}"
        settings["listener.security.protocol.map"] = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT"
        settings["inter.broker.listener.name"] = "PLAINTEXT"

    def __enter__(self) -> KafkaMatrix:
        self._kafka.start()
        self._root = RawClient(self._kafka.bootstrap)
        request = api_versions.ApiVersionsRequest(client_software_name="matrix", client_software_version="1")
        self._versions = {each.api_key: each for each in self._root.ask(request, 3).api_keys}
        self._put_acls()
        self._create_resources()
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.stop()

    # -- state ----------------------------------------------------------------------------------------------------

    def _put_acls(self) -> None:
        rows = [
            create_acls.AclCreation(
                resource_type=acl.resource, resource_name=acl.name, resource_pattern_type=3,
                principal=f"User:{user}", host="*", operation=acl.operation, permission_type=acl.permission,
            )
            for acls, user in self._users.items() for acl in acls
        ]  # fmt: skip
        for start in range(0, len(rows), _ACLS_PER_REQUEST):
            request = create_acls.CreateAclsRequest(creations=rows[start : start + _ACLS_PER_REQUEST])
            codes = {result.error_code for result in self._root.ask(request, 3).results}
            assert codes == {0}, codes
        last = rows[-1]
        wanted = describe_acls.DescribeAclsRequest(
            resource_type_filter=last.resource_type, resource_name_filter=last.resource_name, pattern_type_filter=3,
            principal_filter=last.principal, host_filter=None, operation=last.operation,
            permission_type=last.permission_type,
        )  # fmt: skip
        # Kafka applies changes in their order, so that the last one tells that all are in use.
        self._wait("the ACLs", lambda: bool(self._root.ask(wanted, 3).resources))

    def _wait(self, what: str, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WAIT_S_MAX
        while not is_done():
            assert time.monotonic() < deadline, f"Kafka does not have {what} after {_WAIT_S_MAX:.0f} s"
            time.sleep(0.02)

    def _create_resources(self) -> None:
        names = self.names
        for key_type, key in ((0, names.group), (1, names.transaction)):
            request = find_coordinator.FindCoordinatorRequest(key=key, key_type=key_type)
            self._wait("a coordinator", lambda request=request: not self._root.ask(request, 3).error_code)  # type: ignore[misc]
        self.restore()
        producers: list[Any] = []

        def has_producer(transactional_id: str) -> bool:
            request = init_producer_id.InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout=900_000
            )
            producers.append(self._root.ask(request, 4))
            return not producers[-1].error_code

        for each in (names.transaction, names.open_transaction):
            self._wait("a producer id", lambda each=each: has_producer(each))  # type: ignore[misc]
        topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=names.topic, partitions=[0])]
        added = self._root.ask(
            add_partitions_to_txn.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=names.open_transaction,
                v3_and_below_producer_id=producers[-1].producer_id,
                v3_and_below_producer_epoch=producers[-1].producer_epoch, v3_and_below_topics=topics,
            ), 3,
        )  # fmt: skip
        assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0, added
        self._join("AAAAAAAAAAAAAAAAAAAAAA")

    def _join(self, member_id: str) -> None:
        """Join the consumer group, and wait until the member has the partition."""
        epoch, is_new = 0, True

        def has_partition() -> bool:
            nonlocal epoch, is_new
            reply = self._root.ask(
                consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                    group_id=self.names.consumer_group, member_id=member_id, member_epoch=epoch,
                    rebalance_timeout=60_000 if is_new else -1,
                    subscribed_topic_names=[self.names.topic] if is_new else None,
                    topic_partitions=[] if is_new else None,
                ), 1,
            )  # fmt: skip
            assert reply.error_code == 0, reply
            epoch, is_new = reply.member_epoch, False
            return reply.assignment is not None and bool(reply.assignment.topic_partitions)

        self._wait("an assignment", has_partition)

    def restore(self) -> None:
        """Create the topic, and the group with its committed offset, unless they exist."""
        topic = CreatableTopic(name=self.names.topic, num_partitions=1, replication_factor=1)
        self._root.ask(CreateTopicsRequest(topics=[topic], timeout=60_000), 7)
        row = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
        committed = offset_commit.OffsetCommitRequestTopic(name=self.names.topic, partitions=[row])
        request = offset_commit.OffsetCommitRequest(
            group_id=self.names.group, generation_id_or_member_epoch=-1, member_id="", topics=[committed]
        )

        def is_there() -> bool:
            wanted = [metadata.MetadataRequestTopic(name=self.names.topic)]
            found = self._root.ask(metadata.MetadataRequest(topics=wanted, allow_auto_topic_creation=False), 12).topics[
                0
            ]
            if found.error_code or not found.partitions or found.partitions[0].error_code:
                return False
            self.names = self.names._replace(topic_id=bytes(found.topic_id))
            return not self._root.ask(request, 8).topics[0].partitions[0].error_code

        self._wait("the topic and the committed offset", is_there)

    # -- requests -------------------------------------------------------------------------------------------------

    def ask_all(self, number: int, shape: Shape) -> Iterator[tuple[Key, Case, Answer]]:
        served, theirs = served_apis()[shape.api_key], self._versions.get(shape.api_key)
        if theirs is None:
            return
        versions = range(max(served.version_min, theirs.min_version), min(served.version_max, theirs.max_version) + 1)
        for client, acls in enumerate(clients_of(shape.api_key)):
            connection = self._connect(acls)
            for version in filter(shape.versions, versions):
                for absent in (None, *shape.names):
                    case = case_of(shape, version, acls, self.names, absent)
                    if shape.skips(version, case.names, acls):
                        continue
                    try:
                        reply = connection.ask(shape.make(version, case.names), version)
                        answer = answer_of(case, reply)
                    except (Closed, TimeoutError) as error:
                        connection.close()
                        connection, answer = self._connect(acls), CLOSED if isinstance(error, Closed) else NO_REPLY
                    yield (number, version, client, absent), case, answer
                    if shape.changes_state and any(code == 0 for _, code in answer.codes):
                        self.restore()
            connection.close()

    def _connect(self, acls: tuple[Acl, ...]) -> RawClient:
        client = RawClient(f"127.0.0.1:{self._port}", timeout_s=_REPLY_S_MAX)
        handshake: Message = SaslHandshakeRequest(mechanism="PLAIN")
        assert client.ask(handshake, 1).error_code == 0
        token = f"\0{self._users[acls]}\0{_PASSWORD}".encode()
        reply = client.ask(SaslAuthenticateRequest(auth_bytes=token), 2)
        assert reply.error_code == 0, reply
        return client


# -- the comparison ---------------------------------------------------------------------------------------------------


class Comparison:
    def __init__(self) -> None:
        self.equal = 0
        self.on_purpose: Counter[str] = Counter()
        #: by API and answers
        self.unexplained: defaultdict[tuple[int, Answer, Answer], list[Case]] = defaultdict(list)

    def add(self, case: Case, ours: Answer, theirs: Answer) -> None:
        if ours == theirs:
            self.equal += 1
            return
        for purpose in ON_PURPOSE:
            if purpose.explains(case, ours, theirs):
                self.on_purpose[purpose.reason] += 1
                return
        self.unexplained[case.shape.api_key, ours, theirs].append(case)

    def report(self) -> Iterator[str]:
        unexplained = sum(map(len, self.unexplained.values()))
        total = self.equal + self.on_purpose.total() + unexplained
        yield f"{total:,} requests to Ottla and to Apache Kafka {KAFKA_VERSION}: {self.equal:,} replies are equal,"
        yield f"{self.on_purpose.total():,} differ on purpose, {unexplained:,} differ without a known reason"
        for reason, count in self.on_purpose.most_common():
            yield f"{count:7,}  {reason}"
        for (_, ours, theirs), cases in list(self.unexplained.items())[:_SHOWN_MAX]:
            yield f"{len(cases):7,}  {cases[0]}\n         Ottla: {ours}\n         Kafka: {theirs}"


def compare(data: Path, only: Sequence[int] = ()) -> Comparison:
    answers = uvloop.run(_ask_ottla(data, only))
    sets = dict.fromkeys(acls for _, shape in ordered_shapes(only) for acls in clients_of(shape.api_key))
    comparison = Comparison()
    with KafkaMatrix(list(sets)) as kafka:
        for number, shape in ordered_shapes(only):
            for key, case, theirs in kafka.ask_all(number, shape):
                comparison.add(case, answers[key][1], theirs)
    return comparison


def compare_with_kafka(report: Report) -> None:
    if problem := kafka_server.fetch() or kafka_server.available():
        raise CannotRun(problem)
    logging.disable()  # Ottla logs each refused request
    try:
        with tempfile.TemporaryDirectory() as directory:
            comparison = compare(Path(directory))
    finally:
        logging.disable(logging.NOTSET)
    for line in comparison.report():
        report.say(line)
    report.figure(
        f"{comparison.equal:,} replies are those of Apache Kafka, {comparison.on_purpose.total():,} differ on purpose"
    )
    if comparison.unexplained:
        report.problem(
            f"{sum(map(len, comparison.unexplained.values())):,} replies differ from Kafka's without a known reason"
        )
