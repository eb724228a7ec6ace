"""What exporters copy, and where to. Pure.

An exporter copies the schemas of this registry to another one ("schema linking"), with their ids and versions. It is
kept in two compacted topics. The group of the registry is part of the key, so that several registries can share them.

    _exporter_configs   {"registry":"schema-registry","name":"to-b"}   name, subjects, contextType, context, config
    _exporter_states    {"registry":"schema-registry","name":"to-b"}   state, offset, ts, trace

The offset is a position in the topic of the schemas: every record before it was copied. A record only says which
version has changed. The exporter copies the current state of that version, so it may copy a part of the topic twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from ottla.edge.registry import errors
from ottla.edge.registry.records import Json, Record, SchemaVersion, compact_json
from ottla.edge.registry.state import State
from ottla.edge.registry.store import Applied
from ottla.edge.registry.subjects import DEFAULT_CONTEXT, Subject, beside, context_prefix, is_valid
from ottla.model.registry_secrets import SECRETS, URL, secrets_to_repeat
from ottla.schemas.schema import Reference
from ottla.security.secret_box import SecretBox, Unreadable, is_sealed

#: shown in place of a secret; a request that sends it keeps the secret
HIDDEN: Final = "[hidden]"
#: Confluent's clients also accept their properties with this prefix
_PREFIX: Final = "schema.registry."
_PLACE: Final = "${subject}"
_ALL_CONTEXTS: Final = ":*:"
_NAME_CHARS_MAX: Final = 255


class ContextType(StrEnum):
    """The context that a subject of the source has at the destination."""

    #: a context named after this registry, followed by that of the source
    AUTO = "AUTO"
    #: a given context, followed by that of the source
    CUSTOM = "CUSTOM"
    #: that of the source
    NONE = "NONE"
    #: the default context, for subjects of all contexts
    DEFAULT = "DEFAULT"


class ExporterState(StrEnum):
    """What an exporter does."""

    #: the destination has not answered yet
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"


@dataclass(frozen=True, slots=True)
class Exporter:
    """The definition of an exporter."""

    name: str
    subjects: tuple[str, ...] = ("*",)
    rename_format: str = _PLACE
    context_type: ContextType = ContextType.AUTO
    #: begins with a dot; "." if the exporter adds none
    context: str = DEFAULT_CONTEXT
    #: the destination's address, and how to log in
    config: Mapping[str, str] = field(default_factory=dict, repr=False)

    def as_json(self) -> Json:
        """Return the definition as clients see it, without secrets."""
        return self._members() | {"config": self.visible_config()}

    def visible_config(self) -> dict[str, str]:
        return {name: HIDDEN if name in SECRETS else value for name, value in self.config.items()}

    def stored(self, box: SecretBox | None) -> Json:
        """Return the definition with its secrets, encrypted if there is a box."""
        config = dict(self.config)
        for name in SECRETS & config.keys():
            if box is not None and not is_sealed(config[name]):
                config[name] = box.seal(config[name])
        return self._members() | {"config": config}

    def _members(self) -> Json:
        return {
            "name": self.name, "contextType": self.context_type, "context": self.context,
            "subjects": list(self.subjects), "subjectRenameFormat": self.rename_format,
        }  # fmt: skip

    # Names

    def selects(self, text: str) -> bool:
        """Return whether the exporter copies a subject."""
        subject = Subject.parse(text)
        # If the destination is this registry itself, a copy is not copied again.
        is_copy = self._adds_context and f"{subject.context}.".startswith(f"{self.context}.")
        return any(
            _matches(pattern, subject) and not (is_copy and pattern.startswith(_ALL_CONTEXTS))
            for pattern in self.subjects
        )

    def destination(self, text: str) -> str:
        """Return the name that a subject has at the destination."""
        subject = Subject.parse(text)
        context = subject.context
        if self.context_type is ContextType.DEFAULT:
            context = DEFAULT_CONTEXT
        elif self._adds_context:
            context = self.context + ("" if context == DEFAULT_CONTEXT else context)
        return str(Subject(context, self.rename_format.replace(_PLACE, subject.name)))

    @property
    def _adds_context(self) -> bool:
        return self.context_type in (ContextType.AUTO, ContextType.CUSTOM)

    def registration(self, row: SchemaVersion) -> Json:
        """Return the request that registers a version at the destination, with its id and its number."""
        references = tuple(replace(each, subject=self._reference(row, each)) for each in row.references)
        members = replace(row, references=references).members()
        return {"schema": row.text, "id": row.id, "version": row.version} | members

    def _reference(self, row: SchemaVersion, reference: Reference) -> str:
        parent = Subject.parse(self.destination(row.subject))
        subject = Subject.parse(self.destination(beside(row.subject, reference.subject)))
        if subject.context == parent.context:
            return subject.name
        return f":.:{subject.name}" if subject.context == DEFAULT_CONTEXT else str(subject)


def _matches(pattern: str, subject: Subject) -> bool:
    """Return whether a pattern selects a subject: `a`, `a*`, `*`, `.x`, `:.x:`, `:.x:a*`, `:*:`, `:*:a*`."""
    wanted = Subject.parse(f":{pattern}:" if pattern.startswith(".") else pattern)
    if wanted.context not in ("*", subject.context):
        return False
    if not wanted.name:
        return True
    if wanted.name.endswith("*"):
        return subject.name.startswith(wanted.name[:-1])
    return subject.name == wanted.name


# Requests


def create(body: Json, auto_context: str) -> Exporter:
    """Return the exporter that a request describes. Raise HttpError 40950, 40951 or 40952 if it is not valid."""
    name = body.get("name")
    if not isinstance(name, str) or not name or len(name) > _NAME_CHARS_MAX or not name.isprintable() or "/" in name:
        raise errors.invalid_exporter_name()
    return update(Exporter(name), body, auto_context)


def update(old: Exporter, body: Json, auto_context: str) -> Exporter:
    """Return the exporter with the members that a request changes; absent members do not change."""
    new = old
    if body.get("subjects") is not None:
        new = replace(new, subjects=_parse_subjects(body["subjects"]))
    if body.get("subjectRenameFormat") is not None:
        new = replace(new, rename_format=_parse_rename_format(body["subjectRenameFormat"]))
    if body.get("contextType") is not None:
        new = replace(new, context_type=_parse_context_type(body["contextType"]))
    given = body.get("context") or (old.context if new.context_type is old.context_type else "")
    new = replace(new, context=_parse_context(new.context_type, given, auto_context))
    is_one_subject = len(new.subjects) == 1 and _is_name(new.subjects[0])
    if _PLACE not in new.rename_format and not is_one_subject:
        raise errors.invalid_exporter_subjects(f"several subjects need {_PLACE} in subjectRenameFormat")
    return replace(new, config=parse_config(body["config"] if "config" in body else dict(old.config), old.config))


def _parse_subjects(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) and _is_pattern(text) for text in value):
        raise errors.invalid_exporter_subjects(
            "give a list of subjects, of contexts such as .test, of prefixes such as orders*, or :*: for all"
        )
    return tuple(value) or ("*",)


def _is_pattern(text: str) -> bool:
    if text == _ALL_CONTEXTS:
        return True
    name = text.removeprefix(_ALL_CONTEXTS).removesuffix("*")
    return "*" not in name and (not name or is_valid(name, may_be_context=True))


def _is_name(pattern: str) -> bool:
    """Return whether a pattern selects one subject."""
    return (
        not pattern.startswith((".", _ALL_CONTEXTS)) and not pattern.endswith("*") and bool(Subject.parse(pattern).name)
    )


def _parse_rename_format(value: Any) -> str:
    if not isinstance(value, str) or not is_valid(value.replace(_PLACE, "x")) or ":" in value:
        raise errors.invalid_exporter_subjects(f"subjectRenameFormat must be a name with {_PLACE} in it")
    return value


def _parse_context_type(value: Any) -> ContextType:
    try:
        return ContextType(str(value).upper())
    except ValueError:
        raise errors.invalid_exporter_config(f"contextType must be one of {', '.join(ContextType)}") from None


def _parse_context(context_type: ContextType, value: Any, auto_context: str) -> str:
    if context_type is ContextType.AUTO:
        return auto_context
    if context_type is not ContextType.CUSTOM:
        return DEFAULT_CONTEXT
    if not isinstance(value, str) or not is_valid(value, may_be_context=True) or value.strip(".:") == "":
        raise errors.invalid_exporter_config("contextType CUSTOM needs a context")
    try:
        return Subject.parse(context_prefix(value)).context
    except ValueError as error:
        raise errors.invalid_exporter_config(str(error)) from None


def parse_config(value: Any, old: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration of a request. A hidden secret keeps its value.

    Raise HttpError 40951 without a URL, and if another server than before would get a secret that the request hides.
    """
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise errors.invalid_exporter_config("config must be an object whose values are texts")
    config = {given if given == URL else given.removeprefix(_PREFIX): content for given, content in value.items()}
    if not config.get(URL):
        raise errors.invalid_exporter_config(f"config needs {URL}, the address of the destination")
    kept = [name for name in SECRETS & config.keys() if config[name] == HIDDEN]
    if names := secrets_to_repeat(old, config, kept):
        raise errors.invalid_exporter_config(
            f"another address, or other certificates that it is checked with, need the secret again: give the value of "
            f"{', '.join(names)} in the same request"
        )
    return config | {name: old[name] for name in kept if name in old}


