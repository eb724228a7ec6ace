"""Formats of an exported project: constants to decode and encode values and keys, and copies of schema files. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from ottla.pipeline.declaration import Declaration, Framing, RegistrySchema, Source, TopicSink
from ottla.pipeline.parameters import HIDDEN_VALUE
from ottla.pipeline.sdp.text import identifier, literal, word
from ottla.spark.registry_schemas import LATEST, PREFIX, SCHEMA_TYPES

_SECRET: Final = re.compile(r"password|secret|jaas|token|user\.info|(^|\.)key(\.pem)?$", re.IGNORECASE)


@dataclass(slots=True)
class ExportedFormats:
    """The formats of one declaration."""

    declaration: Declaration
    #: expressions of Python by the names of constants
    constants: dict[str, str] = field(default_factory=dict)
    #: files to copy, by path in the project, from paths relative to the declaration
    copies: dict[str, str] = field(default_factory=dict)

    def value(self, name: str, declared: Source | TopicSink) -> str:
        """Return the name of the constant with the format of the values of a source or sink."""
        constant = f"{word(name).upper()}_FORMAT"
        if declared.registry is not None:
            self.constants[constant] = self._registry_format(declared, declared.registry)
            return constant
        framing = declared.framing if isinstance(declared, Source) else None
        schema_id = declared.schema_id if isinstance(declared, TopicSink) else None
        more = ", framed=True" if framing is not None else ""
        more += f", schema_id={schema_id}" if schema_id is not None else ""
        if declared.format == "json":
            columns = declared.columns if isinstance(declared, Source) else ()
            if framing is not None:
                more += ", any_id=True" if framing.any_id else f", ids={list(framing.schema_files)}"
            self.constants[constant] = f"formats.Json({literal(', '.join(map(str, columns)))}{more})"
            return constant
        more = (f", message={literal(declared.message)}" if declared.message else "") + more
        schemas = self._schemas(declared.schema_file or "", framing)
        self.constants[constant] = f"formats.{'Avro' if declared.format == 'avro' else 'Protobuf'}({schemas}{more})"
        return constant

    def key(self, name: str, declared: Source | TopicSink) -> str:
        """Return the name of the constant with the format of keys that have a schema of a registry."""
        assert declared.key_registry is not None, "keys without a schema have no format"
        constant = f"{word(name).upper()}_FORMAT_OF_KEYS"
        schema = declared.key_registry
        pinned = f"pin_schema(REGISTRY, {literal(schema.subject)}, {literal(schema.version or LATEST)})"
        self._add_registry()
        message = f", {literal(declared.key_message)}" if declared.key_message else ""
        self.constants[constant] = f"formats.registry_format(REGISTRY, {pinned}{message})"
        return constant

    def _add_registry(self) -> None:
        """Define how the project reaches the registry."""
        settings = {name: value for name, value in self.declaration.properties.items() if name.startswith(PREFIX)}
        inner = ", ".join(f"{literal(name)}: {value_text(name, value)}" for name, value in settings.items())
        self.constants.setdefault("REGISTRY", f"RegistrySettings.parse({{{inner}}})")

    def _registry_format(self, declared: Source | TopicSink, schema: RegistrySchema) -> str:
        """Return an expression that fetches or registers a schema when the project is run."""
        self._add_registry()
        subject = literal(schema.subject)
        if schema.version is not None:
            pinned = f"pin_schema(REGISTRY, {subject}, {literal(schema.version)})"
        else:
            file = self._copy("schemas", declared.schema_file or "")
            text = f"(ROOT / {literal(file)}).read_text()"
            kind = literal(SCHEMA_TYPES[declared.format])
            more = "" if schema.register else ", auto_register=False"
            pinned = f"register_schema(REGISTRY, {subject}, {kind}, {text}{more})"
        message = f", {literal(declared.message)}" if declared.message else ""
        return f"formats.registry_format(REGISTRY, {pinned}{message})"

    def _schemas(self, file: str, framing: Framing | None) -> str:
        """Return an expression with the schemas of values."""
        path = f"str(ROOT / {literal(self._copy('schemas', file))})"
        if framing is None:
            return f"read_schema({path})"
        if not framing.schema_files:
            return f"OneSchema(read_schema_file({path}), any_id={framing.any_id})"
        paths = {
            schema_id: path if one is None else f"str(ROOT / {literal(self._copy('schemas', one))})"
            for schema_id, one in framing.schema_files.items()
        }
        writers = ", ".join(f"{schema_id}: read_schema_file({one})" for schema_id, one in paths.items())
        return f"SchemasById({{{writers}}}, reader=read_schema_file({path}))"

    def _copy(self, directory: str, file: str) -> str:
        """Return the path of a copy; files of one name in different directories get different names."""
        name, number = PurePosixPath(file).name, 1
        while self.copies.get(f"{directory}/{name}", file) != file:
            number += 1
            name = f"{number}_{PurePosixPath(file).name}"
        self.copies[f"{directory}/{name}"] = file
        return f"{directory}/{name}"


def key_expression(sink: TopicSink) -> str:
    """Return an expression with the column of the keys of a sink."""
    if isinstance(sink.key, str):
        return f"F.col({literal(identifier(sink.key))})"
    return f"F.struct({', '.join(literal(identifier(name)) for name in sink.key_columns)})"


def is_secret(name: str, value: str) -> bool:
    """Return whether the value of a property must not be in a file: by its name, or because a parameter hides it."""
    return _SECRET.search(name) is not None or HIDDEN_VALUE in value


def value_text(name: str, value: str) -> str:
    """Return an expression with the value of a property."""
    return f"os.environ[{literal(variable_of(name))}]" if is_secret(name, value) else literal(value)


def variable_of(name: str) -> str:
    """Return the environment variable with the value of a secret property.

    >>> variable_of("kafka.sasl.password")
    'OTTLA_SASL_PASSWORD'
    """
    return "OTTLA_" + re.sub(r"\W", "_", name.removeprefix("kafka.")).upper()
