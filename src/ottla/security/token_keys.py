"""The public keys of a token issuer: a JWKS document from a file or a web server, read again from time to time.

OAUTHBEARER accepts a token only if one of these keys has signed it. Without keys no client can log in: a document that
cannot be read is reported, and the keys that are known stay.

The document is read at each ``sasl.oauthbearer.jwks.endpoint.refresh.ms``, and when a token names an unknown key,
because the issuer may have a new one. A client can send tokens with any key id, so the second is done at most once in
ten seconds. Reading is done in threads of the executor, never on the event loop.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from ottla.security.errors import AuthenticationFailed, KeysBeingRead, SecurityConfigError
from ottla.security.oauth import JWKS_BYTES_MAX, Jwks
from ottla.security.web_documents import DocumentError, Limits, check_url, read_file, request_document, shown_url

log = logging.getLogger(__name__)

_SETTING: Final = "sasl.oauthbearer.jwks.endpoint.url"
#: shortest time between two readings because of unknown keys, or after a failure
_AGAIN_S: Final = 10.0


class TokenKeys:
    """The keys of one issuer. All methods may be called in any thread."""

    def __init__(
        self,
        url: str,
        *,
        refresh_s: float,
        monotonic: Callable[[], float],
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        read: Callable[[str], bytes] | None = None,
    ) -> None:
        """Raise SecurityConfigError if the URL is not allowed, or if it names a file that has no keys.

        A web server is not asked now: a broker must be able to start while the issuer is down. ``tls`` returns the
        context for it, which is made anew for each request, because the files of its certificates may change.
        """
        self._url = url
        self._refresh_s = refresh_s
        self._monotonic = monotonic
        self._read = read or (lambda url: read_document(url, tls))
        self._jwks = Jwks()
        #: held while the document is read
        self._reading = threading.Lock()
        #: when the document is read again
        self._due = 0.0
        #: when an unknown key may cause the document to be read again
        self._unknown_due = 0.0
        parts = check_url(_SETTING, url)
        self._shown = shown_url(parts)
        if parts.scheme == "file":
            try:
                self._load()
            except DocumentError as error:
                raise SecurityConfigError(f"{_SETTING}: {error}") from None

    def find(self, key_id: str | None) -> Any:
        """Return a key. Read the document again if it is unknown.

        Raise AuthenticationFailed if there is none, and KeysBeingRead while another thread reads the document.
        """
        try:
            return self._jwks.find(key_id)
        except AuthenticationFailed:
            self._read_for_unknown_key()
        return self._jwks.find(key_id)

    def _read_for_unknown_key(self) -> None:
        if not self._reading.acquire(blocking=False):
            # Not waited for here: logins with known keys need this thread.
            raise KeysBeingRead("the keys of the token issuer are being read")
        try:
            now = self._monotonic()
            if now >= self._unknown_due:
                self._unknown_due = now + _AGAIN_S
                self._load_or_report()
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

    def _load_or_report(self) -> None:
        try:
            self._load()
        except (OSError, DocumentError, SecurityConfigError) as error:
            log.warning("keys of tokens cannot be read, known keys stay url=%s error=%s", self._shown, error)

    def _load(self) -> None:
        self._jwks.load(self._read(self._url))
        self._due = self._monotonic() + self._refresh_s


def read_document(url: str, tls: Callable[[], ssl.SSLContext] = ssl.create_default_context) -> bytes:
    """Return the bytes at a URL. Raise DocumentError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return read_file(parts, JWKS_BYTES_MAX)
    context = tls() if parts.scheme == "https" else None
    return request_document(parts, Limits(JWKS_BYTES_MAX), tls=context, headers={"Accept": "application/json"})
