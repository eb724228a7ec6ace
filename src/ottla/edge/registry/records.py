"""The records of the topic `_schemas`, in the format of Confluent's registry.

A key is JSON with a `keytype`. A value is JSON, or null for a key that was deleted. The order of members matters: the
topic is compacted by the bytes of the key.

    {"keytype":"SCHEMA","subject":"orders-value","version":1,"magic":1}
    {"keytype":"CONFIG","subject":null,"magic":0}              subject null: the global configuration
    {"keytype":"MODE","subject":"orders-value","magic":0}
    {"keytype":"DELETE_SUBJECT","subject":"orders-value","magic":0}      soft delete of all versions up to one
    {"keytype":"CLEAR_SUBJECT","subject":"orders-value","magic":0}
    {"keytype":"CONTEXT","tenant":"default","context":".test","magic":0}
    {"keytype":"ASSOC","tenant":"default","resourceName":"orders","resourceNamespace":"lkc-1","resourceType":"topic",
     "associationType":"value","subject":"orders-value","magic":0}
    {"keytype":"NOOP","magic":0}

Members that this version does not know are kept in a value, and a record whose key type it does not know is ignored, so
that a topic of a newer registry can be read.
"""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from ottla.schemas.schema import Reference, SchemaType

Json = dict[str, Any]

#: Confluent's name for the users of a registry that has only one group of users
_TENANT: Final = "default"


class Record(NamedTuple):
    """A record to append: key and value as JSON bytes; the value is None to delete the key."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a subject."""

    subject: str
    version: int
    id: int
    text: str
    #: as stored; a type that this version does not know is kept
    schema_type: str = SchemaType.AVRO
    references: tuple[Reference, ...] = ()
    metadata: Json | None = None
    rule_set: Json | None = None
    is_deleted: bool = False
    #: where and when the record was appended
    offset: int = -1
    timestamp_ms: int = -1
    guid: str = field(default="")

    def __post_init__(self) -> None:
        if not self.guid:
            object.__setattr__(self, "guid", guid_of(self.text, self.references, self.metadata, self.rule_set))

    def deleted(self) -> SchemaVersion:
        return replace(self, is_deleted=True)

    def key(self) -> bytes:
        return schema_key(self.subject, self.version)

    def record(self) -> Record:
        value: Json = {"subject": self.subject, "version": self.version, "id": self.id, "md5": self.guid}
        value |= self.members() | {"schema": self.text, "deleted": self.is_deleted}
        return Record(self.key(), compact_json(value))

    def members(self) -> Json:
        """Return the members besides the text. An empty one is left out, and so is the type AVRO."""
        value: Json = {}
        if self.schema_type != SchemaType.AVRO:
            value["schemaType"] = self.schema_type
        if self.references:
            value["references"] = references_json(self.references)
        if self.metadata is not None:
            value["metadata"] = self.metadata
        if self.rule_set is not None:
            value["ruleSet"] = self.rule_set
        return value

    @classmethod
    def parse(cls, value: Json, offset: int, timestamp_ms: int) -> SchemaVersion:
        return cls(
            subject=value["subject"],
            version=value["version"],
            id=value["id"],
            text=value["schema"],
            schema_type=value.get("schemaType") or SchemaType.AVRO,
            references=parse_references(value.get("references")),
            metadata=value.get("metadata"),
            rule_set=value.get("ruleSet"),
            is_deleted=bool(value.get("deleted")),
            offset=offset,
            timestamp_ms=timestamp_ms,
            guid=_as_guid(value.get("md5")),
        )


