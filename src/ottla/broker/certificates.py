"""The current TLS context of a listener or of connections to other brokers: a new one if the files have changed."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Callable

from ottla.model.settings_security import ListenerSettings
from ottla.security.certificates import check_handshake, server_context
from ottla.security.errors import SecurityConfigError

log = logging.getLogger(__name__)


class Certificates:
    """The current TLS context of a listener, or of connections to other brokers."""

    def __init__(
        self, settings: ListenerSettings, make: Callable[[ListenerSettings], ssl.SSLContext] = server_context
    ) -> None:
        self._settings = settings
        self._make = make
        self._seen = self._stamps()
        self.context = self._made()

    def _made(self) -> ssl.SSLContext:
        context = self._make(self._settings)
        if context.protocol is ssl.PROTOCOL_TLS_SERVER:
            check_handshake(context)
        return context

    def _stamps(self) -> list[tuple[int, int, int]]:
        """Return what changes when the files change."""
        found = []
        for path in (self._settings.ssl_keystore_location, self._settings.ssl_truststore_location):
            with contextlib.suppress(OSError):
                status = os.stat(path)
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return found

    def reload(self, listener: str) -> None:
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self.context = self._made()
        except SecurityConfigError as error:
            log.error("new certificate is not used, the old one stays listener=%s error=%s", listener, error)
            return
        log.info("new certificate is used for new connections listener=%s", listener)
