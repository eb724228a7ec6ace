"""Which stored secrets of a registry client must be given again, because another server would get them.

Exporters keep a password for the registry that they copy to, and brokers one for the registry that they ask. A user who
may change the address, but does not know the password, must not be able to send it to a server of their choice. So a
stored secret belongs to its server: the addresses, and the properties of TLS with which the client recognises the
server. Names are those of Confluent's clients, without a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

URL: Final = "schema.registry.url"
#: properties whose values must not be shown
SECRETS: Final = frozenset({
    "basic.auth.user.info", "bearer.auth.token", "ssl.key.password", "ssl.key.pem", "ssl.keystore.key",
    "ssl.keystore.password", "ssl.truststore.password",
})  # fmt: skip
#: properties with which a client recognises the server at an address
_TRUST: Final = (
    "enable.ssl.certificate.verification", "ssl.ca.location", "ssl.ca.pem", "ssl.endpoint.identification.algorithm",
    "ssl.truststore.certificates", "ssl.truststore.location", "ssl.truststore.type",
)  # fmt: skip


def secrets_to_repeat(old: Mapping[str, str], new: Mapping[str, str], kept: Iterable[str]) -> list[str]:
    """Return those of the secrets `kept` from the properties `old` that the properties `new` would send elsewhere.

    >>> old = {URL: "https://a:8081,https://b:8081", "basic.auth.user.info": "ann:secret"}
    >>> secrets_to_repeat(old, {**old, URL: "https://b:8081/"}, ["basic.auth.user.info"])
    []
    >>> secrets_to_repeat(old, {**old, URL: "https://a:8081,http://b:8081"}, ["basic.auth.user.info"])
    ['basic.auth.user.info']
    >>> secrets_to_repeat(old, {**old, "ssl.ca.location": "/tmp/ca.pem"}, ["basic.auth.user.info"])
    ['basic.auth.user.info']
    """
    is_same_server = _addresses(new) <= _addresses(old) and all(old.get(name) == new.get(name) for name in _TRUST)
    return [] if is_same_server else sorted(name for name in kept if name in SECRETS and old.get(name))


def _addresses(properties: Mapping[str, str]) -> set[str]:
    return {url.strip().rstrip("/") for url in properties.get(URL, "").split(",") if url.strip()}
