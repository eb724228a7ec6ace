"""What each API needs to be allowed, and the check of a request against the ACLs.

NEEDS is the one table that decides: a test fails for an API that is served and has no row. Handlers name the resource,
never the operation. Generated tests send each API with each of its resources allowed, denied and not mentioned.

Without an authorizer (``authorizer.class.name`` is not set) everything is allowed, and a check costs one comparison.

Answers do not tell whether a name exists: one that the client may not describe gets the same error whether there is
such a resource or not. Ids of topics are not secret, as in Kafka: they are random, so only a client that was once
allowed to describe the topic can send one. It gets the same error as for the name, because UNKNOWN_TOPIC_ID makes a
consumer look for the topic for ever, without a word to its user. The reply does not contain the name.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.model.errors import ErrorCode, Refused
from ottla.model.settings import BrokerSettings
from ottla.net.connection import Connection
from ottla.security.acls import CLUSTER_NAME, Authorizer, Operation, ResourceType
from ottla.security.principals import parse_super_users
from ottla.wire import APIS

log = logging.getLogger(__name__)

#: denials that are logged; further ones of the same minute are counted
_DENIALS_PER_MINUTE_MAX: Final = 100

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_TRANSACTION, _TOKEN, _USER = ResourceType.TRANSACTIONAL_ID, ResourceType.DELEGATION_TOKEN, ResourceType.USER
_READ, _WRITE, _CREATE, _DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
_ALTER, _DESCRIBE, _ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS


#: purpose: choose a dead-letter topic, to which the broker then writes
DEAD_LETTERS: Final = "choose as the dead-letter topic"


class Need(NamedTuple):
    """One thing that an API must be allowed to do."""

    resource: ResourceType
    operation: Operation
    #: tells apart what one API does with resources of one type, for example to create a topic and to describe it
    purpose: str = ""


#: by API key
NEEDS: Final[dict[int, tuple[Need, ...]]] = {
    0: (Need(_TOPIC, _WRITE), Need(_TRANSACTION, _WRITE)),
    1: (Need(_TOPIC, _READ), Need(_CLUSTER, _ACTION, "as a replica")),
    2: (Need(_TOPIC, _DESCRIBE),),
    3: (Need(_TOPIC, _DESCRIBE), Need(_TOPIC, _CREATE, "create"), Need(_CLUSTER, _CREATE, "create")),
    8: (Need(_GROUP, _READ), Need(_TOPIC, _READ)),
    9: (Need(_GROUP, _DESCRIBE), Need(_TOPIC, _DESCRIBE)),
    10: (Need(_GROUP, _DESCRIBE), Need(_TRANSACTION, _DESCRIBE), Need(_CLUSTER, _ACTION, "share groups")),
    11: (Need(_GROUP, _READ),),
    12: (Need(_GROUP, _READ),),
    13: (Need(_GROUP, _READ),),
    14: (Need(_GROUP, _READ),),
    15: (Need(_GROUP, _DESCRIBE),),
    16: (Need(_CLUSTER, _DESCRIBE, "all"), Need(_GROUP, _DESCRIBE)),
    17: (),
    18: (),
    19: (
        Need(_CLUSTER, _CREATE),
        Need(_TOPIC, _CREATE),
        Need(_TOPIC, _DESCRIBE_CONFIGS, "show its settings"),
        Need(_TOPIC, _WRITE, DEAD_LETTERS),
    ),
    20: (Need(_TOPIC, _DELETE), Need(_TOPIC, _DESCRIBE, "know")),
    21: (Need(_TOPIC, _DELETE),),
    22: (Need(_TRANSACTION, _WRITE), Need(_CLUSTER, Operation.IDEMPOTENT_WRITE), Need(_TOPIC, _WRITE, "any")),
    23: (Need(_TOPIC, _DESCRIBE), Need(_CLUSTER, _ACTION, "as a replica")),
    24: (Need(_TRANSACTION, _WRITE), Need(_TOPIC, _WRITE), Need(_CLUSTER, _ACTION, "for another broker")),
    25: (Need(_TRANSACTION, _WRITE), Need(_GROUP, _READ)),
    26: (Need(_TRANSACTION, _WRITE),),
    27: (Need(_CLUSTER, _ACTION), Need(_CLUSTER, _ALTER, "as an administrator")),
    28: (Need(_TRANSACTION, _WRITE), Need(_GROUP, _READ), Need(_TOPIC, _READ)),
    29: (Need(_CLUSTER, _DESCRIBE),),
    30: (Need(_CLUSTER, _ALTER),),
    31: (Need(_CLUSTER, _ALTER),),
    32: (Need(_TOPIC, _DESCRIBE_CONFIGS), Need(_CLUSTER, _DESCRIBE_CONFIGS), Need(_GROUP, _DESCRIBE_CONFIGS)),
    33: (
        Need(_TOPIC, _ALTER_CONFIGS),
        Need(_CLUSTER, _ALTER_CONFIGS),
        Need(_GROUP, _ALTER_CONFIGS),
        Need(_TOPIC, _WRITE, DEAD_LETTERS),
    ),
    34: (Need(_CLUSTER, _ALTER),),
    35: (Need(_CLUSTER, _DESCRIBE),),
    36: (),
    37: (Need(_TOPIC, _ALTER),),
    38: (Need(_USER, Operation.CREATE_TOKENS),),
    39: (),
    40: (),
    41: (Need(_TOKEN, _DESCRIBE), Need(_USER, Operation.DESCRIBE_TOKENS)),
    42: (Need(_GROUP, _DELETE),),
    43: (Need(_CLUSTER, _ALTER),),
    44: (
        Need(_TOPIC, _ALTER_CONFIGS),
        Need(_CLUSTER, _ALTER_CONFIGS),
        Need(_GROUP, _ALTER_CONFIGS),
        Need(_TOPIC, _WRITE, DEAD_LETTERS),
    ),
    45: (Need(_CLUSTER, _ALTER),),
    46: (Need(_CLUSTER, _DESCRIBE),),
    47: (Need(_GROUP, _DELETE), Need(_TOPIC, _READ)),
    48: (Need(_CLUSTER, _DESCRIBE_CONFIGS),),
    49: (Need(_CLUSTER, _ALTER_CONFIGS),),
    50: (Need(_CLUSTER, _DESCRIBE),),
    51: (Need(_CLUSTER, _ALTER),),
    55: (Need(_CLUSTER, _DESCRIBE),),
    57: (Need(_CLUSTER, _ALTER),),
    60: (Need(_CLUSTER, _DESCRIBE, "with what it may do"),),
    61: (Need(_TOPIC, _READ),),
    64: (Need(_CLUSTER, _ALTER),),
    65: (Need(_TRANSACTION, _DESCRIBE), Need(_TOPIC, _DESCRIBE)),
    66: (Need(_TRANSACTION, _DESCRIBE),),
    68: (Need(_GROUP, _READ), Need(_TOPIC, _DESCRIBE)),
    69: (Need(_GROUP, _DESCRIBE), Need(_TOPIC, _DESCRIBE)),
    74: (Need(_CLUSTER, _DESCRIBE_CONFIGS),),
    75: (Need(_TOPIC, _DESCRIBE),),
}

#: the error for a resource that may not be used
REFUSALS: Final = {
    _TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED, _GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    _CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED, _TRANSACTION: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}  # fmt: skip

_OPERATIONS: Final = {
    (key, need.resource, need.purpose): need.operation for key, needs in NEEDS.items() for need in needs
}
#: operations that there are for resources of each type, for the fields with authorized operations
_OF_TYPE: Final = {
    _TOPIC: (_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS),
    _GROUP: (_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS),
    _CLUSTER: (_CREATE, _ALTER, _DESCRIBE, _ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE),
}  # fmt: skip


class Denial(NamedTuple):
    """A request that was refused."""

    principal: str
    host: str
    api_key: int
    operation: Operation
    resource: ResourceType
    name: str


class _DenialLog:
    """Logs each denial once a minute at most, and a bounded number of denials per minute."""

    __slots__ = ("_minute", "_monotonic", "_noted", "_unlogged")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._minute = -1
        #: denials of this minute that were logged
        self._noted: set[Denial] = set()
        #: how many denials of this minute were not, because there were too many
        self._unlogged = 0

    def note(self, denial: Denial) -> None:
        minute = int(self._monotonic() // 60)
        if minute != self._minute:
            if self._unlogged:
                log.warning("further requests were denied and not logged count=%d", self._unlogged)
            self._minute, self._unlogged = minute, 0
            self._noted.clear()
        if denial in self._noted:
            return
        if len(self._noted) >= _DENIALS_PER_MINUTE_MAX:
            self._unlogged += 1
            return
        self._noted.add(denial)
        log.warning(
            "request denied principal=%s host=%s api=%s operation=%s resource=%s name=%s", denial.principal,
            denial.host, APIS[denial.api_key].name, denial.operation.name, denial.resource.name, denial.name,
        )  # fmt: skip


class Access:
    """The checks of requests. Without an authorizer everything is allowed.

    A refusal is counted, and logged, so that an administrator finds out which right a client lacks. A client that is
    refused again and again, and one that tries many names, must not fill the log: see ``_DenialLog``.
    """

    __slots__ = ("_denials", "authorizer", "refused")

    def __init__(self, authorizer: Authorizer | None = None, *, monotonic: Callable[[], float] = lambda: 0.0) -> None:
        self.authorizer = authorizer
        self._denials = _DenialLog(monotonic)
        #: how many checks refused a client, by API key and type of the resource
        self.refused: Counter[tuple[int, ResourceType]] = Counter()

    def may(
        self,
        connection: Connection,
        api_key: int,
        resource: ResourceType,
        name: str,
        purpose: str = "",
        *,
        quiet: bool = False,
    ) -> bool:
        """Return whether this API may be used with a resource.

        ``quiet`` does not log and count a denial, because nothing is refused: the name is left out, or another right is
        enough.
        """
        if self.authorizer is None:
            return True
        operation = _OPERATIONS[api_key, resource, purpose]
        is_allowed = self.authorizer.may(connection.principal, connection.peer_host, operation, resource, name)
        if not is_allowed and not quiet:
            self.refused[api_key, resource] += 1
            self._denials.note(Denial(connection.principal, connection.peer_host, api_key, operation, resource, name))
        return is_allowed

    def check_topic(self, connection: Connection, api_key: int, name: str, *, quiet: bool = False) -> None:
        """Raise Refused for a topic that this API may not be used with."""
        if self.authorizer is not None and not self.may(connection, api_key, _TOPIC, name, quiet=quiet):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def may_cluster(self, connection: Connection, api_key: int, purpose: str = "", *, quiet: bool = False) -> bool:
        """Return whether this API may be used at all, if that depends on the cluster."""
        return self.may(connection, api_key, _CLUSTER, CLUSTER_NAME, purpose, quiet=quiet)

    def may_describe(self, connection: Connection, resource: ResourceType, name: str) -> bool:
        """Return whether the client may know that a resource exists."""
        return self.authorizer is None or self.authorizer.may(
            connection.principal, connection.peer_host, _DESCRIBE, resource, name
        )

    def may_any_topic(self, connection: Connection, api_key: int) -> bool:
        """Return whether this API may be used with at least one topic."""
        return self.authorizer is None or self.authorizer.may_for_some(
            connection.principal, connection.peer_host, _OPERATIONS[api_key, _TOPIC, "any"], _TOPIC
        )

    def operations(self, connection: Connection, resource: ResourceType, name: str) -> int:
        """Return the operations that the client may do with a resource, as bits.

        As in Kafka, a client that may not describe the cluster is shown none of them.
        """
        authorizer = self.authorizer
        if resource is _CLUSTER and not self.may_describe(connection, resource, name):
            return 0
        return sum(
            1 << operation
            for operation in _OF_TYPE[resource]
            if authorizer is None
            or authorizer.may(connection.principal, connection.peer_host, operation, resource, name)
        )


ALL_ALLOWED: Final = Access()


def authorizer_of(settings: BrokerSettings) -> Authorizer | None:
    """Return the authorizer; None if ACLs are not used."""
    if not settings.authorizer_class_name:
        return None
    return Authorizer(
        super_users=parse_super_users(settings.super_users), allow_if_no_acl=settings.allow_everyone_if_no_acl_found
    )
