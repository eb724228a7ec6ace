"""Keys and values as people read them: JSON, a schema of the registry, text, or bytes.

No bytes raise an exception here: what cannot be decoded is shown as text or as bytes, with the reason. Values above
`DECODED_BYTES_MAX` are not decoded, and one search asks the registry for at most `_UNKNOWN_IDS_MAX` ids that it does
not know, because records that only look like framed ones could make it ask for millions.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from ottla.client.errors import ClientError
from ottla.client.registry import RegisteredSchema
from ottla.model import extras
from ottla.model.schema_ids import parse_schema_id
from ottla.schemas.data.codec import Codec, codec_for
from ottla.schemas.data.framing import HEADER_BYTES
from ottla.schemas.data.misfit import DataMisfit
from ottla.schemas.schema import InvalidSchema, SchemaTooComplex

#: larger keys and values are shown as text or bytes
DECODED_BYTES_MAX: Final = 8 << 20
_CODECS_MAX: Final = 200
_UNKNOWN_IDS_MAX: Final = 20
#: texts with a larger share of control characters are shown as bytes
_CONTROL_SHARE_MAX: Final = 0.1
#: characters that are looked at to tell text from bytes
_SAMPLE: Final = 4096
#: what the format of a schema is called
KINDS: Final = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json-schema"}


class SchemaSource(Protocol):
    """The client of a schema registry, as far as it is needed here."""

    def by_id(self, schema_id: int, subject: str | None = None) -> RegisteredSchema | None: ...
    def id_of_guid(self, guid: str) -> int | None: ...
    def resolve(self, schema: RegisteredSchema) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class Decoded:
    """A key or a value."""

    #: null, empty, json, avro, protobuf, json-schema, text or binary
    kind: str
    #: the JSON value; a text if it is none; None also for bytes that are no text
    data: Any
    #: the bytes as text, with escapes for those that are not UTF-8; None for null
    text: str | None
    schema_id: int | None = None
    #: name of the record, message or title
    schema_name: str | None = None
    #: why the schema was not used
    problem: str = ""

    @property
    def has_structure(self) -> bool:
        return self.kind in KINDS.values() or isinstance(self.data, (dict, list))


class Codecs:
    """The codecs of the schemas of one registry, by id. Thread safe. A schema that cannot be used is remembered too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: the least recently used is first
        self._known: OrderedDict[int, Codec | InvalidSchema] = OrderedDict()

    def of(self, schema: RegisteredSchema, source: SchemaSource) -> Codec:
        """Return the codec of a schema. Raise InvalidSchema or ClientError."""
        with self._lock:
            known = self._known.get(schema.id)
            if known is not None:
                self._known.move_to_end(schema.id)
        if known is None:
            known = _make(schema, source.resolve(schema))
            with self._lock:
                self._known[schema.id] = known
                if len(self._known) > _CODECS_MAX:
                    self._known.popitem(last=False)
        if isinstance(known, InvalidSchema):
            raise known
        return known


def _make(schema: RegisteredSchema, references: Mapping[str, str]) -> Codec | InvalidSchema:
    try:
        return codec_for(schema.schema_type, schema.text, references)
    except InvalidSchema as error:
        return error
    except RecursionError:
        return SchemaTooComplex("it has too many levels")
    except ModuleNotFoundError as error:
        return InvalidSchema(extras.missing(str(error.name), extras.EDGE))


