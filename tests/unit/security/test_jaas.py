"""Kafka's sasl.jaas.config."""

from __future__ import annotations

import pytest

from ottla.security.errors import SecurityConfigError
from ottla.security.jaas import parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SETTING = "listener.name.internal.plain.sasl.jaas.config"


def test_users_and_options_of_a_plain_listener() -> None:
    options = """username="admin"
        password='a b' user_admin="x;y=\\"z" user_bob=plain """
    login = parse_jaas(SETTING, f"{PLAIN} required {options};\n")
    assert login.module == PLAIN
    assert login.options["username"] == "admin" and login.options["password"] == "a b"
    assert login.users == {"admin": 'x;y="z', "bob": "plain"}


def test_options_are_not_shown() -> None:
    login = parse_jaas(SETTING, f'{PLAIN} required password="canary";')
    assert "canary" not in repr(login) and "canary" not in str(login)


@pytest.mark.parametrize(
    "text",
    [
        "", ";", PLAIN, f"{PLAIN} required", f"{PLAIN};", f"{PLAIN} always a=b;", f"{PLAIN} required a;",
        f"{PLAIN} required a=;", f"{PLAIN} required =b;", f'{PLAIN} required a="canary;',
        f"{PLAIN} required a=canary a=canary;",
        f"{PLAIN} required a=b; {PLAIN} required a=b;",
        "com.sun.security.auth.module.JndiLoginModule required a=canary;",
    ],
)  # fmt: skip
def test_text_that_is_no_login_module_is_refused_without_its_values(text: str) -> None:
    with pytest.raises(SecurityConfigError) as refused:
        parse_jaas(SETTING, text)
    assert SETTING in str(refused.value) and "canary" not in str(refused.value)
