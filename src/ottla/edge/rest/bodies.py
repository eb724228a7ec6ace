"""Reading JSON bodies: bounded, strict about types and about names of fields.

The schema of an operation's body says which fields exist. A field that does not is error 422, as with Confluent's
server: a misspelled name must not have the effect of a missing one. `Fields` reads the fields of one object. It raises
HttpError 400 for a value of the wrong type, and for a required field that is missing 422 in version 2 and 400 in
version 3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from starlette.requests import Request

from ottla.edge.rest.errors import INVALID_PAYLOAD, bad_request, not_found, unprocessable

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
#: an integer of 32 bits in a string
DIGITS: Final = re.compile(r"-?[0-9]{1,10}")
#: a string of Kafka's protocol cannot be longer
TEXT_BYTES_MAX: Final = (1 << 15) - 1
_CHARSETS: Final = {"utf-8": "utf-8", "utf8": "utf-8", "us-ascii": "utf-8", "iso-8859-1": "iso-8859-1"}
#: characters of a value that an error message quotes
_QUOTED_MAX: Final = 80


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


#: rejects NaN and Infinity, which Python's parser accepts by default
DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def charset_of(request: Request) -> str:
    """Return the encoding of the body: UTF-8 or ISO 8859-1. Raise HttpError 400 if the Content-Type names another."""
    for parameter in request.headers.get("content-type", "").split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip('"').lower()
            if charset not in _CHARSETS:
                raise bad_request(f"charset must be UTF-8 or ISO-8859-1, not {_quoted(charset)}")
            return _CHARSETS[charset]
    return "utf-8"


def parse_json(body: bytes, charset: str = "utf-8") -> Any:
    """Return the value of a JSON text. Raise HttpError 400 if it is not JSON or too deep."""
    try:
        return DECODER.decode(body.decode(charset))
    except RecursionError:
        raise bad_request("the JSON text is nested too deeply") from None
    except ValueError as error:
        raise bad_request(f"the body is not valid JSON: {error}") from None


async def read_object(request: Request, *, required: str = "Data is required.") -> dict[str, Any]:
    """Return the JSON object in the body. Raise HttpError 422 if the body is empty, 400 if it is not an object."""
    body = await request.body()
    if not body.strip():
        raise unprocessable(f"Payload error. Request body is empty. {required}", INVALID_PAYLOAD)
    found = parse_json(body, charset_of(request))
    if found is None:
        raise unprocessable(f"Payload error. Request body is null. {required}", INVALID_PAYLOAD)
    if not isinstance(found, dict):
        raise bad_request(f"the body must be a JSON object, not {_type_name(found)}")
    _refuse_unknown(found, request.scope["operation"].body)
    return found


def _refuse_unknown(found: Any, schema: Mapping[str, Any]) -> None:
    """Raise HttpError 422 if an object has a field that its JSON Schema excludes. Types are checked elsewhere."""
    if isinstance(found, list) and "items" in schema:
        for each in found:
            _refuse_unknown(each, schema["items"])
        return
    if not isinstance(found, dict) or "properties" not in schema:
        return
    known = schema["properties"]
    for name, value in found.items():
        if name not in known:
            if schema.get("additionalProperties", True) is False:
                raise unprocessable(f"Unrecognized field: {name[:_QUOTED_MAX]}")
        elif isinstance(value, (dict, list)):
            _refuse_unknown(value, known[name])


async def read_required(request: Request, *, required: str = "Data is required.") -> Fields:
    """Return the fields of the body of a request of version 3. Raise HttpError 422 if the body is empty."""
    return Fields(await read_object(request, required=required), missing=400)


async def read_optional_object(request: Request) -> dict[str, Any] | None:
    """Return the JSON object in the body; None for an empty body and for null."""
    body = await request.body()
    if not body.strip() or body.strip() == b"null":
        return None
    return await read_object(request)


class Fields:
    """The fields of one JSON object, read by name and type. ``missing`` is the status for a missing field."""

    __slots__ = ("_found", "_missing_status", "_where")

    def __init__(self, found: Any, where: str = "", *, missing: int = 422) -> None:
        if not isinstance(found, dict):
            raise bad_request(f"{where or 'the value'} must be a JSON object, not {_type_name(found)}")
        self._found = found
        self._missing_status = missing
        self._where = f"{where}." if where else ""

    def has(self, name: str) -> bool:
        """Return whether the field exists and is not null."""
        return self._found.get(name) is not None

    def text(self, name: str) -> str:
        """Return a required string."""
        found = self.optional_text(name)
        if found is None:
            raise self._missing(name)
        return found

    def optional_text(self, name: str, bytes_max: int = TEXT_BYTES_MAX) -> str | None:
        """Return a string, or None. Raise HttpError 400 if it is longer than a string of Kafka's protocol can be."""
        found: str | None = self._typed(name, str, "a string")
        if found is None:
            return None
        if not is_unicode(found):
            raise bad_request(f"{self._where}{name} contains half of a surrogate pair, which is not Unicode text")
        if len(found.encode()) > bytes_max:
            raise bad_request(f"{self._where}{name} is longer than {bytes_max:,} bytes")
        return found

    def scalar_text(self, name: str) -> str | None:
        """Return a string, a number or a boolean as text, or None: values of configs are often sent as numbers."""
        found = self._found.get(name)
        if isinstance(found, (bool, int, float)):
            return json.dumps(found)
        return self.optional_text(name)

    def integer(self, name: str, low: int = 0, high: int = INT32_MAX) -> int:
        """Return a required integer between two bounds."""
        found = self.optional_integer(name, low, high)
        if found is None:
            raise self._missing(name)
        return found

    def optional_integer(self, name: str, low: int = 0, high: int = INT32_MAX) -> int | None:
        found: int | None = self._typed(name, int, "an integer")
        if found is not None and not low <= found <= high:
            raise bad_request(f"{self._where}{name} must be between {low} and {high}")
        return found

    def optional_number(self, name: str, low: int = 0, high: int = INT32_MAX) -> int | None:
        """Return an integer, or None. Digits in a string are one, too: some clients send all values as strings."""
        found = self._found.get(name)
        if isinstance(found, str) and DIGITS.fullmatch(found):
            return Fields({name: int(found)}).optional_integer(name, low, high)
        return self.optional_integer(name, low, high)

    def boolean(self, name: str) -> bool:
        """Return a flag, false if the field is missing."""
        return self._typed(name, bool, "true or false") is True

    def choice(self, name: str, values: Sequence[str], default: str | None = None) -> str:
        """Return one of the values; case does not matter. Raise HttpError if it is missing without a default."""
        found = self.optional_text(name)
        if found is None:
            if default is None:
                raise self._missing(name)
            return default
        if found.upper() not in values:
            raise bad_request(f"{self._where}{name} must be one of {', '.join(values)}, not {_quoted(found)}")
        return found.upper()

    def objects(self, name: str) -> list[Fields]:
        """Return a required array of objects."""
        return [
            Fields(each, f"{self._where}{name}[{i}]", missing=self._missing_status)
            for i, each in enumerate(self.array(name))
        ]

    def array(self, name: str) -> list[Any]:
        """Return a required array."""
        found: list[Any] | None = self._typed(name, list, "an array")
        if found is None:
            raise self._missing(name)
        return found

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object, empty if the field is missing."""
        return self._typed(name, dict, "an object") or {}

    def value(self, name: str) -> Any:
        """Return any JSON value; None if the field is missing."""
        return self._found.get(name)

    def _missing(self, name: str) -> Exception:
        text = f"{self._where}{name} is required"
        return bad_request(text) if self._missing_status == 400 else unprocessable(text)

    def _typed(self, name: str, kind: type, noun: str) -> Any:
        """Return the value of a field, or None. Raise HttpError 400 if it has another type."""
        found = self._found.get(name)
        if found is not None and (not isinstance(found, kind) or (kind is int and isinstance(found, bool))):
            raise bad_request(f"{self._where}{name} must be {noun}, not {_type_name(found)}")
        return found


def is_unicode(text: str) -> bool:
    r"""Return whether a string has no lone surrogates, which JSON's \uXXXX can make and UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _type_name(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    names = {dict: "an object", list: "an array", str: "a string", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED_MAX else f"{text[:_QUOTED_MAX]}…")


def query_integer(request: Request, name: str, default: int | None, low: int, high: int) -> int | None:
    """Return an integer of the query. Raise HttpError 400 if it is not one, or out of bounds."""
    text = request.query_params.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or not low <= int(text) <= high:
        raise bad_request(f"{name} must be an integer between {low} and {high}, not {_quoted(text)}")
    return int(text)


def query_boolean(request: Request, name: str) -> bool:
    """Return whether a flag of the query is `true`. Raise HttpError 400 for another word than true and false."""
    text = request.query_params.get(name, "false").lower()
    if text not in ("true", "false"):
        raise bad_request(f"{name} must be true or false, not {_quoted(text)}")
    return text == "true"


def path_integer(request: Request, name: str) -> int:
    """Return an integer of the path. Raise HttpError 404 if it is not one, as Confluent's server does."""
    text: str = request.path_params[name]
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > INT32_MAX:
        raise not_found("HTTP 404 Not Found")
    return int(text)
