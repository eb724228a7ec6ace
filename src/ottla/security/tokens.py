"""Delegation tokens (KIP-48): what a token is, and logins with it. Pure.

A user who is logged in asks for a token and gives it to his jobs. A job logs in with SCRAM: the id of the token is the
user name, its HMAC in base64 is the password, and the extension ``tokenauth=true`` says so. It then has the rights of
the owner of the token, until the token expires.

The HMAC is made from the id and ``delegation.token.secret.key``, which all brokers share. No store has it.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from ottla.security.salts import ITERATIONS_MIN, SALT_BYTES
from ottla.security.scram import Mechanism, ScramCredential


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """A token. Times are milliseconds of the wall clock."""

    token_id: str
    owner: str
    #: the principal that asked for the token: the owner, or one that may create tokens for the owner
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    #: renewals cannot go beyond this
    expires_ms_max: int

    def belongs_to(self, principal: str) -> bool:
        """Return whether a principal may see, renew and expire the token."""
        return principal in (self.owner, self.requester) or principal in self.renewers

    def is_expired(self, now_ms: int) -> bool:
        return min(self.expires_ms, self.expires_ms_max) < now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSecret:
    """Makes the HMACs of tokens."""

    key: bytes = field(repr=False)

    def hmac(self, token_id: str) -> bytes:
        return _hmac(self.key, token_id)

    def credential(self, mechanism: Mechanism, token_id: str) -> ScramCredential:
        """Return the credential for logins with a token. Takes milliseconds: call it in a thread.

        The salt is the same on all brokers.
        """
        salt = hmac.digest(self.key, f"salt\0{mechanism.title}\0{token_id}".encode(), "sha256")[:SALT_BYTES]
        password = base64.b64encode(self.hmac(token_id)).decode()
        return ScramCredential.from_password(mechanism, password, salt, ITERATIONS_MIN)


@lru_cache(maxsize=20_000)
def _hmac(key: bytes, token_id: str) -> bytes:
    """Return the HMAC of a token. A request with an HMAC is compared with those of all tokens."""
    return hmac.digest(key, token_id.encode(), "sha512")


class TokenLogins:
    """Finds the tokens that clients log in with."""

    def __init__(
        self, secret: TokenSecret, tokens: Callable[[], Mapping[str, DelegationToken]], wall_ms: Callable[[], int]
    ) -> None:
        """``tokens`` returns the tokens of the cluster by id."""
        self._secret = secret
        self._tokens = tokens
        self._wall_ms = wall_ms

    def find(self, token_id: str) -> DelegationToken | None:
        """Return a token that has not expired, None if there is none."""
        token = self._tokens().get(token_id)
        return None if token is None or token.is_expired(self._wall_ms()) else token

    def credential(self, mechanism: Mechanism, token_id: str) -> ScramCredential | None:
        """Return the credential of a token that has not expired. Takes milliseconds: call it in a thread."""
        return None if self.find(token_id) is None else self._secret.credential(mechanism, token_id)
