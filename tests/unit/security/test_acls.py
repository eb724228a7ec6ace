"""Decisions of the authorizer: examples, and random ACLs against a reference that looks at every entry."""

from __future__ import annotations

from random import Random

import pytest

from ottla.security.acls import (
    ANY_NAME,
    ANY_USER,
    AclFilter,
    Authorizer,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)

ALICE, HOST = "User:alice", "10.0.0.1"
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
#: cases of the comparison with the reference in this test; tests/security has a campaign with many more
CASES = 20_000


def entry(operation: Operation, permission: Permission = ALLOW, principal: str = ALICE, host: str = ANY_NAME) -> Entry:
    return Entry(principal, host, operation, permission)


def authorizer(*acls: tuple[Pattern, Entry], **settings: bool) -> Authorizer:
    made = Authorizer(super_users=["User:root"], **settings)
    for pattern, each in acls:
        made.put(pattern, {*made.entries(pattern), each})
    return made


def test_nothing_is_allowed_without_an_acl() -> None:
    assert not Authorizer().may(ALICE, HOST, READ, TOPIC, "orders")
    assert Authorizer(allow_if_no_acl=True).may(ALICE, HOST, READ, TOPIC, "orders")


def test_super_user_may_do_everything_even_what_is_denied() -> None:
    denied = authorizer((Pattern(TOPIC, ANY_NAME), entry(ALL, DENY, ANY_USER)))
    assert denied.may("User:root", HOST, WRITE, TOPIC, "orders")
    assert not denied.may(ALICE, HOST, WRITE, TOPIC, "orders")


def test_allow_everyone_ends_with_the_first_acl_of_the_resource() -> None:
    one = authorizer((Pattern(TOPIC, "orders"), entry(READ, principal="User:bob")), allow_if_no_acl=True)
    assert not one.may(ALICE, HOST, READ, TOPIC, "orders")
    assert one.may(ALICE, HOST, READ, TOPIC, "payments")


def test_deny_wins_over_allow_whatever_the_pattern() -> None:
    both = authorizer(
        (Pattern(TOPIC, "orders"), entry(ALL)), (Pattern(TOPIC, "ord", PREFIXED), entry(READ, DENY, ANY_USER, HOST))
    )
    assert not both.may(ALICE, HOST, READ, TOPIC, "orders")
    assert both.may(ALICE, "10.0.0.2", READ, TOPIC, "orders")
    assert both.may(ALICE, HOST, DESCRIBE, TOPIC, "orders"), "deny implies no other operation"


@pytest.mark.parametrize("operation", [READ, WRITE, Operation.DELETE, Operation.ALTER, ALL])
def test_operations_that_allow_describe(operation: Operation) -> None:
    assert authorizer((Pattern(TOPIC, "t"), entry(operation))).may(ALICE, HOST, DESCRIBE, TOPIC, "t")


def test_describe_allows_nothing_else() -> None:
    only = authorizer((Pattern(TOPIC, "t"), entry(DESCRIBE)))
    assert [each for each in Operation if only.may(ALICE, HOST, each, TOPIC, "t")] == [DESCRIBE]


def test_alter_configs_allows_describe_configs() -> None:
    only = authorizer((Pattern(TOPIC, "t"), entry(Operation.ALTER_CONFIGS)))
    assert only.may(ALICE, HOST, Operation.DESCRIBE_CONFIGS, TOPIC, "t")
    assert not only.may(ALICE, HOST, DESCRIBE, TOPIC, "t")


def test_change_takes_effect_at_once() -> None:
    changing = authorizer((Pattern(TOPIC, "t"), entry(READ)))
    assert changing.may(ALICE, HOST, READ, TOPIC, "t")
    before = changing.generation
    changing.put(Pattern(TOPIC, "t"), [])
    assert not changing.may(ALICE, HOST, READ, TOPIC, "t") and changing.generation > before


def test_group_and_topic_with_one_name_are_different_resources() -> None:
    only = authorizer((Pattern(GROUP, "same"), entry(READ)))
    assert only.may(ALICE, HOST, READ, GROUP, "same") and not only.may(ALICE, HOST, READ, TOPIC, "same")


def test_filter_with_match_finds_every_pattern_that_covers_a_name() -> None:
    patterns = [Pattern(TOPIC, "orders"), Pattern(TOPIC, ANY_NAME), Pattern(TOPIC, "ord", PREFIXED)]
    many = authorizer(*((each, entry(READ)) for each in [*patterns, Pattern(TOPIC, "x"), Pattern(GROUP, "orders")]))

    def found(pattern_type: PatternType, name: str | None = "orders") -> set[Pattern]:
        wanted = AclFilter(TOPIC, name, pattern_type, None, None, Operation.ANY, Permission.ANY)
        return {pattern for pattern, _ in many.find(wanted)}

    assert found(PatternType.MATCH) == set(patterns)
    assert found(LITERAL) == {patterns[0]}
    assert found(PREFIXED, "ord") == {patterns[2]}
    assert found(PatternType.ANY) == {patterns[0]}
    assert len(found(PatternType.ANY, None)) == 4


