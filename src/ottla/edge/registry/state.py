"""The content of the topic `_schemas` in memory: subjects, versions, ids, settings, associations. Pure.

`apply` is the only way to change it, and every instance applies the same records in the same order.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ottla.edge.registry.associations.table import Associations
from ottla.edge.registry.records import RULE_LISTS, Json, SchemaVersion, check_record
from ottla.edge.registry.subjects import DEFAULT_CONTEXT, GLOBAL_CONTEXT, Subject, beside

log = logging.getLogger(__name__)

COMPATIBILITY_DEFAULT: Final = "BACKWARD"
MODE_DEFAULT: Final = "READWRITE"
_GLOBAL_PREFIX: Final = f":{GLOBAL_CONTEXT}:"
_SHARED_MEMBERS: Final = frozenset({
    "normalize", "validateFields", "validateNewSchemas", "validateRules", "compatibilityPolicy", "compatibilityGroup",
})  # fmt: skip


class State:
    """All schemas of a registry. Subjects are in the form of `subjects.normalize`."""

    def __init__(self, *, compatibility_default: str = COMPATIBILITY_DEFAULT, mode_default: str = MODE_DEFAULT) -> None:
        self.compatibility_default = compatibility_default
        self.mode_default = mode_default
        #: subject -> version -> schema, in ascending order of versions
        self._versions: dict[str, dict[int, SchemaVersion]] = {}
        #: context -> id -> (subject, version) of every version with this id; the first one decides the schema
        self._ids: dict[str, dict[int, dict[tuple[str, int], None]]] = {}
        #: context -> guid -> id
        self._guids: dict[str, dict[str, int]] = {}
        #: (subject, version) -> the versions that refer to it
        self._referrers: dict[tuple[str, int], set[tuple[str, int]]] = {}
        #: context -> the highest id that a record ever had
        self._ids_max: dict[str, int] = {}
        #: subject, None for global -> configuration and mode
        self.configs: dict[str | None, Json] = {}
        self.modes: dict[str | None, str] = {}
        self.contexts: dict[str, Json] = {}
        self.associations = Associations()

    # Reading

    def versions(self, subject: str, *, deleted: bool = False) -> list[SchemaVersion]:
        """Return the versions of a subject in ascending order, with or without those that are soft deleted."""
        # Threads read too, and a loop over a dictionary fails if another thread changes it. A copy is made at once.
        rows = list(self._versions.get(subject, {}).values())
        return [row for row in rows if deleted or not row.is_deleted]

    def get(self, subject: str, version: int, *, deleted: bool = False) -> SchemaVersion | None:
        """Return one version; -1 stands for the latest version that is not deleted."""
        if version == -1:
            return self.latest(subject)
        row = self._versions.get(subject, {}).get(version)
        return row if row is not None and (deleted or not row.is_deleted) else None

    def latest(self, subject: str) -> SchemaVersion | None:
        for row in reversed(list(self._versions.get(subject, {}).values())):
            if not row.is_deleted:
                return row
        return None

    def version_max(self, subject: str) -> int:
        """Return the highest version that a subject has, deleted ones included; 0 if it has none."""
        return next(reversed(self._versions.get(subject, {0: None})))

    def by_id(self, context: str, schema_id: int) -> SchemaVersion | None:
        """Return a version that has this id, a live one if there is one: all of them have the same schema."""
        found = None
        for subject, version in self._ids.get(context, {}).get(schema_id, ()):
            row = self._versions[subject][version]
            if not row.is_deleted:
                return row
            found = found or row
        return found

    def versions_of_id(self, context: str, schema_id: int, *, deleted: bool = False) -> list[SchemaVersion]:
        rows = (self._versions[subject][version] for subject, version in self._ids.get(context, {}).get(schema_id, ()))
        return [row for row in rows if deleted or not row.is_deleted]

    def id_of_guid(self, context: str, guid: str) -> int | None:
        return self._guids.get(context, {}).get(guid)

    def id_max(self, context: str) -> int:
        """Return the highest id that was ever assigned in a context; 0 if none was."""
        return self._ids_max.get(context, 0)

    def has_subject(self, subject: str, *, deleted: bool = False) -> bool:
        rows = self._versions.get(subject)
        return rows is not None and (deleted or any(not row.is_deleted for row in rows.values()))

    def subjects(self, prefix: str = "", *, deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """Return the names of subjects that start with a prefix, sorted.

        `a` is a prefix in the default context, `:.test:a` in the context `.test`, and `:*:a` in all contexts.
        """
        found = []
        for subject, rows in self._versions.items():
            if rows and has_prefix(subject, prefix):
                is_deleted = all(row.is_deleted for row in rows.values())
                if is_deleted if deleted_only else deleted or not is_deleted:
                    found.append(subject)
        return sorted(found)

    def all_versions(self, prefix: str = "", *, deleted: bool = False) -> Iterator[SchemaVersion]:
        for subject in self.subjects(prefix, deleted=deleted):
            yield from self.versions(subject, deleted=deleted)

    def context_names(self) -> list[str]:
        return sorted({DEFAULT_CONTEXT, *self.contexts})

    def referrers(self, subject: str, version: int, *, deleted: bool = False) -> list[SchemaVersion]:
        """Return the versions that refer to this one."""
        rows = (self._versions[name][number] for name, number in self._referrers.get((subject, version), ()))
        return sorted(
            (row for row in rows if deleted or not row.is_deleted), key=lambda row: (row.id, row.subject, row.version)
        )

    # Configuration and mode: of the subject, of its context, of all contexts

    def config(self, subject: str | None) -> Json | None:
        """Return the configuration that was set for exactly this subject; the default if it is global."""
        config = self.configs.get(subject)
        if config is None:
            is_global = subject is None or Subject.parse(subject).context == GLOBAL_CONTEXT
            return {"compatibilityLevel": self.compatibility_default} if is_global else None
        return (
            config if config.get("compatibilityLevel") else config | {"compatibilityLevel": self.compatibility_default}
        )

    def config_in_scope(self, subject: str | None) -> Json:
        """Return the configuration that holds for a subject."""
        own = self.configs.get(subject)
        if own is not None and subject is not None:
            # As in Confluent's registry: of the global configuration only the flags hold for a subject with its own.
            flags = {name: value for name, value in self.configs.get(None, {}).items() if name in _SHARED_MEMBERS}
            return {"compatibilityLevel": self.compatibility_default} | flags | own
        for place in _scopes(subject):
            config = self.configs.get(place)
            if config is not None:
                return {"compatibilityLevel": self.compatibility_default} | config
        return {"compatibilityLevel": self.compatibility_default}

    def mode(self, subject: str | None) -> str | None:
        mode = self.modes.get(subject)
        if mode is None and (subject is None or Subject.parse(subject).context == GLOBAL_CONTEXT):
            return self.mode_default
        return mode

    def mode_in_scope(self, subject: str | None) -> str:
        for place in (subject, *_scopes(subject)):
            mode = self.modes.get(place)
            if mode is not None:
                return mode
        return self.mode_default

    def alias_of(self, subject: str) -> str | None:
        """Return the subject that is used in place of this one; None if it has no alias."""
        alias = (self.configs.get(subject) or {}).get("alias")
        return beside(subject, alias) if alias else None

    def aliases(self) -> dict[str, list[str]]:
        """Return the names that each subject has besides its own."""
        found: dict[str, list[str]] = {}
        for subject in self.configs:
            target = self.alias_of(subject) if subject is not None else None
            if subject is not None and target is not None:
                found.setdefault(target, []).append(subject)
        return found

    # Applying records

    def apply(self, key: bytes, value: bytes | None, offset: int, timestamp_ms: int) -> None:
        """Apply one record of the topic. A record that cannot be understood is logged and ignored."""
        try:
            name: Json = json.loads(key)
            content: Json | None = None if value is None else json.loads(value)
            check_record(name, content)
            self._apply(name, content, offset, timestamp_ms)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.warning("the record at offset %d of the registry's topic is ignored: %r", offset, error)

    def _apply(self, key: Json, value: Json | None, offset: int, timestamp_ms: int) -> None:
        kind = key["keytype"]
        if kind == "SCHEMA":
            if value is None:
                self._remove(key["subject"], key["version"])
            else:
                self._put(SchemaVersion.parse(value, offset, timestamp_ms))
        elif kind == "CONFIG":
            _set(self.configs, key.get("subject"), None if value is None else _without_subject(value))
        elif kind == "MODE":
            _set(self.modes, key.get("subject"), None if value is None else value["mode"])
        elif kind == "ASSOC":
            self.associations.apply(key, value, timestamp_ms)
        elif kind == "CONTEXT":
            _set(self.contexts, key["context"], value)
        elif kind == "DELETE_SUBJECT" and value is not None:
            for row in self.versions(value["subject"]):
                if row.version <= value["version"]:
                    self._put(row.deleted())
        elif kind == "NOOP" and value is not None:
            for context, id_max in value.get("idsMax", {}).items():
                self._ids_max[context] = max(self._ids_max.get(context, 0), id_max)
        elif kind == "CLEAR_SUBJECT" and value is not None:
            self._clear(value.get("subject"))

    def _put(self, row: SchemaVersion) -> None:
        context = Subject.parse(row.subject).context
        same_id = self.by_id(context, row.id)
        if same_id is not None and (same_id.text, same_id.schema_type) != (row.text, row.schema_type):
            log.error(
                "id %d already names another schema; version %d of %s is ignored", row.id, row.version, row.subject
            )
            return
        self._remove(row.subject, row.version)
        rows = self._versions.setdefault(row.subject, {})
        is_last = not rows or row.version > next(reversed(rows))
        rows[row.version] = row
        if not is_last:
            self._versions[row.subject] = dict(sorted(rows.items()))
        self._ids.setdefault(context, {}).setdefault(row.id, {})[row.subject, row.version] = None
        self._guids.setdefault(context, {})[row.guid] = row.id
        self._ids_max[context] = max(self._ids_max.get(context, 0), row.id)
        for reference in row.references:
            place = (beside(row.subject, reference.subject), reference.version)
            self._referrers.setdefault(place, set()).add((row.subject, row.version))

    def _remove(self, subject: str, version: int) -> None:
        rows = self._versions.get(subject, {})
        row = rows.pop(version, None)
        if row is None:
            return
        if not rows:
            del self._versions[subject]
        context = Subject.parse(subject).context
        places = self._ids[context][row.id]
        del places[subject, version]
        if not places:
            del self._ids[context][row.id]
            self._guids[context].pop(row.guid, None)
        for reference in row.references:
            place = (beside(subject, reference.subject), reference.version)
            self._referrers[place].discard((subject, version))

    def _clear(self, subject: str | None) -> None:
        for row in list(self.all_versions(":*:" if subject is None else subject, deleted=True)):
            if row.is_deleted and (subject is None or row.subject == subject or Subject.parse(subject).is_context):
                self._remove(row.subject, row.version)


def _scopes(subject: str | None) -> Iterable[str | None]:
    """Return where the configuration of a subject is looked for, after the subject itself."""
    prefix = "" if subject is None else Subject.parse(subject).prefix
    return (prefix or None, _GLOBAL_PREFIX)


def merge_metadata(old: Json | None, new: Json | None) -> Json | None:
    if old is None or new is None:
        return old if new is None else new
    merged: Json = {}
    for name in ("tags", "properties"):
        if old.get(name) or new.get(name):
            merged[name] = {**(old.get(name) or {}), **(new.get(name) or {})}
    if old.get("sensitive") or new.get("sensitive"):
        merged["sensitive"] = sorted({*(old.get("sensitive") or ()), *(new.get("sensitive") or ())})
    return merged


def merge_rule_sets(old: Json | None, new: Json | None) -> Json | None:
    if old is None or new is None:
        return old if new is None else new
    merged: Json = {}
    for name in RULE_LISTS:
        if old.get(name) is not None or new.get(name) is not None:
            replaced = {rule.get("name") for rule in new.get(name) or ()}
            merged[name] = [rule for rule in old.get(name) or () if rule.get("name") not in replaced]
            merged[name] += new.get(name) or ()
    enable_at = new.get("enableAt") or old.get("enableAt")
    return merged | ({"enableAt": enable_at} if enable_at else {})


def has_prefix(subject: str, prefix: str) -> bool:
    """Return whether a subject starts with a prefix, in the context that the prefix names; `:*:` is every context."""
    found, wanted = Subject.parse(subject), Subject.parse(prefix)
    return wanted.context in ("*", found.context) and found.name.startswith(wanted.name)


def _set(places: dict[Any, Any], name: Any, value: Any) -> None:
    if value is None:
        places.pop(name, None)
    else:
        places[name] = value


def _without_subject(value: Json) -> Json:
    return {name: content for name, content in value.items() if name != "subject"}
