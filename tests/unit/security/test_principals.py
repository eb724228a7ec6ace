"""Rules that make user names from certificates and Kerberos names. Most examples are of Kafka's documentation."""

from __future__ import annotations

import pytest

from ottla.security.errors import AuthenticationFailed, SecurityConfigError
from ottla.security.principals import KerberosPrincipalMapper, SslPrincipalMapper, parse_super_users

RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("", "CN=kafka,O=x", "CN=kafka,O=x"),
        ("DEFAULT", "CN=kafka", "CN=kafka"),
        (RULES, "CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "serviceuser"),
        (RULES, "CN=AdminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
        (RULES, "OU=x, CN=Other.User", "other.user"),
        (RULES, "O=nobody", "O=nobody"),
        ("RULE:CN=(.*)/$1/U", "CN=kafka", "KAFKA"),
        (r"RULE:CN=(a\/b)/$1\/c/", "CN=a/b", "a/b/c"),
    ],
)
def test_names_of_certificates(rules: str, name: str, expected: str) -> None:
    assert SslPrincipalMapper(rules).name(name) == expected


def test_rule_must_match_the_whole_name() -> None:
    """CN=admin as a part of another attribute is not the common name."""
    with pytest.raises(AuthenticationFailed):
        SslPrincipalMapper("RULE:CN=admin/admin/").name("CN=eve,O=CN=admin")


@pytest.mark.parametrize("rules", ["RULE:", "RULE:a", "RULE:a/b", "NONE", "RULE:(/b/", "DEFAULT;DEFAULT", "RULE:a/b/X"])
def test_rules_that_cannot_be_read_are_refused(rules: str) -> None:
    with pytest.raises(SecurityConfigError, match=r"ssl\.principal\.mapping\.rules"):
        SslPrincipalMapper(rules)


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("", "alice@EXAMPLE.COM", "alice"),
        ("DEFAULT", "kafka/host@EXAMPLE.COM", "kafka"),
        ("", "alice", "alice"),
        ("RULE:[1:$1](App.*)s/App(.*)/service-$1/,DEFAULT", "AppX@OTHER", "service-X"),
        ("RULE:[2:$1-$2](.*-admin)s/-admin//", "joe/admin@OTHER", "joe"),
        ("RULE:[1:$1@$0](.*@OTHER)s/@.*///L", "Joe@OTHER", "joe"),
        ("RULE:[1:$1]s/a/b/g", "banana@X", "bbnbnb"),
        ("RULE:[1:$1]/U,DEFAULT", "joe@X", "JOE"),
    ],
)
def test_names_of_kerberos(rules: str, name: str, expected: str) -> None:
    assert KerberosPrincipalMapper(rules, "EXAMPLE.COM").name(name) == expected


@pytest.mark.parametrize("name", ["", "a/b/c@X", "@X", "a@", "alice@OTHER", "a" * 2000])
def test_kerberos_names_without_a_rule_are_refused(name: str) -> None:
    with pytest.raises(AuthenticationFailed):
        KerberosPrincipalMapper("DEFAULT", "EXAMPLE.COM").name(name)


def test_super_users() -> None:
    assert parse_super_users("User:a; User:CN=x,O=y ;") == {"User:a", "User:CN=x,O=y"}
    assert parse_super_users("") == frozenset()
    with pytest.raises(SecurityConfigError, match=r"super\.users"):
        parse_super_users("alice")
