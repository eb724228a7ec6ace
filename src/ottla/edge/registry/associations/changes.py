"""Decide what a request changes about associations: records to append, or HttpError.

As in `changes.py`, the state is only read. The guid of a new association is random, as with Confluent's registry.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ottla.edge.registry import changes, errors
from ottla.edge.registry.associations.requests import Resource, Wanted, check_default_subject, check_frozen
from ottla.edge.registry.associations.table import STRONG, WEAK, Filter
from ottla.edge.registry.parsing import Parser
from ottla.edge.registry.records import Association, Record, SchemaVersion
from ottla.edge.registry.state import State
from ottla.edge.registry.subjects import beside


class Plan(NamedTuple):
    """An association that a request creates or updates."""

    wanted: Wanted
    subject: str
    lifecycle: str
    #: what the topic has now
    old: Association | None
    #: whether the association exists with these members
    is_kept: bool = False


class Put(NamedTuple):
    """An association that was created or changed, and the version of the schema that came with it."""

    association: Association
    registered: SchemaVersion | None


def put(
    state: State, parser: Parser, resource: Resource, wanted: Sequence[Wanted], *, is_create: bool, dry_run: bool
) -> tuple[list[Put], list[Record]]:
    """Create associations, or with ``is_create=False`` create or update them, and register their schemas.

    As with Confluent's registry, the answer leaves out associations that exist with the same members. A dry run
    returns nothing and no records. Raise HttpError: 42212 for members that do not fit, 409xx for a conflict, and what
    `changes.register` raises.
    """
    for row in wanted:
        if row.subject is not None:
            changes.check_writable(state, row.subject)
    existing = {row.association_type: row for row in _existing(state, resource, by_name=is_create and dry_run)}
    plans = [
        _plan(state, parser, resource, row, existing.get(row.association_type), is_create=is_create) for row in wanted
    ]
    _check_same_lifecycle(plans, existing)
    for plan in plans:
        _check_subject(state, plan, plans)
    rows: list[Put] = []
    records: list[Record] = []
    registered: list[SchemaVersion] = []
    for plan in plans:
        version = None
        if plan.wanted.schema is not None:
            version, new = changes.register(
                state, parser, plan.subject, plan.wanted.schema, normalize=plan.wanted.normalize, others=registered
            )
            registered.append(version)
            records += new
        if not plan.is_kept and not dry_run:
            association = _association(resource, plan)
            rows.append(Put(association, version))
            records.append(association.record())
    return (rows, []) if dry_run else (rows, records)


def _existing(state: State, resource: Resource, *, by_name: bool) -> list[Association]:
    if resource.id is not None:
        return Filter(resource.type).select(state.associations.of_id(resource.id))
    rows = (
        Filter(resource.type).select(state.associations.of_name(resource.name, resource.namespace)) if by_name else []
    )
    # Two topics have had this name, one after the other: the latest counts.
    latest = max(rows, key=lambda row: (row.updated_ms, row.created_ms, row.resource_id), default=None)
    return [row for row in rows if latest is not None and row.resource_id == latest.resource_id]


def _plan(
    state: State, parser: Parser, resource: Resource, wanted: Wanted, old: Association | None, *, is_create: bool
) -> Plan:
    if old is None and not is_create:
        wanted = wanted.with_defaults(is_create=False)
    default = resource.default_subject(wanted.association_type)
    subject = wanted.subject or (old.subject if old is not None else default if wanted.lifecycle == STRONG else None)
    if subject is None:
        raise errors.invalid_association("subject", "it must be given for a WEAK association")
    lifecycle = wanted.lifecycle or (old.lifecycle if old is not None else WEAK)
    if lifecycle == WEAK and wanted.schema is not None:
        raise errors.invalid_association("lifecycle", "it cannot be WEAK if a schema is given")
    is_frozen = old.is_frozen if old is not None else bool(wanted.frozen)
    check_frozen(lifecycle, is_frozen=is_frozen if wanted.frozen is None else wanted.frozen)
    if is_frozen or lifecycle == WEAK:
        check_default_subject(subject, default, is_frozen=is_frozen)
    plan = Plan(wanted, subject, lifecycle, old)
    if old is None:
        _check_new(state, parser, plan, is_create=is_create)
        return plan
    if _is_as_wanted(old, plan):
        if is_create and wanted.schema is not None and _found(state, parser, plan) is None:
            raise errors.resource_is_associated(old.association_type, old.resource_name)
        return plan._replace(is_kept=True)
    if is_create:
        raise errors.resource_is_associated(old.association_type, old.resource_name)
    _check_update(old, plan)
    return plan


def _is_as_wanted(old: Association, plan: Plan) -> bool:
    same_frozen = plan.wanted.frozen is None or plan.wanted.frozen == old.is_frozen
    return old.subject == plan.subject and old.lifecycle == plan.lifecycle and same_frozen


def _found(state: State, parser: Parser, plan: Plan) -> SchemaVersion | None:
    assert plan.wanted.schema is not None
    return changes.find(state, parser, plan.subject, plan.wanted.schema, normalize=plan.wanted.normalize)


def _check_new(state: State, parser: Parser, plan: Plan, *, is_create: bool) -> None:
    """Raise HttpError 42212 unless a new strong association comes with the first schema of its subject.

    An import copies associations and schemas that exist, so it is free of this rule.
    """
    if state.mode_in_scope(plan.subject) == "IMPORT" or plan.lifecycle != STRONG:
        return
    if not is_create:
        raise errors.invalid_association("lifecycle", "a STRONG association can only be created with POST")
    if plan.wanted.schema is None:
        raise errors.invalid_association("schema", "it must be given to create a frozen association")
    latest = state.latest(plan.subject)
    if latest is not None and (latest.version != 1 or _found(state, parser, plan) is None):
        raise errors.invalid_association("frozen", "the subject has other schemas already")


def _check_update(old: Association, plan: Plan) -> None:
    if plan.wanted.lifecycle is None and plan.wanted.schema is None:
        raise errors.invalid_association("lifecycle", "an update needs a lifecycle or a schema")
    if old.subject != plan.subject:
        raise errors.invalid_association("subject", f"it cannot be changed from '{old.subject}' to '{plan.subject}'")
    if plan.wanted.frozen is not None and plan.wanted.frozen != old.is_frozen:
        raise errors.invalid_association("frozen", "it cannot be changed")
    if old.is_frozen:
        raise errors.association_frozen(old.association_type, old.subject)


def _check_same_lifecycle(plans: Sequence[Plan], existing: dict[str, Association]) -> None:
    """Raise HttpError 42212 if a topic would have a strong and a weak association."""
    lifecycles = {kind: row.lifecycle for kind, row in existing.items()}
    lifecycles |= {plan.wanted.association_type: plan.lifecycle for plan in plans}
    if len(set(lifecycles.values())) > 1:
        found = ", ".join(f"{kind}={lifecycle}" for kind, lifecycle in sorted(lifecycles.items()))
        raise errors.invalid_association("lifecycle", f"all associations of a resource must have the same, not {found}")


def _check_subject(state: State, plan: Plan, plans: Sequence[Plan]) -> None:
    """Raise HttpError if the subject has no schema, or others use it in a way that the lifecycle does not allow."""
    if plan.wanted.schema is not None and state.mode_in_scope(plan.subject) == "IMPORT":
        raise errors.invalid_association("schema", f"it cannot be given while '{plan.subject}' is in IMPORT mode")
    if plan.wanted.schema is None and state.latest(plan.subject) is None:
        raise errors.no_live_version(plan.subject)
    same = plan.old
    others = [
        row for row in state.associations.of_subject(plan.subject)
        if same is None or (row.resource_id, row.resource_type, row.association_type)
        != (same.resource_id, same.resource_type, same.association_type)
    ]  # fmt: skip
    if plan.lifecycle == WEAK:
        if any(row.lifecycle == STRONG for row in others):
            raise errors.subject_is_strongly_associated(plan.subject)
        return
    if others:
        raise errors.subject_is_associated(plan.subject)
    if _is_referenced(state, plan.subject) or any(_refers_to(other, plan.subject) for other in plans):
        raise errors.subject_referenced(plan.subject)


def _is_referenced(state: State, subject: str) -> bool:
    rows = state.versions(subject, deleted=True)
    return any(state.referrers(row.subject, row.version, deleted=True) for row in rows)


def _refers_to(plan: Plan, subject: str) -> bool:
    references = () if plan.wanted.schema is None else plan.wanted.schema.references
    return any(beside(plan.subject, row.subject) == subject for row in references)


def _association(resource: Resource, plan: Plan) -> Association:
    if plan.old is not None:
        # Only the lifecycle can change.
        return replace(plan.old, lifecycle=plan.lifecycle)
    assert resource.id is not None
    return Association(
        resource_name=resource.name,
        resource_namespace=resource.namespace,
        resource_type=resource.type,
        association_type=plan.wanted.association_type,
        subject=plan.subject,
        resource_id=resource.id,
        guid=str(uuid.uuid4()),
        lifecycle=plan.lifecycle,
        is_frozen=plan.lifecycle == STRONG,
    )


def delete(state: State, resource_id: str, selected: Filter, *, cascade: bool, dry_run: bool) -> list[Record]:
    """Delete associations of a resource; with ``cascade`` also frozen ones, with their subjects.

    Raise HttpError: 42205 if the mode of a subject does not allow it, 40908 if an association is frozen, 42206 if
    another schema refers to a subject that would be deleted.
    """
    rows = selected.select(state.associations.of_id(resource_id))
    for row in rows:
        changes.check_writable(state, row.subject)
        if row.is_frozen and not cascade:
            raise errors.association_frozen(row.association_type, row.subject)
    if dry_run:
        return []
    records: list[Record] = []
    for row in rows:
        records.append(Record(row.key(), None))
        if cascade and row.lifecycle == STRONG and state.mode_in_scope(row.subject) != "IMPORT":
            records += changes.delete_with_association(state, row.subject)
    return records
