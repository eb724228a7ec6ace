"""The bodies of answers, and the media types that clients of registries ask for."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.registry import errors
from ottla.edge.registry.parsing import Parser
from ottla.edge.registry.records import Association, Json, SchemaVersion, compact_json
from ottla.edge.registry.requests import NewSchema, parse_number
from ottla.edge.web.app import HttpError
from ottla.schemas.schema import UnknownFormat

MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
MEDIA_TYPES: Final = (MEDIA_TYPE, "application/vnd.schemaregistry+json", "application/json")

#: bytes of all answers that are kept
_BODIES_BYTES_MAX: Final = 4 << 20

_T = TypeVar("_T")


def answer(request: Request, value: Any, status: int = 200) -> Response:
    """Return a JSON answer in the first media type of the registry that the client accepts."""
    return answer_bytes(request, compact_json(value), status)


def answer_bytes(request: Request, body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type=choose_media_type(request.headers.get("accept")))


class Bodies:
    """Answers about versions, as bytes: serializers of many processes ask for the same ones again and again."""

    def __init__(self, describe: Callable[[SchemaVersion], Json]) -> None:
        self._describe = describe
        #: (subject, version) -> the version and the bytes. A version that was deleted or replaced is another object
        self._known: OrderedDict[tuple[str, int], tuple[SchemaVersion, bytes]] = OrderedDict()
        self._size_bytes = 0

    def answer(self, request: Request, row: SchemaVersion) -> Response:
        key = (row.subject, row.version)
        known = self._known.get(key)
        if known is not None and known[0] is row:
            self._known.move_to_end(key)
            return answer_bytes(request, known[1])
        body = compact_json(self._describe(row))
        if known is not None:
            self._size_bytes -= len(known[1])
        self._known[key] = (row, body)
        self._size_bytes += len(body)
        while self._size_bytes > _BODIES_BYTES_MAX:
            self._size_bytes -= len(self._known.popitem(last=False)[1][1])
        return answer_bytes(request, body)


def error_answer(error: HttpError) -> Response:
    body = json.dumps(error.as_json(), ensure_ascii=False).encode()
    return Response(body, error.status, error.headers, media_type=MEDIA_TYPE)


def choose_media_type(accept: str | None) -> str:
    """Return the media type of the answer. Raise HttpError 406 if the client accepts none of the registry's."""
    if not accept or accept in ("*/*", MEDIA_TYPE):
        return MEDIA_TYPE
    wanted = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    for media_type in MEDIA_TYPES:
        if media_type in wanted:
            return media_type
    if wanted & {"*/*", "application/*"}:
        return MEDIA_TYPE
    raise HttpError(406, 406, "HTTP 406 Not Acceptable", {"accept": ", ".join(MEDIA_TYPES)})


def version_json(row: SchemaVersion, text: str | None = None) -> Json:
    """Return a version as the routes of subjects do. An empty member is left out, and so is the type AVRO."""
    value: Json = {"subject": row.subject, "version": row.version, "id": row.id, "guid": row.guid}
    return value | _content(row, text)


def schema_json(row: SchemaVersion, text: str | None = None) -> Json:
    """Return a schema as the routes of ids do."""
    value: Json = {"subject": row.subject, "version": row.version, "guid": row.guid}
    return value | _content(row, text)


def association_json(row: Association) -> Json:
    """Return an association as the lists of associations do."""
    value: Json = {
        "subject": row.subject, "guid": row.guid, "resourceName": row.resource_name,
        "resourceNamespace": row.resource_namespace, "resourceId": row.resource_id, "resourceType": row.resource_type,
        "associationType": row.association_type, "lifecycle": row.lifecycle, "frozen": row.is_frozen,
    }  # fmt: skip
    return value if row.updated_ms < 0 else value | {"createTs": row.created_ms, "updateTs": row.updated_ms}


def resource_json(names: Json, rows: Sequence[tuple[Association, SchemaVersion | None]]) -> Json:
    """Return a resource with its associations, each with a version of its schema if there is one."""
    links: list[Json] = []
    for row, version in rows:
        link: Json = {
            "subject": row.subject, "associationType": row.association_type, "lifecycle": row.lifecycle,
            "frozen": row.is_frozen,
        }  # fmt: skip
        links.append(link if version is None else link | {"schema": version_json(version)})
    named = {name: value for name, value in names.items() if value is not None}
    return named | ({"associations": links} if links else {})


def registered_json(row: SchemaVersion, sent: NewSchema | None = None, text: str | None = None) -> Json:
    """Return the answer to a registration. `id` is all that old clients read.

    The schema is part of it if the registry has changed what the client sent. Otherwise it is left out: confluent-kafka
    keeps it and takes the text of a Protobuf schema for the serialized descriptor that it had sent.
    """
    value: Json = {"id": row.id, "version": row.version, "guid": row.guid}
    is_as_sent = sent is not None and (sent.metadata, sent.rule_set) == (row.metadata, row.rule_set)
    if sent is not None and is_as_sent and sent.text.strip() and text is None:
        return value if row.timestamp_ms < 0 else value | {"ts": row.timestamp_ms}
    return value | _content(row, text)


def _content(row: SchemaVersion, text: str | None) -> Json:
    value = row.members() | {"schema": row.text if text is None else text}
    if row.timestamp_ms >= 0:
        value["ts"] = row.timestamp_ms
    if row.is_deleted:
        value["deleted"] = True
    return value


def formatted(parser: Parser, row: SchemaVersion, format_name: str) -> str:
    """Return the text of a version in the format that a client asks for, and its own text if it has no such format.

    An unknown format is no error, because a newer client may ask for one that this version does not have.
    """
    if not format_name.strip():
        return row.text
    try:
        return parser.parse_version(row).formatted(format_name)
    except UnknownFormat:
        return row.text


def parameter(request: Request, name: str) -> str:
    """Return a query parameter; empty if it is absent.

    confluent-kafka for Python spells some names with underscores: `deleted_only`, `reference_format`.
    """
    if not request.scope["query_string"]:
        return ""
    alternative = "".join(f"_{each.lower()}" if each.isupper() else each for each in name)
    return request.query_params.get(name) or request.query_params.get(alternative) or ""


def flag(request: Request, name: str) -> bool:
    return parameter(request, name).lower() == "true"


def page(request: Request, rows: Sequence[_T]) -> list[_T]:
    """Return the rows that the parameters `offset` and `limit` select; a limit below 1 stands for all."""
    offset, limit = _number(request, "offset", 0), _number(request, "limit", -1)
    start = max(offset, 0)
    return list(rows[start : start + limit] if limit > 0 else rows[start:])


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    number = parse_number(text)
    if number is None:
        raise errors.path_not_found()
    return number
