"""The bodies of requests. Unknown members are ignored, because newer clients send more than this version knows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from ottla.edge.registry import errors
from ottla.edge.registry.compatibility import LEVELS
from ottla.edge.registry.records import Json, parse_references
from ottla.edge.registry.subjects import context_prefix
from ottla.edge.web.app import HttpError
from ottla.schemas.schema import Entity, Reference, SchemaType

VERSION_MAX: Final = 2**31 - 1
MODES: Final = frozenset({"READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD"})
_RULE_NAME_CHARS_MAX: Final = 64
_DIGITS_MAX: Final = 10
#: characters of a wrong value that an error quotes
_QUOTED_MAX: Final = 80
#: levels of a body; those of requests have about 6
_BODY_DEPTH_MAX: Final = 50
RULE_KINDS: Final = frozenset({"TRANSFORM", "CONDITION"})
RULE_MODES: Final = {
    "migrationRules": frozenset({"UPGRADE", "DOWNGRADE", "UPDOWN"}),
    "domainRules": frozenset({"WRITE", "READ", "WRITEREAD"}),
    "encodingRules": frozenset({"WRITE", "READ", "WRITEREAD"}),
}


@dataclass(frozen=True, slots=True)
class NewSchema:
    """A schema that a client registers, looks up or checks."""

    text: str
    schema_type: str = SchemaType.AVRO
    references: tuple[Reference, ...] = ()
    metadata: Json | None = None
    rule_set: Json | None = None
    #: -1 if the registry chooses it
    id: int = -1
    #: 0 if the registry chooses it, -1 for the next one
    version: int = 0
    tags_to_add: Mapping[Entity, frozenset[str]] | None = None
    tags_to_remove: Mapping[Entity, frozenset[str]] | None = None
    propagates_tags: bool = False

    @classmethod
    def parse(cls, body: Json) -> NewSchema:
        """Raise HttpError 422 if a member has a wrong type."""
        references = member(body, "references", list) or []
        for row in references:
            member(as_object(row, "references"), "version", int)
            member(row, "name", str)
            member(row, "subject", str)
        metadata, rule_set = member(body, "metadata", dict), member(body, "ruleSet", dict)
        if metadata is not None:
            check_metadata(metadata)
        if rule_set is not None:
            check_rule_set(rule_set)
        schema_id, version = member(body, "id", int), member(body, "version", int)
        return cls(
            text=member(body, "schema", str) or "",
            schema_type=member(body, "schemaType", str) or SchemaType.AVRO,
            references=parse_references(references),
            metadata=metadata,
            rule_set=rule_set,
            id=-1 if schema_id is None else schema_id,
            version=version or 0,
            tags_to_add=parse_tags(member(body, "schemaTagsToAdd", list)),
            tags_to_remove=parse_tags(member(body, "schemaTagsToRemove", list)),
            propagates_tags=bool(member(body, "propagateSchemaTags", bool)),
        )

    @property
    def changes_tags(self) -> bool:
        return bool(self.tags_to_add or self.tags_to_remove or self.propagates_tags)


@dataclass(frozen=True, slots=True)
class TagChange:
    """What the tags route changes besides tags."""

    #: 0 if the registry chooses it
    new_version: int
    rules_to_merge: Json | None
    rules_to_remove: list[str] | None

    @classmethod
    def parse(cls, body: Json) -> TagChange:
        """Raise HttpError 422 if a member has a wrong type."""
        merge, remove = member(body, "rulesToMerge", dict), member(body, "rulesToRemove", list)
        if merge is not None:
            check_rule_set(merge)
        if remove is not None and not all(isinstance(name, str) for name in remove):
            raise HttpError(422, 422, "'rulesToRemove' must be a list of names")
        return cls(member(body, "newVersion", int) or 0, merge, remove)


def parse_body(body: bytes) -> Json:
    """Return the object of a JSON body. Raise HttpError 400 if it is not JSON, and 422 if it is not an object."""
    try:
        value = json.loads(body, parse_constant=_refuse_number, parse_float=_finite)
        _check_values(value)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise HttpError(400, 400, f"the request's body is not JSON: {reason}") from None
    return as_object(value, "the request's body")


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text[:_QUOTED_MAX])


def _check_values(value: Any) -> None:
    """Raise ValueError if a value cannot be stored: it has too many levels, or a text that UTF-8 cannot encode."""
    level = [value]
    for _ in range(_BODY_DEPTH_MAX):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, str):
                _check_text(each)
            elif isinstance(each, dict):
                for name in each:
                    _check_text(name)
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        if not inner:
            return
        level = inner
    raise ValueError(f"it has more than {_BODY_DEPTH_MAX} levels")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a text has half of a surrogate pair, which is not Unicode") from None


def parse_version(text: str) -> int:
    """Return a version of the path; -1 for `latest`. Raise HttpError 42202 if it is not valid."""
    if text.lower() == "latest":
        return -1
    version = parse_number(text)
    if version is None or (version != -1 and version < 1):
        raise errors.invalid_version(text[:_QUOTED_MAX])
    return version


def parse_id(text: str) -> int:
    """Return the id of a path. Raise HttpError 404, as Confluent's registry does, if it is not a number."""
    number = parse_number(text)
    if number is None or number < 0:
        raise errors.path_not_found()
    return number


