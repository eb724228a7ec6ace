"""ACLs in a simulated cluster of three brokers. Its clock is virtual, so a busy machine does not change the times."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sim_world
from sim_client import Client
from sim_script import play
from sim_world import World

from ottla.security.acls import ANY_NAME, ANY_USER, CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from ottla.testing.raw import fetch_from, fetch_request
from ottla.wire.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

TOPIC_REFUSED = 29
#: a change must have taken effect on every broker after this time
LIMIT_S = 1.0
_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(autouse=True)
def _with_acls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_world, "CLUSTER_SETTINGS", {**sim_world.CLUSTER_SETTINGS, **_AUTHORIZER})


async def put(admin: Client, *acls: tuple[ResourceType, str, str, Operation, Permission]) -> None:
    """Create ACLs of all users: resource, name, host, operation, permission."""
    creations = [
        AclCreation(
            resource_type=resource, resource_name=name, resource_pattern_type=PatternType.LITERAL, principal=ANY_USER,
            host=host, operation=operation, permission_type=permission,
        )
        for resource, name, host, operation, permission in acls
    ]  # fmt: skip
    reply = await admin.ask(CreateAclsRequest(creations=creations), 3)
    assert {result.error_code for result in reply.results} == {0}


async def delete_denials(admin: Client) -> None:
    denials = DeleteAclsFilter(
        resource_type_filter=ResourceType.ANY, resource_name_filter=None, pattern_type_filter=PatternType.ANY,
        principal_filter=None, host_filter=None, operation=Operation.ANY, permission_type=Permission.DENY,
    )  # fmt: skip
    reply = await admin.ask(DeleteAclsRequest(filters=[denials]), 3)
    assert reply.filter_results[0].error_code == 0


def test_change_takes_effect_on_open_connections_to_all_brokers_within_a_second() -> None:
    async def script(world: World) -> None:
        topic = world.places[0].topic
        replication: Any = world.replication
        admin, reader, waiter = Client(world, "admin"), Client(world, "reader"), Client(world, "reader")
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)

        async def codes() -> set[int]:
            return {(await reader.ask(request, 12, broker=number)).topics[0].error_code for number in world.hosts}

        assert await codes() == {0}
        leader = replication.store.leader_of(world.places[0])
        fetch = fetch_request({topic: [fetch_from(0, 0)]}, max_wait=60_000)
        waiting = asyncio.ensure_future(waiter.ask(fetch, 12, broker=leader))
        await asyncio.sleep(LIMIT_S)
        assert not waiting.done()
        await put(
            admin, (ResourceType.TOPIC, ANY_NAME, ANY_NAME, Operation.ALL, Permission.ALLOW),
            (ResourceType.TOPIC, topic, "reader", Operation.ALL, Permission.DENY),
        )  # fmt: skip
        await asyncio.sleep(LIMIT_S)
        assert waiting.done()
        assert waiting.result().responses[0].partitions[0].error_code == TOPIC_REFUSED
        assert await codes() == {TOPIC_REFUSED}
        await delete_denials(admin)
        await asyncio.sleep(LIMIT_S)
        assert await codes() == {0} and reader.connects == len(world.hosts)

    play(script)


def test_broker_without_cluster_action_cannot_copy_records_until_it_has_it_again() -> None:
    async def script(world: World) -> None:
        place = world.places[0]
        replication: Any = world.replication
        admin = Client(world, "admin")
        leader = replication.store.leader_of(place)
        refused = next(number for number in world.hosts if number != leader)

        def is_followed() -> bool:
            """Return whether the leader has a fetch of this broker that waits for records."""
            broker: Any = world.hosts[leader].broker
            return any(each._request.replica_id == refused for each in broker.parts.fetch.waiting.values())

        assert is_followed()
        await put(
            admin, (ResourceType.CLUSTER, CLUSTER_NAME, ANY_NAME, Operation.ALL, Permission.ALLOW),
            (ResourceType.CLUSTER, CLUSTER_NAME, f"broker-{refused}", Operation.CLUSTER_ACTION, Permission.DENY),
        )  # fmt: skip
        await asyncio.sleep(LIMIT_S)
        for _ in range(50):
            assert not is_followed()
            await asyncio.sleep(0.01)
        await delete_denials(admin)
        while not is_followed():
            await asyncio.sleep(0.1)

    play(script)
