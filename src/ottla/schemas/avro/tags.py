"""Tags (`confluent:tags`) in the JSON text of an Avro schema."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from ottla.schemas.avro.json_text import Json, write
from ottla.schemas.avro.nodes import Array, Map, Node, Record, Union
from ottla.schemas.schema import Entity, InvalidSchema

TAGS: Final = "confluent:tags"


def find_tags(json: Json) -> frozenset[str]:
    """Return the tags of all objects in the JSON of a schema."""
    tags: set[str] = set()
    pending = [json]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            tags.update(_tags_of(value))
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return frozenset(tags)


def tagged_entities(root: Node) -> dict[Entity, frozenset[str]]:
    """Return the tags of the records and fields that have some, also of referenced types."""
    found: dict[Entity, frozenset[str]] = {}
    pending, seen = [root], set()
    while pending:
        node = pending.pop()
        if isinstance(node, Union):
            pending += reversed(node.branches)
        elif isinstance(node, Array | Map):
            pending.append(node.items if isinstance(node, Array) else node.values)
        elif isinstance(node, Record) and node.name.full not in seen:
            seen.add(node.name.full)
            tagged = [(Entity("sr_record", node.name.full), node.properties)]
            tagged += [(Entity("sr_field", f"{node.name.full}.{each.name}"), each.properties) for each in node.fields]
            found |= {entity: frozenset(_tags_of(properties)) for entity, properties in tagged if _tags_of(properties)}
            pending += [field.type for field in reversed(node.fields)]
    return found


def change_tags(json: Json, add: Mapping[Entity, frozenset[str]], remove: Mapping[Entity, frozenset[str]]) -> None:
    """Add tags to records and fields of the JSON of a schema, then remove others. Raise InvalidSchema."""
    for entity in dict.fromkeys([*add, *remove]):
        found = _find(json, entity)
        if found is None:
            raise InvalidSchema(f"the schema has no {entity.kind} at {entity.path!r}, to which tags could be attached")
        tags = dict.fromkeys(_tags_of(found))
        tags |= dict.fromkeys(sorted(add.get(entity, ())))
        kept: list[Json] = [tag for tag in tags if tag not in remove.get(entity, ())]
        if kept:
            found[TAGS] = kept
        else:
            found.pop(TAGS, None)


def _tags_of(json: dict[str, Json]) -> list[str]:
    tags = json.get(TAGS)
    return [tag if isinstance(tag, str) else write(tag) for tag in tags] if isinstance(tags, list) else []


def _find(json: Json, entity: Entity) -> dict[str, Json] | None:
    """Return the object of a record or field, searched level by level.

    The namespace of the path may be missing; then the first record with the name is found.
    """
    names = entity.path.split(".")
    field_name = names.pop() if entity.kind != "sr_record" else None
    if not names:
        return None
    record_name, space = names[-1], ".".join(names[:-1])
    pending: deque[tuple[Json, str | None]] = deque([(json, None)])
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
    return None
