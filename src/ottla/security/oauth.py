"""OAUTHBEARER (RFC 7628): logins with signed JSON Web Tokens. The only file that imports PyJWT.

A token is accepted if its signature is that of a key of the JWKS, with an algorithm that uses public keys, it has not
expired, and its issuer and audience are the expected ones. Without a JWKS no broker starts with this mechanism: an
unsigned token proves nothing (CVE-2026-33557).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import jwt

from ottla.security.errors import AuthenticationFailed, SecurityConfigError
from ottla.security.principals import user as user_principal
from ottla.security.sasl import Identity

#: algorithms with public keys. "none" is no algorithm, and HMAC would take a public key for a secret
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_TOKEN_BYTES_MAX: Final = 64 << 10
_SEPARATOR: Final = "\x01"
JWKS_BYTES_MAX: Final = 1 << 20
_KEYS_MAX: Final = 100
#: tens of thousands of years, so that milliseconds fit into the reply
_EXPIRY_S_MAX: Final = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class OauthRules:
    """The claims that a token must have."""

    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    user_claim: str = "sub"
    scope_claim: str = "scope"
    clock_skew_s: int = 30


class Keys(Protocol):
    """Finds the public keys of the issuer."""

    def find(self, key_id: str | None) -> Any:
        """Return a key. Raise AuthenticationFailed if there is none with this id."""


class Jwks:
    """The public keys of the issuer."""

    def __init__(self) -> None:
        self._keys: dict[str | None, Any] = {}

    def load(self, data: bytes) -> None:
        """Replace the keys by those of a JWKS document. Raise SecurityConfigError; the keys then stay as they were."""
        if len(data) > JWKS_BYTES_MAX:
            raise SecurityConfigError(f"the JWKS has more than {JWKS_BYTES_MAX} bytes")
        try:
            rows = json.loads(data)["keys"]
            if not isinstance(rows, list) or len(rows) > _KEYS_MAX:
                raise ValueError
            usable = [row for row in rows if row.get("use", "sig") == "sig" and row.get("kty") != "oct"]
            keys = {row.get("kid"): jwt.PyJWK.from_dict(row) for row in usable}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, jwt.PyJWTError):
            raise SecurityConfigError("the JWKS is no JSON object with a list of public keys") from None
        if not keys:
            raise SecurityConfigError("the JWKS has no public key for signatures")
        self._keys = keys

    def find(self, key_id: str | None) -> Any:
        """Return a key. Raise AuthenticationFailed if there is none with this id."""
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if key_id not in self._keys:
            raise AuthenticationFailed("the token is signed with a key that the JWKS does not have")
        return self._keys[key_id]


@dataclass(slots=True, kw_only=True)
class OauthExchange:
    """A login with OAUTHBEARER."""

    jwks: Keys
    rules: OauthRules
    identity: Identity | None = None
    _refusal: AuthenticationFailed | None = field(default=None, repr=False)

    def respond(self, token: bytes) -> bytes | Callable[[], bytes]:
        if self._refusal is not None:
            raise self._refusal  # RFC 7628: the client acknowledges the refusal
        if self.identity is not None or len(token) > _TOKEN_BYTES_MAX:
            raise AuthenticationFailed("the OAUTHBEARER message is too long or comes after the login")
        return lambda: self._check(token)

    def _check(self, message: bytes) -> bytes:
        authorization_id, text = _parse_message(message)
        try:
            self.identity = check_token(text, self.jwks, self.rules, authorization_id)
        except AuthenticationFailed as error:
            self._refusal = error
            return b'{"status":"invalid_token"}'
        return b""


def check_token(text: str, keys: Keys, rules: OauthRules, wanted_name: str = "") -> Identity:
    """Return the user whom a token names. Raise AuthenticationFailed if it is not valid, or names another user."""
    try:
        header = jwt.get_unverified_header(text)
        key = keys.find(header.get("kid"))
        claims: Mapping[str, Any] = jwt.decode(
            text, key, algorithms=list(ALGORITHMS), issuer=rules.issuer, leeway=rules.clock_skew_s,
            audience=list(rules.audiences) or None,
            options={"require": ["exp", rules.user_claim], "verify_aud": bool(rules.audiences)},
        )  # fmt: skip
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise AuthenticationFailed(f"the token is refused: {error}") from None
    name = claims.get(rules.user_claim)
    if not isinstance(name, str) or not name or wanted_name not in ("", name):
        raise AuthenticationFailed("the token names no user, or another one than the client asks for")
    if not _is_scope(claims.get(rules.scope_claim)):
        raise AuthenticationFailed(f"the claim {rules.scope_claim} of the token is no text and no list of texts")
    return Identity(user_principal(name), min(int(claims["exp"]), _EXPIRY_S_MAX) * 1000)


def _parse_message(message: bytes) -> tuple[str, str]:
    """Return the user that the client asks for, and the token. Raise AuthenticationFailed."""
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("the OAUTHBEARER message is not UTF-8") from None
    header, _, rest = text.partition(_SEPARATOR)
    parts = header.split(",")
    pairs = [pair.partition("=") for pair in rest.split(_SEPARATOR) if pair]
    fields = {name: value for name, _, value in pairs}
    scheme, _, token = fields.get("auth", "").partition(" ")
    if parts[0] != "n" or len(parts) != 3 or parts[2] or not rest.endswith(_SEPARATOR * 2) or len(pairs) != len(fields):
        raise AuthenticationFailed("the OAUTHBEARER message is malformed")
    if scheme.lower() != "bearer" or not token.strip():
        raise AuthenticationFailed("the OAUTHBEARER message has no bearer token")
    return parts[1].removeprefix("a="), token.strip()


def _is_scope(value: Any) -> bool:
    """Return whether this can be the value of the claim with the scope. Nothing else is done with it, as in Kafka."""
    return (
        value is None or isinstance(value, str) or (isinstance(value, list) and all(isinstance(v, str) for v in value))
    )
