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
from typing import Final

from ottla.security.salts import ITERATIONS_MIN, SALT_BYTES
from ottla.security.scram import Mechanism, ScramCredential

#: SHA-512
HMAC_BYTES: Final = 64


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
        return hmac.digest(self.key, token_id.encode(), "sha512")

    def index_key(self, code: bytes) -> bytes:
        """Return the key of an HMAC in an index. It can be computed only with the secret."""
        return hmac.digest(self.key, b"index\0" + code, "sha256")

    def credential(self, mechanism: Mechanism, token_id: str) -> ScramCredential:
        """Return the credential for logins with a token. Takes milliseconds: call it in a thread.

        The salt is the same on all brokers.
        """
        salt = hmac.digest(self.key, f"salt\0{mechanism.title}\0{token_id}".encode(), "sha256")[:SALT_BYTES]
        password = base64.b64encode(self.hmac(token_id)).decode()
        return ScramCredential.from_password(mechanism, password, salt, ITERATIONS_MIN)


class TokenIndex:
    """Finds a token by its HMAC, which requests send in place of the id, without a comparison with each token.

    The HMAC of a token is computed once, by the first search after the token was added. The index has a keyed digest of
    each HMAC, so that the time of a search reveals nothing about the HMACs of tokens.
    """

    def __init__(self) -> None:
        self._secret: TokenSecret | None = None
        #: ids of tokens whose HMAC was not computed yet
        self._added: dict[str, None] = {}
        self._id_by_key: dict[bytes, str] = {}
        self._key_by_id: dict[str, bytes] = {}

    def add(self, token_id: str) -> None:
        if token_id not in self._key_by_id:
            self._added[token_id] = None

    def remove(self, token_id: str) -> None:
        self._added.pop(token_id, None)
        key = self._key_by_id.pop(token_id, None)
        if key is not None:
            del self._id_by_key[key]

    def find(self, secret: TokenSecret, code: bytes) -> str | None:
        """Return the id of the token with this HMAC, None if there is none."""
        if len(code) != HMAC_BYTES:
            return None
        if secret != self._secret:
            self._secret = secret
            self._added |= dict.fromkeys(self._key_by_id)
            self._id_by_key.clear()
            self._key_by_id.clear()
        for token_id in self._added:
            key = secret.index_key(secret.hmac(token_id))
            self._id_by_key[key], self._key_by_id[token_id] = token_id, key
        self._added.clear()
        found = self._id_by_key.get(secret.index_key(code))
        is_equal = found is not None and hmac.compare_digest(secret.hmac(found), code)
        return found if is_equal else None


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
