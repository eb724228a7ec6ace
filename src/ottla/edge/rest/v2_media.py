"""Media types of version 2: `application/vnd.kafka[.FORMAT].v2+json`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.rest.errors import FORMAT_MISMATCH, RecordErrors, to_http
from ottla.edge.rest.proxy import KAFKA_ERRORS
from ottla.edge.rest.records import AVRO, BINARY, JSON, JSONSCHEMA, PROTOBUF
from ottla.edge.web.accept import choose_media_type
from ottla.edge.web.app import Handler, HttpError, Operation

V2: Final = "application/vnd.kafka.v2+json"
#: format -> media type of its records
EMBEDDED: Final = {
    form: f"application/vnd.kafka.{form.lower()}.v2+json" for form in (BINARY, JSON, AVRO, JSONSCHEMA, PROTOBUF)
}
_PLAIN: Final = "application/json"
#: media types of answers about topics
TOPIC_TYPES: Final = (V2, _PLAIN)
#: media types of answers about consumer instances: a client may send the same Accept header with all its requests
CONSUMER_TYPES: Final = (V2, *EMBEDDED.values(), _PLAIN)
#: media types of records: binary is the default
RECORD_TYPES: Final = (*EMBEDDED.values(), V2, _PLAIN)
_FORMATS: Final = {media_type: form for form, media_type in EMBEDDED.items()}
#: without a format: binary, which is the default
_NEUTRAL: Final = (V2, _PLAIN, "application/octet-stream", "")
#: Clients of version 1 produce with the same bodies, and ask for topics in the same way: their types are accepted.
_OLD: Final = re.compile(r"(application/vnd\.kafka(?:\.(?!v\d)\w+)?)(?:\.v1)?\+json")
#: curl's default for --data; the tutorials of other proxies always name the type
_FORM: Final = "application/x-www-form-urlencoded"


def produced_format(request: Request) -> str:
    """Return the format of the records in a request. Raise HttpError 415 for another Content-Type."""
    media_type = _OLD.sub(r"\1.v2+json", _name(request.headers.get("content-type", "")))
    if media_type in _FORMATS:
        return _FORMATS[media_type]
    if media_type in _NEUTRAL:
        return BINARY
    hint = "; curl needs -H 'content-type: …'" if media_type == _FORM else ""
    raise HttpError(415, 415, f"HTTP 415 Unsupported Media Type: send {V2} or {EMBEDDED[JSON]}{hint}")


def check_accepted(request: Request, form: str) -> str:
    """Return the media type of records in this format. Raise HttpError 406 (40601) if the client accepts another."""
    offered = (EMBEDDED[form], V2, _PLAIN) if form == BINARY else (EMBEDDED[form],)
    chosen = _choose(request, offered)
    if chosen is not None:
        return chosen
    raise HttpError(
        406, FORMAT_MISMATCH,
        "The requested embedded data format does not match the deserializer for this consumer instance: it needs "
        f"Accept: {EMBEDDED[form]}.",
    )  # fmt: skip


def _choose(request: Request, offered: Sequence[str]) -> str | None:
    return choose_media_type(_OLD.sub(r"\1.v2+json", request.headers.get("accept", "")), offered)


def _name(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def answer_v2(found: Any, media_type: str = V2, status: int = 200) -> Response:
    body = json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(body, status, media_type=media_type)


def operation_v2(
    name: str,
    method_and_path: str,
    handler: Handler,
    summary: str,
    answer: Mapping[str, Any] | None = None,
    **more: Any,
) -> Operation:
    """Return an operation of version 2. ``answer`` is the JSON Schema of status 200; without it, the status is 204."""
    method, path = method_and_path.split(" ")
    made = {"answers": {204: None} if answer is None else {200: answer}, "errors": KAFKA_ERRORS, **more}
    return Operation(
        name=f"api.v2.{name}", method=method, path=path, handler=_with_v2_media(handler), summary=summary, **made
    )


def _with_v2_media(handler: Handler) -> Handler:
    """Return the handler with answers and errors in the media type that the client prefers."""

    async def handle(request: Request) -> Response:
        offered = request.scope["operation"].produces
        chosen = _choose(request, offered)
        try:
            if chosen is None:
                raise HttpError(406, 406, f"HTTP 406 Not Acceptable: the answer is {offered[0]}")
            found = await handler(request)
        except RecordErrors as error:
            known = to_http(error)
            known.headers.setdefault("content-type", chosen or offered[0])
            raise known from None
        if found.headers.get("content-type") == V2:
            found.headers["content-type"] = chosen
        return found

    return handle
