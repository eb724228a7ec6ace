"""Hostile schemas and requests: the registry answers each with an error or a result, and fetches nothing.

`make campaign NAME=registry-hostile` sends larger ones and prints times and memory.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile_schemas
import httpx
import pytest
from hostile_schemas import Hostile
from registry_process import RegistryProcess

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.broker

_NUMBERS = itertools.count()
_AUDIT = Path(__file__).with_name("socket_audit")
#: far more than all tests of this module need; a registry that expands a schema needs gigabytes
_GROWTH_BYTES_MAX = 1 << 30


class Audited:
    """A registry whose lookups, connections and files are recorded, and a server that must not get a connection."""

    def __init__(self, registry: RegistryProcess, record: Path, forbidden: socket.socket, secret: Path) -> None:
        self.registry = registry
        self._record = record
        self._forbidden = forbidden
        self.secret = secret
        self._known = self._events()

    @property
    def forbidden_url(self) -> str:
        return f"http://127.0.0.1:{self._forbidden.getsockname()[1]}"

    def _events(self) -> set[str]:
        return set(self._record.read_text().splitlines())

    def records_connections(self) -> bool:
        """Return whether the connection to the broker was recorded, as any other would have been."""
        return any(row.startswith("socket.connect ('127.0.0.1'") for row in self._known)

    def new_events(self) -> list[str]:
        """Return what the registry has reached since it was started, except for Python's own modules."""
        rows = self._events() - self._known
        return sorted(row for row in rows if not re.search(r"\.(py|pyc|so|pth)'$|/site-packages'|/python3", row))

    def has_connected(self) -> bool:
        try:
            self._forbidden.accept()
        except BlockingIOError:
            return False
        return True


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    place = tmp_path_factory.mktemp("audit")
    secret = place / "secret.json"
    secret.write_text('{"title": "a secret text"}')
    environment = {"PYTHONPATH": str(_AUDIT), "OTTLA_AUDIT_FILE": str(place / "audit.txt")}
    with (
        socket.create_server(("127.0.0.1", 0)) as forbidden,
        BrokerProcess.start() as broker,
        RegistryProcess(broker.bootstrap, {"request.max.bytes": "2000000"}, environment=environment) as registry,
    ):
        forbidden.setblocking(False)
        registry.register("warm", '"int"')
        for kind, text in (("JSON", "{}"), ("PROTOBUF", 'syntax = "proto3"; message A {}')):
            registry.register(f"warm-{kind}", text, schemaType=kind)
        yield Audited(registry, place / "audit.txt", forbidden, secret)


@pytest.fixture
def registry(audited: Audited) -> RegistryProcess:
    return audited.registry


def new_name() -> str:
    return f"hostile-{next(_NUMBERS)}"


def send(registry: RegistryProcess, hostile: Hostile, *, path: str = "") -> int:
    """Register a schema, or send it to another path. Return the error code; 0 if the answer is no error."""
    body = {"schema": hostile.text, "schemaType": hostile.schema_type}
    status, answer = registry.ask("POST", path or f"/subjects/{new_name()}/versions", body)
    code = 0 if status == 200 else int(answer["error_code"])
    assert code in hostile.codes, (hostile.name, status, str(answer)[:300])
    if code:
        assert status == code // 100, (hostile.name, status, code)
        assert len(answer["message"]) < 20_000, hostile.name
    return code


# -- schemas ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["deep", "cycles", "expressions", "texts"])
def test_hostile_schemas_are_answered(registry: RegistryProcess, family: str) -> None:
    """Each one is registered, looked up, checked, and read in all formats."""
    for hostile in getattr(hostile_schemas, family)():
        subject = new_name()
        registered = send(registry, hostile, path=f"/subjects/{subject}/versions?normalize=true")
        unknown = hostile._replace(codes=(*hostile.codes, 40401, 40403))
        send(registry, unknown, path=f"/subjects/{subject}?normalize=true")
        send(registry, hostile, path=f"/compatibility/subjects/{subject}/versions?normalize=true")
        if registered == 0:
            for query in ("format=resolved", "format=serialized", "findTags=*", "referenceFormat=qualified"):
                status, _ = registry.ask("GET", f"/subjects/{subject}/versions/latest?{query}")
                assert status in (200, 422), (hostile.name, query)


