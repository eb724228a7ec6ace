"""Quotas with sockets of the operating system; tests/sim/test_throttling.py has the cases."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.testing.raw import Closed, RawClient, batch_of, produce_request
from ottla.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from ottla.wire.messages.metadata import MetadataRequest

pytestmark = pytest.mark.broker

_numbers = itertools.count()


@pytest.fixture
def admin(ottla_broker: Any) -> Iterator[RawClient]:
    with RawClient(ottla_broker.bootstrap) as client:
        yield client


def set_quota(admin: RawClient, kind: str, name: str, quota: str, rate: float | None) -> None:
    entry = AlterClientQuotasRequestEntryData(
        entity=[AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name)],
        ops=[OpData(key=quota, value=rate or 0.0, remove=rate is None)],
    )
    (row,) = admin.ask(AlterClientQuotasRequest(entries=[entry]), 1).entries
    assert row.error_code == 0, row.error_message


def test_pipelined_requests_of_a_throttled_producer_are_all_answered(ottla_broker: Any, admin: RawClient) -> None:
    name = f"quota-sockets-{os.getpid()}-{next(_numbers)}"
    admin.create_topic(name)
    set_quota(admin, "client-id", name, "producer_byte_rate", 100_000.0)
    with RawClient(ottla_broker.bootstrap, client_id=name) as client:
        batch = batch_of(bytes(110_000))
        numbers = [client.send(produce_request((name, 0, batch)), 9) for _ in range(2)]
        replies = [client.receive(0, 9, number) for number in numbers]
        assert all(reply.throttle_time > 0 for reply in replies)
        offsets = [reply.responses[0].partition_responses[0].base_offset for reply in replies]
        assert offsets == [0, 1]
        number = client.send(MetadataRequest(topics=[]), 9)
        set_quota(admin, "client-id", name, "producer_byte_rate", None)
        client.receive(3, 9, number)  # it is unmuted, because there is no quota any more


def test_connection_of_an_address_over_quota_is_closed(ottla_broker: Any, admin: RawClient) -> None:
    address = f"127.77.{os.getpid() % 250}.{1 + next(_numbers)}"
    set_quota(admin, "ip", address, "connection_creation_rate", 1.0)
    host, _, port = ottla_broker.bootstrap.rpartition(":")

    def is_served() -> bool:
        with RawClient(ottla_broker.bootstrap) as client:
            client.socket.close()
            client.socket = socket.create_connection((host, int(port)), 60, source_address=(address, 0))
            try:
                client.ask(MetadataRequest(topics=[]), 9)
            except Closed:
                return False
            return True

    try:
        served = list(itertools.takewhile(bool, (is_served() for _ in range(100))))
    finally:
        set_quota(admin, "ip", address, "connection_creation_rate", None)
    assert 10 <= len(served) < 100  # ten are allowed at once, then one per second