def parse_context(text: str) -> str:
    """Return the prefix of the subjects of a context. Raise HttpError 400 if its name is not valid."""
    try:
        return context_prefix(text)
    except ValueError as error:
        raise HttpError(400, 400, str(error)) from None


def parse_number(text: str) -> int | None:
    """Return a number of 32 bits, as Java's Integer.parseInt reads it; None for another text.

    >>> parse_number("7"), parse_number("-1"), parse_number("+1"), parse_number("1_0"), parse_number("2147483648")
    (7, -1, 1, None, None)
    """
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits.lstrip("0")) > _DIGITS_MAX:
        return None
    number = int(digits.lstrip("0") or "0") * (-1 if text[0] == "-" else 1)
    return number if -VERSION_MAX - 1 <= number <= VERSION_MAX else None


def parse_tags(rows: list[Any] | None) -> Mapping[Entity, frozenset[str]] | None:
    """Return `[{"schemaEntity": {"entityType": …, "entityPath": …}, "tags": […]}]` as a mapping."""
    if not rows:
        return None
    found: dict[Entity, frozenset[str]] = {}
    for row in rows:
        entity = as_object(as_object(row, "tags").get("schemaEntity"), "schemaEntity")
        kind, path = member(entity, "entityType", str), member(entity, "entityPath", str)
        tags = member(row, "tags", list) or []
        if kind is None or path is None or not all(isinstance(tag, str) for tag in tags):
            raise HttpError(422, 422, "tags need a schemaEntity with entityType and entityPath, and a list of texts")
        found[Entity(kind.lower(), path)] = frozenset(tags)
    return found


def parse_config(body: Json) -> Json:
    """Return the members of a configuration that the request sets. A null resets a member; see `merge_config`.

    Raise HttpError 42203 for an unknown level, and 42210 for rules that are not valid.
    """
    config: Json = {}
    for name in ("compatibilityLevel", "compatibility"):
        level = member(body, name, str)
        if level is not None and level.upper() not in LEVELS:
            raise errors.invalid_compatibility()
        # The second name is preferred, as in Confluent's registry.
        if level is not None or (name in body and "compatibilityLevel" not in config):
            config["compatibilityLevel"] = level.upper() if level is not None else None
    for name, kind in _CONFIG_MEMBERS.items():
        if name in body:
            config[name] = member(body, name, kind)
    for name in ("defaultMetadata", "overrideMetadata"):
        if config.get(name) is not None:
            check_metadata(config[name])
    for name in ("defaultRuleSet", "overrideRuleSet"):
        if config.get(name) is not None:
            check_rule_set(config[name])
    return config


_CONFIG_MEMBERS: Final[Mapping[str, type]] = {
    "alias": str, "aliasForDeks": str, "normalize": bool, "validateFields": bool, "validateNewSchemas": bool,
    "validateRules": bool, "compatibilityPolicy": str, "compatibilityGroup": str, "defaultMetadata": dict,
    "overrideMetadata": dict, "defaultRuleSet": dict, "overrideRuleSet": dict,
}  # fmt: skip


