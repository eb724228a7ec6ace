"""Requests that create, change and delete associations. Pure.

The members and the rules are those of Confluent's registry. A topic has at most one association of type `key` and one
of type `value`. An association is STRONG and frozen, and then its subject belongs to the topic, or WEAK and not frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from ottla.edge.registry import errors
from ottla.edge.registry.associations.table import LIFECYCLES, STRONG, TOPIC, WEAK, Filter
from ottla.edge.registry.records import Json
from ottla.edge.registry.requests import NewSchema, as_object, member
from ottla.edge.registry.subjects import context_prefix, is_valid

KEY: Final = "key"
VALUE: Final = "value"
CREATE: Final = "CREATE"
UPSERT: Final = "UPSERT"
DELETE: Final = "DELETE"
OPERATIONS: Final = frozenset({CREATE, UPSERT, DELETE})
_NAME_CHARS_MAX: Final = 256

#: returns the stored name of a subject that a request names
ResolveSubject = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Resource:
    """A topic of a cluster."""

    name: str
    #: the id of the cluster
    namespace: str
    #: the id of the topic; None in a dry run, because the topic may not exist yet
    id: str | None
    type: str = TOPIC

    @classmethod
    def parse(cls, body: Json, *, dry_run: bool) -> Resource:
        """Raise HttpError 42212 if a member is missing or not valid."""
        name, namespace = _name(body, "resourceName"), _name(body, "resourceNamespace")
        resource_id, kind = member(body, "resourceId", str), member(body, "resourceType", str) or TOPIC
        if not resource_id and not dry_run:
            raise errors.invalid_association("resourceId", "it cannot be empty")
        if kind != TOPIC:
            raise errors.invalid_association("resourceType", f"it must be '{TOPIC}'")
        return cls(name, namespace, resource_id, kind)

    def default_subject(self, association_type: str) -> str:
        """Return the subject of a strong association."""
        return f"{context_prefix(self.namespace)}{self.name}-{association_type}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One association that a request creates or updates. None stands for a member that the request does not give."""

    association_type: str
    subject: str | None
    lifecycle: str | None
    frozen: bool | None
    schema: NewSchema | None
    normalize: bool

    @classmethod
    def parse(cls, body: Json, resolve: ResolveSubject) -> Wanted:
        """Raise HttpError 42212 or 422 if a member is not valid."""
        subject, schema = member(body, "subject", str), member(body, "schema", dict)
        if subject is not None:
            if not is_valid(subject):
                raise errors.invalid_association("subject", f"'{subject}' cannot be the name of a subject")
            subject = resolve(subject)
        wanted = cls(
            association_type=_association_type(body),
            subject=subject,
            lifecycle=parse_lifecycle(member(body, "lifecycle", str)),
            frozen=member(body, "frozen", bool),
            schema=None if schema is None else NewSchema.parse(schema),
            normalize=bool(member(body, "normalize", bool)),
        )
        if wanted.lifecycle == WEAK and schema is not None:
            raise errors.invalid_association("lifecycle", "it cannot be WEAK if a schema is given")
        if wanted.lifecycle == WEAK and wanted.frozen:
            raise errors.invalid_association("frozen", "an association with lifecycle WEAK cannot be frozen")
        return wanted

    def with_defaults(self, *, is_create: bool) -> Wanted:
        """Return the members of an association that does not exist yet. Raise HttpError 42212 if they do not agree."""
        if self.schema is not None and not is_create:
            raise errors.invalid_association("schema", "it can only be given when the association is created with POST")
        if self.schema is not None and self.frozen is False:
            raise errors.invalid_association("frozen", "it cannot be false if a schema is given")
        lifecycle = STRONG if self.schema is not None else self.lifecycle or WEAK
        if self.frozen is not None and self.frozen != (lifecycle == STRONG):
            raise _not_frozen_as(lifecycle, self.frozen)
        return replace(self, lifecycle=lifecycle, frozen=lifecycle == STRONG)

    def for_creation(self, resource: Resource) -> Wanted:
        """Return all members of an association that is created. Raise HttpError 42212 if they do not agree."""
        wanted = self.with_defaults(is_create=True)
        default = resource.default_subject(wanted.association_type)
        if wanted.subject is None and wanted.lifecycle == WEAK:
            raise errors.invalid_association("subject", "it must be given for a WEAK association")
        check_default_subject(wanted.subject or default, default, is_frozen=bool(wanted.frozen))
        return replace(wanted, subject=wanted.subject or default)


def check_default_subject(subject: str, default: str, *, is_frozen: bool) -> None:
    """Raise HttpError 42212 unless frozen associations, and only they, have the default subject of the resource."""
    if is_frozen and subject != default:
        raise errors.invalid_association("subject", f"a frozen association must have subject '{default}'")
    if not is_frozen and subject == default:
        raise errors.invalid_association("subject", f"a WEAK association cannot have subject '{default}'")


