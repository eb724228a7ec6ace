"""Compares one pair of nodes: the rules for their kinds, and for the kinds without schemas inside."""

from __future__ import annotations

from collections.abc import Generator
from fractions import Fraction
from typing import Final

from ottla.schemas.json_schema.compare_arrays import compare_arrays
from ottla.schemas.json_schema.compare_combined import compare_combined
from ottla.schemas.json_schema.compare_objects import compare_objects
from ottla.schemas.json_schema.differences import Kind
from ottla.schemas.json_schema.model import (
    ArrayNode,
    CombinedNode,
    ConstNode,
    EmptyNode,
    EnumNode,
    FalseNode,
    Node,
    NotNode,
    NumberNode,
    ObjectNode,
    StringNode,
)
from ottla.schemas.json_schema.report import Differences, Pair, Report, Steps, change, change_of_set
from ottla.schemas.json_schema.text import JsonValue, value_key

#: values of an enum or default are compared in portions of this many characters
_KEY_STEP_LENGTH: Final = 50


def compare_nodes(report: Report, original: Node, update: Node) -> Steps:
    """Report the differences of two nodes that are not references."""
    if (yield from _fits_a_part(report, original, update)):
        return
    if type(original) is not type(update):
        if isinstance(original, FalseNode) or isinstance(update, EmptyNode):
            return
        # Kafka Connect once wrote decimals as another type; both mean bytes.
        if original.connect_type == "bytes" and update.connect_type == "bytes":
            return
        report.add(Kind.TYPE_CHANGED, original=original.raw, update=update.raw)
        return
    _compare_annotations(report, original, update)
    if isinstance(original, StringNode) and isinstance(update, StringNode):
        _compare_strings(report, original, update)
    elif isinstance(original, NumberNode) and isinstance(update, NumberNode):
        _compare_numbers(report, original, update)
    elif isinstance(original, ConstNode) and isinstance(update, ConstNode):
        if _key(report, original.value) != _key(report, update.value):
            report.add(Kind.ENUM_ARRAY_CHANGED, "const", original=original.value, update=update.value)
    elif isinstance(original, EnumNode) and isinstance(update, EnumNode):
        _compare_enums(report, original, update)
    elif isinstance(original, CombinedNode) and isinstance(update, CombinedNode):
        yield from compare_combined(report, original, update)
    elif isinstance(original, NotNode) and isinstance(update, NotNode):
        yield from _compare_negations(report, original, update)
    elif isinstance(original, ObjectNode) and isinstance(update, ObjectNode):
        yield from compare_objects(report, original, update)
    elif isinstance(original, ArrayNode) and isinstance(update, ArrayNode):
        yield from compare_arrays(report, original, update)


def _fits_a_part(report: Report, original: Node, update: Node) -> Generator[Pair, Differences, bool]:
    """Return whether one side is combined, the other is not, and one of the parts decides the comparison."""
    if isinstance(update, CombinedNode) and not isinstance(original, CombinedNode):
        pairs = [Pair(original, part) for part in update.parts]
        is_choice, extended = update.criterion != "allOf", Kind.SUM_TYPE_EXTENDED
    elif isinstance(original, CombinedNode) and not isinstance(update, CombinedNode):
        pairs = [Pair(part, update) for part in original.parts]
        is_choice, extended = original.criterion == "allOf", Kind.PRODUCT_TYPE_NARROWED
    else:
        return False
    if len(pairs) > 1 and not is_choice:
        return False
    for pair in pairs:
        found = yield pair
        if report.tolerates(found):
            report.extend(found)
            if len(pairs) > 1:
                report.add(extended, original=original.raw, update=update.raw)
            return True
    return False


def _compare_annotations(report: Report, original: Node, update: Node) -> None:
    if original.id != update.id:
        report.add(Kind.ID_CHANGED, original=original.id, update=update.id)
    if original.title != update.title:
        report.add(Kind.TITLE_CHANGED, original=original.title, update=update.title)
    if original.description != update.description:
        report.add(Kind.DESCRIPTION_CHANGED, original=original.description, update=update.description)
    if original.has_default != update.has_default or (
        original.has_default and _key(report, original.default) != _key(report, update.default)
    ):
        report.add(Kind.DEFAULT_CHANGED, original=original.default, update=update.default)


def _compare_strings(report: Report, original: StringNode, update: StringNode) -> None:
    report.compare_limit("MAX_LENGTH", "maxLength", original.max_length, update.max_length)
    report.compare_limit("MIN_LENGTH", "minLength", original.min_length, update.min_length)
    if original.pattern != update.pattern:
        kind = Kind(f"PATTERN_{change(original.pattern, update.pattern) or 'CHANGED'}")
        report.add_values(kind, "pattern", original.pattern, update.pattern)


def _compare_numbers(report: Report, original: NumberNode, update: NumberNode) -> None:
    report.compare_limit("MAXIMUM", "maximum", original.maximum, update.maximum)
    report.compare_limit("MINIMUM", "minimum", original.minimum, update.minimum)
    report.compare_limit("EXCLUSIVE_MAXIMUM", "exclusiveMaximum", original.exclusive_maximum, update.exclusive_maximum)
    report.compare_limit("EXCLUSIVE_MINIMUM", "exclusiveMinimum", original.exclusive_minimum, update.exclusive_minimum)
    if original.multiple_of != update.multiple_of:
        kind = _change_of_multiple(original, update)
        report.add_values(kind, "multipleOf", original.multiple_of, update.multiple_of)
    if original.requires_integer != update.requires_integer:
        kind = Kind.TYPE_EXTENDED if original.requires_integer else Kind.TYPE_NARROWED
        report.add(kind, original=original.raw, update=update.raw)


def _change_of_multiple(original: NumberNode, update: NumberNode) -> Kind:
    if original.multiple_of is None:
        return Kind.MULTIPLE_OF_ADDED
    if update.multiple_of is None:
        return Kind.MULTIPLE_OF_REMOVED
    ratio = Fraction(update.multiple_of) / Fraction(original.multiple_of)
    if ratio.denominator == 1:
        return Kind.MULTIPLE_OF_EXPANDED
    return Kind.MULTIPLE_OF_REDUCED if ratio.numerator == 1 else Kind.MULTIPLE_OF_CHANGED


def _compare_enums(report: Report, original: EnumNode, update: EnumNode) -> None:
    before = {_key(report, value) for value in original.values}
    after = {_key(report, value) for value in update.values}
    if before != after:
        kind = Kind(f"ENUM_ARRAY_{change_of_set(before, after)}")
        report.add(kind, "enum", original=original.values, update=update.values)


def _compare_negations(report: Report, original: NotNode, update: NotNode) -> Steps:
    found = yield Pair(
        report.update.nodes.node(update.schema), report.original.nodes.node(original.schema), is_swapped=True
    )
    kind = Kind.NOT_TYPE_NARROWED if report.tolerates(found) else Kind.NOT_TYPE_EXTENDED
    report.add(kind, "not", original=original.schema, update=update.schema)


def _key(report: Report, value: JsonValue) -> str:
    key = value_key(value)
    report.spend(1 + len(key) // _KEY_STEP_LENGTH)
    return key
