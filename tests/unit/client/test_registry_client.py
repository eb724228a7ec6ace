"""The client of a schema registry against a small HTTP server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from ottla.client.errors import PropertyRefused
from ottla.client.registry import RegistryError, RegistryUnreachable, SchemaRegistry


class FakeServer(ThreadingHTTPServer):
    """Answers from a table; notes the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, Any]] = {}
        self.requests: list[tuple[str, str, str | None, Any]] = []
        self.closes_connections = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def _answer(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.requests.append((self.command, self.path, self.headers.get("authorization"), body))
        status, value = self.server.answers.get(self.path, (404, {"error_code": 40403, "message": "not found"}))
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        # Without a "connection: close", as a server that ends an idle connection does.
        self.close_connection = self.server.closes_connections

    do_GET = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as made:
        thread = Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_id_is_fetched_once(server: FakeServer) -> None:
    server.answers["/schemas/ids/7"] = (200, {"schema": '"int"', "schemaType": "JSON"})
    registry = SchemaRegistry(server.url)
    first, second = registry.by_id(7), registry.by_id(7)
    assert first is second is not None
    assert (first.id, first.schema_type, first.text) == (7, "JSON", '"int"')
    assert len(server.requests) == 1
    registry.close()


def test_unknown_id_is_not_asked_for_again_at_once(server: FakeServer) -> None:
    registry = SchemaRegistry(server.url)
    assert registry.by_id(8) is registry.by_id(8) is None
    assert len(server.requests) == 1
    registry.close()


def test_error_has_the_code_of_the_registry(server: FakeServer) -> None:
    server.answers["/subjects/a%2Fb/versions"] = (409, {"error_code": 40901, "message": "incompatible"})
    registry = SchemaRegistry(server.url)
    with pytest.raises(RegistryError, match="40901: incompatible") as error:
        registry.register("a/b", '"int"', references=[("n", "s", 1)])
    assert (error.value.status, error.value.code) == (409, 40901)
    body = server.requests[0][3]
    assert body == {"schema": '"int"', "references": [{"name": "n", "subject": "s", "version": 1}]}
    registry.close()


def test_next_address_is_tried_and_then_preferred(server: FakeServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    server.answers["/subjects/s/versions/latest"] = (200, {"schema": '"int"', "id": 1, "subject": "s", "version": 2})
    registry = SchemaRegistry(f"http://127.0.0.1:{port},{server.url}")
    assert registry.version("s").version == 2
    assert registry.version("s").version == 2
    assert len(server.requests) == 2
    registry.close()


def test_registry_that_does_not_answer_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(RegistryUnreachable, match=f"127.0.0.1:{port}"):
        SchemaRegistry(f"http://127.0.0.1:{port}").by_id(1)


def test_request_is_sent_again_if_the_server_has_closed_an_idle_connection(server: FakeServer) -> None:
    server.closes_connections = True
    server.answers["/schemas/ids/1"] = server.answers["/schemas/ids/2"] = (200, {"schema": '"int"'})
    registry = SchemaRegistry(server.url)
    assert registry.by_id(1) is not None
    assert registry.by_id(2) is not None
    registry.close()


def test_references_are_resolved_before_the_schema_that_needs_them(server: FakeServer) -> None:
    leaf = {"schema": "leaf", "id": 1}
    middle = {"schema": "middle", "id": 2, "references": [{"name": "leaf", "subject": "l", "version": 1}]}
    server.answers |= {"/subjects/l/versions/1": (200, leaf), "/subjects/m/versions/3": (200, middle)}
    server.answers["/schemas/ids/3"] = (
        200, {"schema": "top", "references": [{"name": "middle", "subject": "m", "version": 3}]},
    )  # fmt: skip
    registry = SchemaRegistry(server.url)
    top = registry.by_id(3)
    assert top is not None
    assert list(registry.resolve(top).items()) == [("leaf", "leaf"), ("middle", "middle")]
    registry.close()


def test_credentials_are_sent_and_never_shown(server: FakeServer) -> None:
    registry = SchemaRegistry(server.url, {"basic.auth.user.info": "alice:secret"})
    registry.by_id(1)
    assert server.requests[0][2] == "Basic YWxpY2U6c2VjcmV0"
    assert "secret" not in repr(registry)
    registry.close()


@pytest.mark.parametrize(
    ("url", "properties", "text"),
    [
        ("", {}, "needs an address"),
        ("127.0.0.1:8081", {}, "write http://HOST:PORT"),
        ("http://a:b@127.0.0.1:1", {}, "basic.auth.user.info"),
        ("http://127.0.0.1:1", {"basic.auth.user.info": "alice"}, "USER:PASSWORD"),
        ("http://[", {}, "write http://HOST:PORT"),
        ("http://a\x00b", {}, "write http://HOST:PORT"),
        (f"http://{'a' * 64}", {}, "write http://HOST:PORT"),
        ("http://..", {}, "write http://HOST:PORT"),
        ("http://127.0.0.1:1", {"basic.auth.user.info": "a:\ud800"}, "characters"),
        ("http://127.0.0.1:1", {"bearer.auth.token": "x\ny"}, "printable"),
        ("http://127.0.0.1:1", {"bearer.auth.token": "\u1234"}, "printable"),
        ("http://127.0.0.1:1", {"ssl.ca": "x"}, "unknown property"),
        ("https://127.0.0.1:1", {"ssl.ca.location": "/missing"}, "cannot be used"),
        ("https://127.0.0.1:1", {"ssl.truststore.location": "/missing"}, "cannot be used"),
        ("https://127.0.0.1:1", {"ssl.truststore.type": "JKS"}, "convert the store to PEM or PKCS12"),
    ],
)
def test_wrong_settings_are_refused(url: str, properties: dict[str, str], text: str) -> None:
    with pytest.raises(PropertyRefused, match=text) as error:
        SchemaRegistry(url, properties)
    assert not any(value in str(error.value) for name, value in properties.items() if "auth" in name)
