"""How a client and a broker come to trust each other: client properties, TLS, SASL.

The properties have the names of librdkafka and of the Java clients; both may stand for one thing, `ssl.ca.location` and
`ssl.truststore.location` for instance. Files are PEM. The SASL exchanges do no I/O: bytes in, bytes out.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import hmac
import re
import secrets
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.client.errors import AuthenticationFailed, PropertyRefused

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
_PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
_SCRAM: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS: Final = ("PLAIN", *_SCRAM)

_SASL_NAMES: Final = ("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "sasl.jaas.config")
_SSL_NAMES: Final = (
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.truststore.type",
    "ssl.certificate.location",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
)
#: every property that is understood
PROPERTIES: Final = ("security.protocol", *_SSL_NAMES, *_SASL_NAMES)

#: RFC 5802 has no upper bound; a server that names a huge one would keep this client busy for minutes
_ITERATIONS_MAX: Final = 1_000_000
_ITERATIONS_MIN: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Sasl:
    """Who we say we are."""

    mechanism: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"Sasl(mechanism={self.mechanism!r}, username={self.username!r})"

    def start(self) -> SaslExchange:
        if self.mechanism == "PLAIN":
            return _Plain(self)
        return ScramExchange(self, secrets.token_urlsafe(24))


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What is done with a new connection before Kafka's messages may pass."""

    protocol: str = PLAINTEXT
    tls: ssl.SSLContext | None = None
    sasl: Sasl | None = None

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> Security:
        """:raises PropertyRefused: for a property that is unknown, missing or of no use with the others."""
        for name in properties:
            if name not in PROPERTIES:
                near = difflib.get_close_matches(name, PROPERTIES, 1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(PROPERTIES)}"
                raise PropertyRefused(f"client property {name} is not known; {hint}")
        protocol = properties.get("security.protocol", PLAINTEXT).upper()
        if protocol not in _PROTOCOLS:
            raise PropertyRefused(f"security.protocol={protocol} is not known; choose one of {', '.join(_PROTOCOLS)}")
        _refuse_useless(properties, protocol)
        tls = _parse_tls(properties) if protocol in (SSL, SASL_SSL) else None
        sasl = _parse_sasl(properties) if protocol in (SASL_PLAINTEXT, SASL_SSL) else None
        return cls(protocol=protocol, tls=tls, sasl=sasl)

    def wrap(self, plain: socket.socket, host: str) -> socket.socket:
        """The connection with TLS on it, where that is asked for; may wait as long as the socket's timeout says.

        :raises AuthenticationFailed: if one side does not accept the other's certificate.
        """
        if self.tls is None:
            return plain
        try:
            return self.tls.wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailed(
                f"the certificate of {host} is not trusted ({error.verify_message}); set ssl.ca.location to the file "
                "of the authority that signed it, or connect by a name that it is for"
            ) from None


def _refuse_useless(properties: Mapping[str, str], protocol: str) -> None:
    # Somebody who sets a password and forgets the protocol must not send records in the clear without knowing; who
    # asks for that by name gets it.
    if protocol == PLAINTEXT and "security.protocol" in properties:
        return
    for prefix, protocols in (("ssl.", (SSL, SASL_SSL)), ("sasl.", (SASL_PLAINTEXT, SASL_SSL))):
        named = next((name for name in properties if name.startswith(prefix)), None)
        if named is not None and protocol not in protocols:
            raise PropertyRefused(
                f"{named} has no effect with security.protocol={protocol}; set it to {' or '.join(protocols)}, or "
                f"leave {named} out"
            )