def check_frozen(lifecycle: str, *, is_frozen: bool) -> None:
    """Raise HttpError 42212 unless exactly the strong associations are frozen."""
    if is_frozen != (lifecycle == STRONG):
        raise _not_frozen_as(lifecycle, is_frozen)


def _not_frozen_as(lifecycle: str, frozen: bool) -> Exception:
    text = f"an association with lifecycle {lifecycle} cannot have frozen={str(frozen).lower()}"
    return errors.invalid_association("frozen", text)


@dataclass(frozen=True, slots=True)
class Unwanted:
    """An association that a request deletes."""

    association_type: str
    #: whether a frozen association is deleted too, with its subject
    cascade: bool


@dataclass(frozen=True, slots=True)
class Run:
    """Operations of one request of a batch that are made at once: all creations or all updates, or one deletion."""

    kind: str
    wanted: tuple[Wanted, ...] = ()
    unwanted: Unwanted | None = None


def parse_put(body: Json, resource: Resource, resolve: ResolveSubject, *, is_create: bool) -> tuple[Wanted, ...]:
    """Return the associations of a request. Raise HttpError 42212 if one is not valid."""
    rows = [Wanted.parse(row, resolve) for row in _associations(body)]
    _check_types(tuple(row.association_type for row in rows))
    return tuple(row.for_creation(resource) if is_create else row for row in rows)


def parse_operations(body: Json, resource: Resource, resolve: ResolveSubject) -> list[Run]:
    """Return the operations of one request of a batch; adjacent ones of the same kind are one run."""
    runs: list[Run] = []
    types: list[str] = []
    for row in _associations(body):
        kind = member(row, "opType", str)
        types.append(_association_type(row))
        if kind == DELETE:
            runs.append(Run(DELETE, unwanted=Unwanted(types[-1], bool(member(row, "cascadeLifecycle", bool)))))
            continue
        if kind not in OPERATIONS:
            raise errors.invalid_association("opType", f"it must be {CREATE}, {UPSERT} or {DELETE}")
        wanted = Wanted.parse(row, resolve)
        wanted = wanted.for_creation(resource) if kind == CREATE else wanted
        if runs and runs[-1].kind == kind:
            runs[-1] = Run(kind, (*runs[-1].wanted, wanted))
        else:
            runs.append(Run(kind, (wanted,)))
    _check_types(tuple(types))
    return runs


def parse_requests(body: Json) -> list[Json]:
    """Return the requests of a batch. Raise HttpError 42212 if there are none."""
    rows = member(body, "requests", list)
    if not rows:
        raise errors.invalid_association("requests", "it cannot be empty")
    return [as_object(row, "requests") for row in rows]


def parse_query(body: Json) -> tuple[Json, Filter]:
    """Return which resource a request of a batch asks for, and which of its associations.

    Raise HttpError 42212 if it names no resource.
    """
    wanted = {name: member(body, name, str) for name in ("resourceId", "resourceName", "resourceNamespace")}
    if not wanted["resourceId"] and not wanted["resourceName"]:
        raise errors.invalid_association("resourceId", "resourceId or resourceName must be given")
    if not wanted["resourceId"] and not wanted["resourceNamespace"]:
        raise errors.invalid_association("resourceNamespace", "it must be given with resourceName")
    types = member(body, "associationTypes", list) or []
    kind = member(body, "resourceType", str) or TOPIC
    return wanted, Filter(kind, [str(each) for each in types], parse_lifecycle(member(body, "lifecycle", str)))


def parse_lifecycle(text: str | None) -> str | None:
    """Raise HttpError 42212 if it is neither STRONG nor WEAK."""
    if text is not None and text not in LIFECYCLES:
        raise errors.invalid_association("lifecycle", "it must be STRONG or WEAK")
    return text


def _associations(body: Json) -> list[Json]:
    rows: list[Any] | None = member(body, "associations", list)
    if not rows:
        raise errors.invalid_association("associations", "it cannot be empty")
    return [as_object(row, "associations") for row in rows]


def _association_type(body: Json) -> str:
    kind: str = member(body, "associationType", str) or VALUE
    if kind not in (KEY, VALUE):
        raise errors.invalid_association("associationType", f"it must be '{KEY}' or '{VALUE}'")
    return kind


def _check_types(types: tuple[str, ...]) -> None:
    if len(set(types)) < len(types):
        raise errors.invalid_association("associationType", "each type can be given once in a request")


def _name(body: Json, name: str) -> str:
    text: str = member(body, name, str) or ""
    # Confluent's registry refuses a dot, so it cannot associate topics such as `shop.orders`.
    is_valid_name = all(char.isalnum() or char in "_-." for char in text) and not text.startswith(".")
    if not text or len(text) > _NAME_CHARS_MAX or not is_valid_name:
        reason = f"it must have 1 to {_NAME_CHARS_MAX} letters, digits and the signs '_', '-' and '.'"
        raise errors.invalid_association(name, reason)
    return text
