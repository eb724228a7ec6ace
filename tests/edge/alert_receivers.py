"""Receivers of the tests: a web server and a mail server on the loopback address, which keep what they get."""

from __future__ import annotations

import base64
import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class WebReceiver:
    url: str
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


Answer = Callable[[BaseHTTPRequestHandler], None]


def answer(status: int, body: bytes = b"ok", **headers: str) -> Answer:
    def write(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, text in headers.items():
            handler.send_header(name, text)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        with contextlib.suppress(OSError):  # the client has read enough
            handler.wfile.write(body)

    return write


@contextlib.contextmanager
def web_receiver(*answers: Answer, tls: ssl.SSLContext | None = None) -> Iterator[WebReceiver]:
    """Answer requests in turn, the last way for ever."""
    ways = list(answers) or [answer(200)]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.requests.append((self.path, dict(self.headers), body))
            way = ways.pop(0) if len(ways) > 1 else ways[0]
            way(self)
            found.arrived.release()

        def do_GET(self) -> None:
            found.requests.append((f"GET {self.path}", dict(self.headers), b""))
            answer(200)(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    found = WebReceiver(f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}/hook")
    with running(server):
        yield found


@contextlib.contextmanager
def running(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class MailReceiver:
    port: int
    mails: list[bytes] = field(default_factory=list)
    #: what clients said, without the mails
    said: list[str] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)


@contextlib.contextmanager
def mail_receiver(
    tls: ssl.SSLContext | None = None, *, is_implicit: bool = False, refuses: str = "", offers_starttls: bool = True
) -> Iterator[MailReceiver]:
    """Take mails; `refuses` is the first word of a command that is answered with 550."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.secure = False
            if is_implicit:
                self._wrap()
            self._say("220 test")
            while line := self.rfile.readline().decode().strip():
                found.said.append(line)
                if not self._command(line):
                    return

        def _command(self, line: str) -> bool:
            word = line.split()[0].upper()
            if word == refuses:
                self._say("550 no secret-answer-of-server")
            elif word == "EHLO":
                extra = ["250-AUTH PLAIN"] if self.secure else ["250-STARTTLS"] if tls and offers_starttls else []
                for each in ("250-test", *extra, "250 SMTPUTF8"):
                    self._say(each)
            elif word == "STARTTLS":
                self._say("220 go")
                self._wrap()
            elif word == "AUTH":
                _, user, password = base64.b64decode(line.split()[2]).decode().split("\0")
                found.logins.append((user, password))
                self._say("235 ok")
            elif word == "DATA":
                self._say("354 go")
                lines = []
                while (each := self.rfile.readline()) != b".\r\n":
                    lines.append(each)
                found.mails.append(b"".join(lines))
                self._say("250 ok")
            else:
                self._say("221 bye" if word == "QUIT" else "250 ok")
            return word != "QUIT"

        def _wrap(self) -> None:
            assert tls is not None
            self.connection = self.request = tls.wrap_socket(self.request, server_side=True)
            self.rfile = self.connection.makefile("rb")
            self.secure = True

        def _say(self, line: str) -> None:
            self.connection.sendall(f"{line}\r\n".encode())

        def finish(self) -> None:
            with contextlib.suppress(OSError):
                super().finish()
            self.connection.close()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = False

        def handle_error(self, *_: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    found = MailReceiver(server.server_address[1])
    with running(server):
        yield found


@contextlib.contextmanager
def slow_server(first: bytes, drip: bytes) -> Iterator[int]:
    """Accept a connection, and send a byte now and then for as long as the client stays."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stopped = threading.Event()

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(first)
                    while not stopped.wait(0.02):
                        connection.sendall(drip)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            stopped.set()
            with contextlib.suppress(OSError):
                socket.create_connection(listener.getsockname(), 1).close()
            thread.join()
