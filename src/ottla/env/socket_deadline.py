"""A time for a whole exchange with a server, in a thread that blocks.

A time for each packet is not enough, because a server can send a byte now and then.
"""

from __future__ import annotations

import contextlib
import socket
import threading


class SocketDeadline:
    """Ends an exchange in time: the thread that waits for the socket gets an error, or the end of the data."""

    def __init__(self, total_s: float) -> None:
        self.is_over = False
        self._lock = threading.Lock()
        #: a second descriptor of the socket, because the first one moves into an object of TLS before the handshake
        self._twin: socket.socket | None = None
        self._timer = threading.Timer(total_s, self._end)
        self._timer.daemon = True
        self._timer.start()

    def watch(self, opened: socket.socket) -> socket.socket:
        """End the exchange on this socket in time. Return the socket."""
        with self._lock:
            self._twin = opened.dup()
        if self.is_over:
            self._end()
        return opened

    def _end(self) -> None:
        self.is_over = True
        with self._lock:
            if self._twin is not None:
                with contextlib.suppress(OSError):  # the server has closed the connection
                    self._twin.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop watching, because the exchange has ended."""
        self._timer.cancel()
        with self._lock:
            if self._twin is not None:
                self._twin.close()
                self._twin = None