def parse_mode(body: Json) -> str | None:
    """Return the mode; None if the request resets it. Raise HttpError 42204 if it is unknown."""
    mode: str | None = member(body, "mode", str)
    if mode is None:
        return None
    if mode.upper() not in MODES:
        raise errors.invalid_mode()
    return mode.upper()


def check_metadata(metadata: Json) -> None:
    """Raise HttpError 422 if metadata has another shape than tags, properties and sensitive names."""
    tags, properties = member(metadata, "tags", dict) or {}, member(metadata, "properties", dict) or {}
    sensitive = member(metadata, "sensitive", list) or []
    texts = [*properties.values(), *sensitive, *(tag for row in tags.values() for tag in _list(row, "tags"))]
    if not all(isinstance(text, str) for text in texts):
        raise HttpError(422, 422, "the tags, properties and sensitive names of metadata must be texts")


def check_rule_set(rule_set: Json) -> None:
    """Raise HttpError 42210 for a rule without name or type, with a name that is taken, or with a wrong mode."""
    names: set[str] = set()
    for kind, modes in RULE_MODES.items():
        for row in member(rule_set, kind, list) or []:
            rule = as_object(row, kind)
            name, mode = member(rule, "name", str), member(rule, "mode", str)
            if not name or len(name) > _RULE_NAME_CHARS_MAX or not _is_rule_name(name):
                raise errors.invalid_rule_set(f"{name!r} cannot be the name of a rule")
            if name in names:
                raise errors.invalid_rule_set(f"two rules have the name {name!r}")
            names.add(name)
            if not member(rule, "type", str):
                raise errors.invalid_rule_set(f"the rule {name!r} has no type")
            if mode is not None and mode.upper() not in modes:
                raise errors.invalid_rule_set(f"the rule {name!r} of {kind} can only have a mode of {sorted(modes)}")
            _check_contents(rule)
            _check_actions(rule, name, mode)
    member(rule_set, "enableAt", str)


def _check_contents(rule: Json) -> None:
    for text_name in ("doc", "expr"):
        member(rule, text_name, str)
    kind = member(rule, "kind", str)
    if kind is not None and kind.upper() not in RULE_KINDS:
        raise errors.invalid_rule_set(f"the kind of a rule is one of {sorted(RULE_KINDS)}")
    member(rule, "disabled", bool)
    texts = [*(member(rule, "tags", list) or []), *(member(rule, "params", dict) or {}).values()]
    if not all(isinstance(text, str) for text in texts):
        raise errors.invalid_rule_set("the tags and the values of params of a rule must be texts")


def _check_actions(rule: Json, name: str, mode: str | None) -> None:
    for event in ("onSuccess", "onFailure"):
        action = member(rule, event, str)
        if action and "," in action and mode not in (None, "WRITEREAD", "UPDOWN"):
            raise errors.invalid_rule_set(f"the rule {name!r} needs mode WRITEREAD or UPDOWN for two actions")


def _is_rule_name(name: str) -> bool:
    is_first_allowed = name[0].isalpha() or name[0] == "_"
    return name.isascii() and is_first_allowed and all(char.isalnum() or char in "_-" for char in name)


def member(body: Json, name: str, kind: type) -> Any:
    """Return a member or None. Raise HttpError 422 if it has another type."""
    value: Any = body.get(name)
    if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise HttpError(422, 422, f"'{name}' must be of type {_JSON_NAMES[kind]}")
    if isinstance(value, int) and not -(2**31) <= value <= VERSION_MAX:
        raise HttpError(422, 422, f"'{name}' is out of range")
    return value


_JSON_NAMES: Final = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "object"}


def as_object(value: Any, name: str) -> Json:
    if not isinstance(value, dict):
        raise HttpError(422, 422, f"{name} must be a JSON object")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise HttpError(422, 422, f"{name} must be a JSON array")
    return value
