"""Sets the options of a descriptor from their literals, as protoc does: options of Protobuf itself, and extensions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from ottla.schemas.protobuf.model import Kind, Literal, Option, Value
from ottla.schemas.protobuf.symbols import SymbolKind, Symbols
from ottla.schemas.protobuf.tokens import error_at
from ottla.schemas.protobuf.values import as_float, as_integer
from ottla.schemas.schema import InvalidSchema

_INTEGERS: Final = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
_UNSIGNED: Final = (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
_FLOATS: Final = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
_TRUE: Final = ("true", "True", "t", "1")
_FALSE: Final = ("false", "False", "f", "0")
_META: Final = "confluent."


@dataclass(slots=True)
class OptionTask:
    """The options of one element, and the message of its descriptor that holds them."""

    options: list[Option]
    scope: str
    target: Any
    #: single fields that have a value already, each as a path of field numbers
    seen: set[tuple[int, ...]] = field(default_factory=set)


class _Wrong(Exception):
    """An option has an unknown name or a value that does not fit."""


def interpret_options(tasks: list[OptionTask], text: str, is_edition: bool) -> None:
    """Set the options of Protobuf itself. Raise InvalidSchema if one is unknown or has a wrong value."""
    for task in tasks:
        task.target.SetInParent()
        for option in task.options:
            if option.parenthesized:
                continue
            if option.parts[0].name == "features" and not is_edition:
                raise error_at(text, option.at, "features are allowed in editions only")
            if option.parts[0].name == "uninterpreted_option":
                raise error_at(text, option.at, "the option uninterpreted_option is not for use in a schema")
            if option.uses_extension:
                continue
            try:
                _Setter(None, None, task.scope, option).assign(task, task.target)
            except (_Wrong, ValueError, TypeError) as error:
                raise _error(text, option, error) from None


def interpret_custom_options(
    tasks: list[OptionTask], text: str, symbols: Symbols, pool: DescriptorPool, *, tolerant: bool
) -> None:
    """Set the options that are extensions. `pool` has the file and its imports.

    With `tolerant` an option that is not defined is ignored, because an import is missing.
    """
    for task in tasks:
        containers: dict[int, Any] = {}
        for option in task.options:
            if not option.uses_extension:
                continue
            source = _source(option, task, symbols, pool)
            if source is None:
                if tolerant:
                    continue
                raise error_at(
                    text, option.at, f'the option "({option.name})" is not defined; import the file that defines it'
                )
            container = containers.get(id(source))
            if container is None:
                descriptor = source.FindMessageTypeByName(task.target.DESCRIPTOR.full_name)
                container = containers[id(source)] = message_factory.GetMessageClass(descriptor)()
            try:
                _Setter(source, symbols, task.scope, option).assign(task, container)
            except (_Wrong, ValueError, TypeError, KeyError) as error:
                raise _error(text, option, error) from None
        for container in containers.values():
            task.target.MergeFromString(container.SerializePartialToString(deterministic=True))


def _source(option: Option, task: OptionTask, symbols: Symbols, pool: DescriptorPool) -> DescriptorPool | None:
    """Return the pool that defines an option, and note its full name in the option; None if none does.

    The options of Confluent's registry are known also without an import, because its clients add them to texts.
    """
    name = next(part.name for part in option.parts if part.is_extension)
    symbol = symbols.resolve(name, task.scope)
    if symbol is not None and symbol.kind is SymbolKind.EXTENSION:
        option.resolved = symbol.full_name if option.parenthesized else None
        return pool
    name = name.removeprefix(".")
    if option.parenthesized and name.startswith(_META):
        from ottla.schemas.protobuf.known_files import meta_pool

        meta = meta_pool()
        if _extension(meta, name) is not None:
            option.resolved = name
            return meta
    return None


def _error(text: str, option: Option, error: Exception) -> InvalidSchema:
    reason = str(error) if isinstance(error, _Wrong) else "the value does not fit the type of the option"
    return error_at(text, option.at, f'the option "{option.name}": {reason}')


def _extension(pool: DescriptorPool, full_name: str) -> FieldDescriptor | None:
    try:
        return pool.FindExtensionByName(full_name)
    except KeyError:
        return None


def is_repeated(descriptor: FieldDescriptor) -> bool:
    """Return whether a field is repeated; releases of google.protobuf before 6.31 know only its label."""
    repeated = getattr(descriptor, "is_repeated", None)
    return bool(repeated) if repeated is not None else descriptor.label == FieldDescriptor.LABEL_REPEATED


def is_map(descriptor: FieldDescriptor) -> bool:
    return descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry


class _Setter:
    """Sets fields of a message from literals."""

    def __init__(self, pool: DescriptorPool | None, symbols: Symbols | None, scope: str, option: Option) -> None:
        self._option = option
        self._pool = pool
        self._symbols = symbols
        self._scope = scope

    def assign(self, task: OptionTask, message: Any) -> None:
        option = self._option
        numbers: tuple[int, ...] = ()
        last = len(option.parts) - 1
        for index, part in enumerate(option.parts):
            name = option.resolved if index == 0 and option.resolved is not None else part.name
            descriptor = self._field(message, f"[{name}]" if part.is_extension else name, self._scope)
            numbers += (descriptor.number,)
            if index == last:
                if not is_repeated(descriptor):
                    if numbers in task.seen:
                        raise _Wrong("it is set twice")
                    task.seen.add(numbers)
                self.set(message, descriptor, option.value, is_message_field=False)
            elif descriptor.message_type is None or is_repeated(descriptor):
                raise _Wrong(f'"{part.name}" is not a message')
            else:
                message = self._get(message, descriptor)
                message.SetInParent()

    def set(self, message: Any, descriptor: FieldDescriptor, value: Value, *, is_message_field: bool = True) -> None:
        """Set a field. The fields of a message in braces accept more: numbers for booleans and for enums."""
        if isinstance(value, Literal) and not is_message_field:
            _check_identifier(descriptor, value)
        if is_repeated(descriptor):
            for item in value if isinstance(value, list) else [value]:
                self._append(message, descriptor, item)
        elif isinstance(value, list):
            raise _Wrong(f'"{descriptor.name}" is not repeated')
        elif descriptor.message_type is not None:
            self._fill(self._get(message, descriptor), descriptor, value)
        elif descriptor.is_extension:
            message.Extensions[descriptor] = self._scalar(descriptor, value)
        else:
            setattr(message, descriptor.name, self._scalar(descriptor, value))

    def _append(self, message: Any, descriptor: FieldDescriptor, value: Value) -> None:
        items = self._get(message, descriptor)
        if descriptor.message_type is None:
            items.append(self._scalar(descriptor, value))
        elif is_map(descriptor):
            self._put(items, descriptor, value)
        else:
            self._fill(items.add(), descriptor, value)

    def _put(self, items: Any, descriptor: FieldDescriptor, value: Value) -> None:
        if not isinstance(value, dict) or value.keys() - {"key", "value"}:
            raise _Wrong(f'an entry of "{descriptor.name}" must be a message with key and value')
        fields = descriptor.message_type.fields_by_name
        key_field, value_field = fields["key"], fields["value"]
        key = self._scalar(key_field, value["key"]) if "key" in value else key_field.default_value
        content = value.get("value")
        if value_field.message_type is not None:
            items[key].Clear()
            if content is not None:
                self._fill(items[key], value_field, content)
        else:
            items[key] = value_field.default_value if content is None else self._scalar(value_field, content)

    def _fill(self, message: Any, descriptor: FieldDescriptor, value: Value) -> None:
        if not isinstance(value, dict):
            raise _Wrong(f'"{descriptor.name}" must be a message in braces')
        message.SetInParent()
        for name, item in value.items():
            if "/" in name and message.DESCRIPTOR.full_name == "google.protobuf.Any":
                self._fill_any(message, name[1:-1], item)
            else:
                self.set(message, self._field(message, name), item)

    def _fill_any(self, message: Any, url: str, value: Value) -> None:
        if self._pool is None or not isinstance(value, dict):
            raise _Wrong(f'"{url}" must be a message in braces')
        content_type = self._pool.FindMessageTypeByName(url.rpartition("/")[2])
        content = message_factory.GetMessageClass(content_type)()
        for name, item in value.items():
            self.set(content, self._field(content, name), item)
        message.type_url = url
        message.value = content.SerializePartialToString(deterministic=True)

    def _field(self, message: Any, name: str, scope: str | None = None) -> FieldDescriptor:
        """Return the descriptor of a field, or of an extension whose name is in brackets.

        The name of an extension inside of a value is resolved in the scope of the message that it extends.
        """
        if name.startswith("["):
            full_name = name[1:-1]
            if self._symbols is not None:
                symbol = self._symbols.resolve(full_name, message.DESCRIPTOR.full_name if scope is None else scope)
                full_name = symbol.full_name if symbol is not None else full_name.removeprefix(".")
                self._option.resolved_keys[name] = f"[{full_name}]"
            descriptor = _extension(self._pool, full_name) if self._pool is not None else None
            if descriptor is None or descriptor.containing_type is not message.DESCRIPTOR:
                raise _Wrong(f'"{message.DESCRIPTOR.full_name}" has no extension "{name[1:-1]}"')
            return descriptor
        fields = message.DESCRIPTOR.fields_by_name
        descriptor = fields.get(name)
        if descriptor is None and name != name.lower():
            group = fields.get(name.lower())
            if group is not None and group.message_type is not None and group.message_type.name == name:
                descriptor = group
        if descriptor is None:
            raise _Wrong(f'"{message.DESCRIPTOR.full_name}" has no field "{name}"')
        return descriptor

    @staticmethod
    def _get(message: Any, descriptor: FieldDescriptor) -> Any:
        return message.Extensions[descriptor] if descriptor.is_extension else getattr(message, descriptor.name)

    @staticmethod
    def _scalar(descriptor: FieldDescriptor, value: Value) -> Any:
        if not isinstance(value, Literal):
            raise _Wrong(f'"{descriptor.name}" must not be a message or a list')
        kind = descriptor.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            if value.kind is not Kind.STRING:
                raise _Wrong(f'"{descriptor.name}" must be a string in quotes')
            is_bytes = descriptor.type == FieldDescriptor.TYPE_BYTES
            return value.text.encode("utf-8", "surrogateescape") if is_bytes else value.text
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            if value.kind is Kind.STRING or value.text not in (*_TRUE, *_FALSE):
                raise _Wrong(f'"{descriptor.name}" must be true or false')
            return value.text in _TRUE
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return _enum_number(descriptor, value)
        number: float | None = None
        if kind in (*_INTEGERS, *_UNSIGNED) and value.kind is Kind.NUMBER:
            number = as_integer(value.text)
        elif kind in _FLOATS and value.kind in (Kind.NUMBER, Kind.ENUM):
            number = as_float(value.text)
        if number is None:
            raise _Wrong(f'"{descriptor.name}" must be a number')
        return number


def _check_identifier(descriptor: FieldDescriptor, value: Literal) -> None:
    """Raise _Wrong if the value of a boolean or of an enum is not an identifier."""
    if descriptor.cpp_type == FieldDescriptor.CPPTYPE_BOOL and value.kind is not Kind.BOOLEAN:
        raise _Wrong(f'"{descriptor.name}" must be true or false')
    if descriptor.cpp_type == FieldDescriptor.CPPTYPE_ENUM and value.kind is Kind.NUMBER:
        raise _Wrong(f'"{descriptor.name}" must be the name of a value of "{descriptor.enum_type.full_name}"')


def _enum_number(descriptor: FieldDescriptor, value: Literal) -> int:
    if value.kind in (Kind.ENUM, Kind.BOOLEAN):
        found = descriptor.enum_type.values_by_name.get(value.text)
        if found is not None:
            return int(found.number)
    elif value.kind is Kind.NUMBER and (number := as_integer(value.text)) is not None:
        return number
    raise _Wrong(f'"{value.text[:60]}" is not a value of the enum "{descriptor.enum_type.full_name}"')