@dataclass(frozen=True, slots=True, order=True)
class Association:
    """A topic whose keys or values have the schemas of a subject. The order of the fields is that of lists."""

    resource_name: str
    #: the id of the cluster that has the topic
    resource_namespace: str
    resource_type: str
    #: "key" or "value"
    association_type: str
    subject: str
    #: the id of the topic
    resource_id: str
    guid: str
    #: STRONG: the subject belongs to the topic; WEAK: several topics may share the subject
    lifecycle: str
    is_frozen: bool
    created_ms: int = -1
    updated_ms: int = -1

    def key(self) -> bytes:
        return compact_json({
            "keytype": "ASSOC", "tenant": _TENANT, "resourceName": self.resource_name,
            "resourceNamespace": self.resource_namespace, "resourceType": self.resource_type,
            "associationType": self.association_type, "subject": self.subject, "magic": 0,
        })  # fmt: skip

    def record(self) -> Record:
        value: Json = {
            "guid": self.guid, "tenant": _TENANT, "resourceName": self.resource_name,
            "resourceNamespace": self.resource_namespace, "resourceId": self.resource_id,
            "resourceType": self.resource_type, "associationType": self.association_type, "subject": self.subject,
            "lifecycle": self.lifecycle, "frozen": self.is_frozen,
        }  # fmt: skip
        if self.created_ms >= 0:
            value["createTs"] = self.created_ms
        return Record(self.key(), compact_json(value))

    @classmethod
    def parse(cls, value: Json, timestamp_ms: int) -> Association:
        created_ms = value.get("createTs")
        return cls(
            resource_name=value["resourceName"],
            resource_namespace=value["resourceNamespace"],
            resource_type=value["resourceType"],
            association_type=value["associationType"],
            subject=value["subject"],
            resource_id=value["resourceId"],
            guid=value["guid"],
            lifecycle=value["lifecycle"],
            is_frozen=bool(value.get("frozen")),
            created_ms=timestamp_ms if created_ms is None else created_ms,
            updated_ms=timestamp_ms,
        )


#: the lists of rules in a rule set
RULE_LISTS: Final = ("migrationRules", "domainRules", "encodingRules")
_OPTIONAL_TEXT: Final = (str, type(None))
#: key type -> types of the members of the key and of the value that the state relies on; others may have any type
_MEMBERS: Final[Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]] = {
    "SCHEMA": (
        {"subject": str, "version": int},
        {"subject": str, "version": int, "id": int, "schema": str, "schemaType": _OPTIONAL_TEXT},
    ),
    "CONFIG": ({"subject": _OPTIONAL_TEXT}, {"alias": _OPTIONAL_TEXT, "compatibilityLevel": _OPTIONAL_TEXT}),
    "MODE": ({"subject": _OPTIONAL_TEXT}, {"mode": str}),
    "DELETE_SUBJECT": ({}, {"subject": str, "version": int}),
    "CLEAR_SUBJECT": ({}, {"subject": _OPTIONAL_TEXT}),
    "CONTEXT": ({"context": str}, {}),
    "ASSOC": ({"subject": str}, {"subject": str, "resourceId": str, "resourceName": str}),
}
_METADATA_MEMBERS: Final[Mapping[str, Mapping[str, type]]] = {
    "metadata": {"tags": dict, "properties": dict, "sensitive": list},
    "ruleSet": dict.fromkeys(RULE_LISTS, list),
}


def check_record(key: Any, value: Any) -> None:
    """Raise TypeError if a record of the topic has members of other types than a registry writes.

    A record that any producer has written must not end in errors of later requests.
    """
    if not isinstance(key, dict) or not isinstance(value, (dict, type(None))):
        raise TypeError("key and value must be objects")
    in_key, in_value = _MEMBERS.get(str(key.get("keytype")), ({}, {}))
    for content, members in ((key, in_key), *(((value, in_value),) if value is not None else ())):
        for name, kind in members.items():
            found = content.get(name)
            if not isinstance(found, kind) or (kind is int and not _is_number(found)):
                raise TypeError(f"{name!r} has the wrong type {type(found).__name__}, or is out of range")
    if value is not None and not all(map(_is_number, (value.get("idsMax") or {}).values())):
        raise TypeError("'idsMax' must have numbers")
    if value is None or key.get("keytype") not in ("SCHEMA", "CONFIG"):
        return
    _check_references(value.get("references"))
    for name in ("metadata", "ruleSet", "defaultMetadata", "overrideMetadata", "defaultRuleSet", "overrideRuleSet"):
        _check_members(value.get(name), _METADATA_MEMBERS["metadata" if "etadata" in name else "ruleSet"])


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that a version or an id can be."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _check_references(references: Any) -> None:
    for row in references or ():
        if not isinstance(row.get("version", -1), int):
            raise TypeError("the version of a reference must be a number")
        if not all(isinstance(row.get(name), _OPTIONAL_TEXT) for name in ("name", "subject")):
            raise TypeError("the name and the subject of a reference must be texts")


def _check_members(content: Any, members: Mapping[str, type]) -> None:
    if content is None:
        return
    for name, kind in members.items():
        found: Any = content.get(name)
        if found is not None and not isinstance(found, kind):
            raise TypeError(f"{name!r} has the wrong type {type(found).__name__}")
        rows: list[Any] = found if isinstance(found, list) and name != "sensitive" else []
        if not all(isinstance(row, dict) for row in rows):
            raise TypeError(f"{name!r} must have objects")


