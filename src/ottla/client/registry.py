"""A client of a schema registry, Ottla's or Confluent's: blocking, with a cache of the schemas that it has read.

    registry = SchemaRegistry("http://127.0.0.1:8081,http://127.0.0.1:8083")
    schema = registry.by_id(7)
    registry.register("orders-value", text)

A schema never changes once it has an id, so that each id is fetched once. Ids that do not exist are remembered for a
short time. Several addresses are tried in turn. Thread safe: a connection is used by one thread at a time.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

from ottla.client.errors import ClientError, PropertyRefused
from ottla.client.security import TLS_PROPERTIES, tls_context

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
#: properties that are understood, by the names of Confluent's clients; those of TLS also by the names of Java's clients
PROPERTIES: Final = (
    "basic.auth.credentials.source", "basic.auth.user.info", "bearer.auth.credentials.source", "bearer.auth.token",
    "ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password",
)  # fmt: skip
_TIMEOUT_S: Final = 20.0
_ANSWER_BYTES_MAX: Final = 32 << 20
_KEPT: Final = 10_000
_UNKNOWN_S: Final = 5.0
_NOT_FOUND_SCHEMA: Final = 40403
_DEFAULT_CONTEXT: Final = "."
#: statuses after which a request to another instance, or a later one to the same, may succeed
_RETRIED: Final = frozenset({500, 502, 503, 504})


class RegistryError(ClientError):
    """The registry has refused a request; `code` is its error code, such as 40401."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(f"the schema registry answers {code}: {message}")
        self.status = status
        self.code = code


class RegistryUnreachable(ClientError):
    """No address of the registry answers."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with its id."""

    id: int
    schema_type: str
    text: str
    #: name, subject and version of each schema that it refers to
    references: tuple[tuple[str, str, int], ...] = ()
    subject: str | None = None
    version: int | None = None

    @classmethod
    def parse(cls, value: Mapping[str, Any], schema_id: int | None = None) -> RegisteredSchema:
        references = tuple((row["name"], row["subject"], row["version"]) for row in value.get("references") or ())
        return cls(
            id=value["id"] if schema_id is None else schema_id,
            schema_type=value.get("schemaType") or "AVRO",
            text=value["schema"],
            references=references,
            subject=value.get("subject"),
            version=value.get("version"),
        )


