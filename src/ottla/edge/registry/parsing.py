"""Parse schemas with their references, which are versions of subjects. Keep parsed versions in a cache.

A thread may parse while the event loop does, so the cache has a lock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from ottla.edge.registry import errors
from ottla.edge.registry.records import SchemaVersion
from ottla.edge.registry.state import State
from ottla.edge.registry.subjects import beside
from ottla.schemas import formats
from ottla.schemas.schema import NO_REFERENCES, InvalidSchema, ParsedSchema, Reference, Resolved, SchemaTooComplex

#: parsed versions that are kept, and the characters of their texts: a parsed schema has 10 to 60 bytes for each
_KEPT: Final = 2000
_KEPT_CHARS: Final = 4 << 20
#: texts of clients whose canonical texts are kept, and the characters of one
_TEXTS_MAX: Final = 2000
_TEXT_CHARS_MAX: Final = 4096
#: references of one schema, those of its references included
_REFERENCES_MAX: Final = 1000


class Parser:
    """Parses the schemas of one registry."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: (context prefix of the subject, guid, type) -> parsed
        self._parsed: OrderedDict[tuple[str, str, str], ParsedSchema] = OrderedDict()
        self._kept_chars = 0
        #: (type, text that a client has sent) -> canonical text, the least recently used first
        self._texts: OrderedDict[tuple[str, str], str] = OrderedDict()
        #: how often `forget` was called
        self._forgotten = 0
        self._lock = threading.Lock()

    def parse(
        self, subject: str, schema_type: str, text: str, references: Sequence[Reference] = (), *, is_new: bool = True
    ) -> ParsedSchema:
        """Return the schema. Raise HttpError 42201 with the reason if it is not valid.

        ``is_new`` is False for a schema that is stored, imported or only looked up.
        """
        try:
            parsed = formats.parse(
                schema_type, text, self.resolve(subject, references, deleted=not is_new), is_new=is_new
            )
            if not references:
                self._remember_text(schema_type, text, parsed.text)
            return parsed
        except SchemaTooComplex as error:
            raise errors.schema_too_large(str(error)) from None
        except InvalidSchema as error:
            raise errors.invalid_schema(f"Invalid schema of type {schema_type}: {error}") from None

    def known_text(self, schema_type: str, text: str) -> str | None:
        """Return the canonical text of a schema without references that was parsed a while ago, otherwise None."""
        key = (schema_type, text)
        with self._lock:
            canonical = self._texts.get(key)
            if canonical is not None:
                self._texts.move_to_end(key)
            return canonical

    def _remember_text(self, schema_type: str, text: str, canonical: str) -> None:
        if len(text) > _TEXT_CHARS_MAX:
            return
        with self._lock:
            self._texts[schema_type, text] = canonical
            if len(self._texts) > _TEXTS_MAX:
                self._texts.popitem(last=False)

    def parse_version(self, row: SchemaVersion) -> ParsedSchema:
        """Return the schema of a stored version."""
        key = (row.subject.rpartition(":")[0], row.guid, row.schema_type)
        with self._lock:
            parsed = self._parsed.get(key)
            if parsed is not None:
                self._parsed.move_to_end(key)
                return parsed
            forgotten = self._forgotten
        parsed = self.parse(row.subject, row.schema_type, row.text, row.references, is_new=False)
        with self._lock:
            # Otherwise a version that it refers to may have been deleted meanwhile.
            if forgotten == self._forgotten and key not in self._parsed:
                self._keep(key, parsed)
        return parsed

    def _keep(self, key: tuple[str, str, str], parsed: ParsedSchema) -> None:
        self._parsed[key] = parsed
        self._kept_chars += _chars_of(parsed)
        while len(self._parsed) > _KEPT or self._kept_chars > _KEPT_CHARS:
            self._kept_chars -= _chars_of(self._parsed.popitem(last=False)[1])

    def forget(self) -> None:
        """Drop parsed versions, because a version that others refer to was replaced or deleted."""
        with self._lock:
            self._parsed.clear()
            self._kept_chars = 0
            self._forgotten += 1

    def resolve(self, subject: str, references: Sequence[Reference], *, deleted: bool = True) -> Resolved:
        """Return the texts of the references and of their references. Raise InvalidSchema if one does not exist.

        A new schema cannot refer to a version that is soft deleted: ``deleted`` is False for it.
        """
        if not references:
            return NO_REFERENCES
        texts: dict[str, str] = {}
        seen: set[tuple[str, int]] = set()
        # Depth first, without recursion: a reference is added to `texts` after its own references.
        waiting: list[tuple[str, Reference, bool]] = [(subject, row, False) for row in reversed(references)]
        while waiting:
            parent, reference, is_resolved = waiting.pop()
            if not reference.name or not reference.subject:
                raise InvalidSchema(f"a reference needs a name, a subject and a version: {reference}")
            place = beside(parent, reference.subject)
            row = self._state.get(place, reference.version, deleted=deleted)
            if row is None:
                raise InvalidSchema(
                    f"the reference '{reference.name}' names version {reference.version} of subject '{place}', which "
                    "does not exist; register it first"
                )
            if is_resolved:
                texts.setdefault(reference.name, row.text)
                continue
            if reference.name in texts or (place, row.version) in seen:
                texts.setdefault(reference.name, row.text)
                continue
            seen.add((place, row.version))
            if len(seen) > _REFERENCES_MAX:
                raise SchemaTooComplex(f"the schema has more than {_REFERENCES_MAX:,} references")
            waiting.append((parent, reference, True))
            waiting += [(place, child, False) for child in reversed(row.references)]
        return Resolved(tuple(references), texts)


def _chars_of(parsed: ParsedSchema) -> int:
    return len(parsed.text) + sum(map(len, parsed.resolved.texts.values()))
