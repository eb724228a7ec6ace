"""Output formats of `ottla consume`: kcat's tokens, rpk's encodings, and kcat's JSON envelope.

    %t topic   %p partition    %o offset          %T timestamp in ms   %h headers as k=v,k=v
    %k key     %K its length   %s or %v value     %S its length        %% a percent sign

%k, %s and %v may be followed by {hex} or {base64}. \\n \\t \\r \\\\ and \\xNN are the usual escapes.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ottla.cli.csv_rows import csv_line
from ottla.model.printable import escape_controls

if TYPE_CHECKING:
    from ottla.cli.records import Message

Render = Callable[["Message | DecodedMessage"], bytes]

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "hex": lambda data: data.hex().encode(),
    "base64": base64.b64encode,
}
_LITERAL = r"\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.)|[^%\\]+|."
_LITERALS = re.compile(_LITERAL, re.DOTALL)
_PIECES = re.compile(r"%(?P<token>.)(?:\{(?P<encoding>[^}]*)\})?|" + _LITERAL, re.DOTALL)
#: kcat's names for where a timestamp comes from, by the client's number
_TIMESTAMP_TYPES = ("unknown", "create", "logappend")
#: the fields that an envelope may have
ENVELOPE_FIELDS = (
    "topic", "partition", "offset", "tstype", "ts", "headers", "key", "key_encoding", "key_schema_id", "payload",
    "payload_encoding", "value_schema_id",
)  # fmt: skip


class DecodedPart(NamedTuple):
    """A key or value that was decoded with a schema of the registry."""

    schema_id: int
    #: as JSON has it
    value: Any


class DecodedMessage:
    """A record whose decoded key and value are JSON text. Has the methods of a client's message."""

    def __init__(self, message: Message, key: DecodedPart | None, value: DecodedPart | None) -> None:
        self.topic, self.partition, self.offset = message.topic, message.partition, message.offset
        self.timestamp, self.headers = message.timestamp, message.headers
        self._message = message
        #: None if it has no schema
        self.decoded_key, self.decoded_value = key, value

    def key(self) -> bytes | None:
        return self._message.key() if self.decoded_key is None else _json_line(self.decoded_key.value)

    def value(self) -> bytes | None:
        return self._message.value() if self.decoded_value is None else _json_line(self.decoded_value.value)


def compile_format(text: str, *, null: bytes = b"", terminal: bool = False) -> Render:
    """Return the function that formats a record. Raise ValueError for a token that does not exist.

    `null` stands for an absent key or value. For a terminal, control characters in the data are escaped.
    """
    show = _show_on_terminal if terminal else bytes
    parts: list[Render] = []
    for piece in _PIECES.finditer(text):
        if piece["token"] is not None:
            parts.append(_compile_token(piece["token"], piece["encoding"], null, show))
        else:
            parts.append(_literal(_decode_literal(piece)))
    if len(parts) == 1:
        return parts[0]
    return lambda message: b"".join([part(message) for part in parts])


def decode_escapes(text: str) -> bytes:
    """Return the bytes of a delimiter: text with \\n, \\t, \\xNN.

    >>> decode_escapes(r"a\\x00\\n")
    b'a\\x00\\n'
    """
    return b"".join(_decode_literal(piece) for piece in _LITERALS.finditer(text))


def render_envelope(message: Message | DecodedMessage) -> bytes:
    """Return a line of JSON as kcat -J writes it. Bytes that are not text are base64, and a field says so.

    A key or value with a schema is the JSON value itself, and a field has the id of the schema.
    """
    return _json_line(_envelope(message)) + b"\n"


def csv_render(*, safe: bool, terminal: bool) -> Render:
    """Return the function that formats a record as a line of CSV, with the columns ENVELOPE_FIELDS."""

    def render(message: Message | DecodedMessage) -> bytes:
        envelope = _envelope(message)
        line = csv_line([envelope.get(field) for field in ENVELOPE_FIELDS], safe=safe)
        return (escape_controls(line, keep="\r\n\t") if terminal else line).encode("utf-8", "backslashreplace")

    return render


def _envelope(message: Message | DecodedMessage) -> dict[str, Any]:
    kind, timestamp = message.timestamp()
    envelope: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "tstype": _TIMESTAMP_TYPES[kind] if 0 <= kind < len(_TIMESTAMP_TYPES) else "unknown",
        "ts": timestamp,
        "headers": [],
    }
    for name, value in _headers(message):
        # kcat writes names and values as one flat list.
        envelope["headers"] += [name, _as_json_text(value)[0]]
    for field, data in (("key", message.key()), ("payload", message.value())):
        envelope[field], encoding = _as_json_text(data)
        if encoding is not None:
            envelope[f"{field}_encoding"] = encoding
    if isinstance(message, DecodedMessage):
        for field, name, part in (("key", "key", message.decoded_key), ("payload", "value", message.decoded_value)):
            if part is not None:
                envelope[field], envelope[f"{name}_schema_id"] = part.value, part.schema_id
    return envelope


def _compile_token(token: str, encoding: str | None, null: bytes, show: Callable[[bytes], bytes]) -> Render:
    if encoding is not None:
        if token not in "ksv" or encoding not in _ENCODINGS:
            raise ValueError(f"%{token}{{{encoding}}} is not a token: only %k, %s and %v take {{hex}} or {{base64}}")
        show = _ENCODINGS[encoding]
    match token:
        case "t":
            return lambda message: str(message.topic()).encode()
        case "p":
            return lambda message: b"%d" % _number(message.partition())
        case "o":
            return lambda message: b"%d" % _number(message.offset())
        case "T":
            return lambda message: b"%d" % message.timestamp()[1]
        case "k":
            return lambda message: null if (key := message.key()) is None else show(key)
        case "s" | "v":
            return lambda message: null if (value := message.value()) is None else show(value)
        case "K":
            return lambda message: b"%d" % (-1 if (key := message.key()) is None else len(key))
        case "S":
            return lambda message: b"%d" % (-1 if (value := message.value()) is None else len(value))
        case "h":
            return lambda message: show(_join_headers(message))
        case "%":
            return _literal(b"%")
    raise ValueError(f"%{token} is not a token; there are %t %p %o %k %s %v %h %T %S %K and %%")


def _literal(data: bytes) -> Render:
    return lambda _: data


def _decode_literal(piece: re.Match[str]) -> bytes:
    if piece["hex"] is not None:
        return bytes.fromhex(piece["hex"])
    if piece["escape"] is not None:
        return _ESCAPES.get(piece["escape"], piece[0].encode())
    return piece[0].encode()


def _join_headers(message: Message | DecodedMessage) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in _headers(message))


def _headers(message: Message | DecodedMessage) -> list[tuple[str, bytes | None]]:
    # The type allows several forms; consumed messages have this one.
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


def _show_on_terminal(data: bytes) -> bytes:
    return escape_controls(data.decode("utf-8", "backslashreplace")).encode()


def _json_line(value: Any) -> bytes:
    # Half of a surrogate pair is not UTF-8 and becomes an escape, which is JSON.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _as_json_text(data: bytes | None) -> tuple[str | None, str | None]:
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _number(value: int | None) -> int:
    return -1 if value is None else value