class SchemaRegistry:
    """The registry at one or more addresses, separated by commas."""

    def __init__(
        self, urls: str, properties: Mapping[str, str] | None = None, *, timeout_s: float = _TIMEOUT_S
    ) -> None:
        """Raise PropertyRefused if an address or a property is not valid."""
        self._urls = [_parse_url(url) for url in urls.split(",") if url.strip()]
        if not self._urls:
            raise PropertyRefused("the schema registry needs an address, such as http://127.0.0.1:8081")
        properties = properties or {}
        unknown = [name for name in properties if name not in PROPERTIES and name not in TLS_PROPERTIES]
        if unknown:
            raise PropertyRefused(
                f"unknown property of the schema registry: {unknown[0]}; known are {', '.join(PROPERTIES)}"
            )
        self._timeout_s = timeout_s
        self._headers = {"accept": MEDIA_TYPE, "content-type": MEDIA_TYPE} | _authorization(properties)
        self._context = _tls_context(properties) if any(url.scheme == "https" for url in self._urls) else None
        self._lock = threading.Lock()
        #: schemas by id and subject
        self._by_id: OrderedDict[tuple[int, str | None], RegisteredSchema] = OrderedDict()
        #: ids by guid and context
        self._guids: dict[tuple[str, str], int] = {}
        #: ids with their subject, and guids with their context, that do not exist; until when they are not requested
        self._unknown: dict[tuple[int | str, str | None], float] = {}
        self._idle: list[tuple[int, http.client.HTTPConnection]] = []
        self._preferred = 0

    def __repr__(self) -> str:
        return f"SchemaRegistry({','.join(url.geturl() for url in self._urls)!r})"

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    # Schemas

    def by_id(self, schema_id: int, subject: str | None = None) -> RegisteredSchema | None:
        """Return the schema with this id; None if the registry has none. A subject chooses the context of the id."""
        key = (schema_id, subject)
        with self._lock:
            found = self._by_id.get(key)
            if found is not None:
                self._by_id.move_to_end(key)
                return found
            if self._unknown.get(key, 0.0) > time.monotonic():
                return None
        chosen = "" if subject is None else f"?subject={_quote(subject)}"
        try:
            found = RegisteredSchema.parse(self.ask("GET", f"/schemas/ids/{schema_id}{chosen}"), schema_id)
        except RegistryError as error:
            if error.code != _NOT_FOUND_SCHEMA:
                raise
            with self._lock:
                self._remember_unknown(key)
            return None
        with self._lock:
            self._by_id[key] = found
            if len(self._by_id) > _KEPT:
                self._by_id.popitem(last=False)
        return found

    def id_of_guid(self, guid: str, context: str = _DEFAULT_CONTEXT) -> int | None:
        """Return the id of the schema with this guid in a context; None if there is none."""
        key = (guid, context)
        with self._lock:
            if key in self._guids:
                return self._guids[key]
            if self._unknown.get(key, 0.0) > time.monotonic():
                return None
        found = next((row["id"] for row in self._ids_of_guid(guid) if row["context"] == context), None)
        with self._lock:
            if found is None:
                self._remember_unknown(key)
            else:
                if len(self._guids) > _KEPT:
                    self._guids.clear()
                self._guids[key] = int(found)
        return found

    def _ids_of_guid(self, guid: str) -> list[dict[str, Any]]:
        """Return the ids of a guid with their contexts; empty if no schema has it."""
        try:
            found: list[dict[str, Any]] = self.ask("GET", f"/schemas/guids/{guid}/ids")
        except RegistryError as error:
            if error.code != _NOT_FOUND_SCHEMA:
                raise
            return []
        return found

    def _remember_unknown(self, key: tuple[int | str, str | None]) -> None:
        if len(self._unknown) > _KEPT:
            self._unknown.clear()
        self._unknown[key] = time.monotonic() + _UNKNOWN_S

    def knows(self, schema_id: int | str, subject: str | None = None) -> bool:
        """Return whether the registry has a schema with this id or guid, under a subject if one is given.

        Always asks; the schema is not cached. A version of the subject that is deleted does not count.
        """
        kind = "guids" if isinstance(schema_id, str) else "ids"
        try:
            if subject is None:
                self.ask("GET", f"/schemas/{kind}/{schema_id}")
                return True
            ids = [schema_id]
            if kind == "guids":
                ids = [row["id"] for row in self._ids_of_guid(str(schema_id)) if row["context"] == _DEFAULT_CONTEXT]
            return any(subject in self.ask("GET", f"/schemas/ids/{each}/subjects") for each in ids)
        except RegistryError as error:
            if error.code != _NOT_FOUND_SCHEMA:
                raise
            return False

    def version(self, subject: str, version: int | str = "latest") -> RegisteredSchema:
        """Return a version of a subject. Raise RegistryError 40401 or 40402 if it does not exist."""
        return RegisteredSchema.parse(self.ask("GET", f"/subjects/{_quote(subject)}/versions/{version}"))

    def register(
        self,
        subject: str,
        text: str,
        schema_type: str = "AVRO",
        references: Sequence[tuple[str, str, int]] = (),
        *,
        normalize: bool = False,
    ) -> int:
        """Register a schema and return its id. Raise RegistryError 40901 if it is incompatible."""
        path = f"/subjects/{_quote(subject)}/versions{'?normalize=true' if normalize else ''}"
        return int(self.ask("POST", path, _body(text, schema_type, references))["id"])

    def lookup(
        self, subject: str, text: str, schema_type: str = "AVRO", references: Sequence[tuple[str, str, int]] = ()
    ) -> RegisteredSchema | None:
        """Return the version of a subject that has this schema; None if none has it."""
        try:
            value = self.ask("POST", f"/subjects/{_quote(subject)}", _body(text, schema_type, references))
        except RegistryError as error:
            if error.status == 404:
                return None
            raise
        return RegisteredSchema.parse(value)

    def resolve(self, schema: RegisteredSchema) -> dict[str, str]:
        """Return the texts of the references of a schema by name, each after the ones that it refers to."""
        texts: dict[str, str] = {}
        self._resolve(schema, texts)
        return texts

    def _resolve(self, schema: RegisteredSchema, texts: dict[str, str], depth: int = 0) -> None:
        if depth > 100:
            raise RegistryError(422, 42201, f"the references of schema {schema.id} are nested too deeply")
        for name, subject, version in schema.references:
            if name not in texts:
                other = self.version(subject, version)
                self._resolve(other, texts, depth + 1)
                texts[name] = other.text

    # Requests

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON body of an answer. Raise RegistryError for an error of the registry.

        Raise RegistryUnreachable if no address answers.
        """
        problems = []
        data = None if body is None else json.dumps(body).encode()
        # A deletion that is sent again would be answered with "not found".
        for attempt in range(1 if method == "DELETE" else len(self._urls) + 1):
            number = (self._preferred + attempt) % len(self._urls)
            try:
                status, content = self._send(number, method, path, data)
            except (OSError, http.client.HTTPException) as error:
                problems.append(f"{self._urls[number].geturl()}: {error or type(error).__name__}")
                continue
            if status in _RETRIED and method != "DELETE" and attempt < len(self._urls):
                problems.append(f"{self._urls[number].geturl()}: status {status}")
                continue
            self._preferred = number
            return _value(status, content)
        raise RegistryUnreachable(f"the schema registry does not answer: {'; '.join(dict.fromkeys(problems))}")

    def _send(self, number: int, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        """Return status and body. A request on a connection that the server has closed meanwhile is sent again."""
        connection, is_new = (self._open(number), True) if method == "DELETE" else self._borrow(number)
        try:
            try:
                answer = self._exchange(connection, number, method, path, data)
            except (ConnectionError, http.client.RemoteDisconnected, http.client.BadStatusLine):
                if is_new:
                    raise
                connection.close()
                connection = self._open(number)
                answer = self._exchange(connection, number, method, path, data)
            status, content = answer.status, answer.read(_ANSWER_BYTES_MAX + 1)
            if len(content) > _ANSWER_BYTES_MAX:
                raise http.client.HTTPException(f"the answer is larger than {_ANSWER_BYTES_MAX:,} bytes")
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append((number, connection))
        return status, content

    def _exchange(
        self, connection: http.client.HTTPConnection, number: int, method: str, path: str, data: bytes | None
    ) -> http.client.HTTPResponse:
        connection.request(method, f"{self._urls[number].path.rstrip('/')}{path}", data, self._headers)
        return connection.getresponse()

    def _borrow(self, number: int) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            for position, (owner, connection) in enumerate(self._idle):
                if owner == number:
                    del self._idle[position]
                    return connection, False
        return self._open(number), True

    def _open(self, number: int) -> http.client.HTTPConnection:
        url = self._urls[number]
        host = url.hostname or ""
        if url.scheme == "https":
            return http.client.HTTPSConnection(host, url.port, timeout=self._timeout_s, context=self._context)
        return http.client.HTTPConnection(host, url.port, timeout=self._timeout_s)


def _value(status: int, content: bytes) -> Any:
    try:
        value = json.loads(content) if content else None
    except ValueError:
        value = None
    if 200 <= status < 300:
        return value
    if isinstance(value, dict) and "error_code" in value:
        raise RegistryError(status, int(value["error_code"]), str(value.get("message", "")))
    raise RegistryError(status, status, http.client.responses.get(status, "unknown status"))


def _body(text: str, schema_type: str, references: Sequence[tuple[str, str, int]]) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": text}
    if schema_type != "AVRO":
        body["schemaType"] = schema_type
    if references:
        body["references"] = [
            {"name": name, "subject": subject, "version": number} for name, subject, number in references
        ]
    return body


def _quote(text: str) -> str:
    return quote(text, safe="")


def _parse_url(text: str) -> Any:
    if "@" in text:
        # The credentials would appear in error messages.
        raise PropertyRefused("give the user and password of the schema registry with basic.auth.user.info")
    try:
        url = urlsplit(text.strip())
        # Both raise ValueError: a port that is not a number, and a host name that no server can have.
        host, port = (url.hostname or "").encode("idna"), url.port
    except ValueError:
        host, port = b"", None
    is_address = host and port != 0 and text.isprintable()
    if not is_address or url.scheme not in ("http", "https") or url.query or url.fragment:
        raise PropertyRefused(f"{text!r} is not the address of a schema registry: write http://HOST:PORT")
    return url


def _authorization(properties: Mapping[str, str]) -> dict[str, str]:
    for name, known in (("basic.auth", "USER_INFO"), ("bearer.auth", "STATIC_TOKEN")):
        source = properties.get(f"{name}.credentials.source", known)
        if source != known:
            raise PropertyRefused(f"{name}.credentials.source={source} is not supported: use {known}")
    user, token = properties.get("basic.auth.user.info"), properties.get("bearer.auth.token")
    if user and token:
        raise PropertyRefused("give either basic.auth.user.info or bearer.auth.token")
    if user:
        if ":" not in user:
            raise PropertyRefused("basic.auth.user.info must be USER:PASSWORD")
        try:
            return {"authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
        except UnicodeEncodeError:
            raise PropertyRefused("basic.auth.user.info has characters that cannot be sent") from None
    if token and not (token.isascii() and token.isprintable()):
        raise PropertyRefused("bearer.auth.token must be printable ASCII characters")
    return {"authorization": f"Bearer {token}"} if token else {}


def _tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = tls_context(properties)
    except PropertyRefused as error:
        raise PropertyRefused(f"certificates for the schema registry: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
