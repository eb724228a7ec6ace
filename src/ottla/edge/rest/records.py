"""Records in requests and answers: embedded formats without a schema, headers, times. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ottla.edge.rest.bodies import DECODER, INT32_MAX, INT64_MAX, is_unicode
from ottla.edge.rest.errors import JSON_CONVERSION, PARTITION_NOT_FOUND, bad_request, unprocessable
from ottla.edge.web.app import HttpError

BINARY, JSON, STRING = "BINARY", "JSON", "STRING"
AVRO, JSONSCHEMA, PROTOBUF = "AVRO", "JSONSCHEMA", "PROTOBUF"
PLAIN_FORMATS: Final = (BINARY, JSON, STRING)
SCHEMA_FORMATS: Final = (AVRO, JSONSCHEMA, PROTOBUF)
_HEADERS_MAX: Final = 1000
_QUOTED_MAX: Final = 40

Header = tuple[str, "str | bytes | None"]


class Encoded(NamedTuple):
    """A key or a value as bytes, and what the answer says about it."""

    payload: bytes | None
    #: None if the request has no such part
    format: str | None = None
    subject: str | None = None
    schema_id: int | None = None
    schema_version: int | None = None

    def described(self) -> dict[str, Any]:
        """Return the part of an answer that describes this key or value."""
        found: dict[str, Any] = {"type": self.format, "size": len(self.payload or b"")}
        if self.schema_id is not None:
            found |= {"subject": self.subject, "schema_id": self.schema_id, "schema_version": self.schema_version}
        return found


NOTHING: Final = Encoded(None)


def encode_plain(form: str, data: Any) -> bytes | None:
    """Return the bytes of data in a format without schema; None for null. Raise HttpError 400 for other data."""
    if data is None:
        return None
    if form == BINARY:
        return decode_base64(data)
    if form == JSON:
        return to_json(data)
    if not isinstance(data, str):
        raise bad_request(f"data={_shown(data)} is not a string.")
    if not is_unicode(data):
        raise bad_request("data contains half of a surrogate pair, which is not Unicode text.")
    return data.encode()


def decode_base64(data: Any) -> bytes:
    """Return the bytes of a base64 text. Raise HttpError 400 if it is not one."""
    if not isinstance(data, str):
        raise bad_request(f"data={_shown(data)} is not a base64 string.")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(f"data={_shown(data)} is not a valid base64 string.") from None


def to_json(data: Any) -> bytes:
    """Return a JSON value as compact text. Raise HttpError 400 if a number or a text cannot be JSON."""
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        raise bad_request(f"data={_shown(data)} cannot be written as JSON.") from None


def decode_plain(form: str, payload: bytes | None) -> Any:
    """Return the JSON value for the bytes of a record. Raise HttpError 422 (42203) if they are not of this format."""
    if payload is None:
        return None
    if form == BINARY:
        return base64.b64encode(payload).decode()
    try:
        text = payload.decode()
        return text if form == STRING else DECODER.decode(text)
    except (ValueError, RecursionError):
        noun = "JSON" if form == JSON else "UTF-8 text"
        raise unprocessable(f"Conversion failed: the bytes of a record are not {noun}", JSON_CONVERSION) from None


def read_headers(found: Any) -> list[Header] | None:
    """Return the headers of a record. Raise HttpError 400 if they are not an array of names and base64 values."""
    if found is None:
        return None
    if not isinstance(found, list) or len(found) > _HEADERS_MAX:
        raise bad_request(f"headers must be an array of at most {_HEADERS_MAX} objects")
    headers: list[Header] = []
    for each in found:
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str) or not is_unicode(name):
            raise bad_request("each header must be an object with a name")
        value = each.get("value")
        headers.append((name, None if value is None else decode_base64(value)))
    return headers


def read_partition(found: Any) -> int | None:
    """Return the partition of a record. Raise HttpError 400 if it is not an integer, and 404 if it is negative."""
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int):
        raise bad_request(f"partition_id={_shown(found)} is not an integer")
    if not 0 <= found <= INT32_MAX:
        raise HttpError(404, PARTITION_NOT_FOUND, "Partition not found.")
    return found


def read_time(found: Any) -> int:
    """Return the milliseconds of an ISO 8601 time; 0 for null. Raise HttpError 400 for another value."""
    if found is None:
        return 0
    try:
        if not isinstance(found, str):
            raise ValueError
        moment = datetime.fromisoformat(found)
        # Without a zone it would be a time of this machine.
        if moment.tzinfo is None:
            raise ValueError
        milliseconds = round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise bad_request(f"timestamp={_shown(found)} is not a time such as 2021-02-05T19:14:42Z") from None
    if not 0 <= milliseconds <= INT64_MAX:
        raise bad_request("timestamp is before 1970")
    return milliseconds


def iso_time(milliseconds: int) -> str | None:
    """Return a time as ISO 8601; None if there is none.

    >>> iso_time(1612552482000), iso_time(1612552482120), iso_time(-1)
    ('2021-02-05T19:14:42Z', '2021-02-05T19:14:42.120Z', None)
    """
    if milliseconds < 0:
        return None
    seconds, rest = divmod(milliseconds, 1000)
    try:
        return f"{_iso_seconds(seconds)}.{rest:03}Z" if rest else f"{_iso_seconds(seconds)}Z"
    except (ValueError, OverflowError, OSError):
        return None  # after the year 9999


@lru_cache(maxsize=64)
def _iso_seconds(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _shown(data: Any) -> str:
    text = repr(data) if isinstance(data, (str, int, float, bool)) else type(data).__name__
    return text if len(text) <= _QUOTED_MAX else f"{text[:_QUOTED_MAX]}…"
