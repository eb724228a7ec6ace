"""Whether a new schema may follow the versions of a subject. Pure.

BACKWARD              the new schema reads what the latest version wrote
FORWARD               the latest version reads what the new schema writes
FULL                  both
..._TRANSITIVE        the same with all versions, not only the latest
NONE                  no check
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.edge.registry.parsing import Parser
from ottla.edge.registry.records import Json, SchemaVersion, properties_of
from ottla.schemas.schema import Incompatibility, ParsedSchema

LEVELS: Final = frozenset({
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
})  # fmt: skip
#: reasons that are listed; one schema can have thousands
_REASONS_MAX: Final = 100


def check(
    parser: Parser, config: Json, new: ParsedSchema, metadata: Json | None, versions: Sequence[SchemaVersion]
) -> list[str]:
    """Return why a schema may not follow these versions (ascending); an empty list if it may."""
    level = config["compatibilityLevel"]
    reasons = _reserved_fields(parser, config, new, metadata, versions)
    group = config.get("compatibilityGroup")
    if group:
        own = properties_of(metadata).get(group)
        versions = [row for row in versions if properties_of(row.metadata).get(group) == own]
    if level != "NONE":
        for row in reversed(versions if level.endswith("_TRANSITIVE") else versions[-1:]):
            found = _compare(config, new, parser.parse_version(row))
            if found:
                reasons += [_describe(reason) for reason in found[:_REASONS_MAX]]
                if len(found) > _REASONS_MAX:
                    reasons.append(f"{{{len(found) - _REASONS_MAX} more reasons are not listed}}")
                reasons += [f"{{oldSchemaVersion: {row.version}}}", f"{{oldSchema: '{row.text}'}}"]
                break
    if reasons:
        fields = str(bool(config.get("validateFields"))).lower()
        reasons.append(f"{{validateFields: '{fields}', compatibility: '{level}'}}")
    return reasons


def _compare(config: Json, new: ParsedSchema, old: ParsedSchema) -> list[Incompatibility]:
    if new.schema_type is not old.schema_type:
        text = f"the new schema is of type {new.schema_type}, the earlier one of type {old.schema_type}"
        return [Incompatibility("SCHEMA_TYPE_CHANGED", "/", text)]
    level, lenient = config["compatibilityLevel"], (config.get("compatibilityPolicy") or "").upper() == "LENIENT"
    found = []
    if level.startswith(("BACKWARD", "FULL")):
        found += new.incompatibilities(old, lenient=lenient)
    if level.startswith(("FORWARD", "FULL")):
        found += old.incompatibilities(new, lenient=lenient)
    return found


def _describe(reason: Incompatibility) -> str:
    """Return a reason in the notation of Confluent's registry, with both fragments."""
    fragments = f", reader:'{reason.reader_fragment}', writer:'{reason.writer_fragment}'"
    has_fragments = reason.reader_fragment or reason.writer_fragment
    return (
        f"{{errorType:'{reason.kind}', description:'{reason.description}', path:'{reason.path}'"
        f"{fragments if has_fragments else ''}}}"
    )


def _reserved_fields(
    parser: Parser, config: Json, new: ParsedSchema, metadata: Json | None, versions: Sequence[SchemaVersion]
) -> list[str]:
    """Return the violations of the property `confluent:reserved`, if the configuration asks for this check."""
    if not config.get("validateFields"):
        return []
    reserved = _reserved(metadata)
    reasons = []
    if versions:
        for name in sorted(_reserved(versions[-1].metadata) - reserved):
            reasons.append(f"{{errorType:'RESERVED_FIELD_REMOVED', description:'field {name} must stay reserved'}}")
    for name in sorted(reserved):
        if new.has_top_level_field(name):
            text = f"the schema has the field {name}, which is reserved"
            reasons.append(f"{{errorType:'FIELD_CONFLICTS_WITH_RESERVED_FIELD', description:'{text}'}}")
    return reasons


def _reserved(metadata: Json | None) -> set[str]:
    text = properties_of(metadata).get("confluent:reserved") or ""
    return {name.strip() for name in text.split(",") if name.strip()}
