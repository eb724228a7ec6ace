"""Tags of the records and fields of a schema: what the formats share.

Avro and JSON Schema have the tags of an object in its member `confluent:tags`, Protobuf has them in options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from ottla.schemas.schema import Entity

TagsByEntity: TypeAlias = Mapping[Entity, frozenset[str]]

MEMBER: Final = "confluent:tags"


def changed_tags(entity: Entity, tags: Iterable[str], add: TagsByEntity, remove: TagsByEntity) -> list[str]:
    """Return the tags of an entity after tags were added, in the order of their names, and then removed."""
    after = dict.fromkeys((*tags, *sorted(add.get(entity, ()))))
    return [tag for tag in after if tag not in remove.get(entity, ())]


class JsonTags:
    """The tags of JSON objects. `text_of` returns the text of one that is not a string, or None to ignore it."""

    def __init__(self, text_of: Callable[[Any], str | None]) -> None:
        self._text_of = text_of

    def of(self, value: Mapping[str, Any]) -> list[str]:
        """Return the tags of one object."""
        tags = value.get(MEMBER)
        if not isinstance(tags, list):
            return []
        texts = (tag if isinstance(tag, str) else self._text_of(tag) for tag in tags)
        return [text for text in texts if text is not None]

    def inside(self, root: Any) -> Iterator[str]:
        """Yield the tags of a value and of everything inside of it."""
        pending = [root]
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                yield from self.of(value)
                pending += value.values()
            elif isinstance(value, list):
                pending += value

    def of_entities(self, entities: Iterable[tuple[Entity, Mapping[str, Any]]]) -> dict[Entity, frozenset[str]]:
        """Return the tags of the entities that have some."""
        return {entity: frozenset(tags) for entity, value in entities if (tags := self.of(value))}

    def change(self, find: Callable[[Entity], dict[str, Any]], add: TagsByEntity, remove: TagsByEntity) -> None:
        """Add tags to the objects that `find` returns, then remove others."""
        for entity in dict.fromkeys((*add, *remove)):
            value = find(entity)
            tags = changed_tags(entity, self.of(value), add, remove)
            if tags:
                value[MEMBER] = tags
            else:
                value.pop(MEMBER, None)