# What an exporter has done


@dataclass(frozen=True, slots=True)
class Entry:
    """An exporter and its progress."""

    exporter: Exporter
    state: ExporterState = ExporterState.STARTING
    #: every record of the topic before this offset was copied
    offset: int = 0
    #: when the offset or the state changed
    timestamp_ms: int = 0
    #: the error that stops its progress; empty if there is none
    trace: str = ""

    def status_json(self) -> Json:
        return {"name": self.exporter.name} | self._progress()

    def _progress(self) -> Json:
        return {"state": self.state, "offset": self.offset, "ts": self.timestamp_ms, "trace": self.trace}

    def definition_record(self, group: str, box: SecretBox | None = None) -> Record:
        return Record(_key(group, self.exporter.name), compact_json(self.exporter.stored(box)))

    def progress_record(self, group: str) -> Record:
        return Record(_key(group, self.exporter.name), compact_json(self._progress()))


def tombstone(group: str, name: str) -> Record:
    return Record(_key(group, name), None)


def _key(group: str, name: str) -> bytes:
    return compact_json({"registry": group, "name": name})


def load(
    group: str, definitions: Iterable[Applied], progress: Iterable[Applied], box: SecretBox | None = None
) -> dict[str, Entry]:
    """Return the exporters of a registry by name, from the records of both topics. One that was running starts.

    A secret that cannot be decrypted stays encrypted; the exporter does not start with it (`destination.connect`).
    """
    found = {name: Entry(_parse_stored(value, box)) for name, value in _latest(group, definitions).items()}
    for name, value in _latest(group, progress).items():
        if name in found:
            is_paused = value.get("state") == ExporterState.PAUSED
            found[name] = replace(
                found[name], state=ExporterState.PAUSED if is_paused else ExporterState.STARTING,
                offset=int(value["offset"]), timestamp_ms=int(value["ts"]), trace=str(value.get("trace") or ""),
            )  # fmt: skip
    return found


