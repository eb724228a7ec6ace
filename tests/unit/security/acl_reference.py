"""Random ACLs and requests, and a reference for the authorizer that looks at every entry.

Each change takes the way of a change in the metadata store: it is written as a node, read from the node, and given to
the authorizer. After each change the three must have the same ACLs (CVE-2024-27309: a cache that differed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import NamedTuple

from ottla.broker.metadata.access_nodes import AccessView, acl_path, acls_json
from ottla.security.acls import (
    AclFilter,
    Authorizer,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
SUPER_USER = "User:root"
Acls = Mapping[Pattern, frozenset[Entry]]

_IMPLIED = {
    (Operation.READ, Operation.DESCRIBE), (Operation.WRITE, Operation.DESCRIBE),
    (Operation.DELETE, Operation.DESCRIBE), (Operation.ALTER, Operation.DESCRIBE),
    (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS),
}  # fmt: skip
_TYPES = [ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID]
_PRINCIPALS = ["User:alice", "User:bob", "User:*", "Group:alice"]
_HOSTS = ["10.0.0.1", "10.0.0.2", "::1", "*"]
_OPERATIONS = [each for each in Operation if each != Operation.ANY]
_CHANGES_MAX = 3
_REQUESTS_PER_CHANGE = 40


class Request(NamedTuple):
    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    name: str


class Tally(NamedTuple):
    """What was compared."""

    cases: int
    allowed: int
    changes: int


# -- the reference ----------------------------------------------------------------------------------------------------


def is_allowed(acls: Acls, request: Request, *, allow_if_no_acl: bool) -> bool:
    """Decide by the rules of Kafka, one entry after the other."""
    if request.principal == SUPER_USER:
        return True
    covering = [
        entry for pattern, entries in acls.items() if _covers(pattern, request.resource_type, request.name)
        for entry in entries
    ]  # fmt: skip
    if not covering:
        return allow_if_no_acl
    mine = [
        each for each in covering
        if each.principal in (request.principal, "User:*") and each.host in (request.host, "*")
    ]  # fmt: skip
    wanted = request.operation
    if _is_denied(acls, request):
        return False
    return any(
        each.permission == Permission.ALLOW
        and (each.operation in (wanted, Operation.ALL) or (each.operation, wanted) in _IMPLIED)
        for each in mine
    )


def _is_denied(acls: Acls, request: Request) -> bool:
    return any(
        entry.permission == Permission.DENY and entry.principal in (request.principal, "User:*")
        and entry.host in (request.host, "*") and entry.operation in (request.operation, Operation.ALL)
        for pattern, entries in acls.items() if _covers(pattern, request.resource_type, request.name)
        for entry in entries
    )  # fmt: skip


def _covers(pattern: Pattern, resource_type: ResourceType, name: str) -> bool:
    if pattern.resource_type != resource_type:
        return False
    if pattern.pattern_type == PREFIXED:
        return name[: len(pattern.name)] == pattern.name
    return pattern.name == name or pattern.name == "*"


def is_allowed_for_some(acls: Acls, request: Request, *, allow_if_no_acl: bool) -> bool:
    """Try every name that an ACL has, each with something behind it, and a name that no ACL has.

    As Kafka, do not look for a resource without ACLs if these are allowed: only a denial of all resources counts then.
    """
    if allow_if_no_acl:
        all_denied = {
            pattern: frozenset(each for each in entries if each.permission == Permission.DENY)
            for pattern, entries in acls.items() if pattern[1:] == ("*", LITERAL)
        }  # fmt: skip
        denied = {pattern: entries for pattern, entries in all_denied.items() if entries}
        return request.principal == SUPER_USER or not _is_denied(denied, request)
    named = {pattern.name for pattern in acls if pattern.resource_type == request.resource_type}
    names = (named | {f"{name}~" for name in named} | {"~"}) - {"*"}
    return any(is_allowed(acls, request._replace(name=each), allow_if_no_acl=allow_if_no_acl) for each in names)


def matching(acls: Acls, wanted: AclFilter) -> set[tuple[Pattern, Entry]]:
    """Return the ACLs that a filter of DescribeAcls or DeleteAcls selects."""
    return {
        (pattern, entry) for pattern, entries in acls.items() for entry in entries
        if _is_selected(wanted, pattern) and wanted.principal in (None, entry.principal)
        and wanted.host in (None, entry.host) and wanted.operation in (Operation.ANY, entry.operation)
        and wanted.permission in (Permission.ANY, entry.permission)
    }  # fmt: skip


def _is_selected(wanted: AclFilter, pattern: Pattern) -> bool:
    if wanted.resource_type not in (ResourceType.ANY, pattern.resource_type):
        return False
    is_own_type = wanted.pattern_type == pattern.pattern_type
    if wanted.pattern_type not in (PatternType.ANY, PatternType.MATCH) and not is_own_type:
        return False
    if wanted.name is None:
        return True
    if wanted.pattern_type == PatternType.MATCH:
        return _covers(pattern, pattern.resource_type, wanted.name)
    return wanted.name == pattern.name


# -- random cases -----------------------------------------------------------------------------------------------------


def _name(rng: Random) -> str:
    """Return a short name of few characters, so that names are often equal and often prefixes of others."""
    return "".join(rng.choice("ab.é/%") for _ in range(rng.randint(1, 4)))


def _pattern(rng: Random) -> Pattern:
    if rng.random() < 0.15:
        return Pattern(rng.choice(_TYPES), "*")
    return Pattern(rng.choice(_TYPES), _name(rng), rng.choice([LITERAL, PREFIXED]))


def _entries(rng: Random) -> frozenset[Entry]:
    return frozenset(
        Entry(
            rng.choice(_PRINCIPALS), rng.choice(_HOSTS), rng.choice(_OPERATIONS),
            rng.choice([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
        )
        for _ in range(rng.randint(1, 3))
    )  # fmt: skip


def _request(rng: Random, names: Iterable[str]) -> Request:
    known = [*names, "*"]
    name = rng.choice(known) + rng.choice(["", "", "a", "b"]) if rng.random() < 0.7 else _name(rng)
    return Request(
        rng.choice([*_PRINCIPALS[:2], "Group:alice", "User:eve", SUPER_USER]), rng.choice([*_HOSTS[:3], "10.0.0.3"]),
        rng.choice(_OPERATIONS[1:]), rng.choice(_TYPES), name,
    )  # fmt: skip


def _filter(rng: Random, acls: Acls) -> AclFilter:
    name = rng.choice([None, _name(rng), *(pattern.name for pattern in acls)])
    return AclFilter(
        rng.choice([ResourceType.ANY, *_TYPES]), name, rng.choice(list(PatternType)),
        rng.choice([None, *_PRINCIPALS]), rng.choice([None, *_HOSTS]), rng.choice([Operation.ANY, *_OPERATIONS]),
        rng.choice(list(Permission)),
    )  # fmt: skip


class _World:
    """One set of ACLs: as a model, as nodes, and in an authorizer."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.allow_if_no_acl = rng.random() < 0.3
        self.authorizer = Authorizer(super_users=[SUPER_USER], allow_if_no_acl=self.allow_if_no_acl)
        self._view = AccessView()
        self.acls: dict[Pattern, frozenset[Entry]] = {}

    def change(self) -> None:
        """Change the ACLs of some patterns, and sometimes delete those of others."""
        rng = self._rng
        changes: dict[Pattern, frozenset[Entry]] = {_pattern(rng): _entries(rng) for _ in range(rng.randint(0, 5))}
        changes |= {pattern: frozenset() for pattern in self.acls if rng.random() < 0.3}
        for pattern, entries in changes.items():
            self.acls.pop(pattern, None)
            if entries:
                self.acls[pattern] = entries
            about = self._view.apply(acl_path(pattern), acls_json(entries) if entries else None)
            assert about == pattern
            self.authorizer.put(pattern, self._view.acls.get(pattern, ()))
        assert self._view.acls == self.acls
        assert self.found(_EVERYTHING) == {(pattern, each) for pattern in self.acls for each in self.acls[pattern]}

    def found(self, wanted: AclFilter) -> set[tuple[Pattern, Entry]]:
        return {(pattern, entry) for pattern, entries in self.authorizer.find(wanted) for entry in entries}

    def compare(self) -> tuple[int, int]:
        """Compare random decisions. Return how many there were, and how many allowed."""
        rng, authorizer, allow = self._rng, self.authorizer, self.allow_if_no_acl
        names = [pattern.name for pattern in self.acls]
        allowed = 0
        for _ in range(_REQUESTS_PER_CHANGE):
            request = _request(rng, names)
            decision = authorizer.may(*request)
            assert decision == is_allowed(self.acls, request, allow_if_no_acl=allow), (self.acls, request)
            allowed += decision
        some = authorizer.may_for_some(*request[:4])
        assert some == is_allowed_for_some(self.acls, request, allow_if_no_acl=allow), (self.acls, request)
        wanted = _filter(rng, self.acls)
        assert self.found(wanted) == matching(self.acls, wanted), (self.acls, wanted)
        return _REQUESTS_PER_CHANGE + 2, allowed


_EVERYTHING = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)


def compare(seed: int, cases: int) -> Tally:
    """Compare decisions of the authorizer with the reference. Raise AssertionError with the first difference."""
    rng = Random(seed)
    done = allowed = changes = 0
    while done < cases:
        world = _World(rng)
        for _ in range(rng.randint(1, _CHANGES_MAX)):
            world.change()
            compared, granted = world.compare()
            done, allowed, changes = done + compared, allowed + granted, changes + 1
    return Tally(done, allowed, changes)
