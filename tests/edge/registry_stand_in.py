"""A registry for tests of its clients: keeps schemas by subject, checks nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from ottla.schemas.protobuf import parse


class RegistryStandIn:
    """The schemas, by subject in the order of their versions."""

    def __init__(self) -> None:
        self.subjects: dict[str, list[dict[str, Any]]] = {}
        self.requests = 0
        #: the header Authorization of each request
        self.logins: list[str] = []
        #: whether every request is answered with 503
        self.is_down = False
        self.url = ""

    def add(self, subject: str, schema: str, schema_type: str = "AVRO") -> dict[str, Any]:
        """Register a schema and return it with its id and version."""
        found = self.find(subject, schema)
        if found is None:
            every = [each for rows in self.subjects.values() for each in rows]
            known = next((each["id"] for each in every if each["schema"] == schema), len(every) + 1)
            rows = self.subjects.setdefault(subject, [])
            found = {
                "subject": subject, "version": len(rows) + 1, "id": known, "schema": schema, "schemaType": schema_type,
            }  # fmt: skip
            rows.append(found)
        return found

    def find(self, subject: str, schema: str) -> dict[str, Any] | None:
        return next((each for each in self.subjects.get(subject, []) if each["schema"] == schema), None)

    def answer(self, method: str, segments: list[str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.requests += 1
        if self.is_down:
            return 503, {"error_code": 50301, "message": "no leader"}
        if segments[:2] == ["schemas", "ids"]:
            for rows in self.subjects.values():
                for row in rows:
                    if str(row["id"]) == segments[2]:
                        return 200, row
            return 404, {"error_code": 40403, "message": "Schema not found"}
        subject = segments[1]
        if method == "POST" and len(segments) == 3:
            if "refused" in body["schema"]:
                return 409, {"error_code": 40901, "message": "incompatible"}
            return 200, {"id": self.add(subject, body["schema"], body.get("schemaType", "AVRO"))["id"]}
        if method == "POST":
            found = self.find(subject, body["schema"])
            return (200, found) if found is not None else (404, {"error_code": 40403, "message": "Schema not found"})
        rows = self.subjects.get(subject, [])
        if not rows:
            return 404, {"error_code": 40401, "message": "Subject not found"}
        return 200, rows[-1 if segments[3] == "latest" else int(segments[3]) - 1]


@contextmanager
def registry_stand_in(registry: RegistryStandIn | None = None) -> Iterator[tuple[RegistryStandIn, str]]:
    """Return a registry, by default a new one, and its URL."""
    served = RegistryStandIn() if registry is None else registry

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            length = int(self.headers.get("content-length", 0))
            body = json.loads(self.rfile.read(length)) if length else {}
            path = [unquote(each) for each in self.path.partition("?")[0].strip("/").split("/")]
            served.logins.append(self.headers.get("authorization", ""))
            status, found = served.answer(self.command, path, body)
            if "format=serialized" in self.path and found.get("schemaType") == "PROTOBUF":
                found = {**found, "schema": parse(found["schema"]).formatted("serialized")}
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-type", "application/vnd.schemaregistry.v1+json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = handle_request

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served, served.url
    finally:
        server.shutdown()
        server.server_close()