def _latest(group: str, records: Iterable[Applied]) -> dict[str, Json]:
    latest: dict[str, Json] = {}
    for row in records:
        key = json.loads(row.key)
        if key["registry"] != group:
            continue
        if row.value is None:
            latest.pop(key["name"], None)
        else:
            latest[key["name"]] = json.loads(row.value)
    return latest


def _parse_stored(value: Json, box: SecretBox | None) -> Exporter:
    config: dict[str, str] = value["config"]
    for name in SECRETS & config.keys():
        if box is not None and is_sealed(config[name]):
            with suppress(Unreadable):
                config[name] = box.open(config[name])
    return Exporter(
        name=value["name"], subjects=tuple(value["subjects"]), rename_format=value["subjectRenameFormat"],
        context_type=ContextType(value["contextType"]), context=value["context"], config=config,
    )  # fmt: skip


# What to copy


class Change(NamedTuple):
    """A record of the topic that says that versions have changed."""

    offset: int
    subject: str
    version: int
    #: whether the record is about all versions up to this one
    is_up_to: bool = False


def changes_in(records: Iterable[Applied]) -> list[Change]:
    """Return what records of the topic of the schemas are about. Configurations, modes and contexts are not copied."""
    found = []
    for row in records:
        try:
            key = json.loads(row.key)
            if key["keytype"] == "SCHEMA":
                found.append(Change(row.offset, key["subject"], key["version"]))
            elif key["keytype"] == "DELETE_SUBJECT" and row.value is not None:
                found.append(Change(row.offset, key["subject"], json.loads(row.value)["version"], is_up_to=True))
        except (ValueError, KeyError, TypeError):
            continue  # State.apply ignores such a record too, and logs it
    return found


class Task(NamedTuple):
    """Make one version at the destination what it is at the source."""

    offset: int
    subject: str
    version: int
    #: None if the version does not exist any more
    row: SchemaVersion | None
    #: what it refers to, in an order in which they can be registered
    references: tuple[SchemaVersion, ...] = ()


def tasks_of(changes: Iterable[Change], exporter: Exporter, state: State) -> list[Task]:
    """Return what an exporter does about changes, in their order. A version that changed twice is copied once."""
    tasks: dict[tuple[str, int], Task] = {}
    for change in changes:
        if not exporter.selects(change.subject):
            continue
        versions: Iterable[int] = (change.version,)
        if change.is_up_to:
            rows = state.versions(change.subject, deleted=True)
            versions = [row.version for row in rows if row.version <= change.version]
        for version in versions:
            row = state.get(change.subject, version, deleted=True)
            references = () if row is None else tuple(_references(state, row))
            tasks.setdefault((change.subject, version), Task(change.offset, change.subject, version, row, references))
    return list(tasks.values())


def _references(state: State, row: SchemaVersion) -> Iterator[SchemaVersion]:
    """Return the versions that a version refers to, each after those that it refers to itself."""
    done = {(row.subject, row.version)}
    waiting: list[tuple[SchemaVersion, bool]] = [(row, False)]
    while waiting:
        parent, is_complete = waiting.pop()
        if is_complete:
            if (parent.subject, parent.version) not in done:
                done.add((parent.subject, parent.version))
                yield parent
            continue
        waiting.append((parent, True))
        for reference in parent.references:
            place = (beside(parent.subject, reference.subject), reference.version)
            found = state.get(*place, deleted=True)
            if found is not None and place not in done:
                waiting.append((found, False))
