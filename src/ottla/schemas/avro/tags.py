"""Tags (`confluent:tags`) in the JSON text of an Avro schema."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from ottla.schemas.avro.json_text import Json, write
from ottla.schemas.avro.nodes import Node, Record
from ottla.schemas.schema import Entity, InvalidSchema
from ottla.schemas.tags import JsonTags, TagsByEntity

TAGS: Final = JsonTags(write)


def tagged_entities(root: Node) -> dict[Entity, frozenset[str]]:
    """Return the tags of the records and fields that have some, also of referenced types."""
    return TAGS.of_entities(_entities(root))


def change_tags(json: Json, add: TagsByEntity, remove: TagsByEntity) -> None:
    """Add tags to records and fields of the JSON of a schema, then remove others. Raise InvalidSchema."""
    TAGS.change(lambda entity: _find(json, entity), add, remove)


def _entities(root: Node) -> Iterator[tuple[Entity, dict[str, Json]]]:
    pending, seen = [root], set()
    while pending:
        node = pending.pop()
        if isinstance(node, Record):
            if node.name.full in seen:
                continue
            seen.add(node.name.full)
            yield Entity("sr_record", node.name.full), node.properties
            for field in node.fields:
                yield Entity("sr_field", f"{node.name.full}.{field.name}"), field.properties
        pending += reversed(node.children())


def _find(json: Json, entity: Entity) -> dict[str, Json]:
    """Return the object of a record or field, searched level by level. Raise InvalidSchema if there is none.

    The namespace of the path may be missing; then the first record with the name is found.
    """
    names = entity.path.split(".")
    field_name = names.pop() if entity.kind != "sr_record" else None
    record_name, space = names[-1] if names else None, ".".join(names[:-1])
    pending: deque[tuple[Json, str | None]] = deque([(json, None)] if names else [])
    while pending:
        value, outer_space = pending.popleft()
        if isinstance(value, list):
            pending += [(item, outer_space) for item in value]
        if not isinstance(value, dict):
            continue
        own_space = value.get("namespace", outer_space)
        here = own_space if isinstance(own_space, str) else outer_space
        fields = value.get("fields")
        if value.get("type") != "record" or not isinstance(fields, list):
            pending += [(value[key], here) for key in ("type", "items", "values") if key in value]
        elif value.get("name") != record_name or (space and space != here):
            pending += [(field, here) for field in fields]
        elif field_name is None:
            return value
        else:
            for field in fields:
                if isinstance(field, dict) and field.get("name") == field_name:
                    return field
    raise InvalidSchema(f"the schema has no {entity.kind} at {entity.path!r}, to which tags could be attached")
