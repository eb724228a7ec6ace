"""Tags inside of a Protobuf schema: the field `tags` of the options that Confluent's confluent/meta.proto defines."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Final

from ottla.schemas.protobuf.model import (
    Enum,
    Field,
    File,
    Kind,
    Literal,
    Message,
    OneOf,
    Option,
    Value,
    extension_option,
)
from ottla.schemas.protobuf.normal_form import merge_options
from ottla.schemas.schema import Entity, InvalidSchema
from ottla.schemas.tags import TagsByEntity, changed_tags

_FILE: Final = "confluent.file_meta"
_MESSAGE: Final = "confluent.message_meta"
_FIELD: Final = "confluent.field_meta"
_ENUM: Final = "confluent.enum_meta"
_VALUE: Final = "confluent.enum_value_meta"
#: the option's type for merging: no field of it is a message that is not repeated
_META_FIELD: Final = Field("meta", "Meta", 1)
_REPEATED: Final = Field("tags", "string", 3, "repeated")


def collect_tags(file: File) -> Iterator[str]:
    """Yield the tags of the file, its messages, fields, enums and values."""
    yield from _tags(file.options, _FILE)
    stack: list[Message | Enum] = list(file.types)
    while stack:
        item = stack.pop()
        if isinstance(item, Enum):
            yield from _tags(item.options, _ENUM)
            for value in item.values:
                yield from _tags(value.options, _VALUE)
            continue
        yield from _tags(item.options, _MESSAGE)
        for field in item.all_fields:
            yield from _tags(field.options, _FIELD)
            if field.group is not None:
                stack.append(field.group)
        stack.extend(item.nested)


def tagged_entities(file: File) -> dict[Entity, frozenset[str]]:
    """Return the tags of each message and field that has some; a path has no package."""
    tagged: dict[Entity, frozenset[str]] = {}
    stack = [(item, item.name) for item in reversed(file.types) if isinstance(item, Message)]
    while stack:
        message, path = stack.pop()
        if tags := frozenset(_tags(message.options, _MESSAGE)):
            tagged[Entity("sr_record", path)] = tags
        for field in message.all_fields:
            if tags := frozenset(_tags(field.options, _FIELD)):
                tagged[Entity("sr_field", f"{path}.{field.name}")] = tags
        nested = [item for item in message.nested if isinstance(item, Message)]
        stack.extend((item, f"{path}.{item.name}") for item in reversed(nested))
    return tagged


def tagged_file(file: File, add: TagsByEntity, remove: TagsByEntity) -> File:
    """Return a copy of the file with tags added, then removed. Raise InvalidSchema if an element does not exist."""
    file = deepcopy(file)
    for entity in dict.fromkeys([*add, *remove]):
        is_field = entity.kind == "sr_field"
        element = _element(file, entity.path.removeprefix(".").split("."), is_field)
        name = _FIELD if is_field else _MESSAGE
        tags = changed_tags(entity, _tags(element.options, name), add, remove)
        element.options = _with_tags(element.options, name, tags)
    return file


def _with_tags(options: list[Option], name: str, tags: list[str]) -> list[Option]:
    """Return the options with exactly these tags; all statements of the option become one message."""
    own = [option for option in options if _is(option, name)]
    merged = merge_options(own, _META_FIELD, lambda *_: _REPEATED).value if own else {}
    meta: dict[str, Value] = dict(merged) if isinstance(merged, dict) else {}
    meta.pop("tags", None)
    if tags:
        meta["tags"] = [Literal(Kind.STRING, tag) for tag in tags]
    result = [option for option in options if not _is(option, name)]
    if meta:
        result.append(extension_option(name, meta))
    return result


def _tags(options: list[Option], name: str) -> Iterator[str]:
    for option in options:
        if not _is(option, name):
            continue
        value: Value | None = option.value
        if option.path:
            value = value if option.path[0].name == "tags" else None
        else:
            value = value.get("tags") if isinstance(value, dict) else None
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Literal):
                yield item.text


def _is(option: Option, name: str) -> bool:
    return option.parenthesized and (option.resolved or option.name.removeprefix(".")) == name


def _element(file: File, names: list[str], is_field: bool) -> Message | Field:
    """Return the message, or the field, at a path such as Outer.Inner.field; a oneof may precede the field."""
    messages = {item.name: item for item in file.types if isinstance(item, Message)}
    found: Message | None = None
    *outer, last = names
    for name in outer if is_field else names:
        following = messages.get(name)
        if following is None:
            break
        found = following
        messages = {item.name: item for item in found.nested if isinstance(item, Message)}
    else:
        if found is not None and not is_field:
            return found
        if found is not None:
            for field in found.all_fields:
                if field.name == last:
                    return field
    if is_field and found is not None and len(names) > 1:
        oneof = next((item for item in found.members if isinstance(item, OneOf) and item.name == outer[-1]), None)
        for field in oneof.fields if oneof is not None else ():
            if field.name == last:
                return field
    what = "field" if is_field else "message"
    raise InvalidSchema(f'the schema has no {what} "{".".join(names)}"')
