"""Compares two object schemas.

What a change of `properties` means depends on the content model, which says what other properties may hold:

- *open*: anything. A property that the reader defines may have been written with any value.
- *closed*: there are none (`additionalProperties` or `unevaluatedProperties` is false).
- *partially open*: what a schema accepts (`patternProperties`, or a schema as `additionalProperties`).
"""

from __future__ import annotations

from ottla.schemas.json_schema.differences import Kind
from ottla.schemas.json_schema.model import EmptyNode, ObjectNode
from ottla.schemas.json_schema.report import (
    UNDECIDED,
    Report,
    Side,
    Steps,
    change,
    change_of_set,
    is_open,
    schema_of_others,
)
from ottla.schemas.json_schema.text import JsonValue


def compare_objects(report: Report, original: ObjectNode, update: ObjectNode) -> Steps:
    """Report the differences of two object schemas."""
    report.spend(len(original.properties) + len(update.properties))
    _compare_required(report, original, update)
    for name in original.properties:
        if name in update.properties:
            found = yield report.pair(original.properties[name], update.properties[name])
            report.extend(found, "properties", name)
        else:
            others, is_model_open = _schema_for(report, report.update, update, name), _is_open(report.update, update)
            path = ("properties", name)
            yield from report.compare_removed(
                "PROPERTY", path, original.properties[name], others, is_open=is_model_open
            )
    for name in update.properties:
        if name not in original.properties:
            yield from _compare_added(report, original, update, name)
    yield from _compare_dependencies(report, original, update)
    yield from report.compare_additional("ADDITIONAL_PROPERTIES", "additionalProperties", original, update)
    yield from report.compare_unevaluated(
        "UNEVALUATED_PROPERTIES", "unevaluatedProperties", original.unevaluated, update.unevaluated
    )
    report.compare_limit("MAX_PROPERTIES", "maxProperties", original.max_properties, update.max_properties)
    report.compare_limit("MIN_PROPERTIES", "minProperties", original.min_properties, update.min_properties)


def _compare_required(report: Report, original: ObjectNode, update: ObjectNode) -> None:
    before, after = set(original.required), set(update.required)
    report.spend(len(before) + len(after))
    for name in original.properties:
        if name not in update.properties or (name in before) == (name in after):
            continue
        if name in before:
            kind = Kind.REQUIRED_ATTRIBUTE_REMOVED
        elif report.update.nodes.node(update.properties[name]).has_default:
            kind = Kind.REQUIRED_ATTRIBUTE_WITH_DEFAULT_ADDED
        else:
            kind = Kind.REQUIRED_ATTRIBUTE_ADDED
        report.add(kind, "required", name, original=original.required, update=update.required)


def _compare_added(report: Report, original: ObjectNode, update: ObjectNode, name: str) -> Steps:
    """Compare a property that only the reader defines with what the writer may have written there."""
    defined = update.properties[name]
    node = report.update.nodes.node(defined)
    path = ("properties", name)
    is_required = name in update.required
    report.spend(len(update.required) // 50)
    if _is_open(report.original, original):
        if isinstance(node, EmptyNode):
            kind = Kind.PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL
        elif not is_required:
            kind = Kind.OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL
        elif node.has_default:
            kind = Kind.REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL
        else:
            kind = Kind.REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL
        report.add(kind, *path, update=defined)
        return
    accepted = _schema_for(report, report.original, original, name)
    if accepted is UNDECIDED:
        report.add(Kind.PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL, *path, update=defined)
    elif accepted is not None:
        yield from report.compare_covered("PROPERTY_ADDED", path, accepted, defined)
    if not is_required:
        kind = Kind.OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL
    elif node.has_default:
        kind = Kind.REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_UNOPEN_CONTENT_MODEL
    else:
        kind = Kind.REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL
    report.add(kind, *path, update=defined)


def _compare_dependencies(report: Report, original: ObjectNode, update: ObjectNode) -> Steps:
    before, after = original.property_dependencies, update.property_dependencies
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old != new:
            kind = Kind(f"DEPENDENCY_ARRAY_{change(old, new) or change_of_set(old or set(), new or set())}")
            report.add(kind, "dependencies", name, original=sorted(old or ()), update=sorted(new or ()))
    for name in dict.fromkeys((*original.schema_dependencies, *update.schema_dependencies)):
        if name not in update.schema_dependencies:
            schema = original.schema_dependencies[name]
            report.add(Kind.DEPENDENCY_SCHEMA_REMOVED, "dependencies", name, original=schema)
        elif name not in original.schema_dependencies:
            schema = update.schema_dependencies[name]
            report.add(Kind.DEPENDENCY_SCHEMA_ADDED, "dependencies", name, update=schema)
        else:
            found = yield report.pair(original.schema_dependencies[name], update.schema_dependencies[name])
            report.extend(found, "dependencies", name)


def _is_open(side: Side, node: ObjectNode) -> bool:
    """Return whether other properties may have any value."""
    return not node.pattern_properties and is_open(side, node)


def _schema_for(report: Report, side: Side, node: ObjectNode, name: str) -> JsonValue:
    """Return the schema that a partially open content model has for a property; None if there is none."""
    for expression, schema in node.pattern_properties.items():
        matches = side.patterns.matches(expression, name, report.budget)
        if matches is None:
            return UNDECIDED
        if matches:
            return schema
    return schema_of_others(side, node)