@pytest.mark.parametrize("keyword", ["properties", "allOf", "oneOf"])
def test_definitions_that_double_at_each_level_are_compared(registry: RegistryProcess, keyword: str) -> None:
    subject = new_name()
    registry.register(subject, hostile_schemas.doubled_definitions(50, keyword, {"type": "string"}), schemaType="JSON")
    for leaf in ("string", "integer"):
        text = hostile_schemas.doubled_definitions(50, keyword, {"type": leaf, "title": "new"})
        body = {"schema": text, "schemaType": "JSON"}
        status, answer = registry.ask("POST", f"/compatibility/subjects/{subject}/versions", body)
        assert (status, answer.get("is_compatible")) in ((200, leaf == "string"), (422, None))


def test_references_in_a_circle_are_answered(registry: RegistryProcess) -> None:
    """The version -1 names the latest one, so that a later version can close a circle."""
    first, second = new_name(), new_name()
    text = '{"$ref":"%s.json"}'
    one = [{"name": "one.json", "subject": first, "version": -1}]
    two = [{"name": "two.json", "subject": second, "version": -1}]
    registry.register(first, '{"type":"string"}', schemaType="JSON")
    registry.register(second, text % "one", schemaType="JSON", references=one)
    body = {"schema": text % "two", "schemaType": "JSON", "references": two}
    for path in (f"/subjects/{first}/versions", f"/compatibility/subjects/{first}/versions", f"/subjects/{first}"):
        status, answer = registry.ask("POST", path, body)
        assert status in (200, 404, 409, 422), answer
    assert registry.ask("GET", f"/subjects/{second}/versions/latest?format=resolved")[0] in (200, 422)
    own = [{"name": "one.json", "subject": first, "version": 1}] * 2
    assert registry.ask("POST", f"/subjects/{first}", body | {"references": own})[0] in (404, 422)


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_schemas_that_refer_twice_to_the_previous_one_are_not_expanded(registry: RegistryProcess, kind: str) -> None:
    """24 levels would be 16 million copies of the first schema."""
    base, levels, size = new_name(), 24, 0
    for level in range(levels):
        before = level - 1
        references = [] if level == 0 else [{"name": f"n.T{before}", "subject": f"{base}-{before}", "version": 1}]
        inner = "int" if level == 0 else f"n.T{before}"
        if kind == "AVRO":
            fields = [{"name": name, "type": inner} for name in "ab"]
            text = json.dumps({"type": "record", "name": f"T{level}", "namespace": "n", "fields": fields})
        elif kind == "JSON":
            part: Any = {"type": "integer"} if level == 0 else {"$ref": inner}
            text = json.dumps({"properties": {"a": part, "b": part}})
        else:
            part = "int32" if level == 0 else f"T{before}"
            imports = "".join(f'import "{row["name"]}";' for row in references)
            text = f'syntax = "proto3"; {imports} message T{level} {{ {part} a = 1; {part} b = 2; }}'
        registry.register(f"{base}-{level}", text, schemaType=kind, references=references)
        size += len(text)
    last = f"{base}-{levels - 1}"
    for query in ("format=resolved", "format=serialized", "format=ignore_extensions", "findTags=*"):
        found = registry.client.get(f"{registry.url}/subjects/{last}/versions/1?{query}")
        assert found.status_code in (200, 422)
        assert len(found.content) < 20 * size
    row = registry.get(f"/subjects/{last}/versions/1")
    body = {name: row[name] for name in ("schema", "schemaType", "references") if name in row}
    assert registry.ask("POST", f"/compatibility/subjects/{last}/versions/1", body) == (200, {"is_compatible": True})


def test_nothing_is_fetched(audited: Audited) -> None:
    for hostile in hostile_schemas.remote(audited.forbidden_url, str(audited.secret)):
        send(audited.registry, hostile)
        found = audited.registry.ask("POST", "/compatibility/subjects/none/versions?verbose=true",
                                     {"schema": hostile.text, "schemaType": hostile.schema_type})  # fmt: skip
        assert "a secret text" not in json.dumps(found)
    reference = {"name": audited.forbidden_url, "subject": audited.forbidden_url, "version": 1}
    body = {"schema": "{}", "schemaType": "JSON", "references": [reference]}
    assert audited.registry.ask("POST", f"/subjects/{new_name()}/versions", body)[0] == 422
    assert audited.records_connections()
    assert audited.new_events() == []
    assert not audited.has_connected()


