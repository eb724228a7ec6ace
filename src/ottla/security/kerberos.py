"""GSSAPI (RFC 4752), both sides: the exchange of messages after which a Kerberos name is known. Pure.

    client  token of Kerberos                     one or more times, until both sides have the same keys
    server  token of Kerberos
    client  (empty)
    server  security layers that it offers        encrypted: 01 00 00 00, which is none
    client  the layer that it chooses, a name     encrypted: 01 00 00 00 and the name

Only "no security layer" is offered, as in Kafka: TLS protects the connection. The client may ask for a name; it gets
its own one in any case, or is refused (CVE-2017-12610).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ottla.security.errors import AuthenticationFailed
from ottla.security.principals import user as user_principal
from ottla.security.sasl import Identity

_TOKEN_BYTES_MAX: Final = 64 << 10
#: no security layer, and a maximum of zero bytes for it
_NO_LAYER: Final = b"\x01\0\0\0"


class Context(Protocol):
    """One side of the exchange of Kerberos tokens. All methods raise AuthenticationFailed."""

    #: the Kerberos name of the other side, when the exchange is complete
    name: str | None

    def step(self, token: bytes) -> bytes:
        """Return the answer to a token. It may be empty when the exchange is complete."""

    def wrap(self, data: bytes) -> bytes: ...

    def unwrap(self, data: bytes) -> bytes: ...


class GssapiExchange:
    """A login with GSSAPI. Each answer is computed in a thread, because Kerberos reads files."""

    def __init__(self, context: Context, user_name: Callable[[str], str]) -> None:
        """``user_name`` returns the user name for a Kerberos name."""
        self._context = context
        self._user_name = user_name
        self._answer = self._negotiate
        self.identity: Identity | None = None

    def respond(self, token: bytes) -> Callable[[], bytes]:
        if len(token) > _TOKEN_BYTES_MAX or self.identity is not None:
            raise AuthenticationFailed("the GSSAPI token is too long or comes after the login")
        return lambda: self._answer(token)

    def _negotiate(self, token: bytes) -> bytes:
        answer = self._context.step(token)
        if self._context.name is None:
            return answer
        if not answer:
            return self._offer(b"")
        self._answer = self._offer
        return answer

    def _offer(self, token: bytes) -> bytes:
        if token:
            raise AuthenticationFailed("the GSSAPI client has sent a token where none is expected")
        self._answer = self._choose
        return self._context.wrap(_NO_LAYER)

    def _choose(self, token: bytes) -> bytes:
        chosen = self._context.unwrap(token)
        if len(chosen) < 4 or chosen[0] != _NO_LAYER[0]:
            raise AuthenticationFailed("the GSSAPI client chooses a security layer that was not offered")
        name = self._context.name
        assert name is not None
        try:
            wanted = chosen[4:].decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("the name of the GSSAPI client is not UTF-8") from None
        if wanted not in ("", name, name.rpartition("@")[0]):
            raise AuthenticationFailed(f"the GSSAPI client {name!r} asks for the rights of another user")
        self.identity = Identity(user_principal(self._user_name(name)))
        return b""


class GssapiClientExchange:
    """The client's side of a login with GSSAPI. Each method may ask the KDC, which takes time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._answer = self._negotiate

    def first(self) -> bytes:
        return self._context.step(b"")

    def answer(self, challenge: bytes) -> bytes | None:
        return self._answer(challenge)

    def _negotiate(self, challenge: bytes) -> bytes | None:
        if self._context.name is not None:
            return self._choose(challenge)
        # The answer to the last token may be empty: the broker then offers its layers.
        return self._context.step(challenge)

    def _choose(self, challenge: bytes) -> bytes | None:
        offered = self._context.unwrap(challenge)
        if len(offered) != 4 or not offered[0] & _NO_LAYER[0]:
            raise AuthenticationFailed("GSSAPI: the broker asks for a security layer; TLS is used instead of it")
        self._answer = self._end
        # Without a name: the broker takes that of the ticket.
        return self._context.wrap(_NO_LAYER)

    def _end(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise AuthenticationFailed("GSSAPI: the broker sends a token after the end of the login")
        return None
