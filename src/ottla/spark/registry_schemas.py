"""Schemas of a schema registry: the one that all rows have (reader schema), and that of each id (writer schemas).

The reader schema is fetched once, on the driver (`pin_schema`), and travels to the tasks with the plan, so that all
tasks of a query use the same one. Writer schemas are fetched where values are decoded, each id once in a process. An id
that the registry does not know is rejected, and asked for again after a few seconds. A registry that does not answer
raises RegistryUnreachable, so that the task fails and no value is rejected by mistake. No Spark.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Self

from ottla.client.errors import PropertyRefused
from ottla.client.registry import PROPERTIES, RegisteredSchema, RegistryError, SchemaRegistry
from ottla.schemas.schema import InvalidSchema, Resolved
from ottla.spark.wire_format import SchemaRefused

#: before the names of the properties of a registry, as in Confluent's clients
PREFIX: Final = "schema.registry."
URL: Final = f"{PREFIX}url"
#: names that are understood, with the prefix
SETTING_NAMES: Final = (URL, *(f"{PREFIX}{name}" for name in PROPERTIES))
#: the address of the registry if no setting has it; `ottla schema` uses the same variable
ENVIRONMENT: Final = "OTTLA_REGISTRY"
LATEST: Final = "latest"
#: formats of values, and what registries call them
SCHEMA_TYPES: Final[Mapping[str, str]] = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}
#: compiled writer schemas that a process keeps, for each registry
_KEPT: Final = 1_000
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """How to reach a registry. The properties may contain a password, so they are not shown."""

    url: str
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> Self:
        """Return the registry that `schema.registry.*` of these settings, or the environment, names.

        Raise PropertyRefused if there is no address, or if a property is not valid.
        """
        unknown = [name for name in settings if name.startswith(PREFIX) and name not in SETTING_NAMES]
        if unknown:
            raise PropertyRefused(f"unknown property {unknown[0]}; known are {', '.join(SETTING_NAMES)}")
        url = settings.get(URL, "").strip() or os.environ.get(ENVIRONMENT, "").strip()
        if not url:
            raise PropertyRefused(f"the address of the schema registry is missing: set {URL}, or {ENVIRONMENT}")
        properties = {
            name.removeprefix(PREFIX): value
            for name, value in settings.items()
            if name in SETTING_NAMES and name != URL
        }
        found = cls(url, tuple(sorted(properties.items())))
        _registry(found)
        return found


@dataclass(frozen=True, slots=True)
class PinnedSchema:
    """A schema of the registry with the texts of its references."""

    subject: str
    id: int
    schema_type: str
    text: str
    version: int | None = None
    #: name and text of each reference, after those that it refers to itself
    references: tuple[tuple[str, str], ...] = ()

    @property
    def compiled(self) -> str | bytes:
        """The schema without references: Avro's text with all types, Protobuf's FileDescriptorSet, JSON's own text."""
        return _compile(self.schema_type, self.text, self.references)


@dataclass(frozen=True, slots=True)
class RegistrySchemas:
    """A SchemaSource: one reader schema, and the writer schema of any id that the registry has."""

    settings: RegistrySettings
    reader: PinnedSchema

    def find(self, schema_id: int) -> str | bytes | None:
        """Return the writer schema of an id. Raise SchemaRefused if it has another type than the reader's.

        Raise RegistryUnreachable or RegistryError if the registry cannot say whether it has the id.
        """
        if schema_id == self.reader.id:
            return self.reader.compiled
        found = _registry(self.settings).find(schema_id, _context(self.reader.subject))
        if found is None:
            return None
        if found.schema_type != self.reader.schema_type:
            raise SchemaRefused(
                f"schema id {schema_id}: its schema is of type {found.schema_type}, and that of subject "
                f"{self.reader.subject} of type {self.reader.schema_type}"
            )
        return found.compiled

    def find_guid(self, guid: str) -> int | None:
        """Return the id of the schema with a guid; None if the registry has none. Raise as `find`."""
        context = _context(self.reader.subject)
        return _registry(self.settings).client.id_of_guid(guid, context[1:].partition(":")[0] or ".")

    def latest(self) -> str | bytes:
        return self.reader.compiled

    def ids(self) -> Collection[int] | None:
        return None


def pin_schema(settings: RegistrySettings, subject: str, version: str = LATEST) -> PinnedSchema:
    """Return a version of a subject. Raise SchemaRefused if there is none; ClientError if the registry fails."""
    registry = _registry(settings).client
    try:
        return _pinned(registry, registry.version(subject, version), subject)
    except RegistryError as error:
        if error.status != _NOT_FOUND:
            raise
        raise SchemaRefused(
            f"the schema registry has no version {version} of subject {subject} (error {error.code}): register the "
            f"schema, or correct the name"
        ) from None


