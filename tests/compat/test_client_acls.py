"""ACLs by the admin clients of others: created, listed with each kind of filter, and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from drivers.acls import AclClient, ConfluentAcls, FranzGoAcls, JavaAcls, KafkaPythonAcls, TopicAcl

from ottla.testing import BrokerProcess

pytestmark = [pytest.mark.broker, pytest.mark.client]


@pytest.fixture(scope="module")
def guarded() -> Iterator[BrokerProcess]:
    """A broker with ACLs on which everybody is a super user."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with BrokerProcess.start(settings=settings) as broker:
        yield broker
        assert " ERROR " not in broker.errors()


@pytest.fixture
def acl_client(request: pytest.FixtureRequest, guarded: BrokerProcess) -> AclClient:
    if request.param == "confluent":
        return ConfluentAcls(guarded.bootstrap)
    if request.param == "kafka-python":
        return KafkaPythonAcls(guarded.bootstrap)
    tool: Any = request.getfixturevalue({"franz-go": "franz_go", "java": "java_tools"}[request.param])
    return (FranzGoAcls if request.param == "franz-go" else JavaAcls)(tool.at(guarded.bootstrap))


LITERAL = TopicAcl("orders", "LITERAL", "User:a", "*", "READ", "ALLOW")
PREFIXED = TopicAcl("ord", "PREFIXED", "User:b", "10.0.0.1", "WRITE", "DENY")
WILDCARD = TopicAcl("*", "LITERAL", "User:c", "*", "DESCRIBE", "ALLOW")
OTHER = TopicAcl("ordinary", "LITERAL", "User:a", "*", "READ", "ALLOW")


@pytest.mark.parametrize(
    "acl_client",
    [
        "confluent",
        "kafka-python",
        pytest.param("franz-go", marks=pytest.mark.foreign),
        pytest.param("java", marks=pytest.mark.foreign),
    ],
    indirect=True,
)
def test_acls_are_created_listed_by_filter_and_deleted(acl_client: AclClient) -> None:
    acl_client.add([LITERAL, PREFIXED, WILDCARD, OTHER])
    assert acl_client.list("orders", "LITERAL") == {LITERAL}
    assert acl_client.list("ord", "PREFIXED") == {PREFIXED}
    assert acl_client.list("ord", "ANY") == {PREFIXED}
    assert acl_client.list(None, "ANY") == {LITERAL, PREFIXED, WILDCARD, OTHER}
    # All that decide about the topic: its name, all names, and the beginning of its name.
    assert acl_client.list("orders", "MATCH") == {LITERAL, PREFIXED, WILDCARD}
    assert acl_client.remove("orders", "MATCH") == {LITERAL, PREFIXED, WILDCARD}
    assert acl_client.remove("ordinary", "LITERAL") == {OTHER}
    assert acl_client.list(None, "ANY") == set()
