"""The public keys of a token issuer: a JWKS document from a file or a web server, read again from time to time.

OAUTHBEARER accepts a token only if one of these keys has signed it. Without keys no client can log in: a document that
cannot be read is reported, and the keys that are known stay.

The document is read at each ``sasl.oauthbearer.jwks.endpoint.refresh.ms``, and when a token names an unknown key,
because the issuer may have a new one. A client can send tokens with any key id, so the second is done at most once in
ten seconds. Reading is done in threads of the executor, never on the event loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener, url2pathname

from ottla.model.types import is_loopback
from ottla.security.errors import AuthenticationFailed, SecurityConfigError
from ottla.security.oauth import JWKS_BYTES_MAX, Jwks

log = logging.getLogger(__name__)

_SETTING: Final = "sasl.oauthbearer.jwks.endpoint.url"
#: shortest time between two readings because of unknown keys, or after a failure
_AGAIN_S: Final = 10.0
#: time for each packet of the web server, and for the whole document
_TIMEOUT_S: Final = 5.0
_DOCUMENT_S_MAX: Final = 15.0
_CHUNK_BYTES: Final = 64 << 10


class TokenKeys:
    """The keys of one issuer. All methods may be called in any thread."""

    def __init__(
        self, url: str, *, refresh_s: float, monotonic: Callable[[], float], read: Callable[[str], bytes] | None = None
    ) -> None:
        """Raise SecurityConfigError if the URL is not allowed, or if it names a file that has no keys.

        A web server is not asked now: a broker must be able to start while the issuer is down.
        """
        self._url = url
        self._refresh_s = refresh_s
        self._monotonic = monotonic
        self._read = read or read_document
        self._jwks = Jwks()
        #: held while the document is read
        self._reading = threading.Lock()
        #: when the document is read again
        self._due = 0.0
        #: when an unknown key may cause the document to be read again
        self._unknown_due = 0.0
        parts = _check_url(url)
        #: for the log: a query may have a secret
        self._shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
        if parts.scheme == "file":
            try:
                self._load()
            except OSError as error:
                raise SecurityConfigError(f"{_SETTING} cannot be read: {error.strerror}") from None

    def find(self, key_id: str | None) -> Any:
        """Return a key. Read the document again if it is unknown. Raise AuthenticationFailed if there is none."""
        try:
            return self._jwks.find(key_id)
        except AuthenticationFailed:
            if not self._read_for_unknown_key():
                raise
        return self._jwks.find(key_id)

    def _read_for_unknown_key(self) -> bool:
        """Return whether the document was read. Other logins do not wait for it."""
        now = self._monotonic()
        if now < self._unknown_due or not self._reading.acquire(blocking=False):
            return False
        try:
            self._unknown_due = now + _AGAIN_S
            return self._load_or_report()
        finally:
            self._reading.release()

    def take_due(self) -> bool:
        """Return whether it is time to call ``refresh``, once for each time."""
        now = self._monotonic()
        if now < self._due:
            return False
        self._due = now + _AGAIN_S
        return True

    def refresh(self) -> None:
        """Read the document, which may take seconds."""
        with self._reading:
            self._load_or_report()

    def _load_or_report(self) -> bool:
        try:
            self._load()
        except (OSError, ValueError, HTTPException, SecurityConfigError) as error:
            log.warning("keys of tokens cannot be read, known keys stay url=%s error=%s", self._shown, error)
            return False
        return True

    def _load(self) -> None:
        self._jwks.load(self._read(self._url))
        self._due = self._monotonic() + self._refresh_s


def _check_url(url: str) -> SplitResult:
    """Return the parts of the URL. Raise SecurityConfigError if keys must not be read from it."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise SecurityConfigError(f"{_SETTING} is no URL") from None
    if parts.username is not None or parts.password is not None:
        raise SecurityConfigError(f"{_SETTING} must not have a user name or a password")
    if parts.scheme == "file" and not host and parts.path.startswith("/"):
        return parts
    if host and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        return parts
    raise SecurityConfigError(
        f"{_SETTING} must be file:///PATH or https://HOST/PATH: without its keys no token of an issuer is accepted. "
        "http: is allowed for this machine only, because others could change the keys on their way"
    )


class _RefuseRedirects(HTTPRedirectHandler):
    """A redirect is an error: the operator has named the place of the keys."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


def read_document(url: str) -> bytes:
    """Return the bytes at a URL. Raise OSError, ValueError or HTTPException."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with open(url2pathname(parts.path), "rb") as file:
            return file.read(JWKS_BYTES_MAX + 1)
    handlers = [_RefuseRedirects(), *([ProxyHandler({})] if parts.scheme == "http" else [])]
    request = Request(url, headers={"Accept": "application/json"})
    data, deadline = bytearray(), time.monotonic() + _DOCUMENT_S_MAX
    with build_opener(*handlers).open(request, timeout=_TIMEOUT_S) as answer:
        while len(data) <= JWKS_BYTES_MAX and (chunk := answer.read1(_CHUNK_BYTES)):
            data += chunk
            if time.monotonic() > deadline:
                raise TimeoutError(f"the document has not ended after {_DOCUMENT_S_MAX:.0f} seconds")
    return bytes(data)