def register_schema(
    settings: RegistrySettings, subject: str, schema_type: str, text: str, *, auto_register: bool = True
) -> PinnedSchema:
    """Return a schema with its id: registered under the subject, or looked up there if it must not be registered.

    The registry is asked once in the life of a process. Raise SchemaRefused if it refuses the schema or does not have
    it; another ClientError if it fails.
    """
    return _registry(settings).register(subject, schema_type, text, auto_register=auto_register)


class _Registry:
    """A client of one registry, and the schemas that this process has got from it. Thread safe."""

    def __init__(self, settings: RegistrySettings) -> None:
        self.client = SchemaRegistry(settings.url, dict(settings.properties))
        #: held while the registry is asked, so that threads that need the same id ask once
        self._lock = threading.Lock()
        self._writers: OrderedDict[tuple[str, int], PinnedSchema] = OrderedDict()
        self._registered: dict[tuple[str, str, str], int] = {}

    def find(self, schema_id: int, context: str) -> PinnedSchema | None:
        with self._lock:
            known = self._writers.get((context, schema_id))
            if known is not None:
                self._writers.move_to_end((context, schema_id))
                return known
            found = self.client.by_id(schema_id, context or None)
            if found is None:
                return None
            try:
                pinned = _pinned(self.client, found, found.subject or "")
            except RegistryError as error:
                if error.status != _NOT_FOUND:
                    raise
                raise SchemaRefused(f"schema id {schema_id}: a schema that it refers to is missing: {error}") from None
            self._writers[context, schema_id] = pinned
            if len(self._writers) > _KEPT:
                self._writers.popitem(last=False)
            return pinned

    def register(self, subject: str, schema_type: str, text: str, *, auto_register: bool) -> PinnedSchema:
        with self._lock:
            key = (subject, schema_type, text)
            if key not in self._registered:
                self._registered[key] = self._ask_for_id(subject, schema_type, text, auto_register=auto_register)
            return PinnedSchema(subject, self._registered[key], schema_type, text)

    def _ask_for_id(self, subject: str, schema_type: str, text: str, *, auto_register: bool) -> int:
        if not auto_register:
            found = self.client.lookup(subject, text, schema_type)
            if found is None:
                raise SchemaRefused(
                    f"subject {subject} of the schema registry does not have the schema of the rows, and it must not "
                    "be registered: register it, or write with a version that is registered"
                )
            return found.id
        try:
            return self.client.register(subject, text, schema_type)
        except RegistryError as error:
            if error.status not in (409, 422):
                raise
            raise SchemaRefused(f"the schema cannot be registered under subject {subject}: {error}") from None


#: by settings; created in each process, because connections and locks cannot be sent to another one
_registries: dict[RegistrySettings, _Registry] = {}
_registries_lock = threading.Lock()


def _registry(settings: RegistrySettings) -> _Registry:
    with _registries_lock:
        if settings not in _registries:
            _registries[settings] = _Registry(settings)
        return _registries[settings]


def close_registries() -> None:
    """Close all connections to registries that this process has, and forget the schemas."""
    with _registries_lock:
        for registry in _registries.values():
            registry.client.close()
        _registries.clear()


def _pinned(registry: SchemaRegistry, schema: RegisteredSchema, subject: str) -> PinnedSchema:
    references = tuple(registry.resolve(schema).items()) if schema.references else ()
    return PinnedSchema(subject, schema.id, schema.schema_type, schema.text, schema.version, references)


def _context(subject: str) -> str:
    """Return a subject that chooses the context of ids; "" for the default context.

    >>> _context(":.sales:orders-value"), _context("orders-value")
    (':.sales:orders-value', '')
    """
    return subject if subject.startswith(":.") else ""


@lru_cache(maxsize=256)
def _compile(schema_type: str, text: str, references: tuple[tuple[str, str], ...]) -> str | bytes:
    """Return a schema without references. Raise SchemaRefused if it is not valid."""
    resolved = Resolved(texts=dict(references))
    try:
        if schema_type == "PROTOBUF":
            from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

            from ottla.schemas import protobuf

            files = map(FileDescriptorProto.FromString, protobuf.parse(text, resolved).descriptors())
            compiled: bytes = FileDescriptorSet(file=files).SerializeToString()
            return compiled
        if schema_type == "AVRO" and references:
            from ottla.schemas import avro

            return avro.parse(text, resolved, is_new=False).formatted("resolved")
    except InvalidSchema as error:
        raise SchemaRefused(f"the schema cannot be used: {error}") from None
    return text
