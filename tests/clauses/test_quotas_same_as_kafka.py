"""AlterClientQuotas and DescribeClientQuotas: Ottla and Apache Kafka give the same answers to the same requests.

Left out because Ottla answers otherwise on purpose (docs/reference/gaps.md): a rate that is not a number, and a user
whose name is ``<default>``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks import kafka_server
from benchmarks.kafka_server import ApacheKafka

from ottla.testing import BrokerProcess
from ottla.testing.raw import Closed, RawClient
from ottla.wire import Message
from ottla.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from ottla.wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest

pytestmark = [
    pytest.mark.foreign,
    pytest.mark.skipif("OTTLA_LONG" not in os.environ, reason="only in a longer campaign: make campaign NAME=quotas"),
]

Names = list[tuple[str, str | None]]
EXACT, DEFAULT, ANY = 0, 1, 2


def alter(
    entity: Names, *, validate_only: bool = False, ops: list[OpData] | None = None, **rates: float | None
) -> Message:
    """Set quotas of one entity; None removes one."""
    changes = [OpData(key=key, value=rate or 0.0, remove=rate is None) for key, rate in rates.items()]
    entries = [entry(entity, ops if ops is not None else changes)]
    return AlterClientQuotasRequest(entries=entries, validate_only=validate_only)


def entry(entity: Names, ops: list[OpData]) -> AlterClientQuotasRequestEntryData:
    parts = [AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    return AlterClientQuotasRequestEntryData(entity=parts, ops=ops)


def describe(*filters: tuple[str, int, str | None], strict: bool = False) -> Message:
    components = [ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in filters]
    return DescribeClientQuotasRequest(components=components, strict=strict)


RATE = "producer_byte_rate"
ALICE: Names = [("user", "alice")]
ALL = describe()
#: asked in this order, on one connection each
REQUESTS: list[tuple[str, Message]] = [
    ("nothing is set", ALL),
    # which values are allowed
    ("a user", alter(ALICE, producer_byte_rate=1000.0)),
    ("a fraction of a byte", alter(ALICE, producer_byte_rate=0.5)),
    ("a fraction above one", alter(ALICE, producer_byte_rate=1000.5)),
    ("almost a whole number", alter(ALICE, producer_byte_rate=1000.0000001)),
    ("zero", alter(ALICE, consumer_byte_rate=0.0)),
    ("negative", alter(ALICE, consumer_byte_rate=-1.0)),
    ("infinite", alter(ALICE, consumer_byte_rate=math.inf)),
    ("larger than an int64", alter(ALICE, consumer_byte_rate=1e30)),
    ("a percentage with a fraction", alter(ALICE, request_percentage=12.5)),
    ("zero percent", alter(ALICE, request_percentage=0.0)),
    ("negative percentage", alter(ALICE, request_percentage=-5.0)),
    ("a mutation rate with a fraction", alter(ALICE, controller_mutation_rate=0.25)),
    ("a negative mutation rate", alter(ALICE, controller_mutation_rate=-0.25)),
    # which keys are allowed for whom
    ("an unknown key", alter(ALICE, bandwidth=5.0)),
    ("removal of an unknown key", alter(ALICE, bandwidth=None)),
    ("no key", alter(ALICE, ops=[OpData(key="", value=5.0)])),
    ("connection rate of a user", alter(ALICE, connection_creation_rate=5.0)),
    ("removal of the connection rate of a user", alter(ALICE, connection_creation_rate=None)),
    ("bytes of an address", alter([("ip", "127.0.0.9")], producer_byte_rate=5.0)),
    ("connection rate of an address", alter([("ip", "127.0.0.9")], connection_creation_rate=5.0)),
    ("connection rate with a fraction", alter([("ip", "127.0.0.9")], connection_creation_rate=5.5)),
    ("connection rate of zero", alter([("ip", "127.0.0.9")], connection_creation_rate=0.0)),
    ("connection rate below zero", alter([("ip", "127.0.0.9")], connection_creation_rate=-1.0)),
    ("connection rate above int32", alter([("ip", "127.0.0.9")], connection_creation_rate=3e9)),
    ("connection rate of all addresses", alter([("ip", None)], connection_creation_rate=50.0)),
    ("an address that is none", alter([("ip", "not an address!")], connection_creation_rate=5.0)),
    ("an empty address", alter([("ip", "")], connection_creation_rate=5.0)),
    ("an address of version 6", alter([("ip", "::1")], connection_creation_rate=5.0)),
    ("a password", alter(ALICE, ops=[OpData(key="SCRAM-SHA-256", value=5.0)])),
    ("one key twice", alter(ALICE, ops=[OpData(key=RATE, value=1.0), OpData(key=RATE, value=2.0)])),
    ("one key set and removed", alter(ALICE, ops=[OpData(key=RATE, value=7.0), OpData(key=RATE, remove=True)])),
    ("a good and a bad key", alter(ALICE, producer_byte_rate=77.0, bandwidth=1.0)),
    ("no change", alter(ALICE)),
    ("what is set now", ALL),
    # entities
    ("no entity", alter([], producer_byte_rate=1.0)),
    ("an unknown entity", alter([("group", "a")], producer_byte_rate=1.0)),
    ("an empty entity type", alter([("", "a")], producer_byte_rate=1.0)),
    ("a user and an unknown entity", alter([("user", "a"), ("group", "a")], producer_byte_rate=1.0)),
    ("a user twice", alter([("user", "a"), ("user", "b")], producer_byte_rate=1.0)),
    ("a user and an address", alter([("user", "a"), ("ip", "127.0.0.9")], producer_byte_rate=1.0)),
    ("a client id and an address", alter([("client-id", "a"), ("ip", "127.0.0.9")], connection_creation_rate=1.0)),
    ("an empty user", alter([("user", "")], producer_byte_rate=1.0)),
    ("an empty client id", alter([("client-id", "")], producer_byte_rate=1.0)),
    ("odd characters", alter([("user", "a/b c%=,üé")], producer_byte_rate=3.0)),
    ("a user and a client id", alter([("user", "alice"), ("client-id", "app")], producer_byte_rate=2.0)),
    ("a client id and a user", alter([("client-id", "app"), ("user", "alice")], consumer_byte_rate=2.0)),
    ("a user and all client ids", alter([("user", "alice"), ("client-id", None)], producer_byte_rate=4.0)),
    ("all users", alter([("user", None)], producer_byte_rate=5.0)),
    ("all users and a client id", alter([("user", None), ("client-id", "app")], producer_byte_rate=6.0)),
    ("all users and all client ids", alter([("user", None), ("client-id", None)], producer_byte_rate=7.0)),
    ("a client id", alter([("client-id", "app")], producer_byte_rate=8.0)),
    ("all client ids", alter([("client-id", None)], producer_byte_rate=9.0)),
    ("only validated", alter([("user", "bob")], validate_only=True, producer_byte_rate=9.0)),
    ("only validated, wrong", alter([("user", "bob")], validate_only=True, bandwidth=9.0)),
    ("removal of what is not set", alter([("user", "carol")], producer_byte_rate=None)),
    (
        "several entities",
        AlterClientQuotasRequest(
            entries=[
                entry([("user", "dora")], [OpData(key=RATE, value=1.0)]),
                entry([("user", "emil")], [OpData(key="bandwidth", value=1.0)]),
                entry([("user", "fritz")], [OpData(key=RATE, value=1.0)]),
            ]
        ),
    ),
    (
        "one entity twice",
        AlterClientQuotasRequest(
            entries=[
                entry([("user", "gerd")], [OpData(key=RATE, value=1.0)]),
                entry([("user", "gerd")], [OpData(key=RATE, value=2.0)]),
            ]
        ),
    ),
    # Kafka makes the first of the two changes, although it answers with an error.
    ("removal of that entity", alter([("user", "gerd")], producer_byte_rate=None)),
    ("no entries", AlterClientQuotasRequest(entries=[])),
    # filters
    ("all", ALL),
    ("all, strict", describe(strict=True)),
    ("any user", describe(("user", ANY, None))),
    ("any user, strict", describe(("user", ANY, None), strict=True)),
    ("one user", describe(("user", EXACT, "alice"))),
    ("one user, strict", describe(("user", EXACT, "alice"), strict=True)),
    ("the default user", describe(("user", DEFAULT, None))),
    ("the default user, strict", describe(("user", DEFAULT, None), strict=True)),
    ("the default user with a name", describe(("user", DEFAULT, "alice"))),
    ("any user with a name", describe(("user", ANY, "alice"))),
    ("one user without a name", describe(("user", EXACT, None))),
    ("a user that has no quotas", describe(("user", EXACT, "nobody"))),
    ("any client id", describe(("client-id", ANY, None))),
    ("any client id, strict", describe(("client-id", ANY, None), strict=True)),
    ("user and client id", describe(("user", EXACT, "alice"), ("client-id", EXACT, "app"))),
    ("user and default client id", describe(("user", EXACT, "alice"), ("client-id", DEFAULT, None))),
    ("user and any client id, strict", describe(("user", EXACT, "alice"), ("client-id", ANY, None), strict=True)),
    ("any address", describe(("ip", ANY, None))),
    ("the default address", describe(("ip", DEFAULT, None), strict=True)),
    ("address and user", describe(("ip", ANY, None), ("user", ANY, None))),
    ("unknown entity type", describe(("group", ANY, None))),
    ("empty entity type", describe(("", ANY, None))),
    ("entity type twice", describe(("user", ANY, None), ("user", EXACT, "alice"))),
    ("unknown match type", describe(("user", 3, None))),
    # removal
    ("removal", alter(ALICE, producer_byte_rate=None)),
    ("removal of all", alter([("user", None)], producer_byte_rate=None)),
    ("what is left", ALL),
]


class Side:
    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, request: Message, version: int) -> Any:
        with RawClient(self.address) as client:
            try:
                return digest(client.ask(request, version))
            except Closed:
                return "closed"


def digest(answer: Any) -> Any:
    """Return what is compared: not the texts, and in an order of its own because Kafka answers from hash maps."""
    if hasattr(answer, "error_code"):
        entries = (
            None
            if answer.entries is None
            else sorted(
                (
                    sorted((part.entity_type, part.entity_name or "<default>") for part in each.entity),
                    sorted((value.key, value.value) for value in each.values),
                )
                for each in answer.entries
            )
        )
        return answer.error_code, entries
    return sorted(
        (sorted((part.entity_type, part.entity_name or "<default>") for part in each.entity), each.error_code)
        for each in answer.entries
    )


@pytest.fixture(scope="module")
def sides() -> Iterator[tuple[Side, Side]]:
    if (reason := kafka_server.fetch() or kafka_server.available()) is not None:
        pytest.skip(reason)
    kafka = ApacheKafka()
    try:
        kafka.start()
        with BrokerProcess.start() as broker:
            yield Side(broker.bootstrap), Side(kafka.bootstrap)
            assert "Traceback" not in broker.errors()
    finally:
        kafka.stop()


@pytest.mark.parametrize("version", [0, 1])
def test_quota_requests_are_answered_as_by_kafka(sides: tuple[Side, Side], version: int) -> None:
    ottla, kafka = sides
    differing = {}
    for name, request in REQUESTS:
        ours, theirs = ottla.ask(request, version), kafka.ask(request, version)
        if ours != theirs:
            differing[name] = {"ottla": ours, "kafka": theirs}
    assert not differing
