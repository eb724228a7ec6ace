"""Decide what a request changes: each function returns the answer and the records to append, or raises HttpError. Pure.

Only the leader calls them, one at a time, and applies the records before the next call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ottla.edge.registry import compatibility, errors
from ottla.edge.registry.parsing import Parser
from ottla.edge.registry.records import (
    Json,
    Record,
    SchemaVersion,
    clear_subject_record,
    config_record,
    context_record,
    delete_subject_record,
    guid_of,
    mode_record,
    noop_record,
    properties_of,
    schema_key,
)
from ottla.edge.registry.requests import VERSION_MAX, NewSchema
from ottla.edge.registry.state import State, merge_metadata, merge_rule_sets
from ottla.edge.registry.subjects import DEFAULT_CONTEXT, GLOBAL_CONTEXT, Subject, beside
from ottla.schemas.schema import InvalidSchema, ParsedSchema

_IMPORTING: Final = frozenset({"IMPORT", "FORWARD"})
_READ_ONLY: Final = frozenset({"READONLY", "READONLY_OVERRIDE"})
VERSION_PROPERTY: Final = "confluent:version"


class Registered(NamedTuple):
    """The version of a schema, and the records that register it; no records if the version existed."""

    row: SchemaVersion
    records: list[Record]


# Lookup


def find(
    state: State, parser: Parser, subject: str, new: NewSchema, *, normalize: bool, deleted: bool = False
) -> SchemaVersion | None:
    """Return the version of a subject that has this schema; None if no version has it."""
    new = _with_pinned_references(state, subject, new)
    # Imported schemas are stored as they were sent.
    normalize = normalize and state.mode_in_scope(subject) not in _IMPORTING
    found = _find_exactly(state, parser, subject, new, normalize=normalize, deleted=deleted)
    latest = state.latest(subject)
    if found is not None or latest is None:
        return found
    # A client that sends no metadata means the schema with the metadata that the registry would add.
    completed = _with_metadata(state.config_in_scope(subject), new, latest, None)
    if completed == new:
        return None
    return _find_exactly(state, parser, subject, completed, normalize=normalize, deleted=deleted)


def is_latest(state: State, parser: Parser, subject: str, new: NewSchema, *, normalize: bool) -> SchemaVersion | None:
    """Return the latest version of a subject if it has exactly this schema with this metadata, otherwise None.

    A client that registers a schema with version -1 refers to the latest version.
    """
    latest = state.latest(subject)
    if latest is None or not new.text.strip():
        return None
    new = _with_pinned_references(state, subject, new)
    parsed = _parse(parser, subject, new, normalize=normalize, is_new=False)
    return latest if _is_same(parser, parsed, new, latest) else None


def _find_exactly(
    state: State, parser: Parser, subject: str, new: NewSchema, *, normalize: bool, deleted: bool
) -> SchemaVersion | None:
    if not new.text.strip():
        return None
    rows = state.versions(subject, deleted=deleted)
    if not normalize and not new.references:
        # Serializers send the same text again and again: parsing it would be most of the work.
        known = parser.known_text(new.schema_type, new.text)
        if known is not None and (row := _with_text(rows, new, known)) is not None:
            return row
    parsed = _parse(parser, subject, new, normalize=normalize, is_new=False)
    found = _with_text(rows, new, parsed.text)
    if found is not None:
        return found
    for row in reversed(rows):
        if _is_same(parser, parsed, new, row):
            return row
    return None


def _with_text(rows: Sequence[SchemaVersion], new: NewSchema, text: str) -> SchemaVersion | None:
    """Return the version with this canonical text and the other members of a schema."""
    guid = guid_of(text, new.references, new.metadata, new.rule_set)
    return next((row for row in rows if row.guid == guid and row.schema_type == new.schema_type), None)


def _is_same(parser: Parser, parsed: ParsedSchema, new: NewSchema, row: SchemaVersion) -> bool:
    """Return whether a schema is this version, although its text or its references are written differently."""
    if row.schema_type != new.schema_type or row.rule_set != new.rule_set or not _has_metadata(row, new.metadata):
        return False
    return parsed.is_equivalent(parser.parse_version(row))


def _has_metadata(row: SchemaVersion, metadata: Json | None) -> bool:
    """Return whether a version has this metadata.

    The number of the version, which is a property, may be absent on either side. A client that names it means the
    version with this number.
    """
    sent, stored = (properties_of(each).get(VERSION_PROPERTY) for each in (metadata, row.metadata))
    if sent is not None and stored is None and sent != str(row.version):
        return False
    if sent is not None and stored is not None and sent != stored:
        return False
    return _without_version(metadata) == _without_version(row.metadata)


def _without_version(metadata: Json | None) -> Json:
    """Return metadata without the number of the version and without empty members."""
    properties = {name: value for name, value in properties_of(metadata).items() if name != VERSION_PROPERTY}
    return {name: value for name, value in ((metadata or {}) | {"properties": properties}).items() if value}


def _with_pinned_references(state: State, subject: str, new: NewSchema) -> NewSchema:
    """Return the schema with the number of the latest version in references to version -1."""
    if all(reference.version != -1 for reference in new.references):
        return new
    pinned = []
    for reference in new.references:
        latest = state.latest(beside(subject, reference.subject)) if reference.version == -1 else None
        pinned.append(reference if latest is None else replace(reference, version=latest.version))
    return replace(new, references=tuple(pinned))


def _parse(parser: Parser, subject: str, new: NewSchema, *, normalize: bool, is_new: bool) -> ParsedSchema:
    parsed = parser.parse(subject, new.schema_type, new.text, new.references, is_new=is_new)
    return parsed.normalized() if normalize else parsed


# Registration


def register(
    state: State,
    parser: Parser,
    subject: str,
    new: NewSchema,
    *,
    normalize: bool,
    force: bool = False,
    others: Sequence[SchemaVersion] = (),
) -> Registered:
    """Register a schema, or return the version that it has already.

    ``others`` are the versions that the same change has registered before. Raise HttpError: 42205 if the mode or an
    association does not allow it, 42201 if the schema is not valid, 40901 if it is incompatible.
    """
    _check_mode(state, subject, new)
    config, is_import = state.config_in_scope(subject), state.mode_in_scope(subject) in _IMPORTING
    versions = state.versions(subject)
    latest = versions[-1] if versions else None
    version_next = state.version_max(subject) + 1
    if new.tags_to_add or new.tags_to_remove:
        new = _with_tags(parser, subject, new)
    if not is_import:
        new = _completed(parser, config, subject, new, latest, version_next=version_next)
    if not new.text.strip():
        raise errors.invalid_schema("the schema is empty")
    new = _with_pinned_references(state, subject, new)
    is_validated = not is_import and config.get("validateNewSchemas") is not False
    parsed = _parse(parser, subject, new, normalize=normalize and not is_import, is_new=is_validated)
    _check_targets(state, subject, new)
    schema_id = new.id
    guid = guid_of(parsed.text, new.references, new.metadata, new.rule_set)
    known_id = _id_of_guid(state, subject, guid, others)
    if known_id is not None and schema_id in (-1, known_id):
        schema_id = known_id
    if new.version == 0:
        for row in reversed(versions):
            if schema_id in (-1, row.id) and (row.guid == guid or _is_same(parser, parsed, new, row)):
                return Registered(row, [])
    if not is_import and not force:
        reasons = compatibility.check(parser, config, parsed, new.metadata, versions)
        if reasons:
            text = f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: '
            raise errors.incompatible(f"{text}[{', '.join(reasons)}]")
    if new.version > 0 and new.version != version_next and not is_import:
        raise errors.invalid_schema(f"the next version of subject '{subject}' is {version_next}, not {new.version}")
    row = SchemaVersion(
        subject=subject,
        version=new.version if new.version > 0 else _next(version_next - 1, f"versions of subject '{subject}'"),
        id=_choose_id(state, subject, new, guid=guid, schema_id=schema_id, others=others),
        text=parsed.text,
        schema_type=new.schema_type,
        references=new.references,
        metadata=new.metadata,
        rule_set=new.rule_set,
    )
    return Registered(row, [*_new_context(state, subject), *_replaced(state, row), row.record()])


def _check_mode(state: State, subject: str, new: NewSchema) -> None:
    mode = state.mode_in_scope(subject)
    if mode in _READ_ONLY:
        raise errors.not_permitted(f"Subject '{subject}' is in read-only mode")
    if new.id >= 0 and mode not in _IMPORTING:
        raise errors.not_permitted(f"Subject '{subject}' is not in import mode, so an id cannot be chosen")
    if new.id < 0 and mode != "READWRITE":
        raise errors.not_permitted(f"Subject '{subject}' is not in read-write mode; its mode is {mode}")


def _check_targets(state: State, subject: str, new: NewSchema) -> None:
    """Raise HttpError 42205 if a reference names a subject that belongs to a topic."""
    for reference in new.references:
        if state.associations.has_strong(beside(subject, reference.subject)):
            text = f"Subject '{reference.subject}' has a strong association and cannot be referenced"
            raise errors.not_permitted(text)


def _with_tags(parser: Parser, subject: str, new: NewSchema) -> NewSchema:
    parsed = parser.parse(subject, new.schema_type, new.text, new.references)
    try:
        tagged = parsed.with_tags(new.tags_to_add or {}, new.tags_to_remove or {})
    except InvalidSchema as error:
        raise errors.invalid_schema(str(error)) from None
    # A tag makes a new version of the same fields, which carries its number.
    return replace(new, text=tagged.text, version=new.version or -1, tags_to_add=None, tags_to_remove=None)


def _completed(
    parser: Parser, config: Json, subject: str, new: NewSchema, latest: SchemaVersion | None, *, version_next: int
) -> NewSchema:
    """Return the schema with what it takes over from the latest version and from the configuration."""
    if not new.text.strip() and latest is not None:
        new = replace(new, text=latest.text, schema_type=latest.schema_type, references=latest.references)
    if new.propagates_tags and latest is not None:
        tags = parser.parse_version(latest).tagged_entities()
        if tags:
            parsed = parser.parse(subject, new.schema_type, new.text, new.references)
            new = replace(new, text=parsed.with_tags(tags, {}).text)
    return _with_metadata(config, new, latest, version_next)


def _with_metadata(config: Json, new: NewSchema, latest: SchemaVersion | None, version: int | None) -> NewSchema:
    """Return the schema with the metadata and rules of the latest version, between the defaults and the overrides."""
    metadata = new.metadata if new.metadata is not None else latest.metadata if latest is not None else None
    metadata = merge_metadata(merge_metadata(config.get("defaultMetadata"), metadata), config.get("overrideMetadata"))
    rules = new.rule_set if new.rule_set is not None else latest.rule_set if latest is not None else None
    rules = merge_rule_sets(merge_rule_sets(config.get("defaultRuleSet"), rules), config.get("overrideRuleSet"))
    properties = properties_of(metadata)
    if version is not None and (new.version != 0 or VERSION_PROPERTY in properties):
        metadata = (metadata or {}) | {"properties": properties | {VERSION_PROPERTY: str(version)}}
    return replace(new, metadata=metadata, rule_set=rules)


def _id_of_guid(state: State, subject: str, guid: str, others: Sequence[SchemaVersion]) -> int | None:
    context = Subject.parse(subject).context
    known = state.id_of_guid(context, guid)
    if known is not None:
        return known
    return next((row.id for row in others if row.guid == guid and Subject.parse(row.subject).context == context), None)


def _next(last: int, what: str) -> int:
    """Return the next number. Raise HttpError 42205 if there is none: an import may have used the last one."""
    if last >= VERSION_MAX:
        raise errors.not_permitted(f"all {what} are used; the last one was imported")
    return last + 1


def _choose_id(
    state: State, subject: str, new: NewSchema, *, guid: str, schema_id: int, others: Sequence[SchemaVersion]
) -> int:
    """Return the id of a new version. Raise HttpError 42205 if the chosen id names another schema.

    Schemas are compared by guid, which is the rule for one id: empty metadata and an empty rule set have the same.
    """
    context = Subject.parse(subject).context
    if schema_id < 0:
        taken = [row.id for row in others if Subject.parse(row.subject).context == context]
        return _next(max(state.id_max(context), *taken, 0), f"ids of context '{context}'")
    other = state.by_id(context, schema_id)
    if other is not None and (other.guid, other.schema_type) != (guid, new.schema_type):
        raise errors.not_permitted(f"id {schema_id} already names another schema in context '{context}'")
    return schema_id


def _new_context(state: State, subject: str) -> list[Record]:
    context = Subject.parse(subject).context
    return [] if context == DEFAULT_CONTEXT or context in state.contexts else [context_record(context)]


def _replaced(state: State, row: SchemaVersion) -> list[Record]:
    """Return tombstones for soft deleted versions of the same schema, unless another schema refers to them."""
    return [
        Record(old.key(), None)
        for old in state.versions(row.subject, deleted=True)
        if old.is_deleted and old.id == row.id and old.version < row.version
        and not state.referrers(old.subject, old.version, deleted=True)
    ]  # fmt: skip


# Deletion


def delete_version(state: State, subject: str, version: int, *, permanent: bool) -> tuple[int, list[Record]]:
    """Delete one version, softly or permanently. Return its number."""
    row = state.get(subject, version, deleted=True)
    if row is None:
        known = state.has_subject(subject, deleted=True)
        raise errors.version_not_found(version) if known else errors.subject_not_found(subject)
    if row.is_deleted and not permanent:
        raise errors.version_soft_deleted(subject, row.version)
    check_writable(state, subject)
    _check_references(state, row, permanent=permanent)
    if not permanent and state.associations.of_subject(subject) and len(state.versions(subject)) == 1:
        raise errors.no_live_version(subject)
    if not permanent:
        return row.version, [row.deleted().record()]
    if not row.is_deleted:
        raise errors.version_not_soft_deleted(subject, row.version)
    records = [Record(row.key(), None), _remember_ids(state)]
    if len(state.versions(subject, deleted=True)) == 1:
        records += _forget_settings(state, subject)
    return row.version, records


def delete_subject(state: State, subject: str, *, permanent: bool) -> tuple[list[int], list[Record]]:
    """Delete all versions of a subject, softly or permanently. Return their numbers."""
    if not state.has_subject(subject, deleted=True):
        raise errors.subject_not_found(subject)
    rows = state.versions(subject, deleted=permanent)
    if not rows:
        raise errors.subject_soft_deleted(subject)
    check_writable(state, subject)
    if state.associations.of_subject(subject):
        raise errors.subject_is_associated(subject)
    for row in rows:
        _check_references(state, row, permanent=permanent, except_subject=subject)
        if permanent and not row.is_deleted:
            raise errors.subject_not_soft_deleted(subject)
    numbers = [row.version for row in rows]
    if not permanent:
        return numbers, [delete_subject_record(subject, numbers[-1])]
    return numbers, _tombstones(state, subject, numbers)


def delete_with_association(state: State, subject: str) -> list[Record]:
    """Delete a subject, permanently and at once, whose strong association is deleted in the same change."""
    rows = state.versions(subject, deleted=True)
    for row in rows:
        _check_references(state, row, permanent=True, except_subject=subject)
    numbers = [row.version for row in rows]
    if not numbers:
        return []
    return [delete_subject_record(subject, numbers[-1]), *_tombstones(state, subject, numbers)]


def _tombstones(state: State, subject: str, versions: Sequence[int]) -> list[Record]:
    # Descending, because a version may refer to an earlier one of the same subject.
    records = [Record(schema_key(subject, number), None) for number in reversed(versions)]
    return [*records, _remember_ids(state), *_forget_settings(state, subject)]


def check_writable(state: State, subject: str | None) -> None:
    if state.mode_in_scope(subject) in _READ_ONLY:
        raise errors.not_permitted(f"Subject '{subject}' is in read-only mode")


def _check_references(state: State, row: SchemaVersion, *, permanent: bool, except_subject: str | None = None) -> None:
    for other in state.referrers(row.subject, row.version, deleted=permanent):
        if other.subject != except_subject:
            by = f"version {other.version} of subject '{other.subject}'"
            raise errors.referenced(row.subject, row.version, by)


def _remember_ids(state: State) -> Record:
    """Return a record that keeps the highest ids: after compaction, a deleted id must not name another schema.

    Confluent's registry ignores the value of this record.
    """
    return noop_record({context: state.id_max(context) for context in state.context_names()})


def _forget_settings(state: State, subject: str) -> list[Record]:
    records = [mode_record(subject, None)] if subject in state.modes else []
    return records + ([config_record(subject, None)] if subject in state.configs else [])


def delete_context(state: State, context: str) -> list[Record]:
    """Delete a context without subjects; nothing if it does not exist. Raise HttpError 42211 if it has subjects."""
    prefix = "" if context == DEFAULT_CONTEXT else f":{context}:"
    if context == DEFAULT_CONTEXT or state.subjects(prefix, deleted=True):
        raise errors.context_not_empty(context)
    if context not in state.contexts:
        return []
    return [context_record(context, is_deleted=True), *_forget_settings(state, prefix)]


# Configuration and mode


def set_config(state: State, subject: str | None, change: Json) -> tuple[Json, list[Record]]:
    """Change members of a configuration; None resets one. Return the whole configuration."""
    check_writable(state, subject)
    config = (state.configs.get(subject) or {}) | change
    config = {name: value for name, value in config.items() if value is not None}
    return config, [config_record(subject, config)]


def delete_config(state: State, subject: str | None) -> tuple[Json, list[Record]]:
    """Delete a configuration, so that the next wider one holds. Return the deleted one."""
    old = state.config(subject)
    if old is None:
        raise errors.subject_not_found(str(subject))
    check_writable(state, subject)
    return old, [config_record(subject, None)] if subject in state.configs else []


def set_mode(state: State, subject: str | None, mode: str | None, *, force: bool) -> list[Record]:
    """Set a mode; None resets it. IMPORT needs a subject or context without schemas, unless `force` is given.

    Raise HttpError 42204 for FORWARD, which only the configuration of all contexts can have.
    """
    if mode == "FORWARD" and (subject is None or Subject.parse(subject) != Subject(GLOBAL_CONTEXT, "")):
        raise errors.forward_is_global()
    records: list[Record] = []
    if mode == "IMPORT" and state.mode_in_scope(subject) != "IMPORT" and not force:
        rows = _rows_in(state, subject)
        if any(not row.is_deleted for row in rows):
            raise errors.not_permitted("Mode IMPORT needs a subject without schemas; delete them, or give force=true")
        for row in rows:
            _check_references(state, row, permanent=True)
        records = [Record(row.key(), None) for row in rows]
        records += [_remember_ids(state), clear_subject_record(subject)] if rows else [clear_subject_record(subject)]
    return [*records, mode_record(subject, mode)]


def _rows_in(state: State, subject: str | None) -> Sequence[SchemaVersion]:
    """Return all versions of a subject, of a context, or of all contexts."""
    if subject is None:
        return list(state.all_versions(":*:", deleted=True))
    if Subject.parse(subject).is_context:
        return list(state.all_versions(subject, deleted=True))
    return state.versions(subject, deleted=True)


def delete_mode(state: State, subject: str | None, *, recursive: bool) -> tuple[str | None, list[Record]]:
    """Delete a mode, with `recursive` also those of all subjects of the context. Return the deleted mode."""
    old = state.mode(subject)
    if old is None and not recursive:
        raise errors.subject_not_found(str(subject))
    subjects = [subject] if subject in state.modes else []
    if recursive and (subject is None or Subject.parse(subject).is_context):
        subjects += [
            name for name in state.modes
            if name is not None and name != subject and _is_inside(name, subject)
        ]  # fmt: skip
    return old, [mode_record(name, None) for name in subjects]


def _is_inside(subject: str, context: str | None) -> bool:
    prefix = "" if context is None else Subject.parse(context).prefix
    return Subject.parse(subject).prefix == prefix


def change_tags(
    state: State, parser: Parser, subject: str, row: SchemaVersion, new: NewSchema, *, rules: Json | None, version: int
) -> Registered:
    """Register a copy of a version with other tags, metadata and rules."""
    tagged = _with_tags(parser, subject, new)
    metadata = (new.metadata if new.metadata is not None else row.metadata) or {}
    properties = properties_of(metadata) | {VERSION_PROPERTY: str(version or state.version_max(subject) + 1)}
    tagged = replace(tagged, metadata=metadata | {"properties": properties}, rule_set=rules, version=version or -1)
    return register(state, parser, subject, tagged, normalize=False)
