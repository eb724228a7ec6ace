"""Bytes to messages and back, for every version of every message.

Each pair of message class and version has one decoding and one encoding function. `codec_source.py` generates their
source text; they are compiled on first use, so a broker pays only for the versions that its clients use.

A decoder compares each length with the bytes that are left before it allocates memory, and raises WireError for all
malformed bytes. The caller can limit the number of elements of all arrays of a message, because each element costs
time: a microsecond to decode it, and several to handle it.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Sequence
from typing import Final, TypeVar

from ottla.wire.codec_source import Decoder, DecoderSource, Encoder, EncoderSource
from ottla.wire.messages import APIS
from ottla.wire.primitives import FIXED_CODES, STRING_BYTES_MAX, WireError
from ottla.wire.schema import Array, Field, Message, Struct

M = TypeVar("M", bound=Message)

API_VERSIONS_KEY: Final = 18
#: Elements of all arrays of a request, nested ones included: 12,000 topics with a partition each. The broker takes 1 to
#: 5 us to decode, handle and answer one, and serves no other request meanwhile.
REQUEST_ELEMENTS_MAX: Final = 25_000
_UNLIMITED: Final = 1 << 31


def decode(
    cls: type[M], version: int, buffer: bytes | memoryview | bytearray, position: int, elements_max: int = _UNLIMITED
) -> tuple[M, int]:
    """Read one message body at `position`; return it and the position after it.

    :raises WireError: if the bytes are malformed, the class has no such version, or the arrays and unknown tagged
        fields of the message have more than `elements_max` elements in all.
    """
    try:
        decoder = _decoders[cls, version]
    except KeyError:
        decoder = _decoders[cls, version] = _compile_decoder(cls, version)
    try:
        if type(buffer) is bytes:
            return decoder(buffer, position, len(buffer), elements_max)
        # Released at once, so that a bytearray can be resized even while a WireError is being handled.
        with memoryview(buffer) as view:
            return decoder(view, position, len(view), elements_max)
    except (IndexError, struct.error):
        raise WireError(f"{cls.__name__} v{version} is cut short") from None
    except UnicodeDecodeError as error:
        raise WireError(f"{cls.__name__} v{version} has a string that is not UTF-8: {error}") from None


def encode(message: Message, version: int) -> bytes:
    """Return the body of `message` in `version`, without the fields that this version lacks.

    :raises ValueError: if a value does not fit its field, or the class has no such version.
    """
    cls = type(message)
    try:
        encoder = _encoders[cls, version]
    except KeyError:
        encoder = _encoders[cls, version] = _compile_encoder(cls, version)
    try:
        return encoder(message)
    except (struct.error, TypeError, AttributeError, ValueError) as error:
        culprit = _find_misfit(message, version, cls.__name__)
        raise ValueError(f"cannot encode v{version}: {culprit or error}") from error


def request_header_version(api_key: int, version: int) -> int:
    """Return the version of the header of a request; versions that Ottla does not know have that of the newest."""
    return 2 if version >= _flexible_from(api_key) else 1


def response_header_version(api_key: int, version: int) -> int:
    # A client that asks for ApiVersions does not yet know which versions the broker speaks, so the header
    # of the answer is the oldest whatever the version.
    if api_key == API_VERSIONS_KEY:
        return 0
    return 1 if version >= _flexible_from(api_key) else 0


def request_class(api_key: int) -> type[Message]:
    """Return the request class of an API in APIS, imported on first use."""
    return _message_class(api_key, "Request")


def response_class(api_key: int) -> type[Message]:
    """Return the response class of an API in APIS, imported on first use."""
    return _message_class(api_key, "Response")


def _flexible_from(api_key: int) -> int:
    api = APIS.get(api_key)
    if api is None:
        raise WireError(f"no API has the key {api_key}")
    return api.flexible_from


def _message_class(api_key: int, kind: str) -> type[Message]:
    try:
        return _classes[api_key, kind]
    except KeyError:
        api = APIS[api_key]
    module = importlib.import_module(f"ottla.wire.messages.{api.module}")
    cls: type[Message] = getattr(module, api.name + kind)
    _classes[api_key, kind] = cls
    return cls


_decoders: dict[tuple[type[Message], int], Decoder] = {}
_encoders: dict[tuple[type[Message], int], Encoder] = {}
_classes: dict[tuple[int, str], type[Message]] = {}


def _compile_decoder(cls: type[Message], version: int) -> Decoder:
    _check_version(cls, version, WireError)
    return DecoderSource(cls, version).compile()


def _compile_encoder(cls: type[Message], version: int) -> Encoder:
    _check_version(cls, version, ValueError)
    return EncoderSource(cls, version).compile()


def _check_version(cls: type[Message], version: int, error: type[Exception]) -> None:
    first, last = cls.VERSIONS
    if not first <= version <= last:
        raise error(f"{cls.__name__} has no version {version}, only {first} to {last}")


def _find_misfit(value: Struct, version: int, path: str) -> str | None:
    """Return which value made encoding fail; None if it is not found. Slow: call it only after a failure."""
    for field in type(value).FIELDS:
        if field.is_in(version):
            found = _find_misfit_value(getattr(value, field.name), field, version, f"{path}.{field.name}")
            if found:
                return found
    return None


def _find_misfit_value(value: object, field: Field, version: int, path: str) -> str | None:
    field_type = field.type
    if value is None:
        may_be_none = field.is_nullable_in(version) or (field.is_tagged_in(version) and field.default is None)
        return None if may_be_none else f"{path} is None, but this version allows no null"
    if not isinstance(field_type, Array):
        return _find_misfit_element(value, field_type, version, path)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return f"{path} is a {type(value).__name__}, not a sequence"
    for position, element in enumerate(value):
        found = _find_misfit_element(element, field_type.element, version, f"{path}[{position}]")
        if found:
            return found
    return None


def _find_misfit_element(value: object, field_type: str | type[Struct], version: int, path: str) -> str | None:
    if isinstance(field_type, type):
        if isinstance(value, field_type):
            return _find_misfit(value, version, path)
        return f"{path} is a {type(value).__name__}, not a {field_type.__name__}"
    if field_type == "string":
        fits = isinstance(value, str) and len(value.encode("utf-8", "replace")) <= STRING_BYTES_MAX
    elif field_type in ("bytes", "records"):
        fits = isinstance(value, bytes | bytearray | memoryview)
    elif field_type == "uuid":
        fits = isinstance(value, bytes) and len(value) == 16
    else:
        try:
            fits = bool(struct.pack(f">{FIXED_CODES[field_type]}", value))
        except struct.error:
            fits = False
    return None if fits else f"{path} is {value!r:.80}, which does not fit {field_type}"
