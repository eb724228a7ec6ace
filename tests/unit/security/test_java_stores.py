"""JKS files that keytool of Java 17 made, read without Java."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from certificate_settings import settings, write
from hypothesis import given
from hypothesis import strategies as st

from ottla.security.certificates import load_key_pair, load_trusted, server_context
from ottla.security.errors import SecurityConfigError
from ottla.security.java_stores import BadStore, WrongPassword, read_store, reveal_key

STORE_PASSWORD, KEY_PASSWORD = "store-secret", "key-secret"
#: keytool -genkeypair -keyalg EC -storetype JKS -alias b -dname CN=b.example -validity 36500
KEYSTORE = base64.b64decode(
    "/u3+7QAAAAIAAAABAAAAAQABYgAAAaHsb2HbAAAAfzB9MA4GCisGAQQBKgIRAQEFAARrTPTqGDIJso9GJJlpQyC1XDgk4LV4wM6mlW52lctC"
    "OZgqSrGES/k2dPANdDoKx/8d+r1Z+hgjOVSKBwhvrRPzPPcdifmIEH9Ux9auSBqe0gbFU4meBunUSHo8yx7hI/wOOnKCrg90M4pnu7YAAAAB"
    "AAVYLjUwOQAAAVowggFWMIH9oAMCAQICCBnnllHE/7neMAoGCCqGSM49BAMCMBQxEjAQBgNVBAMTCWIuZXhhbXBsZTAgFw0yNjExMTgwMjE0"
    "NDRaGA8yMTI2MTAyNTAyMTQ0NFowFDESMBAGA1UEAxMJYi5leGFtcGxlMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE/1IN5EbCAnhIZqBZ"
    "jvab5tELPjUVFQwDDBx3OFc/DAiS3AjjBek7XlWzRIUkeU/sUXbdSZ7a069UXnhsH39K96M3MDUwHQYDVR0OBBYEFEsfHr4jOWL7qEnJZNty"
    "LvFgebThMBQGA1UdEQQNMAuCCWIuZXhhbXBsZTAKBggqhkjOPQQDAgNIADBFAiEA5Yd1TPbQqlE8xrDyR9j+0nzzsz0XhS/kLbHVvMqb9koC"
    "IGGMhtqF2V4zFS9xsEglhZzYKQ2OxulBWGtC6nzzu77K5EcRVmb56I1h09Agic1McS42h8g="
)
#: keytool -importcert -storetype JKS -alias c, with the certificate of the file above
TRUSTSTORE = base64.b64decode(
    "/u3+7QAAAAIAAAABAAAAAgABYwAAAaHsb2MxAAVYLjUwOQAAAVowggFWMIH9oAMCAQICCBnnllHE/7neMAoGCCqGSM49BAMCMBQxEjAQBgNV"
    "BAMTCWIuZXhhbXBsZTAgFw0yNjExMTgwMjE0NDRaGA8yMTI2MTAyNTAyMTQ0NFowFDESMBAGA1UEAxMJYi5leGFtcGxlMFkwEwYHKoZIzj0C"
    "AQYIKoZIzj0DAQcDQgAE/1IN5EbCAnhIZqBZjvab5tELPjUVFQwDDBx3OFc/DAiS3AjjBek7XlWzRIUkeU/sUXbdSZ7a069UXnhsH39K96M3"
    "MDUwHQYDVR0OBBYEFEsfHr4jOWL7qEnJZNtyLvFgebThMBQGA1UdEQQNMAuCCWIuZXhhbXBsZTAKBggqhkjOPQQDAgNIADBFAiEA5Yd1TPbQ"
    "qlE8xrDyR9j+0nzzsz0XhS/kLbHVvMqb9koCIGGMhtqF2V4zFS9xsEglhZzYKQ2OxulBWGtC6nzzu77KxhQAkKDw3RMDzg3gOoGXzlmTcD0="
)


def test_broker_has_the_key_and_trusts_the_certificate_of_jks_files(tmp_path: Path) -> None:
    given = {
        "ssl_keystore_type": "JKS", "ssl_keystore_location": write(tmp_path / "k.jks", KEYSTORE),
        "ssl_keystore_password": STORE_PASSWORD, "ssl_key_password": KEY_PASSWORD,
        "ssl_truststore_type": "JKS", "ssl_truststore_location": write(tmp_path / "t.jks", TRUSTSTORE),
        "ssl_truststore_password": STORE_PASSWORD, "ssl_client_auth": "required",
    }  # fmt: skip
    context = server_context(settings(**given))
    assert context.cert_store_stats()["x509"] == 1
    assert load_trusted(settings(**given)) == load_key_pair(settings(**given)).certificates.decode()
    both = {**given, "ssl_truststore_location": given["ssl_keystore_location"]}
    assert load_trusted(settings(**both)) == load_trusted(settings(**given))
    del given["ssl_truststore_password"]
    load_trusted(settings(**given))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ssl_keystore_password": "canary"}, "ssl.keystore.password is not that of"),
        ({"ssl_key_password": "canary"}, "ssl.key.password is not that of the key"),
        ({"ssl_key_password": ""}, "ssl.key.password is not that of the key"),
        ({"ssl_truststore_password": "canary"}, "ssl.truststore.password is not that of"),
    ],
)
def test_wrong_password_is_named(tmp_path: Path, changed: dict[str, str], said: str) -> None:
    given = {
        "ssl_keystore_location": write(tmp_path / "k.jks", KEYSTORE), "ssl_keystore_password": STORE_PASSWORD,
        "ssl_truststore_location": write(tmp_path / "t.jks", TRUSTSTORE), "ssl_truststore_password": STORE_PASSWORD,
        "ssl_key_password": KEY_PASSWORD, **changed,
    }  # fmt: skip
    with pytest.raises(SecurityConfigError, match=re.escape(said)) as refused:
        server_context(settings(**given))
    assert "canary" not in str(refused.value)


def test_store_without_a_key_is_no_keystore(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jks", TRUSTSTORE)
    with pytest.raises(SecurityConfigError, match="has no key"):
        load_key_pair(settings(ssl_keystore_location=path, ssl_keystore_password=STORE_PASSWORD))


@given(st.integers(0, len(KEYSTORE) - 1), st.integers(0, 255), st.booleans())
def test_damaged_file_is_refused(at: int, byte: int, cut: bool) -> None:
    data = KEYSTORE[:at] if cut else KEYSTORE[:at] + bytes([byte]) + KEYSTORE[at + 1 :]
    try:
        store = read_store(data, "")
        for entry in store.keys:
            reveal_key(entry.protected, KEY_PASSWORD)
    except (BadStore, WrongPassword):
        pass
    if data != KEYSTORE:
        with pytest.raises(WrongPassword):
            read_store(data, STORE_PASSWORD)