class Decoder:
    """Decodes the keys and values of one request. Not thread safe."""

    def __init__(self, source: SchemaSource | None, codecs: Codecs) -> None:
        """Without a registry, framed values are shown as bytes with their schema id."""
        self._source = source
        self._codecs = codecs
        self._unknown: set[int | str] = set()
        #: why the registry is not asked any more
        self._outage = ""

    def decode(self, data: bytes | None, schema_header: bytes | None = None) -> Decoded:
        """Return a key or a value; ``schema_header`` is the header that names its schema, if it has one."""
        if data is None:
            return Decoded("null", None, None)
        if not data and not schema_header:
            return Decoded("empty", "", "")
        if len(data) > DECODED_BYTES_MAX:
            return _plain(data, problem=f"not decoded, because it is larger than {DECODED_BYTES_MAX >> 20} MiB")
        named = schema_header if schema_header is not None else data
        schema_id = parse_schema_id(named[:17])
        if schema_id is None:
            return _undeclared(data)
        id_bytes = HEADER_BYTES if isinstance(schema_id, int) else 17
        payload = data[id_bytes:] if schema_header is None else schema_header[id_bytes:] + data
        return self._by_schema(schema_id, data, payload)

    def _by_schema(self, given_id: int | str, data: bytes, payload: bytes) -> Decoded:
        number = given_id if isinstance(given_id, int) else None
        try:
            schema = self._find(given_id)
            if isinstance(schema, str):
                return _plain(data, number, schema)
            codec = self._codecs.of(schema, self._source_in_use())
            value = codec.decode(payload)
            kind = KINDS.get(schema.schema_type, schema.schema_type.lower())
            return Decoded(kind, value, _text_of(payload), schema.id, codec.name)
        except DataMisfit as error:
            return _plain(data, number, f"it does not fit schema {given_id}: {error}")
        except InvalidSchema as error:
            return _plain(data, number, f"schema {given_id} cannot be used: {error}")
        except ClientError as error:
            self._outage = str(error)
            return _plain(data, number, self._outage)
        except RecursionError:
            return _plain(data, number, "it has too many values inside of each other")

    def _source_in_use(self) -> SchemaSource:
        assert self._source is not None
        return self._source

    def _find(self, given_id: int | str) -> RegisteredSchema | str:
        """Return the schema with this id or guid, or why there is none. Raise ClientError."""
        if self._source is None:
            return f"it has schema id {given_id}; give the console a registry with --registry URL to decode it"
        if self._outage:
            return self._outage
        unknown = f"the registry has no schema {given_id}"
        if given_id in self._unknown or len(self._unknown) >= _UNKNOWN_IDS_MAX:
            return unknown
        schema_id = self._source.id_of_guid(given_id) if isinstance(given_id, str) else given_id
        schema = None if schema_id is None else self._source.by_id(schema_id)
        if schema is None:
            self._unknown.add(given_id)
            return unknown
        return schema


class LazyPart:
    """A key or a value that is decoded when it is first used; the `Part` of `expression.py`."""

    __slots__ = ("_decoded", "_decoder", "_lowered", "_schema_header", "bytes")

    def __init__(self, content: bytes | None, schema_header: bytes | None, decoder: Decoder) -> None:
        self.bytes = content
        self._schema_header = schema_header
        self._decoder = decoder
        self._decoded: Decoded | None = None
        self._lowered: bytes | None = None

    @property
    def decoded(self) -> Decoded:
        if self._decoded is None:
            self._decoded = self._decoder.decode(self.bytes, self._schema_header)
        return self._decoded

    @property
    def data(self) -> Any:
        return self.decoded.data

    @property
    def text(self) -> str | None:
        return self.decoded.text

    def contains(self, lowered: str) -> bool:
        """Return whether a text without capital letters occurs in the bytes or in the decoded value."""
        if self.bytes is None:
            return False
        if lowered.isascii():
            # The search for bytes is much faster than decoding, and finds the texts of all formats.
            if self._lowered is None:
                self._lowered = self.bytes.lower()
            if lowered.encode() in self._lowered:
                return True
        decoded = self.decoded
        if not lowered.isascii() and lowered in (decoded.text or "").lower():
            return True
        needs_json = decoded.kind in KINDS.values() or (decoded.has_structure and b"\\" in self.bytes)
        return needs_json and lowered in compact(decoded.data).lower()


def _undeclared(data: bytes) -> Decoded:
    """Return bytes without a schema: JSON, another text, or bytes."""
    try:
        text = data.decode()
        value = _JSON.decode(text)
    except (ValueError, RecursionError):
        return _plain(data)
    is_json = isinstance(value, (dict, list, str))
    return Decoded("json" if is_json else "text", value, text)


def _plain(data: bytes, schema_id: int | None = None, problem: str = "") -> Decoded:
    text = _text_of(data)
    kind = "text" if _is_text(data, text) else "binary"
    return Decoded(kind, text if kind == "text" else None, text, schema_id, problem=problem)


def _text_of(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _is_text(data: bytes, text: str) -> bool:
    sample = text[:_SAMPLE]
    controls = sum(not sign.isprintable() and sign not in "\t\r\n" for sign in sample)
    if controls > _CONTROL_SHARE_MAX * len(sample):
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError("the number is too large")
    return number


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)


def compact(value: Any) -> str:
    """Return JSON on one line; an empty text if it is nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except (RecursionError, ValueError):
        return ""