def _parse_tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        if properties.get(name, "PEM").upper() != "PEM":
            raise PropertyRefused(f"{name}={properties[name]} cannot be read; convert the store to PEM")
    authority = properties.get("ssl.ca.location") or properties.get("ssl.truststore.location")
    authority_text = properties.get("ssl.ca.pem") or properties.get("ssl.truststore.certificates")
    certificate = properties.get("ssl.certificate.location") or properties.get("ssl.keystore.location")
    try:
        context = ssl.create_default_context(cafile=authority, cadata=authority_text)
        if certificate is not None:
            key = properties.get("ssl.key.location")
            # A password must be given in any case: without one OpenSSL would ask the terminal for it.
            context.load_cert_chain(certificate, key, lambda: properties.get("ssl.key.password", ""))
    except (OSError, ValueError) as error:
        raise PropertyRefused(
            f"the files of ssl.ca.location, ssl.certificate.location and ssl.key.location cannot be used ({error}); "
            "they must be PEM, and the key must be the certificate's"
        ) from None
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "none", ""):
        raise PropertyRefused(f"ssl.endpoint.identification.algorithm={algorithm} is not known; choose https or none")
    context.check_hostname = algorithm == "https"
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _parse_sasl(properties: Mapping[str, str]) -> Sasl:
    mechanism = (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "").upper()
    if mechanism not in MECHANISMS:
        raise PropertyRefused(f"sasl.mechanism={mechanism or 'nothing'} is not known; choose {', '.join(MECHANISMS)}")
    jaas = properties.get("sasl.jaas.config", "")
    found = {}
    for word in ("username", "password"):
        match = re.search(rf'\b{word}\s*=\s*"((?:[^"\\]|\\.)*)"', jaas)
        value = properties.get(f"sasl.{word}") or (re.sub(r"\\(.)", r"\1", match[1]) if match is not None else None)
        if not value:
            raise PropertyRefused(f"sasl.mechanism={mechanism} needs sasl.{word}")
        found[word] = value
    return Sasl(mechanism=mechanism, username=found["username"], password=found["password"])


class SaslExchange(Protocol):
    """One side of a conversation: say `first`, then answer until there is nothing more to say."""

    def first(self) -> bytes: ...

    def answer(self, challenge: bytes) -> bytes | None:
        """What to say to the server's last word; None when the conversation is over and the server is proven."""


class _Plain:
    """RFC 4616: the password as it is. Only TLS keeps it from others."""

    def __init__(self, sasl: Sasl) -> None:
        self._sasl = sasl

    def first(self) -> bytes:
        return f"\0{self._sasl.username}\0{self._sasl.password}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        return None


class ScramExchange:
    """RFC 5802 without channel binding: the password never travels, and the server proves that it knows it too."""

    def __init__(self, sasl: Sasl, nonce: str) -> None:
        self._mechanism = sasl.mechanism
        self._digest = _SCRAM[sasl.mechanism]
        self._password = sasl.password.encode()
        self._nonce = nonce
        name = sasl.username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={nonce}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if self._server_signature is None:
            return self._prove(challenge)
        said = _parse_scram(challenge)
        if not hmac.compare_digest(_unbase64(said.get("v", "")), self._server_signature):
            raise AuthenticationFailed(
                f"{self._mechanism}: the broker does not know this user's password; check that it is the right broker"
            )
        return None

    def _prove(self, challenge: bytes) -> bytes:
        said = _parse_scram(challenge)
        nonce, salt, iterations = said.get("r", ""), _unbase64(said.get("s", "")), said.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce or not salt or not iterations.isdigit():
            raise AuthenticationFailed(f"{self._mechanism}: the broker's challenge is not of that mechanism's form")
        if not _ITERATIONS_MIN <= int(iterations) <= _ITERATIONS_MAX:
            raise AuthenticationFailed(
                f"{self._mechanism}: the broker asks for {iterations} iterations, which is not between "
                f"{_ITERATIONS_MIN} and {_ITERATIONS_MAX}; set the user's password again"
            )
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, salt, int(iterations))
        final_bare = f"c=biws,r={nonce}"
        signed = f"{self._first_bare},{challenge.decode()},{final_bare}".encode()
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._digest, client_key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{final_bare},p={base64.b64encode(proof).decode()}".encode()

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, self._digest).digest()


def _parse_scram(text: bytes) -> dict[str, str]:
    try:
        fields = dict(part.split("=", 1) for part in text.decode().split(","))
    except ValueError:
        raise AuthenticationFailed("SCRAM: the broker's words cannot be understood; check sasl.mechanism") from None
    if "e" in fields:
        raise AuthenticationFailed(f"SCRAM: the broker refuses ({fields['e']}); check sasl.username and sasl.password")
    return fields


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


#: asks the broker with one of the two SASL messages
AskSasl = Callable[[bytes], bytes]


def authenticate(sasl: Sasl, ask: AskSasl) -> None:
    """Lead the conversation to its end."""
    exchange = sasl.start()
    words: bytes | None = exchange.first()
    while words is not None:
        words = exchange.answer(ask(words))