def schema_key(subject: str, version: int) -> bytes:
    return compact_json({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def subject_key(kind: str, subject: str | None) -> bytes:
    """Return the key of CONFIG, MODE, DELETE_SUBJECT or CLEAR_SUBJECT."""
    return compact_json({"keytype": kind, "subject": subject, "magic": 0})


def config_record(subject: str | None, config: Json | None) -> Record:
    value = None if config is None else compact_json(({} if subject is None else {"subject": subject}) | config)
    return Record(subject_key("CONFIG", subject), value)


def mode_record(subject: str | None, mode: str | None) -> Record:
    value = None if mode is None else compact_json(({} if subject is None else {"subject": subject}) | {"mode": mode})
    return Record(subject_key("MODE", subject), value)


def delete_subject_record(subject: str, version: int) -> Record:
    return Record(subject_key("DELETE_SUBJECT", subject), compact_json({"subject": subject, "version": version}))


def clear_subject_record(subject: str | None) -> Record:
    value = {} if subject is None else {"subject": subject}
    return Record(subject_key("CLEAR_SUBJECT", subject), compact_json(value))


def context_record(context: str, *, is_deleted: bool = False) -> Record:
    key = compact_json({"keytype": "CONTEXT", "tenant": _TENANT, "context": context, "magic": 0})
    return Record(key, None if is_deleted else compact_json({"tenant": _TENANT, "context": context}))


def noop_record(ids_max: Mapping[str, int] | None = None) -> Record:
    """Return a record that changes nothing. It may keep the highest id of each context, see `State.apply`."""
    return Record(b'{"keytype":"NOOP","magic":0}', compact_json({"idsMax": dict(ids_max)}) if ids_max else None)


def parse_references(value: Any) -> tuple[Reference, ...]:
    return tuple(
        Reference(row.get("name") or "", row.get("subject") or "", row.get("version", -1)) for row in value or ()
    )


def properties_of(metadata: Json | None) -> Json:
    """Return the properties in the metadata of a schema."""
    properties: Json = (metadata or {}).get("properties") or {}
    return properties


def references_json(references: Iterable[Reference]) -> list[Json]:
    return [{"name": row.name, "subject": row.subject, "version": row.version} for row in references]


def guid_of(text: str, references: Iterable[Reference], metadata: Json | None, rule_set: Json | None) -> str:
    """Return the id that a schema has in every registry: the MD5 of its content, as a UUID. Confluent's rule."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False)
    for row in references:
        digest.update(row.name.encode() + row.subject.encode() + struct.pack(">i", row.version))
    if metadata is not None:
        digest.update(b"\x01")
        _hash_metadata(digest.update, metadata)
    if rule_set is not None:
        digest.update(b"\x01")
        for kind in RULE_LISTS:
            for rule in rule_set.get(kind) or ():
                _hash_rule(digest.update, rule)
        digest.update((rule_set.get("enableAt") or "").encode())
    return str(uuid.UUID(bytes=digest.digest()))


def _hash_metadata(update: Any, metadata: Json) -> None:
    for name, tags in sorted((metadata.get("tags") or {}).items()):
        update("".join((name, *sorted(tags or ()))).encode())
    for name, value in sorted((metadata.get("properties") or {}).items()):
        update(f"{name}{value}".encode())
    for name in sorted(metadata.get("sensitive") or ()):
        update(name.encode())


def _hash_rule(update: Any, rule: Mapping[str, Any]) -> None:
    for name in ("name", "doc", "kind", "mode", "type"):
        update((rule.get(name) or "").encode())
    for tag in sorted(rule.get("tags") or ()):
        update(tag.encode())
    for name, value in sorted((rule.get("params") or {}).items()):
        update(f"{name}{value}".encode())
    for name in ("expr", "onSuccess", "onFailure"):
        update((rule.get(name) or "").encode())
    if rule.get("disabled"):
        update(b"\x01")


def _as_guid(value: Any) -> str:
    """Return a stored `md5` as a UUID; "" if there is none. Older registries wrote it as plain hexadecimal digits."""
    try:
        return str(uuid.UUID(value)) if value else ""
    except (ValueError, AttributeError, TypeError):
        return ""


def compact_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