# -- against a reference ----------------------------------------------------------------------------------------------

_IMPLIED = {
    (Operation.READ, DESCRIBE), (Operation.WRITE, DESCRIBE), (Operation.DELETE, DESCRIBE), (Operation.ALTER, DESCRIBE),
    (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS),
}  # fmt: skip


def reference(
    acls: list[tuple[Pattern, Entry]], principal: str, host: str, operation: Operation, kind: ResourceType, name: str,
    *, allow_if_no_acl: bool,
) -> bool:  # fmt: skip
    """The rules of Kafka, one entry after the other."""
    if principal == "User:root":
        return True
    covering = []
    for pattern, each in acls:
        is_named = pattern.name == name or pattern.name == "*"
        is_prefix = pattern.pattern_type == PREFIXED and name[: len(pattern.name)] == pattern.name
        if pattern.resource_type == kind and (is_prefix or (is_named and pattern.pattern_type == LITERAL)):
            covering.append(each)
    if not covering:
        return allow_if_no_acl
    mine = [e for e in covering if e.principal in (principal, "User:*") and e.host in (host, "*")]
    if any(e.permission == DENY and e.operation in (operation, ALL) for e in mine):
        return False
    return any(
        e.permission == ALLOW and (e.operation in (operation, ALL) or (e.operation, operation) in _IMPLIED)
        for e in mine
    )


def random_acls(rng: Random) -> list[tuple[Pattern, Entry]]:
    names = ["a", "ab", "abc", "b", "*", "ba"]
    operations = list(Operation)[1:]
    return [
        (
            Pattern(rng.choice([TOPIC, GROUP]), rng.choice(names), rng.choice([LITERAL, PREFIXED])),
            Entry(
                rng.choice([ALICE, "User:bob", ANY_USER]), rng.choice([HOST, "h2", ANY_NAME]), rng.choice(operations),
                rng.choice([ALLOW, ALLOW, DENY]),
            ),
        )
        for _ in range(rng.randrange(8))
    ]  # fmt: skip


def compare(seed: int, cases: int) -> None:
    """Compare random decisions with the reference, with changes of ACLs between them."""
    rng = Random(seed)
    done = 0
    while done < cases:
        allow_if_no_acl = rng.random() < 0.3
        made = Authorizer(super_users=["User:root"], allow_if_no_acl=allow_if_no_acl)
        acls = random_acls(rng)
        for change in range(3):
            if change:
                extra = random_acls(rng)
                gone = {pattern for pattern, _ in acls if rng.random() < 0.4}
                for pattern in gone:
                    made.put(pattern, [])
                acls = [each for each in acls if each[0] not in gone] + extra
            for pattern in {pattern for pattern, _ in acls}:
                made.put(pattern, [each for where, each in acls if where == pattern])
            for _ in range(40):
                request = (
                    rng.choice([ALICE, "User:bob", "User:eve", "User:root"]), rng.choice([HOST, "h2", "h3"]),
                    rng.choice(list(Operation)[2:]), rng.choice([TOPIC, GROUP]),
                    rng.choice(["a", "ab", "abc", "abcd", "b", "ba", "c", "*"]),
                )  # fmt: skip
                expected = reference(acls, *request, allow_if_no_acl=allow_if_no_acl)
                assert made.may(*request) == expected, (seed, acls, request)
                done += 1


def test_decisions_are_those_of_the_reference() -> None:
    compare(1, CASES)


def test_some_resource_is_allowed_if_and_only_if_one_can_be_named() -> None:
    """The names that are tried include every literal name and extensions of every prefix."""
    rng = Random(7)
    for _ in range(3000):
        acls = [
            (where, each) for where, each in random_acls(rng) if (where.name, where.pattern_type) != ("*", PREFIXED)
        ]
        made = authorizer(*acls)
        names = {where.name for where, _ in acls} | {where.name + "~" for where, _ in acls} | {"other"}
        principal, host, operation = (
            rng.choice([ALICE, "User:eve"]),
            rng.choice([HOST, "h3"]),
            rng.choice([READ, WRITE]),
        )
        can_be_named = any(made.may(principal, host, operation, TOPIC, name) for name in names - {ANY_NAME})
        assert made.may_for_some(principal, host, operation, TOPIC) == can_be_named, acls
