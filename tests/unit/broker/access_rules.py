"""What Kafka requires of a client for each API, and how it refuses: the reference of ``test_access_matrix.py``.

Written from the behaviour of Apache Kafka 4.3, not from `access/permissions.py`. It differs from Kafka in one place on
purpose: an id of a topic that the client may not describe is answered as an unknown id, where Kafka answers
TOPIC_AUTHORIZATION_FAILED and so tells that the topic exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.security.acls import Operation, Permission, ResourceType
from ottla.wire import Message

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS

UNKNOWN_TOPIC_ID = 100
#: TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID and DELEGATION_TOKEN_AUTHORIZATION_FAILED
AUTHORIZATION_CODES = {TOPIC: 29, GROUP: 30, CLUSTER: 31, TRANSACTION: 53, ResourceType.DELEGATION_TOKEN: 65}
CLUSTER_NAME = "kafka-cluster"
#: a topic that no ACL names: a client that may use it may use some topic
OTHER_TOPIC = "t-others"

_IMPLIED = {
    DESCRIBE: (DESCRIBE, READ, WRITE, DELETE, ALTER),
    DESCRIBE_CONFIGS: (DESCRIBE_CONFIGS, ALTER_CONFIGS),
}


class Names(NamedTuple):
    """The resources that a request names. All names of one kind have the same length and the same first character."""

    topic: str = "t-exists"
    topic_id: bytes = b"?" * 16
    group: str = "g-exists"
    #: a group of the consumer protocol, with a member that is subscribed to the topic
    consumer_group: str = "c-exists"
    transaction: str = "x-exists"
    #: an id with a transaction that has begun, and to which the topic was added
    open_transaction: str = "o-exists"
    #: the owner of a delegation token
    user: str = "User:u-exists"


ABSENT = Names("t-absent", b"\xfe" * 16, "g-absent", "c-absent", "x-absent", "o-absent", "User:u-absent")
#: the fields of Names for each type of resource
FIELDS_OF = {
    TOPIC: ("topic", "topic_id"), GROUP: ("group", "consumer_group"), TRANSACTION: ("transaction", "open_transaction"),
    ResourceType.USER: ("user",),
}  # fmt: skip


class Acl(NamedTuple):
    """One entry; ``name`` is a literal name, or ``*``."""

    resource: ResourceType
    name: str
    operation: Operation
    permission: Permission


def is_granted(acls: Iterable[Acl], resource: ResourceType, name: str, operation: Operation) -> bool:
    """Decide by Kafka's rules, one entry after the other: deny wins, and only entries that allow imply others."""
    mine = [each for each in acls if each.resource == resource and each.name in (name, "*")]
    if any(each.permission == Permission.DENY and each.operation in (operation, Operation.ALL) for each in mine):
        return False
    implying = (*_IMPLIED.get(operation, (operation,)), Operation.ALL)
    return any(each.permission == Permission.ALLOW and each.operation in implying for each in mine)


class Grant(NamedTuple):
    """A right that a request needs; ``names`` returns the resources, of which one is enough."""

    resource: ResourceType
    operation: Operation
    names: Callable[[Names], Sequence[str]] = lambda names: ()

    def holds(self, acls: Sequence[Acl], names: Names) -> bool:
        wanted = self.names(names) or {
            TOPIC: [names.topic], GROUP: [names.group], CLUSTER: [CLUSTER_NAME], TRANSACTION: [names.transaction],
        }[self.resource]  # fmt: skip
        return any(is_granted(acls, self.resource, name, self.operation) for name in wanted)


@dataclass(frozen=True)
class Rule:
    """One check of an API: the client needs one of the rights, else the reply has a code in these fields."""

    grants: tuple[Grant, ...]
    code: int
    #: returns the fields in which the code is, by version, without indexes of arrays
    paths: Callable[[int], Sequence[str]]
    #: whether the check takes place, by version and by the names
    applies: Callable[[int, Names], bool] = lambda version, names: True
    #: first version in which the topic is named by its id
    ids_from: int | None = None


@dataclass(frozen=True)
class Listing:
    """Something that a reply shows to clients that have one of the rights, and only to them."""

    grants: tuple[Grant, ...]
    #: returns whether the reply shows it
    is_shown: Callable[[Any, Names], bool]
    #: whether it is there to be shown
    applies: Callable[[int, Names], bool] = lambda version, names: True


@dataclass(frozen=True)
class Shape:
    """One kind of request of an API."""

    api_key: int
    make: Callable[[int, Names], Message]
    rules: tuple[Rule, ...] = ()
    listings: tuple[Listing, ...] = ()
    versions: Callable[[int], bool] = lambda version: True
    #: the types of resources that the request names
    names: tuple[ResourceType, ...] = ()
    #: the broker must be put back into its first state before each request, because the request may change it
    changes_state: bool = False
    #: whether to leave out a request that is allowed and would change what exists
    skips: Callable[[int, Names, Sequence[Acl]], bool] = field(default=lambda version, names, acls: False)


def at(*paths: str) -> Callable[[int], Sequence[str]]:
    return lambda version: paths


def since(first: int, before: str | Sequence[str], since: str | Sequence[str]) -> Callable[[int], Sequence[str]]:
    """Return paths that differ from a version on."""

    def paths(version: int) -> Sequence[str]:
        found = since if version >= first else before
        return (found,) if isinstance(found, str) else found

    return paths


def needs(resource: ResourceType, operation: Operation, *paths: str, ids_from: int | None = None) -> Rule:
    return Rule((Grant(resource, operation),), AUTHORIZATION_CODES[resource], at(*paths), ids_from=ids_from)


def topic_or_id(version: int, ids_from: int, names: Names) -> Any:
    return names.topic_id if version >= ids_from else names.topic


def consumer_group_of(names: Names) -> Sequence[str]:
    return [names.consumer_group]


def open_transaction_of(names: Names) -> Sequence[str]:
    return [names.open_transaction]


def is_there(version: int, names: Names) -> bool:
    return names.topic != ABSENT.topic
