"""The schemas of sources and topic sinks in a declaration: inline, in files, or in a registry; and their schema ids.

A schema is one of three: fields of Spark SQL (JSON), a file in the language of its format, or a subject of a registry.
Columns are returned where they are known without Spark and without a registry.
"""

from __future__ import annotations

import json
import re

from ottla.pipeline import keys
from ottla.pipeline.declaration import Framing, RegistrySchema
from ottla.pipeline.document import Node
from ottla.pipeline.fields import Fields, as_mapping
from ottla.pipeline.problems import Problems
from ottla.pipeline.project import ReadFile
from ottla.pipeline.schema import BadType, Column, parse_ddl, parse_type

_SCHEMA_FILES = {"json": (".ddl",), "avro": (".avsc",), "protobuf": (".proto", ".desc")}


class SchemaReader:
    """Reads what sources and sinks say about schemas. Everything that is wrong is added to `problems`."""

    def __init__(self, problems: Problems, read_file: ReadFile) -> None:
        self._problems = problems
        self._read_file = read_file

    def read_value_schema(self, fields: Fields, form: str, default: str | None) -> RegistrySchema | None:
        """Return the schema of a registry under `schema`; None if there is something else. `default` is the version."""
        node = fields.node("schema")
        if node is None or not _is_registry_schema(node, form):
            return None
        if form in ("bytes", "string"):
            fields.refuse("schema", f"format {form} has no schema", "remove it, or choose another format")
        for key in ("framing", "schema_id"):
            if fields.has(key):
                what = "values with a schema of a registry have Confluent's framing and their schema id"
                fields.refuse(key, what, "remove it")
        return self._subject(node, f"{fields.called}: schema", default)

    def read_key_schema(self, fields: Fields, form: str | None, default: str | None) -> RegistrySchema | None:
        """Return the schema of the keys; None if they have none. `default` is the version."""
        if form != "protobuf":
            fields.refuse("key_message", "only keys of format protobuf have messages", "remove it")
        if form not in keys.KEY_SCHEMA_FORMATS:
            advice = f"add key_format: {' or '.join(keys.KEY_SCHEMA_FORMATS)}, or remove it"
            fields.refuse("key_schema", "keys have a schema only with a format", advice)
            return None
        node = fields.node("key_schema")
        if node is None:
            what = f"{fields.called}: key_format {form} needs the schema of the keys"
            fields.problem(fields.place_of("key_format"), what, "add key_schema: {registry: SUBJECT}")
            return None
        return self._subject(node, f"{fields.called}: key_schema", default)

    def _subject(self, node: Node, called: str, default: str | None) -> RegistrySchema:
        inner = Fields(node, keys.REGISTRY_SCHEMA, called, self._problems)
        version = inner.node("version")
        chosen = version.text if version is not None else default
        if version is not None and version.text != keys.LATEST and inner.count("version") is None:
            chosen = keys.LATEST
        if default is not None or version is not None:
            inner.refuse("register", "only a topic sink without a version registers its schema", "remove it")
        return RegistrySchema(subject=inner.text("registry"), version=chosen, register=inner.flag("register", True))

    def read_columns(self, fields: Fields, form: str) -> tuple[Column, ...]:
        """Return the columns of a source whose schema is in the declaration or in a file, as far as they are known."""
        if form in ("bytes", "string"):
            advice = f"remove it: a value of format {form} is one column, 'value'"
            fields.refuse("schema", f"format {form} has no schema", advice)
            fields.refuse("schema_file", f"format {form} has no schema", advice)
            return (Column("value", "BINARY" if form == "bytes" else "STRING"),)
        if fields.has("schema") and fields.has("schema_file"):
            fields.problem(
                fields.place_of("schema_file"), f"{fields.called} has both 'schema' and 'schema_file'", "keep one"
            )
        if form in ("avro", "protobuf"):
            suffix = _SCHEMA_FILES[form][0]
            instead = f"write schema_file: file{suffix}, or schema: {{registry: SUBJECT}}"
            fields.refuse("schema", f"format {form} needs its own schema language", instead)
            if not fields.has("schema_file") and not fields.has("schema"):
                fields.problem(fields.place, f"{fields.called} has no schema", f"add schema_file: file{suffix}")
        elif not fields.has("schema_file") and not fields.has("schema"):
            fields.problem(
                fields.place,
                f"{fields.called} has no schema",
                "add schema: with one 'field: type' per line, or schema_file",
            )
        if fields.has("schema_file"):
            return self._schema_of_file(fields, form)
        node = fields.node("schema") if form == "json" else None
        return self._inline_schema(fields, node) if node is not None else ()

    def _inline_schema(self, fields: Fields, node: Node) -> tuple[Column, ...]:
        columns: list[Column] = []
        if node.kind == "text":
            try:
                columns = list(parse_ddl(node.text))
            except BadType as bad:
                fields.problem(node.as_text().place_of(bad.position), f"{fields.called}: {bad.what}", bad.instead)
        elif node.kind == "mapping":
            for name, value in node.entries:
                type_text = self._field_type(fields, name.text, value)
                if any(name.text.lower() == column.name.lower() for column in columns):
                    fields.problem(name.place, f"{fields.called}: the field {name.text!r} occurs twice", "rename one")
                columns.append(
                    Column(name.text, type_text.removesuffix(" NOT NULL"), not type_text.endswith(" NOT NULL"))
                )
                if name.text.startswith("_"):
                    advice = f"name it {name.text.lstrip('_') or 'value'}"
                    fields.problem(name.place, f"{fields.called}: names with _ in front are Ottla's own", advice)
        else:
            fields.problem(
                node.place, f"{fields.called}: 'schema' is {node.kind_name}", "write one 'field: type' per line"
            )
        return tuple(columns)

    def _field_type(self, fields: Fields, name: str, node: Node) -> str:
        """Return a type of Spark SQL. A mapping is a STRUCT, a list with one item is an ARRAY."""
        if node.kind == "mapping":
            inner = ", ".join(f"`{key}`: {self._field_type(fields, key, one)}" for key, one in as_mapping(node).items())
            return f"STRUCT<{inner}>"
        if node.kind == "list" and len(node.items) == 1:
            return f"ARRAY<{self._field_type(fields, name, node.items[0])}>"
        if node.kind == "nothing" and name.endswith(")"):
            # The second half of a type that braces have cut in two; the problem is in the list already.
            return "STRING"
        if node.kind == "text":
            bare = re.sub(r"\s+not\s+null\s*$", "", node.text, flags=re.IGNORECASE)
            try:
                return parse_type(bare) + (" NOT NULL" if bare != node.text else "")
            except BadType as bad:
                cut = bare.count("(") > bare.count(")") or bare.count("<") > bare.count(">")
                instead = "between braces put it in quotes, or write one field per line" if cut else bad.instead
                place = node.as_text().place_of(bad.position)
                fields.problem(place, f"{fields.called}: field {name!r}: {bad.what}", instead)
                return "STRING"
        fields.problem(
            node.place, f"{fields.called}: field {name!r} is {node.kind_name}", "write a type, such as string"
        )
        return "STRING"

    def _schema_of_file(self, fields: Fields, form: str) -> tuple[Column, ...]:
        node = fields.node("schema_file")
        if node is None or node.kind != "text":
            fields.text("schema_file")
            return ()
        return self._read_schema_file(fields, node, form)

    def _read_schema_file(self, fields: Fields, node: Node, form: str) -> tuple[Column, ...]:
        """Return the columns in a schema file, as far as they are known here. Add a problem if it is no schema."""
        suffixes = _SCHEMA_FILES[form]
        if not node.text.endswith(suffixes):
            advice = f"name a file that ends in {' or '.join(suffixes)}"
            fields.problem(node.place, f"{fields.called}: {node.text!r} is not a schema of format {form}", advice)
            return ()
        try:
            data = self._read_file(node.text)
        except OSError as error:
            what = f"{fields.called}: {node.text} cannot be read: {error.strerror or error}"
            fields.problem(node.place, what, "name a file relative to this one")
            return ()
        return self._columns_in_file(fields, node, form, data)

    def _columns_in_file(self, fields: Fields, node: Node, form: str, data: bytes) -> tuple[Column, ...]:
        try:
            if form == "json":
                return parse_ddl(data.decode())
            if form == "avro":
                schema = json.loads(data)
                if not isinstance(schema, dict) or schema.get("type") != "record" or not schema.get("fields"):
                    raise ValueError("an Avro schema of a topic is a record with fields")
        except BadType as bad:
            fields.problem(node.place, f"{fields.called}: {node.text}: {bad.what}", bad.instead)
        except ValueError as error:
            fields.problem(node.place, f"{fields.called}: {node.text}: {error}", "correct that file")
        # Only the decoders of Avro and Protobuf know the columns of their schemas.
        return ()

    def read_framing(self, fields: Fields, form: str) -> Framing | None:
        """Return the schema ids of a source, or None if its values have no framing."""
        node = fields.node("framing")
        if node is None or (node.kind == "text" and node.text == "none"):
            return None
        if form in ("bytes", "string"):
            fields.refuse("framing", f"format {form} is not decoded by a schema", "remove it, or choose another format")
            return None
        ids = as_mapping(node).get("confluent") if node.kind == "mapping" and len(node.entries) == 1 else None
        if ids is not None and ids.kind == "text" and ids.text == keys.ANY_ID:
            return Framing(any_id=True)
        known = self._schema_ids(fields, ids, form) if ids is not None and ids.kind in ("mapping", "list") else {}
        if known is not None and not known:
            what = f"{fields.called}: framing does not say which schema ids are known"
            suffix = _SCHEMA_FILES[form][0]
            files = "[1, 2]" if form == "json" else f"{{1: v1{suffix}, 2: v2{suffix}}}"
            fields.problem(node.place, what, f"write framing: {{confluent: {files}}}, or {{confluent: {keys.ANY_ID}}}")
        return Framing(schema_files=known or {})

    def _schema_ids(self, fields: Fields, node: Node, form: str) -> dict[int, str | None] | None:
        """Return a schema file for each id, None for an id in a list. Return None after a problem."""
        entries = node.entries if node.kind == "mapping" else tuple((item, None) for item in node.items)
        known: dict[int, str | None] = {}
        sound = True
        for key, file in entries:
            if not _is_schema_id(key) or int(key.text) in known:
                what = f"{fields.called}: framing: {key.text or key.kind_name!r} is not a schema id, or occurs twice"
                fields.problem(key.place, what, f"write each id once, a number from 0 to {keys.SCHEMA_ID_MAX}")
                sound = False
                continue
            known[int(key.text)] = file.text if file is not None else None
            if file is not None and form == "json":
                what = (
                    f"{fields.called}: framing: format json needs no schema for an id, because values name their fields"
                )
                fields.problem(file.place, what, f"write framing: {{confluent: [{key.text}]}}")
            elif file is not None and file.kind != "text":
                what = f"{fields.called}: framing: the schema of id {key.text} is {file.kind_name}"
                fields.problem(file.place, what, f"name a file that ends in {' or '.join(_SCHEMA_FILES[form])}")
            elif file is not None:
                self._read_schema_file(fields, file, form)
        return known if sound else None

    def read_schema_id(self, fields: Fields, form: str) -> int | None:
        """Return the schema id that a sink writes, or None if it writes no framing."""
        framed = fields.choice("framing", keys.FRAMINGS) == "confluent"
        node = fields.node("schema_id")
        if not framed:
            fields.refuse("schema_id", "a schema id is written with framing: confluent only", "add it, or remove this")
            return None
        if form in ("bytes", "string"):
            fields.refuse("framing", f"format {form} has no schema", "remove it, or choose another format")
            return None
        advice = f"add schema_id: with the id that the registry gave the schema, from 0 to {keys.SCHEMA_ID_MAX}"
        if node is None:
            fields.problem(fields.place_of("framing"), f"{fields.called}: framing has no schema id", advice)
            return None
        if not _is_schema_id(node):
            fields.problem(node.place, f"{fields.called}: {node.text or node.kind_name!r} is not a schema id", advice)
            return None
        return int(node.text)

    def check_sink(self, fields: Fields, form: str, registry: RegistrySchema | None) -> None:
        """Add a problem if a topic sink has no schema that it needs, or a schema file that it does not use."""
        if form not in ("avro", "protobuf"):
            fields.refuse("schema_file", f"format {form} is written without a schema file", "remove it")
            return
        if registry is not None and registry.version is not None:
            fields.refuse("schema_file", "the schema is that of a version of the registry", "remove it, or the version")
        elif fields.has("schema_file"):
            self._schema_of_file(fields, form)
            if registry is not None and fields.text("schema_file").endswith(".desc"):
                what = f"{fields.called}: a registry takes texts"
                fields.problem(fields.place_of("schema_file"), what, "name a file that ends in .proto")
        elif registry is None or form == "protobuf":
            suffix = _SCHEMA_FILES[form][0]
            more = ", or version: latest to the schema" if registry is not None else ""
            fields.problem(fields.place, f"{fields.called} has no schema", f"add schema_file: file{suffix}{more}")


def _is_registry_schema(node: Node, form: str) -> bool:
    """Return whether a mapping names a subject. A JSON value may also have a field of the name `registry`."""
    subject = as_mapping(node).get("registry") if node.kind == "mapping" else None
    if subject is None or form != "json":
        return subject is not None
    try:
        parse_type(subject.text)
    except BadType:
        return subject.kind == "text" and {key.text for key, _ in node.entries} <= keys.REGISTRY_SCHEMA.keys.keys()
    return False


def _is_schema_id(node: Node) -> bool:
    """Return whether a node is a schema id. Keys of mappings are text, also if they are numbers."""
    is_number = node.kind in ("number", "text") and re.fullmatch(r"[0-9]{1,10}", node.text, re.ASCII) is not None
    return is_number and int(node.text) <= keys.SCHEMA_ID_MAX
