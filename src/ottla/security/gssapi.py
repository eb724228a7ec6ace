"""Kerberos by the GSSAPI library of MIT Kerberos, which is called through ctypes. The only file that does so.

The library (``libgssapi_krb5.so.2``) is part of most Linux systems. Packages for Python that wrap it must be compiled
with its header files, and this file needs a few of its functions.

Objects of the library are released when the Python object that has them is deleted. A context is used by one thread at
a time; ctypes releases the GIL during a call.
"""

from __future__ import annotations

import ctypes
import secrets
import weakref
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from typing import Any, Final

from ottla.security.certificates import read_key_file
from ottla.security.errors import AuthenticationFailed, SecurityConfigError

_LIBRARY: Final = "libgssapi_krb5.so.2"
_COMPLETE, _CONTINUE_NEEDED = 0, 1
_INITIATE, _ACCEPT = 1, 2
_ANONYMOUS_FLAG: Final = 64
#: the server proves who it is; messages that are sent twice or in another order are refused; wrapped data is protected
_MUTUAL_FLAG, _REPLAY_FLAG, _SEQUENCE_FLAG, _INTEGRITY_FLAG = 2, 4, 8, 32
_INDEFINITE: Final = 0xFFFFFFFF
_STATUS_OF_GSSAPI, _STATUS_OF_KERBEROS = 1, 2


class _Buffer(ctypes.Structure):
    _fields_ = (("length", c_size_t), ("value", c_void_p))


class _Oid(ctypes.Structure):
    _fields_ = (("length", c_uint32), ("elements", c_char_p))


class _OidSet(ctypes.Structure):
    _fields_ = (("count", c_size_t), ("elements", POINTER(_Oid)))


class _KeyValue(ctypes.Structure):
    _fields_ = (("key", c_char_p), ("value", c_char_p))


class _KeyValues(ctypes.Structure):
    _fields_ = (("count", c_uint32), ("elements", POINTER(_KeyValue)))