# -- requests ---------------------------------------------------------------------------------------------------------


def test_body_is_refused_by_its_declared_size_before_it_is_sent(registry: RegistryProcess) -> None:
    host, port = registry.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"POST /subjects/a/versions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2000001\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")


def test_body_without_a_declared_size_is_refused_at_the_limit(registry: RegistryProcess) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(30):
            yield b" " * 100_000

    found = registry.client.post(f"{registry.url}/subjects/a/versions", content=pieces())
    assert (found.status_code, found.json()["error_code"]) == (413, 413)


def test_compressed_body_is_not_expanded(registry: RegistryProcess) -> None:
    content = gzip.compress(b" " * 50_000_000, 9)
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    found = registry.client.post(f"{registry.url}/subjects/a/versions", content=content, headers=headers)
    assert (found.status_code, found.json()["error_code"]) == (415, 415)


def test_schema_larger_than_a_record_of_the_topic_is_an_error_of_the_schema(registry: RegistryProcess) -> None:
    text = json.dumps({"type": "record", "name": "R", "doc": os.urandom(600_000).hex(), "fields": []})
    status, answer = registry.ask("POST", f"/subjects/{new_name()}/versions", {"schema": text})
    assert (status, answer["error_code"]) == (422, 42209), answer
    assert registry.register(new_name(), '"string"') > 0


#: texts that are not JSON, or JSON that no operation takes
BODIES = (
    b"", b"null", b"[]", b"1", b'"a"', b"{", b"\xff\xfe", b"NaN", b'{"a":NaN}', b"[" * 100_000, b'{"a":' * 100_000,
    b'{"id":' + b"9" * 5000 + b"}", b'{"schema":"\\ud800"}', b'{"\\udfff":1}', b'{"a":1e999}', b'{"a":-Infinity}',
    b'{"ruleSet":{"x":' + b"[" * 300 + b"]" * 300 + b"}}",
)  # fmt: skip


def operations(registry: RegistryProcess) -> list[tuple[str, str, dict[str, Any]]]:
    paths = registry.get("/openapi.json")["paths"]
    return [(method.upper(), path, row) for path, rows in paths.items() for method, row in rows.items()]


def with_body(registry: RegistryProcess) -> list[tuple[str, str]]:
    rows = [(method, path) for method, path, row in operations(registry) if "requestBody" in row]
    # The same handlers are also below /contexts.
    return [(method, path) for method, path in rows if not path.startswith("/contexts")]


def filled(path: str, segment: str = "none") -> str:
    return re.sub(r"\{(\w+)\}", lambda match: "1" if match[1] in ("version", "id") else segment, path)


def test_bodies_that_are_not_json_objects_are_client_errors(registry: RegistryProcess) -> None:
    for method, path in with_body(registry):
        for body in BODIES:
            found = registry.client.request(method, registry.url + filled(path), content=body)
            assert found.status_code in (400, 422), (method, path, body[:50], found.text[:200])
            assert set(found.json()) == {"error_code", "message"}


SEGMENTS = (
    "%00", "..%2F..", "%2E%2E", "%F0%9F%98%80", "x" * 3000, "%25", "a%20b", "%C3%A9", ":.", ":.x", ":*:", ":.x:y:z",
    "__EMPTY", "%0A", "a%3Fb%23c", "-1", "99999999999999999999", "9" * 5000, "2147483648", "9223372036854775808",
    "+1", "1_0", "%D9%A1", "0x1", "latest",
)  # fmt: skip


#: an empty body is a valid change
WRITES = (("PUT", "/config/{subject}"), ("PUT", "/mode/{subject}"))


def test_hostile_names_and_numbers_in_paths_are_no_server_errors(registry: RegistryProcess) -> None:
    for method, path, row in operations(registry):
        if path.startswith("/contexts/{context}/") or (method, path) in WRITES:
            continue
        for name in re.findall(r"\{(\w+)\}", path):
            for segment in SEGMENTS:
                body = b"{}" if "requestBody" in row else None
                url = registry.url + filled(path.replace(f"{{{name}}}", segment))
                found = registry.client.request(method, url, content=body)
                assert found.status_code < 500, (method, path, segment[:50], found.text[:300])
                if found.status_code >= 400:
                    assert set(found.json()) == {"error_code", "message"}


