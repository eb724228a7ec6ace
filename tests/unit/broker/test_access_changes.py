"""A change of ACLs takes effect on connections that are open, whatever the broker has cached for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.clauses.group_requests import commit, join, sync
from tests.unit.broker.memory_broker import MemoryBroker, MemoryTransport

from ottla.security.acls import Operation, PatternType, Permission, ResourceType
from ottla.testing.raw import batch_of, fetch_from, fetch_request, produce_request, read_answer
from ottla.wire.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ALICE, BOB = "User:alice", "User:bob"
TOPIC_REFUSED, GROUP_REFUSED = 29, 30
#: longer than any test may take: a fetch that waits is answered because of the change, or the test fails
WAIT_MS = 600_000
_TIMEOUT_S = 60


class Cluster:
    """A broker with a topic, and its administrator."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.connect = broker.connect
        self.topic_id = b""

    async def create(self) -> Cluster:
        topic = CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
        (made,) = (await self.ask_root(CreateTopicsRequest(topics=[topic], timeout=60_000), 7)).topics
        self.topic_id = bytes(made.topic_id)
        return self

    async def ask_root(self, request: Any, version: int) -> Any:
        return await self.broker.root.decoded(request, version)

    async def allow(self, resource: ResourceType, name: str, operation: Operation, principal: str = ALICE) -> None:
        acl = AclCreation(
            resource_type=resource, resource_name=name, resource_pattern_type=PatternType.LITERAL,
            principal=principal, host="*", operation=operation, permission_type=Permission.ALLOW,
        )  # fmt: skip
        (result,) = (await self.ask_root(CreateAclsRequest(creations=[acl]), 3)).results
        assert result.error_code == 0, result

    async def revoke(self, principal: str = ALICE) -> None:
        """Delete all ACLs of a principal."""
        everything = DeleteAclsFilter(
            resource_type_filter=ResourceType.ANY, resource_name_filter=None, pattern_type_filter=PatternType.ANY,
            principal_filter=principal, host_filter=None, operation=Operation.ANY, permission_type=Permission.ANY,
        )  # fmt: skip
        (result,) = (await self.ask_root(DeleteAclsRequest(filters=[everything]), 3)).filter_results
        assert result.error_code == 0 and result.matching_acls, result

    async def append(self) -> None:
        reply = await self.ask_root(produce_request(("orders", 0, batch_of(b"value")), acks=1), 11)
        assert reply.responses[0].partition_responses[0].error_code == 0


