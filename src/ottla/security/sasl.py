"""The server's side of SASL: which mechanisms a listener offers, and the exchange of tokens for each of them. Pure.

A token of the client gets an answer, or a function that computes the answer and takes milliseconds: the caller runs it
in a thread. When the exchange is complete, ``identity`` says who the client is.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from ottla.security.errors import AuthenticationFailed
from ottla.security.principals import user as user_principal
from ottla.security.salts import ITERATIONS_MIN
from ottla.security.scram import TOKEN_EXTENSION, FindCredential, Mechanism, ScramCredential, ScramServer
from ottla.security.tokens import TokenLogins

#: the error message for clients. It is the same for all reasons, so that it tells an attacker nothing.
REFUSAL_TEXT: Final = "Authentication failed: invalid credentials"
_TOKEN_BYTES_MAX: Final = 4096
_TOKEN_LOGIN: Final = f",{TOKEN_EXTENSION}=".encode()


class Identity(NamedTuple):
    """Who a client is."""

    principal: str
    #: the wall clock time at which the credentials expire, in milliseconds; None if they do not
    expires_ms: int | None = None
    #: whether the client authenticated with a delegation token, with which it cannot get another one
    is_token: bool = False


class Exchange(Protocol):
    """One login."""

    #: None until the login is complete
    identity: Identity | None

    def respond(self, token: bytes) -> bytes | Callable[[], bytes]:
        """Return the answer to a token, or a function that returns it. Both may raise AuthenticationFailed."""


#: begins a login; one for each mechanism that a listener offers, by its name
Mechanisms = Mapping[str, Callable[[], Exchange]]


class ScramExchange:
    """A login with SCRAM, by a user or with a delegation token."""

    def __init__(self, server: ScramServer, tokens: TokenLogins | None = None) -> None:
        self._server = server
        self._tokens = tokens
        self.identity: Identity | None = None

    def respond(self, token: bytes) -> bytes | Callable[[], bytes]:
        # The credential of a delegation token is computed, those of users are stored.
        return partial(self._respond, token) if _TOKEN_LOGIN in token else self._respond(token)

    def _respond(self, token: bytes) -> bytes:
        answer = self._server.respond(token)
        if self._server.user is not None:
            self.identity = self._identity(self._server.user)
        return answer

    def _identity(self, name: str) -> Identity:
        if not self._server.is_token:
            return Identity(user_principal(name))
        found = None if self._tokens is None else self._tokens.find(name)
        if found is None:
            raise AuthenticationFailed("the delegation token has expired")
        return Identity(found.owner, found.expires_ms, is_token=True)


#: a credential and the mechanism that it is for
Stored = tuple[Mechanism, ScramCredential]


class Work(NamedTuple):
    """What the check of a password computes, which determines how long it takes."""

    mechanism: Mechanism
    iterations: int

    @classmethod
    def of(cls, credentials: Mapping[Mechanism, ScramCredential]) -> Work:
        """Return the work for the password of a user with these credentials, of which there is at least one."""
        mechanism, credential = password_credential(credentials)
        return cls(mechanism, credential.iterations)

    def fake(self) -> Stored:
        """Return a credential that takes this work to check and that no password matches."""
        key = bytes(self.mechanism.key_bytes)
        return self.mechanism, ScramCredential(bytes(16), key, key, self.iterations)


OWN_WORK: Final = Work(Mechanism.SCRAM_SHA_256, ITERATIONS_MIN)


def password_credential(credentials: Mapping[Mechanism, ScramCredential]) -> Stored:
    """Return the credential of a user against which PLAIN checks passwords."""
    mechanism = min(credentials)
    return mechanism, credentials[mechanism]


class PlainExchange:
    """A login with PLAIN (RFC 4616): the users of ``sasl.jaas.config``, and those that have SCRAM credentials.

    A wrong password and an unknown user take the same time: all logins compute a salted password. How long that takes
    depends on the credentials of a user. For users without any, it takes as long as for some known user, and each
    amount of work is as frequent among unknown users as among known ones.
    """

    def __init__(
        self,
        passwords: Mapping[str, str],
        find: Mapping[Mechanism, FindCredential],
        work_of_unknown: Callable[[str], Work] = lambda name: OWN_WORK,
    ) -> None:
        """``work_of_unknown`` returns the work for a user without SCRAM credentials."""
        self._passwords = passwords
        self._find = find
        self._work_of_unknown = work_of_unknown
        self.identity: Identity | None = None

    def respond(self, token: bytes) -> Callable[[], bytes]:
        if len(token) > _TOKEN_BYTES_MAX or self.identity is not None:
            raise AuthenticationFailed("the PLAIN token is too long or comes after the login")
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise AuthenticationFailed("the PLAIN token is not UTF-8") from None
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise AuthenticationFailed("the PLAIN token has no user name or no password")
        authorization_id, name, password = parts
        if authorization_id not in ("", name):
            raise AuthenticationFailed("the PLAIN client asks for the rights of another user")
        # Here, because the function that is returned runs in a thread and must not read what the event loop changes.
        known = self._credential(name)
        return partial(self._check, name, password, known, self._work_of_unknown(name).fake())

    def _check(self, name: str, password: str, known: Stored | None, fake: Stored) -> bytes:
        # Also for users without such a credential, so that the time does not tell which users there are.
        mechanism, credential = known or fake
        is_right = credential.is_password(mechanism, password) and known is not None
        stored = self._passwords.get(name)
        is_same = is_same_text(stored or "", password)
        if stored is not None:
            is_right = is_same
        if not is_right:
            raise AuthenticationFailed("the user name or the password is wrong")
        self.identity = Identity(user_principal(name))
        return b""

    def _credential(self, name: str) -> Stored | None:
        found = {mechanism: known for mechanism, find in self._find.items() if (known := find(name)) is not None}
        return password_credential(found) if found else None


def is_same_text(one: str, other: str) -> bool:
    """Compare two secrets in a time that depends on neither their contents nor their lengths."""
    digests = (hashlib.sha256(each.encode()).digest() for each in (one, other))
    return hmac.compare_digest(*digests)
