"""ACLs and the decision whether a principal may do something. Pure.

An ACL binds an entry (principal, host, operation, allow or deny) to a pattern of resources: a literal name, the literal
name ``*`` for all resources of a type, or a prefix.

    super user                          allowed
    an entry denies                     denied; an entry denies exactly its operation
    an entry allows                     allowed; read, write, delete and alter allow describe, alter-configs allows
                                        describe-configs
    no entry for the resource at all    ``allow.everyone.if.no.acl.found``
    otherwise                           denied

Decisions are cached until an ACL changes. A lookup costs one dictionary access for the name and one for each length of
the prefixes of that resource type.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

#: the name that stands for all resources of a type, all users or all hosts
ANY_NAME: Final = "*"
ANY_USER: Final = "User:*"
#: the name of the only resource of type CLUSTER
CLUSTER_NAME: Final = "kafka-cluster"
#: decisions in the cache; when there are more, it is emptied
_DECISIONS_MAX: Final = 20_000


class ResourceType(IntEnum):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    ANY = 1
    #: only in filters: all patterns that cover a name
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


#: the operations of an entry that allow each operation; an operation that is not here is allowed by itself and by ALL
_ALLOWED_BY: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL}),
}


class Pattern(NamedTuple):
    """The resources that an ACL is about."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def covers(self, name: str) -> bool:
        """Return whether the pattern includes the resource of its type with this name."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, ANY_NAME)


class Entry(NamedTuple):
    """Allows or denies one operation on the resources of a pattern to a principal and a host."""

    #: type and name, for example ``User:alice``; ``User:*`` for all
    principal: str
    #: address of the client, ``*`` for all
    host: str
    operation: Operation
    permission: Permission

    def concerns(self, principal: str, host: str, operation: Operation) -> bool:
        """Return whether the entry allows or denies this operation of this principal from this host."""
        if self.principal not in (principal, ANY_USER) or self.host not in (host, ANY_NAME):
            return False
        if self.permission is Permission.DENY:
            return self.operation in (operation, Operation.ALL)
        return self.operation in _ALLOWED_BY.get(operation, (operation, Operation.ALL))


class AclFilter(NamedTuple):
    """Selects ACLs, as DescribeAcls and DeleteAcls send it; None and ANY match everything."""

    resource_type: ResourceType
    name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def matches_pattern(self, pattern: Pattern) -> bool:
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if (
            self.pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
            and self.pattern_type != pattern.pattern_type
        ):
            return False
        if self.name is None:
            return True
        if self.pattern_type is PatternType.MATCH:
            return pattern.covers(self.name)
        return self.name == pattern.name

    def matches_entry(self, entry: Entry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )


class _OfType:
    """The ACLs of one resource type."""

    __slots__ = ("literal", "prefix_lengths", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, frozenset[Entry]] = {}
        self.prefixed: dict[str, frozenset[Entry]] = {}
        #: the number of prefixes of each length
        self.prefix_lengths: dict[int, int] = {}

    def put(self, pattern: Pattern, entries: frozenset[Entry]) -> None:
        is_prefix = pattern.pattern_type is PatternType.PREFIXED
        of_pattern = self.prefixed if is_prefix else self.literal
        was_there = pattern.name in of_pattern
        if entries:
            of_pattern[pattern.name] = frozenset(each._replace(host=_plain_host(each.host)) for each in entries)
        else:
            of_pattern.pop(pattern.name, None)
        if is_prefix and was_there != bool(entries):
            length = len(pattern.name)
            count = self.prefix_lengths.get(length, 0) + (1 if entries else -1)
            if count:
                self.prefix_lengths[length] = count
            else:
                del self.prefix_lengths[length]

    def covering(self, name: str) -> Iterator[frozenset[Entry]]:
        """Yield the entries of each pattern that covers a name."""
        if (found := self.literal.get(name)) is not None:
            yield found
        if name != ANY_NAME and (found := self.literal.get(ANY_NAME)) is not None:
            yield found
        for length in self.prefix_lengths:
            if length <= len(name) and (found := self.prefixed.get(name[:length])) is not None:
                yield found


def _plain_host(host: str) -> str:
    """Return an address as the operating system writes it: Java writes those of IPv6 with all zeros."""
    try:
        address = ip_address(host)
    except ValueError:
        return host  # all hosts, or a name, which no client has
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


class Authorizer:
    """All ACLs of the cluster, and the decisions that follow from them."""

    def __init__(self, *, super_users: Collection[str] = (), allow_if_no_acl: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._acls: dict[Pattern, frozenset[Entry]] = {}
        self._by_type: dict[ResourceType, _OfType] = {}
        self._decisions: dict[tuple[str, str, Operation, ResourceType, str], bool] = {}
        #: increases with every change, so that callers may cache what follows from decisions
        self.generation = 0

    # -- changes --------------------------------------------------------------------------------------------------

    def put(self, pattern: Pattern, entries: Iterable[Entry]) -> None:
        """Replace the entries of a pattern; no entries remove it."""
        frozen = frozenset(entries)
        if frozen:
            self._acls[pattern] = frozen
        else:
            self._acls.pop(pattern, None)
        self._by_type.setdefault(pattern.resource_type, _OfType()).put(pattern, frozen)
        self._changed()

    def configure(self, *, super_users: Collection[str], allow_if_no_acl: bool) -> None:
        self._super_users, self._allow_if_no_acl = frozenset(super_users), allow_if_no_acl
        self._changed()

    def _changed(self) -> None:
        self._decisions.clear()
        self.generation += 1

    # -- queries --------------------------------------------------------------------------------------------------

    def find(self, wanted: AclFilter) -> Iterator[tuple[Pattern, list[Entry]]]:
        """Yield the ACLs that a filter matches, by pattern."""
        for pattern, entries in self._acls.items():
            if wanted.matches_pattern(pattern) and (found := [each for each in entries if wanted.matches_entry(each)]):
                yield pattern, found

    def entries(self, pattern: Pattern) -> frozenset[Entry]:
        return self._acls.get(pattern, frozenset())

    # -- decisions ------------------------------------------------------------------------------------------------

    def may(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Return whether a principal that connects from a host may do this with a resource."""
        key = principal, host, operation, resource_type, name
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= _DECISIONS_MAX:
                self._decisions.clear()
            decision = self._decisions[key] = self._decide(principal, host, operation, resource_type, name)
        return decision

    def _decide(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        if principal in self._super_users:
            return True
        of_type = self._by_type.get(resource_type)
        is_covered = is_allowed = False
        for entries in of_type.covering(name) if of_type is not None else ():
            is_covered = True
            for entry in entries:
                if entry.concerns(principal, host, operation):
                    if entry.permission is Permission.DENY:
                        return False
                    is_allowed = True
        return is_allowed if is_covered else self._allow_if_no_acl

    def deciding(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> list[tuple[Pattern, Entry]]:
        """Return the ACLs that decide whether a principal may do this: those that deny, otherwise those that allow."""
        found = [
            (pattern, entry)
            for pattern, entries in self._acls.items()
            if pattern.resource_type is resource_type and pattern.covers(name)
            for entry in entries
            if entry.concerns(principal, host, operation)
        ]
        denied = [each for each in found if each[1].permission is Permission.DENY]
        return sorted(denied or found)

    def may_for_some(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether a principal may do this with at least one resource of a type, whether or not it exists."""
        if principal in self._super_users:
            return True
        of_type = self._by_type.get(resource_type)
        if of_type is None:
            return self._allow_if_no_acl

        def names(of_pattern: Mapping[str, frozenset[Entry]], permission: Permission) -> set[str]:
            return {
                name for name, entries in of_pattern.items()
                if any(each.permission is permission and each.concerns(principal, host, operation) for each in entries)
            }  # fmt: skip

        denied, denied_prefixes = names(of_type.literal, Permission.DENY), names(of_type.prefixed, Permission.DENY)
        if ANY_NAME in denied:
            return False
        if self._allow_if_no_acl:
            return True

        def is_denied_prefix(name: str) -> bool:
            return any(name.startswith(prefix) for prefix in denied_prefixes)

        allowed = names(of_type.literal, Permission.ALLOW)
        return (
            ANY_NAME in allowed
            or any(name not in denied and not is_denied_prefix(name) for name in allowed)
            or any(not is_denied_prefix(name) for name in names(of_type.prefixed, Permission.ALLOW))
        )
