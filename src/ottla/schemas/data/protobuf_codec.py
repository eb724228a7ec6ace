"""Protobuf data: message indexes and bytes, to and from Protobuf's canonical JSON, with Google's library.

Fields without presence are printed also if they have their default, as Confluent's REST proxy prints them. Data that
are written have the first message of the file.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError, Message

from ottla.schemas.data.framing import BadFrame, decode_indexes, encode_indexes
from ottla.schemas.data.misfit import DATA_DEPTH_MAX, DataMisfit, kind_of, too_deep
from ottla.schemas.protobuf import ProtobufSchema
from ottla.schemas.protobuf.options import is_map, is_repeated
from ottla.schemas.schema import InvalidSchema

#: fields that one value prints, those that have only their default among them: about 2 s
_PRINTED_MAX: Final = 500_000
_FIRST: Final = (0,)
_REASON_MAX: Final = 200
#: the library has no common class for data that do not fit; RecursionError: google.protobuf.Any inside of another
_ERRORS: Final = (json_format.Error, DecodeError, EncodeError, ValueError, TypeError, KeyError, RecursionError)


class ProtobufCodec:
    """The data of the messages of one file."""

    def __init__(self, schema: ProtobufSchema) -> None:
        """Raise InvalidSchema if the file has no message."""
        self.name = schema.name
        self._file = schema.file_descriptor
        if not self._file.message_type:
            raise InvalidSchema("the schema has no message, and only messages can be data")
        self._pool = DescriptorPool()
        #: fields of the largest message that the data may contain
        self._fields_max = 0
        for serialized in schema.descriptors():
            self._pool.AddSerializedFile(serialized)
            self._fields_max = max(self._fields_max, _fields_max(FileDescriptorProto.FromString(serialized)))
        #: message indexes -> class
        self._classes: dict[tuple[int, ...], Any] = {}

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, dict):
            raise DataMisfit(f"the message {self.name} must be an object, not {kind_of(value)}")
        message = self._class_of(_FIRST)()
        try:
            json_format.ParseDict(value, message, descriptor_pool=self._pool, max_recursion_depth=DATA_DEPTH_MAX)
            return encode_indexes(_FIRST) + bytes(message.SerializeToString())
        except _ERRORS as error:
            raise DataMisfit(_reason(error)) from None

    def decode(self, data: bytes) -> Any:
        try:
            indexes, content = decode_indexes(data)
            message = self._class_of(indexes).FromString(content)
            # A message inside of another takes at least two bytes.
            if (len(content) // 2 + 1) * self._fields_max > _PRINTED_MAX:
                self._check_size(message)
            return json_format.MessageToDict(
                message, always_print_fields_with_no_presence=True, descriptor_pool=self._pool
            )
        except BadFrame as error:
            raise DataMisfit(str(error)) from None
        except _ERRORS as error:
            raise DataMisfit(_reason(error)) from None

    def _class_of(self, indexes: tuple[int, ...]) -> Any:
        found = self._classes.get(indexes)
        if found is None:
            messages, names = self._file.message_type, [self._file.package] if self._file.package else []
            for index in indexes:
                if not 0 <= index < len(messages):
                    raise DataMisfit(f"the schema has no message with the indexes {list(indexes)[:10]}")
                names.append(messages[index].name)
                messages = messages[index].nested_type
            descriptor = self._pool.FindMessageTypeByName(".".join(names))
            found = self._classes[indexes] = message_factory.GetMessageClass(descriptor)
        return found

    def _check_size(self, message: Message) -> None:
        """Raise DataMisfit if a message prints too many fields, counting those that have only their default.

        The values of repeated fields are not counted: each one takes a byte.
        """
        left = _PRINTED_MAX
        pending = [(message, 0)]
        while pending:
            message, depth = pending.pop()
            left -= 1 + len(message.DESCRIPTOR.fields)
            if left < 0:
                raise DataMisfit(f"with all fields that have their default the message has more than {_PRINTED_MAX:,}")
            if depth > DATA_DEPTH_MAX:
                raise too_deep()
            if message.DESCRIPTOR.full_name == "google.protobuf.Any":
                pending.append((self._content(message), depth + 1))
                continue
            for field, value in message.ListFields():
                if field.message_type is None:
                    continue
                if is_map(field):
                    if field.message_type.fields_by_name["value"].message_type is not None:
                        pending.extend((member, depth) for member in value.values())
                else:
                    pending.extend((item, depth) for item in (value if is_repeated(field) else (value,)))

    def _content(self, message: Any) -> Message:
        """Return the message inside of a google.protobuf.Any. Raise KeyError if the schema does not know its type."""
        descriptor = self._pool.FindMessageTypeByName(message.type_url.rpartition("/")[2])
        content: Message = message_factory.GetMessageClass(descriptor).FromString(message.value)
        return content


def _fields_max(file: Any) -> int:
    """Return the number of fields of the largest message of a file."""
    found = 0
    pending = list(file.message_type)
    while pending:
        message = pending.pop()
        found = max(found, len(message.field))
        pending.extend(message.nested_type)
    return found


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return str(too_deep())
    text = " ".join(str(error).strip("'\"").split()) or type(error).__name__
    return text if len(text) <= _REASON_MAX else f"{text[:_REASON_MAX]}…"
