"""Media types of version 2: `application/vnd.kafka[.FORMAT].v2+json`."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.rest.errors import FORMAT_MISMATCH, RecordErrors, to_http
from ottla.rest.records import AVRO, BINARY, JSON, JSONSCHEMA, PROTOBUF
from ottla.web.app import Handler, HttpError

V2: Final = "application/vnd.kafka.v2+json"
#: format -> media type of its records
EMBEDDED: Final = {
    form: f"application/vnd.kafka.{form.lower()}.v2+json" for form in (BINARY, JSON, AVRO, JSONSCHEMA, PROTOBUF)
}
_FORMATS: Final = {media_type: form for form, media_type in EMBEDDED.items()}
#: without a format: binary, which is the default
_NEUTRAL: Final = (V2, "application/json", "application/octet-stream", "")
#: curl's default for --data; the tutorials of other proxies always name the type
_FORM: Final = "application/x-www-form-urlencoded"
_ANY: Final = ("*/*", "application/*")


def produced_format(request: Request) -> str:
    """Return the format of the records in a request. Raise HttpError 415 for another Content-Type."""
    media_type = _name(request.headers.get("content-type", ""))
    if media_type in _FORMATS:
        return _FORMATS[media_type]
    if media_type in _NEUTRAL:
        return BINARY
    hint = "; curl needs -H 'content-type: …'" if media_type == _FORM else ""
    raise HttpError(415, 415, f"HTTP 415 Unsupported Media Type: send {V2} or {EMBEDDED[JSON]}{hint}")


def check_accepted(request: Request, form: str) -> str:
    """Return the media type of records in this format. Raise HttpError 406 (40601) if the client accepts another."""
    accepted = [_name(each) for each in request.headers.get("accept", "*/*").split(",")]
    wanted = {EMBEDDED[form], *_ANY, ""} | ({V2, "application/json"} if form == BINARY else set())
    if not wanted.isdisjoint(accepted):
        return EMBEDDED[form]
    raise HttpError(
        406, FORMAT_MISMATCH,
        f"The requested embedded data format does not match the consumer instance: its format needs {EMBEDDED[form]}.",
    )  # fmt: skip


def _name(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def answer_v2(found: Any, media_type: str = V2) -> Response:
    return Response(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode(), media_type=media_type)


def with_v2_errors(handler: Handler) -> Handler:
    """Return the handler with errors of version 2's media type."""

    @functools.wraps(handler)
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except RecordErrors as error:
            known = to_http(error)
            known.headers.setdefault("content-type", V2)
            raise known from None

    wrapped: Callable[[Request], Awaitable[Response]] = handle
    return wrapped
