"""Rules that make user names from certificates and Kerberos names. Most examples are of Kafka's documentation."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.security.errors import AuthenticationFailed, SecurityConfigError
from ottla.security.principals import KerberosPrincipalMapper, SslPrincipalMapper, is_name, parse_super_users, user

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


# -- names that must not become those of others -----------------------------------------------------------------------

#: white space that str.strip removes, and characters that change of case makes ASCII letters of
LOOKALIKES = ["admin ", " admin", "admin\u00a0", "\u2003admin", "admin\u3000", "admin\u202f", "admin\u200b"]
CONTROLS = ["admin\n", "admin\0", "\x1badmin", "ad\x85min", "admin\u2028", "admin\u2029", "admin\x7f", "\ud800admin"]


@pytest.mark.parametrize("name", LOOKALIKES)
@pytest.mark.parametrize(
    "rules", ["RULE:CN=(.*)/$1/", r"RULE:CN=(.*?)\s*/$1/", "RULE:CN=(.*),O=x/$1/,RULE:CN=(.*)/$1/L"]
)
def test_certificate_with_white_space_around_its_name_is_not_another_user(rules: str, name: str) -> None:
    if r"\s" in rules and name == "admin ":
        return  # the rule says so
    found = SslPrincipalMapper(rules).name(f"CN={name}")
    assert found == name != "admin"
    assert user(found) not in parse_super_users("User:admin")


@pytest.mark.parametrize("name", CONTROLS)
def test_names_with_control_characters_are_refused(name: str) -> None:
    for make in (
        user,
        lambda each: SslPrincipalMapper("").name(f"CN={each}"),
        lambda each: SslPrincipalMapper("RULE:(?s)CN=(.*)/$1/").name(f"CN={each}"),
        lambda each: KerberosPrincipalMapper("", "X").name(f"{each}@X"),
    ):
        with pytest.raises(AuthenticationFailed):
            make(name)
    with pytest.raises(SecurityConfigError):
        parse_super_users(f"User:a;User:{name}b")


@pytest.mark.parametrize("name", ["", "a" * 1025])
def test_empty_and_long_names_are_refused(name: str) -> None:
    with pytest.raises(AuthenticationFailed):
        user(name)
    with pytest.raises(AuthenticationFailed):
        SslPrincipalMapper("RULE:CN=(.*)/$1/").name(f"CN={name}")


def test_long_distinguished_name_is_refused_and_not_cut() -> None:
    with pytest.raises(AuthenticationFailed, match="more than 1024"):
        SslPrincipalMapper("RULE:CN=admin,OU=(.*)/admin/").name("CN=admin,OU=" + "a" * 1100)


@pytest.mark.parametrize(
    ("case", "name"), [("L", "\u212aafka"), ("L", "adm\u0130n"), ("U", "adm\u0131n"), ("U", "\u017fys")]
)
def test_change_of_case_makes_no_ascii_letter_of_another_character(case: str, name: str) -> None:
    for mapper in (SslPrincipalMapper(f"RULE:(.*)/$1/{case}"), KerberosPrincipalMapper(f"RULE:[1:$1]/{case}", "X")):
        with pytest.raises(AuthenticationFailed, match="case"):
            mapper.name(f"{name}@X" if isinstance(mapper, KerberosPrincipalMapper) else name)


def test_change_of_case_works_in_other_scripts() -> None:
    assert SslPrincipalMapper("RULE:(.*)/$1/L").name("ÄRGER ΔΗΜΟΣ") == "ärger δημοσ"


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_name_of_a_user_is_never_changed(name: str) -> None:
    if is_name(name):
        assert user(name) == f"User:{name}"
        assert SslPrincipalMapper("RULE:(?s)(.*)/$1/").name(name) == name
    else:
        assert not name or re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", name)


@pytest.mark.parametrize("name", LOOKALIKES[2:])
def test_super_user_with_other_white_space_is_not_the_one_without(name: str) -> None:
    assert parse_super_users(f" User:{name} ;User:b") == {f"User:{name}", "User:b"}