def test_numbers_out_of_range_have_the_codes_of_confluent(registry: RegistryProcess) -> None:
    subject = new_name()
    registry.register(subject, '"int"')
    for version in ("0", "-2", "2147483648", "9" * 5000, "1_0", "%D9%A1", "x"):
        status, answer = registry.ask("GET", f"/subjects/{subject}/versions/{version}")
        assert (status, answer["error_code"]) == (422, 42202), version
    for number in ("-1", "2147483648", "9223372036854775808", "9" * 5000, "x"):
        assert registry.ask("GET", f"/schemas/ids/{number}")[0] == 404, number
    for query in ("offset=x", "limit=1.5", "limit=2147483648", "offset=" + "9" * 5000, "limit=1_0"):
        assert registry.ask("GET", f"/subjects?{query}")[0] == 404, query
    for query in ("offset=-5", "limit=-7", "limit=0", "offset=-2147483648&limit=2147483647", "offset=0&offset=1"):
        assert registry.ask("GET", f"/subjects?{query}")[0] == 200, query


def test_names_are_one_segment_whatever_they_contain(registry: RegistryProcess) -> None:
    """Names are never parts of a path of a file or of another operation."""
    base = new_name()
    for segment in ("%2F..%2F..%2Fconfig", "%2Fversions%2F1", "?x#y".replace("?", "%3F").replace("#", "%23"),
                    "%F0%9F%98%80", "%C3%A9%2F", "%25%32%46"):  # fmt: skip
        registry.register(base + segment, '"int"')
    names = [name for name in registry.get("/subjects") if name.startswith(base)]
    assert sorted(name.removeprefix(base) for name in names) == [
        "%2F", "/../../config", "/versions/1", "?x#y", "é/", "😀"
    ]  # fmt: skip
    assert registry.get(f"/subjects/{base}%F0%9F%98%80/versions") == [1]


def test_path_that_is_not_utf8_is_refused(registry: RegistryProcess) -> None:
    """With replacement characters, `%ff` and `%fe` would be the same subject."""
    for segment in ("%ff", "a%c3", "%ed%a0%80"):
        status, answer = registry.ask("POST", f"/subjects/{segment}/versions", {"schema": '"int"'})
        assert (status, answer["error_code"]) == (400, 400), segment


def test_methods_that_an_operation_does_not_have_are_refused(registry: RegistryProcess) -> None:
    for method in ("PATCH", "TRACE", "CONNECT_", "PROPFIND"):
        found = registry.client.request(method, f"{registry.url}/subjects")
        assert found.status_code in (400, 405), method
    refused = registry.client.request("PATCH", f"{registry.url}/subjects/a/versions")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, POST")
    listed = registry.client.request("OPTIONS", f"{registry.url}/subjects/a/versions")
    assert listed.status_code == 200 and {"GET", "POST"} <= set(listed.headers["allow"].split(", "))


def test_body_of_another_media_type_is_refused(registry: RegistryProcess) -> None:
    url = f"{registry.url}/subjects/{new_name()}/versions"
    content = b'{"schema":"\\"int\\""}'

    def status(media_type: str) -> int:
        found: httpx.Response = registry.client.post(url, content=content, headers={"content-type": media_type})
        return found.status_code

    for media_type in ("text/plain", "text/xml; charset=utf-8", "multipart/form-data; boundary=x", "a"):
        assert status(media_type) == 415, media_type
    for media_type in ("application/json; charset=utf-8", "application/vnd.schemaregistry.v1+json", "",
                       "application/octet-stream", "application/vnd.schemaregistry+json",
                       "application/x-www-form-urlencoded"):  # fmt: skip
        assert status(media_type) == 200, media_type


def test_memory_is_bounded(audited: Audited) -> None:
    """The last test of this module: what all others together have taken."""
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{audited.registry.pid}/status").read_text().splitlines())
    assert int(rows["VmHWM"].split()[0]) * 1024 < _GROWTH_BYTES_MAX
    assert "Traceback" not in audited.registry.stderr(), audited.registry.stderr()[-2000:]
