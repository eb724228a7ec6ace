"""The records of __consumer_offsets and __transaction_state as the JSON that Kafka's tools print."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any, Final

from ottla.broker.groups.records import ConsumerGroupMemberMetadataValue, decode_record
from ottla.broker.transactions.records import TransactionState, decode_transaction
from ottla.wire import Message, WireError, decode
from ottla.wire import group_records as schemas
from ottla.wire.schema import Array, StructType

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
#: type of the key -> the names of its texts; types 0 and 1 also have a partition
_KEYS: Final[dict[int, tuple[str, ...]]] = {
    0: ("group", "topic"),
    1: ("group", "topic"),
    2: ("group",),
    3: ("groupId",),
    5: ("groupId", "memberId"),
    6: ("groupId",),
    7: ("groupId", "memberId"),
    8: ("groupId", "memberId"),
    16: ("groupId", "regularExpression"),
}
_OFFSET_TYPES: Final = (0, 1)
_CLASSIC_GROUP: Final = 2
_MEMBER: Final = 5
_VALUES: Final[dict[int, type[Message]]] = {
    0: schemas.OffsetCommitValue,
    1: schemas.OffsetCommitValue,
    2: schemas.GroupMetadataValue,
    3: schemas.ConsumerGroupMetadataValue,
    5: schemas.ConsumerGroupMemberMetadataValue,
    6: schemas.ConsumerGroupTargetAssignmentMetadataValue,
    7: schemas.ConsumerGroupTargetAssignmentMemberValue,
    8: schemas.ConsumerGroupCurrentMemberAssignmentValue,
    16: schemas.ConsumerGroupRegularExpressionValue,
}
_CONSUMER_PROTOCOL: Final = "consumer"
_DAMAGED: Final = "<DAMAGED>"

Texts = tuple[str | None, str | None]


def group_texts(key: bytes | None, value: bytes | None) -> Texts:
    """Return the texts of a record of __consumer_offsets."""
    return _guarded(_group_texts, key, value)


def transaction_texts(key: bytes | None, value: bytes | None) -> Texts:
    """Return the texts of a record of __transaction_state."""
    return _guarded(_transaction_texts, key, value)


def _guarded(texts: Callable[[bytes, bytes | None], Texts], key: bytes | None, value: bytes | None) -> Texts:
    if key is None:
        return None, None
    try:
        return texts(key, value)
    except (WireError, struct.error, UnicodeDecodeError):
        return _DAMAGED, _DAMAGED


def _group_texts(key: bytes, value: bytes | None) -> Texts:
    (kind,) = _INT16.unpack_from(key)
    if kind not in _KEYS:
        text = f"Unknown record type {kind} at offset, skipping..."
        return text, None
    fields, position = {}, _INT16.size
    for name in _KEYS[kind]:
        (length,) = _INT16.unpack_from(key, position)
        position += _INT16.size
        fields[name] = key[position : position + length].decode()
        position += length
    data: dict[str, Any] = dict(fields)
    if kind in _OFFSET_TYPES:
        data["partition"] = _INT32.unpack_from(key, position)[0]
    key_text = _json({"type": str(kind), "data": data})
    if value is None:
        return key_text, "<DELETE>"
    (version,) = _INT16.unpack_from(value)
    message, _ = decode(_VALUES[kind], version, value, _INT16.size)
    content = as_json(message, version)
    if kind == _CLASSIC_GROUP and content["protocolType"] == _CONSUMER_PROTOCOL:
        assert isinstance(message, schemas.GroupMetadataValue)
        for member, row in zip(message.members, content["members"], strict=True):
            row["subscription"] = _protocol(schemas.ConsumerProtocolSubscription, member.subscription)
            row["assignment"] = _protocol(schemas.ConsumerProtocolAssignment, member.assignment)
    if kind == _MEMBER:
        content["classicMemberMetadata"] = _classic_member(key, value)
    return key_text, _json({"version": str(version), "data": content})


def _classic_member(key: bytes, value: bytes) -> Any:
    """Return what a group of the consumer protocol knows about a member that uses the classic one."""
    record = decode_record(key, value)
    found = record.value if record is not None else None
    if not isinstance(found, ConsumerGroupMemberMetadataValue) or found.classic_member_metadata is None:
        return None
    classic = found.classic_member_metadata
    protocols = [
        {"name": name, "metadata": base64.b64encode(data).decode()} for name, data in classic.supported_protocols
    ]
    return {"sessionTimeoutMs": classic.session_timeout_ms, "supportedProtocols": protocols}


def _protocol(kind: type[Message], data: bytes) -> Any:
    """Return what a member and its leader exchanged; null before the first assignment."""
    if not data:
        return None
    (version,) = _INT16.unpack_from(data)
    version = min(version, kind.VERSIONS[1])
    message, _ = decode(kind, version, data, _INT16.size)
    return as_json(message, version)


def _transaction_texts(key: bytes, value: bytes | None) -> Texts:
    record = decode_transaction(key, value)
    if record is None:
        return f"unknown::version={_INT16.unpack_from(key)[0]}", None
    key_text = _json({"type": "0", "data": {"transactionalId": record.key.transactional_id}})
    found = record.value
    if value is None or found is None:
        return key_text, "<DELETE>"
    (version,) = _INT16.unpack_from(value)
    topics: dict[str, list[int]] = {}
    for name in found.partitions:
        topics.setdefault(name.topic, []).append(name.partition)
    partitions = [{"topic": topic, "partitionIds": numbers} for topic, numbers in topics.items()]
    data: dict[str, Any] = {"producerId": found.producer_id}
    _put_tag(data, "previousProducerId", found.previous_producer_id, -1)
    _put_tag(data, "nextProducerId", found.next_producer_id, -1)
    data["producerEpoch"] = found.producer_epoch
    _put_tag(data, "nextProducerEpoch", found.next_producer_epoch, -1)
    data |= {
        "transactionTimeoutMs": found.timeout_ms,
        "transactionStatus": int(found.state),
        "transactionPartitions": None if found.state == TransactionState.EMPTY else partitions,
        "transactionLastUpdateTimestampMs": found.last_update_ms,
        "transactionStartTimestampMs": found.start_ms,
    }
    _put_tag(data, "clientTransactionVersion", found.client_transaction_version, 0)
    return key_text, _json({"version": str(version), "data": data})


def _put_tag(data: dict[str, Any], name: str, value: int, default: int) -> None:
    """Add a tagged field, which is left out if it has its default."""
    if value != default:
        data[name] = value


def as_json(message: Any, version: int) -> dict[str, Any]:
    """Return the fields that a message has in a version, under the names of Kafka's schemas."""
    found = {}
    for each in type(message).FIELDS:
        value = getattr(message, each.name)
        low, high = each.versions
        is_default_tag = each.tag is not None and value == each.default
        if low <= version <= high and not is_default_tag:
            found[_camel(each.name)] = _value(each.type, value, version)
    return found


def _value(kind: Any, value: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(kind, Array):
        return [_value(kind.element, each, version) for each in value]
    if isinstance(kind, StructType):
        return as_json(value, version)
    if kind == "uuid":
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    return base64.b64encode(value).decode() if isinstance(value, bytes | memoryview) else value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _json(content: object) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)
