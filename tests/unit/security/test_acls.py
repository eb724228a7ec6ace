"""Decisions of the authorizer: examples, and random ACLs against a reference that looks at every entry."""

from __future__ import annotations

import pytest
from tests.unit.security.acl_reference import compare

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
#: decisions that are compared with the reference here; `make campaign NAME=security` compares a million
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


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8:0:0:0:0:0:7", "2001:db8::7"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_address_is_the_same_however_an_acl_writes_it(written: str, host: str) -> None:
    allowed = authorizer((Pattern(TOPIC, "t"), entry(READ, host=written)))
    assert allowed.may(ALICE, host, READ, TOPIC, "t") and not allowed.may(ALICE, "10.0.0.2", READ, TOPIC, "t")
    denied = authorizer((Pattern(TOPIC, "t"), entry(ALL)), (Pattern(TOPIC, "t"), entry(READ, DENY, ANY_USER, written)))
    assert not denied.may(ALICE, host, READ, TOPIC, "t")
    everything = AclFilter(TOPIC, None, PatternType.ANY, None, written, Operation.ANY, Permission.ANY)
    assert [each.host for _, entries in denied.find(everything) for each in entries] == [written]


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


def test_decisions_are_those_of_the_reference() -> None:
    tally = compare(1, CASES)
    assert tally.cases >= CASES and 0.1 < tally.allowed / tally.cases < 0.9, tally
