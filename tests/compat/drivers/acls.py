"""ACLs of topics by the admin clients of others: each adds, lists and removes them in its own way."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from contextlib import closing
from typing import Any, NamedTuple, Protocol

from confluent_kafka import admin as confluent

from drivers import DEADLINE_S
from drivers.franz_go import FranzGo
from drivers.java import ACLS, JavaTools

with warnings.catch_warnings():
    # It reads its message schemas with a function that Python wants to drop; warnings are errors here.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient
    from kafka import admin as kafka_python


class TopicAcl(NamedTuple):
    """An ACL of a topic, with Kafka's words in capital letters."""

    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str


class AclClient(Protocol):
    """``name`` None and the pattern ANY select all ACLs of topics."""

    def add(self, acls: Iterable[TopicAcl]) -> None: ...

    def list(self, name: str | None, pattern: str) -> set[TopicAcl]: ...

    def remove(self, name: str | None, pattern: str) -> set[TopicAcl]:
        """Remove ACLs and return them."""


class ConfluentAcls:
    """librdkafka."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = confluent.AdminClient({"bootstrap.servers": bootstrap})

    def add(self, acls: Iterable[TopicAcl]) -> None:
        rows = [
            confluent.AclBinding(
                confluent.ResourceType.TOPIC, each.name, confluent.ResourcePatternType[each.pattern], each.principal,
                each.host, confluent.AclOperation[each.operation], confluent.AclPermissionType[each.permission],
            )
            for each in acls
        ]  # fmt: skip
        for made in self._admin.create_acls(rows, request_timeout=DEADLINE_S).values():
            made.result(DEADLINE_S)

    def list(self, name: str | None, pattern: str) -> set[TopicAcl]:
        found = self._admin.describe_acls(_confluent_filter(name, pattern), request_timeout=DEADLINE_S)
        return {_from_confluent(each) for each in found.result(DEADLINE_S)}

    def remove(self, name: str | None, pattern: str) -> set[TopicAcl]:
        (done,) = self._admin.delete_acls([_confluent_filter(name, pattern)], request_timeout=DEADLINE_S).values()
        return {_from_confluent(each) for each in done.result(DEADLINE_S)}


def _confluent_filter(name: str | None, pattern: str) -> Any:
    return confluent.AclBindingFilter(
        confluent.ResourceType.TOPIC, name, confluent.ResourcePatternType[pattern], None, None,
        confluent.AclOperation.ANY, confluent.AclPermissionType.ANY,
    )  # fmt: skip


def _from_confluent(acl: Any) -> TopicAcl:
    return TopicAcl(
        acl.name, acl.resource_pattern_type.name, acl.principal, acl.host, acl.operation.name, acl.permission_type.name
    )


class KafkaPythonAcls:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _admin(self) -> Any:
        return closing(KafkaAdminClient(bootstrap_servers=self._bootstrap))

    def add(self, acls: Iterable[TopicAcl]) -> None:
        rows = [
            kafka_python.ACL(
                each.principal, each.host, kafka_python.ACLOperation[each.operation],
                kafka_python.ACLPermissionType[each.permission],
                kafka_python.ResourcePattern(
                    kafka_python.ResourceType.TOPIC, each.name, kafka_python.ACLResourcePatternType[each.pattern]
                ),
            )
            for each in acls
        ]  # fmt: skip
        with self._admin() as admin:
            assert not admin.create_acls(rows)["failed"]

    def list(self, name: str | None, pattern: str) -> set[TopicAcl]:
        with self._admin() as admin:
            found, _ = admin.describe_acls(_kafka_python_filter(name, pattern))
        return {_from_kafka_python(each) for each in found}

    def remove(self, name: str | None, pattern: str) -> set[TopicAcl]:
        with self._admin() as admin:
            ((_, removed, _),) = admin.delete_acls([_kafka_python_filter(name, pattern)])
        return {_from_kafka_python(each) for each in removed}


def _kafka_python_filter(name: str | None, pattern: str) -> Any:
    return kafka_python.ACLFilter(
        None, None, kafka_python.ACLOperation.ANY, kafka_python.ACLPermissionType.ANY,
        kafka_python.ResourcePatternFilter(
            kafka_python.ResourceType.TOPIC, name, kafka_python.ACLResourcePatternType[pattern]
        ),
    )  # fmt: skip


def _from_kafka_python(acl: Any) -> TopicAcl:
    where = acl.resource_pattern
    return TopicAcl(
        where.resource_name, where.pattern_type.name, acl.principal, acl.host, acl.operation.name,
        acl.permission_type.name,
    )  # fmt: skip


class FranzGoAcls:
    def __init__(self, client: FranzGo) -> None:
        self._client = client

    def add(self, acls: Iterable[TopicAcl]) -> None:
        for each in acls:
            self._client.acls("add", *each)

    def list(self, name: str | None, pattern: str) -> set[TopicAcl]:
        return {TopicAcl(*row) for row in self._client.acls("list", name or "", pattern)}

    def remove(self, name: str | None, pattern: str) -> set[TopicAcl]:
        return {TopicAcl(*row) for row in self._client.acls("remove", name or "", pattern)}


_RESOURCE = re.compile(r"ResourcePattern\(resourceType=TOPIC, name=(.*?), patternType=(\w+)\)")
_ENTRY = re.compile(r"\(principal=(.*?), host=(.*?), operation=(\w+), permissionType=(\w+)\)")


class JavaAcls:
    """kafka-acls.sh."""

    def __init__(self, tools: JavaTools) -> None:
        self._tools = tools

    def add(self, acls: Iterable[TopicAcl]) -> None:
        self._tools.run_all(*(
            (
                ACLS, "--add", "--topic", each.name, "--resource-pattern-type", each.pattern.lower(),
                f"--{each.permission.lower()}-principal", each.principal, f"--{each.permission.lower()}-host",
                each.host, "--operation", each.operation.capitalize(),
            )
            for each in acls
        ))  # fmt: skip

    def list(self, name: str | None, pattern: str) -> set[TopicAcl]:
        named = ("--topic", name, "--resource-pattern-type", pattern.lower()) if name is not None else ()
        return _from_java(self._tools.run(ACLS, "--list", *named))

    def remove(self, name: str | None, pattern: str) -> set[TopicAcl]:
        before = self.list(name, pattern)
        assert name is not None
        self._tools.run(ACLS, "--remove", "--force", "--topic", name, "--resource-pattern-type", pattern.lower())
        return before - self.list(name, pattern)


def _from_java(text: str) -> set[TopicAcl]:
    found = set()
    name = pattern = ""
    for line in text.splitlines():
        if (resource := _RESOURCE.search(line)) is not None:
            name, pattern = resource.groups()
        elif (entry := _ENTRY.search(line)) is not None:
            found.add(TopicAcl(name, pattern, *entry.groups()))
    return found