def play(data: Path, script: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        async with MemoryBroker(data) as broker, asyncio.timeout(_TIMEOUT_S):
            await script(await Cluster(broker).create())

    uvloop.run(main())


@pytest.mark.parametrize("version", [11, 13])
def test_producer_is_refused_as_soon_as_write_is_revoked(tmp_path: Path, version: int) -> None:
    """The connection has cached the partition of the request."""

    async def script(cluster: Cluster) -> None:
        key: Any = cluster.topic_id if version >= 13 else "orders"
        alice = cluster.connect(ALICE)

        async def produce() -> int:
            reply = await alice.decoded(produce_request((key, 0, batch_of(b"value")), acks=1), version)
            return int(reply.responses[0].partition_responses[0].error_code)

        await cluster.allow(TOPIC, "orders", Operation.WRITE)
        assert [await produce() for _ in range(3)] == [0, 0, 0]
        assert alice.connection.cache is not None
        await cluster.revoke()
        assert await produce() == TOPIC_REFUSED
        await cluster.allow(TOPIC, "orders", Operation.WRITE)
        assert await produce() == 0

    play(tmp_path, script)


def rows_of(reply: Any) -> list[tuple[int, int]]:
    """Return error code and number of bytes of each partition of a Fetch reply."""
    return [(row.error_code, len(row.records or b"")) for topic in reply.responses for row in topic.partitions]


async def open_session(client: MemoryTransport, key: Any = "orders", version: int = 12) -> int:
    """Fetch from the end of the topic in a new session; return its id."""
    reply = await client.decoded(fetch_request({key: [fetch_from(0, 0)]}, session=(0, 0), max_wait=0), version)
    assert rows_of(reply) == [(0, 0)] and reply.session_id
    return int(reply.session_id)


def test_fetch_session_is_authorized_again_after_a_change(tmp_path: Path) -> None:
    """A partition without news is not looked at in an incremental fetch, unless ACLs have changed."""

    async def script(cluster: Cluster) -> None:
        await cluster.allow(TOPIC, "orders", Operation.READ)
        alice = cluster.connect(ALICE)
        session = await open_session(alice)

        async def fetch(epoch: int) -> list[tuple[int, int]]:
            return rows_of(await alice.decoded(fetch_request({}, session=(session, epoch), max_wait=0), 12))

        assert await fetch(1) == []
        await cluster.revoke()
        assert await fetch(2) == [(TOPIC_REFUSED, 0)]
        await cluster.append()
        assert await fetch(3) == [(TOPIC_REFUSED, 0)]
        await cluster.allow(TOPIC, "orders", Operation.READ)
        ((code, size_bytes),) = await fetch(4)
        assert code == 0 and size_bytes > 0

    play(tmp_path, script)


@pytest.mark.parametrize("version", [12, 13, 17])
@pytest.mark.parametrize("in_session", [True, False])
def test_fetch_that_waits_is_answered_when_read_is_revoked(tmp_path: Path, in_session: bool, version: int) -> None:
    """From version 13 it names the id of the topic: UNKNOWN_TOPIC_ID would let a consumer look for it for ever."""

    async def script(cluster: Cluster) -> None:
        key: Any = cluster.topic_id if version >= 13 else "orders"
        await cluster.allow(TOPIC, "orders", Operation.READ)
        alice = cluster.connect(ALICE)
        if in_session:
            session = await open_session(alice, key, version)
            request = fetch_request({}, session=(session, 1), max_wait=WAIT_MS)
        else:
            request = fetch_request({key: [fetch_from(0, 0)]}, max_wait=WAIT_MS)
        waiting = alice.begin(request, version)
        await cluster.allow(TOPIC, "others", Operation.READ)
        assert not waiting.done(), "a change that does not concern the fetch lets it wait"
        await cluster.revoke()
        assert rows_of(read_answer(await waiting, 1, version, 7)) == [(TOPIC_REFUSED, 0)]

    play(tmp_path, script)


def test_records_that_are_appended_after_read_was_revoked_are_not_sent(tmp_path: Path) -> None:
    """The change and the records arrive in the same iteration of the event loop."""

    async def script(cluster: Cluster) -> None:
        await cluster.allow(TOPIC, "orders", Operation.READ)
        alice = cluster.connect(ALICE)
        waiting = alice.begin(fetch_request({"orders": [fetch_from(0, 0)]}, max_wait=WAIT_MS), 12)
        writer = cluster.connect("User:root")
        revoked = asyncio.ensure_future(cluster.revoke())
        await asyncio.sleep(0)
        broker: Any = cluster.broker.broker
        while broker.view.access.acls:
            await asyncio.sleep(0)
        appended = writer.begin(produce_request(("orders", 0, batch_of(b"secret")), acks=1), 11)
        assert rows_of(read_answer(await waiting, 1, 12, 7)) == [(TOPIC_REFUSED, 0)]
        await appended
        await revoked

    play(tmp_path, script)


def test_metadata_that_is_cached_for_one_client_is_not_sent_to_another(tmp_path: Path) -> None:
    async def script(cluster: Cluster) -> None:
        clients = {name: cluster.connect(name) for name in (ALICE, BOB)}
        request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")], allow_auto_topic_creation=False)

        async def code(name: str) -> int:
            return int((await clients[name].decoded(request, 12)).topics[0].error_code)

        await cluster.allow(TOPIC, "orders", Operation.DESCRIBE)
        assert [await code(ALICE), await code(ALICE), await code(BOB)] == [0, 0, TOPIC_REFUSED]
        await cluster.revoke()
        await cluster.allow(TOPIC, "orders", Operation.DESCRIBE, BOB)
        assert [await code(ALICE), await code(BOB)] == [TOPIC_REFUSED, 0]

    play(tmp_path, script)


def test_heartbeat_and_commit_of_a_member_are_refused_after_read_of_the_group_was_revoked(tmp_path: Path) -> None:
    async def script(cluster: Cluster) -> None:
        await cluster.allow(GROUP, "shop", Operation.READ)
        await cluster.allow(TOPIC, "orders", Operation.READ)
        alice = cluster.connect(ALICE)
        while (await alice.decoded(FindCoordinatorRequest(key="shop"), 3)).error_code:
            await asyncio.sleep(0)  # the internal topic is being created
        member = (await alice.decoded(join("shop"), 5)).member_id
        joined = await alice.decoded(join("shop", member), 5)
        assert joined.error_code == 0, joined
        synced = await alice.decoded(sync("shop", joined.generation_id, member, {member: b""}), 3)
        assert synced.error_code == 0, synced
        request = HeartbeatRequest(group_id="shop", generation_id=joined.generation_id, member_id=member)
        assert (await alice.decoded(request, 4)).error_code == 0
        await cluster.revoke()
        assert (await alice.decoded(request, 4)).error_code == GROUP_REFUSED
        reply = await alice.decoded(commit("shop", {("orders", 0): 0}, joined.generation_id, member), 8)
        assert reply.topics[0].partitions[0].error_code == GROUP_REFUSED

    play(tmp_path, script)
