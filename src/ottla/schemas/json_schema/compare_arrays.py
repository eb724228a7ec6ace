"""Compares two array schemas. Their content model is open, closed or partially open, as that of objects."""

from __future__ import annotations

from ottla.schemas.json_schema.differences import Kind
from ottla.schemas.json_schema.model import ArrayNode, EmptyNode, Node
from ottla.schemas.json_schema.report import Pair, Report, Side, Steps, is_open, schema_of_others
from ottla.schemas.json_schema.text import JsonValue


def compare_arrays(report: Report, original: ArrayNode, update: ArrayNode) -> Steps:
    """Report the differences of two array schemas."""
    found = yield Pair(
        _optional_node(report.original, original.all_items), _optional_node(report.update, update.all_items)
    )
    report.extend(found, "items")
    yield from _compare_first_items(report, original, update)
    yield from report.compare_additional("ADDITIONAL_ITEMS", "additionalItems", original, update)
    yield from report.compare_unevaluated(
        "UNEVALUATED_ITEMS", "unevaluatedItems", original.unevaluated, update.unevaluated
    )
    report.compare_limit("MAX_ITEMS", "maxItems", original.max_items, update.max_items)
    report.compare_limit("MIN_ITEMS", "minItems", original.min_items, update.min_items)
    if original.unique_items != update.unique_items:
        kind = Kind.UNIQUE_ITEMS_REMOVED if original.unique_items else Kind.UNIQUE_ITEMS_ADDED
        report.add(kind, "uniqueItems", original=original.unique_items, update=update.unique_items)
    report.compare_limit("MAX_CONTAINS", "maxContains", original.max_contains, update.max_contains)
    report.compare_limit("MIN_CONTAINS", "minContains", original.min_contains, update.min_contains)


def _optional_node(side: Side, schema: JsonValue) -> Node | None:
    return None if schema is None else side.nodes.node(schema)


def _compare_first_items(report: Report, original: ArrayNode, update: ArrayNode) -> Steps:
    """Compare the items that have a schema each."""
    common = min(len(original.items), len(update.items))
    for index in range(common):
        found = yield report.pair(original.items[index], update.items[index])
        report.extend(found, "items", str(index))
    others, is_model_open = schema_of_others(report.update, update), is_open(report.update, update)
    for index in range(common, len(original.items)):
        path = ("items", str(index))
        yield from report.compare_removed("ITEM", path, original.items[index], others, is_open=is_model_open)
    for index in range(common, len(update.items)):
        yield from _compare_added(report, original, update.items[index], index)


def _compare_added(report: Report, original: ArrayNode, defined: JsonValue, index: int) -> Steps:
    """Compare an item that only the reader defines with what the writer may have written there."""
    path = ("items", str(index))
    accepted = schema_of_others(report.original, original)
    if is_open(report.original, original):
        if isinstance(report.update.nodes.node(defined), EmptyNode):
            kind = Kind.ITEM_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL
        else:
            kind = Kind.ITEM_ADDED_TO_OPEN_CONTENT_MODEL
        report.add(kind, *path, update=defined)
    elif accepted is not None:
        yield from report.compare_covered("ITEM_ADDED", path, accepted, defined)
    else:
        report.add(Kind.ITEM_ADDED_TO_CLOSED_CONTENT_MODEL, *path, update=defined)
