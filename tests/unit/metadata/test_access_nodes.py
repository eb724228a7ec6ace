"""Nodes of ACLs, users and quotas: Kafka's paths and values, written and read again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.metadata.access_nodes import (
    AccessView,
    acl_path,
    acls_json,
    acls_of,
    desanitize,
    entity_of,
    entity_path,
    pattern_of,
    sanitize,
    token_json,
    token_of,
    token_path,
)
from ottla.broker.metadata.nodes import MALFORMED, to_json
from ottla.security.acls import Entry, Operation, Pattern, PatternType, Permission, ResourceType
from ottla.security.quotas import DEFAULT, Entity
from ottla.security.sasl import Work
from ottla.security.scram import Mechanism, ScramCredential
from ottla.security.tokens import DelegationToken

TOPIC = ResourceType.TOPIC
TOKEN = DelegationToken(
    token_id="id", owner="User:alice", requester="User:admin", renewers=("User:bob",), issued_ms=1, expires_ms=2,
    expires_ms_max=3,
)  # fmt: skip
READ = Entry("User:alice", "*", Operation.READ, Permission.ALLOW)


def config(**values: str) -> bytes:
    return to_json({"version": 1, "config": values})


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (Pattern(TOPIC, "orders"), "/kafka-acl/Topic/orders"),
        (Pattern(TOPIC, "*"), "/kafka-acl/Topic/*"),
        (Pattern(TOPIC, "ord", PatternType.PREFIXED), "/kafka-acl-extended/prefixed/Topic/ord"),
        (Pattern(ResourceType.TRANSACTIONAL_ID, "t"), "/kafka-acl/TransactionalId/t"),
        (Pattern(ResourceType.CLUSTER, "kafka-cluster"), "/kafka-acl/Cluster/kafka-cluster"),
        (Pattern(ResourceType.GROUP, "a/b"), "/kafka-acl/Group/%a%2Fb"),
    ],
)
def test_paths_of_acls(pattern: Pattern, path: str) -> None:
    assert acl_path(pattern) == path and pattern_of(path) == pattern


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    st.text(min_size=1, max_size=30), st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(list(ResourceType)[1:]),
)  # fmt: skip
def test_name_of_any_resource_is_a_part_of_a_path(name: str, pattern_type: PatternType, kind: ResourceType) -> None:
    pattern = Pattern(kind, name, pattern_type)
    path = acl_path(pattern)
    part = path.rpartition("/")[2]
    assert part not in ("", ".", "..") and "\0" not in part and path.count("/") == (3 if "extended" not in path else 4)
    assert pattern_of(path) == pattern


def test_value_of_acls_is_that_of_kafka() -> None:
    entries = {READ, Entry("User:*", "10.0.0.1", Operation.CLUSTER_ACTION, Permission.DENY)}
    value = acls_json(entries)
    assert {"principal": "User:alice", "permissionType": "Allow", "operation": "Read", "host": "*"} in (
        json.loads(value)["acls"]
    )
    assert {row["operation"] for row in json.loads(value)["acls"]} == {"Read", "ClusterAction"}
    assert acls_of(value) == entries


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (Entity("alice"), "/config/users/alice"),
        (Entity(DEFAULT), "/config/users/<default>"),
        (Entity("alice", DEFAULT), "/config/users/alice/clients/<default>"),
        (Entity("CN=a,O=b c", "app/1"), "/config/users/CN%3Da%2CO%3Db%20c/clients/app%2F1"),
        (Entity(None, "app"), "/config/clients/app"),
        (Entity(ip="::1"), "/config/ips/%3A%3A1"),
    ],
)
def test_paths_of_entities(entity: Entity, path: str) -> None:
    assert entity_path(entity) == path and entity_of(path) == entity


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.text(min_size=1, max_size=30))
def test_sanitized_names_are_read_again(name: str) -> None:
    assert desanitize(sanitize(name)) == name and "/" not in sanitize(name) and sanitize(name) not in (".", "..")


def test_view_follows_the_nodes() -> None:
    view = AccessView()
    pattern = Pattern(TOPIC, "orders")
    assert view.apply(acl_path(pattern), acls_json([READ])) == pattern
    assert view.acls == {pattern: {READ}}
    credential = ScramCredential(b"s", b"k" * 32, b"v" * 32, 4096)
    user = Entity("alice")
    assert (
        view.apply(entity_path(user), config(**{"SCRAM-SHA-256": credential.text(), "producer_byte_rate": "5"})) == user
    )
    assert view.credentials == {"alice": {Mechanism.SCRAM_SHA_256: credential}}
    assert view.configs[user]["producer_byte_rate"] == "5"
    assert view.shapes[Mechanism.SCRAM_SHA_256] == {credential.shape: 1}
    assert view.works == {Work(Mechanism.SCRAM_SHA_256, 4096): 1}
    view.apply(acl_path(pattern), None)
    view.apply(entity_path(user), None)
    assert (view.acls, view.configs, view.credentials) == ({}, {}, {})
    assert not any(view.shapes.values()) and not view.works


def test_value_of_a_token_is_that_of_kafka() -> None:
    assert json.loads(token_json(TOKEN)) == {
        "version": 3, "owner": "User:alice", "tokenRequester": "User:admin", "renewers": ["User:bob"],
        "issueTimestamp": 1, "maxTimestamp": 3, "expiryTimestamp": 2, "tokenId": "id",
    }  # fmt: skip
    assert token_of(token_json(TOKEN)) == TOKEN
    first = {
        "version": 1,
        "owner": "User:a",
        "issueTimestamp": 1,
        "maxTimestamp": 3,
        "expiryTimestamp": 2,
        "tokenId": "i",
    }
    assert token_of(to_json(first)).requester == "User:a"


def test_view_follows_the_tokens() -> None:
    view = AccessView()
    assert view.apply(token_path("id"), token_json(TOKEN)) is None
    assert view.tokens == {"id": TOKEN}
    with pytest.raises(MALFORMED):
        view.apply(token_path("id"), b"{}")
    assert view.tokens == {"id": TOKEN}
    view.apply(token_path("id"), None)
    assert view.tokens == {}


@pytest.mark.parametrize(
    "path",
    [
        "/kafka-acl",
        "/kafka-acl/Topic",
        "/delegation_token",
        "/delegation_token/tokens",
        "/config/users",
        "/brokers/ids/1",
        "/config/topics/t",
    ],
)
def test_other_nodes_are_not_about_access(path: str) -> None:
    assert AccessView().apply(path, b"{}") is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/kafka-acl/Topic/t", b"{"), ("/kafka-acl/Topic/t", b"{}"), ("/kafka-acl/Table/t", acls_json([READ])),
        ("/kafka-acl/Topic/t", acls_json([READ]).replace(b"Read", b"Peek")), ("/config/users/a", b"[]"),
        ("/config/users/a", config(producer_byte_rate="fast")), ("/config/users/a", config(**{"SCRAM-SHA-256": "x"})),
    ],
)  # fmt: skip
def test_malformed_value_changes_nothing(path: str, value: bytes) -> None:
    view = AccessView()
    with pytest.raises(MALFORMED):
        view.apply(path, value)
    assert (view.acls, view.configs, view.credentials) == ({}, {}, {})
