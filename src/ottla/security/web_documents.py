"""Small documents from web servers: the keys of a token issuer, and tokens. Blocking; call it in a thread.

A request has limits: a timeout for each packet, a timeout for the whole request, and a maximum size of the document. A
redirect is an error, because the operator has set the address of the document. Errors never contain the body of the
request or of the answer, which may have secrets.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Container, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass, url2pathname

from ottla.env.socket_deadline import SocketDeadline
from ottla.model.settings_security import ListenerSettings, listener_settings
from ottla.model.types import is_loopback
from ottla.security.errors import SecurityConfigError

#: time for each packet, and for the whole request
PACKET_S: Final = 5.0
_REQUEST_S_MAX: Final = 15.0
_CHUNK_BYTES: Final = 64 << 10


class DocumentError(Exception):
    """A document cannot be read. The text has no secret."""

    def __init__(self, text: str, *, status: int = 0) -> None:
        super().__init__(text)
        #: the status of the web server's answer; 0 if there was none
        self.status = status


class Limits(NamedTuple):
    """The bounds of one request."""

    size_bytes_max: int
    connect_s: float = PACKET_S
    read_s: float = PACKET_S
    total_s: float = _REQUEST_S_MAX


def check_url(setting: str, url: str) -> SplitResult:
    """Return the parts of a URL. Raise SecurityConfigError if secrets or keys must not be read from there."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise SecurityConfigError(f"{setting} is no URL") from None
    if parts.username is not None or parts.password is not None:
        raise SecurityConfigError(f"{setting} must not have a user name or a password")
    if parts.scheme == "file" and not host and parts.path.startswith("/"):
        return parts
    if host and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        return parts
    raise SecurityConfigError(
        f"{setting} must be file:///PATH or https://HOST/PATH. http: is allowed for this machine only, because others "
        "could read and change the document on its way"
    )


def shown_url(parts: SplitResult) -> str:
    """Return a URL for the log: without the query, which may have a secret."""
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def read_file(parts: SplitResult, size_bytes_max: int) -> bytes:
    """Return the bytes of a ``file:`` URL. Raise DocumentError."""
    try:
        with open(url2pathname(parts.path), "rb") as file:
            data = file.read(size_bytes_max + 1)
    except OSError as error:
        raise DocumentError(f"{parts.path} cannot be read: {error.strerror}") from None
    if len(data) > size_bytes_max:
        raise DocumentError(f"{parts.path} has more than {size_bytes_max} bytes")
    return data


def request_document(
    parts: SplitResult,
    limits: Limits,
    *,
    tls: ssl.SSLContext | None,
    headers: Mapping[str, str],
    body: bytes | None = None,
    statuses: Container[int] = frozenset({200}),
) -> bytes:
    """Return the document at an http(s) URL: by POST if there is a body, otherwise by GET. Raise DocumentError.

    Another status than these is an error, also that of a redirect.
    """
    connection = _connection(parts, limits.connect_s, tls)
    deadline = SocketDeadline(limits.total_s)

    def connect(*arguments: Any) -> socket.socket:
        return deadline.watch(socket.create_connection(*arguments))

    connection._create_connection = connect  # type: ignore[attr-defined]
    try:
        connection.connect()
        connection.sock.settimeout(limits.read_s)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        with connection.getresponse() as answer:
            return _read_answer(answer, limits, deadline, statuses)
    except ssl.SSLCertVerificationError as error:
        raise DocumentError(f"the certificate of the web server is not trusted: {error.verify_message}") from None
    except (OSError, HTTPException, ValueError) as error:
        if deadline.is_over:
            raise DocumentError(f"the request has not ended after {limits.total_s:g} seconds") from None
        # Texts of HTTPException may have a part of the answer.
        text = (error.strerror or str(error)) if isinstance(error, OSError) else "the answer is malformed"
        raise DocumentError(text or type(error).__name__) from None
    finally:
        deadline.close()
        connection.close()


def _read_answer(answer: HTTPResponse, limits: Limits, deadline: SocketDeadline, statuses: Container[int]) -> bytes:
    if answer.status not in statuses:
        raise DocumentError(f"the web server answers with status {answer.status}", status=answer.status)
    data = bytearray()
    while chunk := answer.read1(_CHUNK_BYTES):
        data += chunk
        if len(data) > limits.size_bytes_max:
            raise DocumentError(f"the document has more than {limits.size_bytes_max} bytes")
    if deadline.is_over or answer.length:
        raise DocumentError("the connection was closed before the end of the document")
    return bytes(data)


def _connection(parts: SplitResult, connect_s: float, tls: ssl.SSLContext | None) -> HTTPConnection:
    """Return a connection that is not open yet. https uses the proxy of the environment, if there is one."""
    host = parts.hostname
    assert host is not None
    if parts.scheme == "http":
        return HTTPConnection(host, parts.port, timeout=connect_s)
    proxy = urlsplit("" if proxy_bypass(host) else getproxies().get("https", ""))
    if not proxy.hostname:
        return HTTPSConnection(host, parts.port, timeout=connect_s, context=tls)
    made = HTTPSConnection(proxy.hostname, proxy.port or 8080, timeout=connect_s, context=tls)
    made.set_tunnel(host, parts.port or 443)
    return made


def web_context(settings: ListenerSettings | None, options: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context for web servers. Raise SecurityConfigError.

    As in Kafka, if the login module has options whose names begin with ``ssl.``, only they are used. Otherwise the
    authorities of the system and those of ``ssl.truststore.*`` are trusted. Host names are always checked.
    """
    # Imported here, because `cryptography` takes 10 MB of memory, and clients without TLS do not need it.
    from ottla.security.certificates import client_context, load_trusted

    own = {name: text for name, text in options.items() if name.startswith("ssl.")}
    if own:
        try:
            context = client_context(listener_settings(own))
        except ValueError as error:
            raise SecurityConfigError(f"an option of the login module for TLS is wrong: {error}") from None
        context.check_hostname = True
        return context
    context = ssl.create_default_context()
    if settings is not None and (trusted := load_trusted(settings)):
        context.load_verify_locations(cadata=trusted)
    return context
