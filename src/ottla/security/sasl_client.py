"""The client's side of SASL, for the clients of this package and for brokers that connect to each other. Pure.

The exchanges do no I/O: bytes in, bytes out.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.security.errors import AuthenticationFailed

_SCRAM: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: mechanisms with a user name and a password
PASSWORD_MECHANISMS: Final = ("PLAIN", *_SCRAM)
MECHANISMS: Final = (*PASSWORD_MECHANISMS, "OAUTHBEARER", "GSSAPI")

#: RFC 5802 has no upper bound; a server that names a huge one would keep this client busy for minutes
_ITERATIONS_MAX: Final = 1_000_000
_ITERATIONS_MIN: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Sasl:
    """A user name and a password, and the mechanism that they are for."""

    mechanism: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"Sasl(mechanism={self.mechanism!r}, username={self.username!r})"

    def start(self) -> SaslExchange:
        if self.mechanism == "PLAIN":
            return _Plain(self)
        return ScramExchange(self, secrets.token_urlsafe(24))


class SaslExchange(Protocol):
    """The client's side of a login: send `first`, then the answer to each token of the server.

    Both methods raise AuthenticationFailed. Those of OAUTHBEARER and GSSAPI may ask other servers, which takes time.
    """

    def first(self) -> bytes: ...

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the answer to a token of the server; None when the login is complete."""


class _Plain:
    """RFC 4616: the password as it is. Only TLS keeps it from others."""

    def __init__(self, sasl: Sasl) -> None:
        self._sasl = sasl

    def first(self) -> bytes:
        return f"\0{self._sasl.username}\0{self._sasl.password}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        return None


class BearerExchange:
    """OAUTHBEARER (RFC 7628): a token that an issuer has signed."""

    def __init__(self, token: Callable[[], str], extensions: Mapping[str, str] | None = None) -> None:
        """``token`` returns the token; ``extensions`` are sent with it (KIP-342)."""
        self._token = token
        self._extensions = extensions or {}
        self._refusal = ""

    def first(self) -> bytes:
        pairs = (f"{name}={value}\x01" for name, value in self._extensions.items())
        return f"n,,\x01auth=Bearer {self._token()}\x01{''.join(pairs)}\x01".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if self._refusal:
            raise AuthenticationFailed(self._refusal)  # the broker must not accept a login that it has refused
        if not challenge:
            return None
        # The broker sends the reason first, and ends the login after this answer.
        self._refusal = "OAUTHBEARER: the broker refuses the token; its log has the reason"
        return b"\x01"


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