#: 1.2.840.113554.1.2.2, and its type of names; SERVICE@HOST is 1.2.840.113554.1.2.1.4
_KERBEROS: Final = _Oid(9, b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02")
_PRINCIPAL_NAME: Final = _Oid(10, b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x01")
_SERVICE_NAME: Final = _Oid(10, b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x01\x04")

_PARAMETERS: Final[dict[str, tuple[Any, ...]]] = {
    "gss_import_name": (c_void_p, POINTER(_Buffer), POINTER(_Oid), POINTER(c_void_p)),
    "gss_acquire_cred_from": (
        c_void_p, c_void_p, c_uint32, POINTER(_OidSet), c_int, POINTER(_KeyValues), POINTER(c_void_p), c_void_p,
        c_void_p,
    ),
    "gss_inquire_cred": (c_void_p, c_void_p, POINTER(c_void_p), c_void_p, c_void_p, c_void_p),
    "gss_accept_sec_context": (
        c_void_p, POINTER(c_void_p), c_void_p, POINTER(_Buffer), c_void_p, POINTER(c_void_p), c_void_p,
        POINTER(_Buffer), POINTER(c_uint32), c_void_p, c_void_p,
    ),
    "gss_init_sec_context": (
        c_void_p, c_void_p, POINTER(c_void_p), c_void_p, POINTER(_Oid), c_uint32, c_uint32, c_void_p, POINTER(_Buffer),
        c_void_p, POINTER(_Buffer), POINTER(c_uint32), c_void_p,
    ),
    "gss_wrap": (c_void_p, c_void_p, c_int, c_uint32, POINTER(_Buffer), c_void_p, POINTER(_Buffer)),
    "gss_unwrap": (c_void_p, c_void_p, POINTER(_Buffer), POINTER(_Buffer), c_void_p, c_void_p),
    "gss_display_name": (c_void_p, c_void_p, POINTER(_Buffer), c_void_p),
    "gss_display_status": (c_void_p, c_uint32, c_int, POINTER(_Oid), POINTER(c_uint32), POINTER(_Buffer)),
    "gss_release_buffer": (c_void_p, POINTER(_Buffer)),
    "gss_release_name": (c_void_p, POINTER(c_void_p)),
    "gss_release_cred": (c_void_p, POINTER(c_void_p)),
    "gss_delete_sec_context": (c_void_p, POINTER(c_void_p), c_void_p),
}  # fmt: skip


class _Failed(Exception):
    """A call of the library failed; the text is the library's."""


class _Gssapi:
    """The functions of the library. Each takes the arguments of RFC 2744 after ``minor_status``."""

    def __init__(self) -> None:
        """Raise SecurityConfigError if the library is not installed."""
        try:
            self._library = ctypes.CDLL(_LIBRARY)
            for name, parameters in _PARAMETERS.items():
                function = getattr(self._library, name)
                function.argtypes, function.restype = parameters, c_uint32
        except (OSError, AttributeError):
            raise SecurityConfigError(
                f"GSSAPI needs {_LIBRARY} of MIT Kerberos, which is not installed: apt-get install libgssapi-krb5-2"
            ) from None

    def call(self, name: str, *arguments: Any) -> int:
        """Return the status of a call, complete or not. Raise _Failed."""
        minor = c_uint32()
        status: int = getattr(self._library, name)(byref(minor), *arguments)
        if status & ~0xFFFF:
            reasons = (self._reason(status, _STATUS_OF_GSSAPI), self._reason(minor.value, _STATUS_OF_KERBEROS))
            raise _Failed(": ".join(reason for reason in reasons if reason))
        return status

    def _reason(self, status: int, kind: int) -> str:
        minor, more, text = c_uint32(), c_uint32(), _Buffer()
        failed = self._library.gss_display_status(
            byref(minor), status, kind, byref(_KERBEROS), byref(more), byref(text)
        )
        return "" if failed else self.take(text).decode(errors="replace")

    def take(self, buffer: _Buffer) -> bytes:
        """Return the bytes of a buffer of the library, and release it."""
        data = ctypes.string_at(buffer.value, buffer.length) if buffer.value else b""
        self.release("gss_release_buffer", buffer)
        return data

    def release(self, function: str, handle: Any, *rest: Any) -> None:
        minor = c_uint32()
        getattr(self._library, function)(byref(minor), byref(handle), *rest)

    def display(self, name: c_void_p) -> str:
        """Return the text of a name, and release the name."""
        text = _Buffer()
        try:
            self.call("gss_display_name", name, byref(text), None)
        finally:
            self.release("gss_release_name", name)
        return self.take(text).decode(errors="replace")


def _buffer(data: bytes) -> _Buffer:
    """Return a buffer for the library. The bytes must live as long as it is used."""
    return _Buffer(len(data), ctypes.cast(c_char_p(data), c_void_p))


def _acquire(gssapi: _Gssapi, principal: str, usage: int, store: dict[bytes, str]) -> c_void_p:
    """Return credentials, which the caller releases. Raise _Failed."""
    name, credentials = c_void_p(), c_void_p()
    data = principal.encode()
    pairs = (_KeyValue * len(store))(*(_KeyValue(key, value.encode()) for key, value in store.items()))
    elements = ctypes.cast(pairs, POINTER(_KeyValue))
    mechanisms = _OidSet(1, ctypes.pointer(_KERBEROS))
    gssapi.call("gss_import_name", byref(_buffer(data)), byref(_PRINCIPAL_NAME), byref(name))
    try:
        gssapi.call(
            "gss_acquire_cred_from", name, _INDEFINITE, byref(mechanisms), usage,
            byref(_KeyValues(len(store), elements)), byref(credentials), None, None,
        )  # fmt: skip
    finally:
        gssapi.release("gss_release_name", name)
    return credentials


class Kerberos:
    """The credentials of the broker in Kerberos: a principal, and a keytab with its keys."""

    def __init__(self, *, keytab: str, principal: str) -> None:
        """Raise SecurityConfigError if the library, the keytab or the principal cannot be used."""
        self._gssapi = gssapi = _Gssapi()
        read_key_file(keytab)
        try:
            self._credentials = _acquire(gssapi, principal, _ACCEPT, {b"keytab": f"FILE:{keytab}"})
            weakref.finalize(self, gssapi.release, "gss_release_cred", self._credentials)
            own = c_void_p()
            gssapi.call("gss_inquire_cred", self._credentials, byref(own), None, None, None)
            #: the realm of the broker
            self.realm = gssapi.display(own).rpartition("@")[2]
        except _Failed as error:
            raise SecurityConfigError(f"the keytab {keytab} cannot be used for {principal}: {error}") from None

    def accept(self) -> KerberosContext:
        """Return the server's side of a new login."""
        return KerberosContext(self, self._gssapi, self._credentials)


class KerberosClient:
    """A principal that logs in to brokers with the keys of a keytab.

    The library gets tickets from the KDC when a login needs them, and new ones before they expire. They are in memory
    only. Each login acquires its credentials anew, because the library looks at the age of the tickets only then.
    """

    def __init__(self, *, keytab: str, principal: str, service: str) -> None:
        """Raise SecurityConfigError if the library or the keytab cannot be used. The KDC is not asked now."""
        self._gssapi = _Gssapi()
        read_key_file(keytab)
        self._keytab, self._principal, self._service = keytab, principal, service
        self._tickets = f"MEMORY:ottla-{secrets.token_hex(8)}"

    def connect(self, host: str) -> KerberosClientContext:
        """Return the client's side of a new login to the service on a host."""
        return KerberosClientContext(self._gssapi, self._acquire, f"{self._service}@{host}")

    def _acquire(self) -> c_void_p:
        store = {b"client_keytab": f"FILE:{self._keytab}", b"ccache": self._tickets}
        return _acquire(self._gssapi, self._principal, _INITIATE, store)


class _Context:
    """One side of a login: a context of the library."""

    def __init__(self, gssapi: _Gssapi, other: str) -> None:
        """``other`` names the other side in errors."""
        self._gssapi = gssapi
        self._other = other
        self._handle = c_void_p()
        self.name: str | None = None
        weakref.finalize(self, gssapi.release, "gss_delete_sec_context", self._handle, None)

    def wrap(self, data: bytes) -> bytes:
        wrapped = _Buffer()
        return self._convert("gss_wrap", 0, 0, byref(_buffer(data)), None, byref(wrapped), into=wrapped)

    def unwrap(self, data: bytes) -> bytes:
        plain = _Buffer()
        return self._convert("gss_unwrap", byref(_buffer(data)), byref(plain), None, None, into=plain)

    def _convert(self, function: str, *arguments: Any, into: _Buffer) -> bytes:
        try:
            status = self._gssapi.call(function, self._handle, *arguments)
        except _Failed as error:
            raise AuthenticationFailed(f"a message of the Kerberos {self._other} cannot be read: {error}") from None
        data = self._gssapi.take(into)
        if status != _COMPLETE:
            raise AuthenticationFailed(f"a message of the Kerberos {self._other} is old, or was sent twice")
        return data


class KerberosContext(_Context):
    """One login, the server's side."""

    def __init__(self, kerberos: Kerberos, gssapi: _Gssapi, credentials: c_void_p) -> None:
        super().__init__(gssapi, "client")
        self._kerberos = kerberos  # a reference, because this object releases the credentials when it is deleted
        self._credentials = credentials

    def step(self, token: bytes) -> bytes:
        client, answer, flags = c_void_p(), _Buffer(), c_uint32()
        try:
            status = self._gssapi.call(
                "gss_accept_sec_context", byref(self._handle), self._credentials, byref(_buffer(token)), None,
                byref(client), None, byref(answer), byref(flags), None, None,
            )  # fmt: skip
            name = self._gssapi.display(client) if client else ""
        except _Failed as error:
            raise AuthenticationFailed(f"Kerberos refuses the client: {error}") from None
        finally:
            reply = self._gssapi.take(answer)  # also released if the login was refused
        if not status & _CONTINUE_NEEDED:
            if flags.value & _ANONYMOUS_FLAG or not name:
                raise AuthenticationFailed("the Kerberos client is anonymous")
            self.name = name
        return reply


class KerberosClientContext(_Context):
    """One login, the client's side. The server must prove that it is the service of that host."""

    def __init__(self, gssapi: _Gssapi, acquire: Callable[[], c_void_p], service: str) -> None:
        super().__init__(gssapi, "service")
        self._acquire = acquire
        self._service = service
        self._credentials: c_void_p | None = None
        self._target = c_void_p()

    def step(self, token: bytes) -> bytes:
        answer, flags = _Buffer(), c_uint32()
        try:
            if self._credentials is None:
                self._begin()
            wanted = _MUTUAL_FLAG | _REPLAY_FLAG | _SEQUENCE_FLAG | _INTEGRITY_FLAG
            status = self._gssapi.call(
                "gss_init_sec_context", self._credentials, byref(self._handle), self._target, byref(_KERBEROS), wanted,
                0, None, byref(_buffer(token)), None, byref(answer), byref(flags), None,
            )  # fmt: skip
        except _Failed as error:
            raise AuthenticationFailed(f"no login to {self._service} with Kerberos: {error}") from None
        finally:
            reply = self._gssapi.take(answer)
        if not status & _CONTINUE_NEEDED:
            if not flags.value & _MUTUAL_FLAG or not flags.value & _INTEGRITY_FLAG:
                raise AuthenticationFailed(f"{self._service} does not prove with Kerberos that it is this service")
            self.name = self._service
        return reply

    def _begin(self) -> None:
        data = self._service.encode()
        self._gssapi.call("gss_import_name", byref(_buffer(data)), byref(_SERVICE_NAME), byref(self._target))
        weakref.finalize(self, self._gssapi.release, "gss_release_name", self._target)
        self._credentials = self._acquire()
        weakref.finalize(self, self._gssapi.release, "gss_release_cred", self._credentials)
