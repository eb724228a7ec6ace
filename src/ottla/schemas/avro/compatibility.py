"""Whether a reader's schema can read what a writer's schema wrote: the rules of Java Avro's SchemaCompatibility.

A pair of nodes is compared once; a pair inside of its own comparison counts as compatible, which ends the recursion of
recursive schemas. A reason that was found for a pair keeps the path of the pair's first comparison.

The comparison keeps its own stack of generators, because two recursive schemas can lead it deeper than Python's limit.
Each generator yields a pair whose reasons it needs, and returns the reasons of its own pair.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple, TypeAlias

from ottla.schemas.avro.nodes import PRIMITIVES, Container, Enum, Field, Fixed, Named, Node, NoDefault, Record, Union
from ottla.schemas.avro.printer import schema_text
from ottla.schemas.schema import Budget, Incompatibility

#: reasons that are reported, and characters of their fragments; the first reason is reported also if it is larger
REASONS_MAX: Final = 1_000
FRAGMENT_CHARS_MAX: Final = 8 << 20

#: steps from the outermost schema: the last one and the ones before it
Location: TypeAlias = "tuple[str, Location] | None"

#: a pair of types that are not primitive takes about as long as two steps of the parser
_STEPS_PER_PAIR: Final = 2
#: reader -> the writers that it can read beside itself
_PROMOTIONS: Final[dict[str, frozenset[str]]] = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "bytes": frozenset({"string"}),
    "string": frozenset({"bytes"}),
}


class _Pair(NamedTuple):
    reader: Node
    writer: Node
    location: Location


class _Reason(NamedTuple):
    kind: str
    reader: Node
    writer: Node
    description: str
    location: Location


#: Reasons of inner pairs are nested, not copied: a type that is mentioned twice, inside of one that is mentioned twice,
#: and so on, has exponentially many reasons. The pair is compatible if there are none.
_Reasons: TypeAlias = "tuple[_Reason | _Reasons, ...]"
_Comparison: TypeAlias = Generator[_Pair, _Reasons, _Reasons]


class _AmbiguousField(Exception):
    """A field of the reader has aliases for two fields of the writer; Java ends the comparison with an exception."""

    def __init__(self, reason: _Reason) -> None:
        self.reason = reason


def incompatibilities(reader: Node, writer: Node, budget: Budget) -> list[Incompatibility]:
    """Return the first reasons why `reader` cannot read data of `writer`, none if it can. Raise SchemaTooComplex."""
    reasons: _Reasons
    try:
        reasons = _Checker(budget).check(_Pair(reader, writer, None))
    except _AmbiguousField as error:
        reasons = (error.reason,)
    found: list[Incompatibility] = []
    texts: dict[int, str] = {}
    fragment_chars = 0
    for reason in _flat(reasons):
        for node in (reason.reader, reason.writer):
            if id(node) not in texts:
                texts[id(node)] = schema_text(node, budget)
        fragments = texts[id(reason.reader)], texts[id(reason.writer)]
        fragment_chars += len(fragments[0]) + len(fragments[1])
        if found and (len(found) == REASONS_MAX or fragment_chars > FRAGMENT_CHARS_MAX):
            break
        found.append(Incompatibility(reason.kind, _pointer(reason.location), reason.description, *fragments))
    return found


def _flat(reasons: _Reasons) -> Iterator[_Reason]:
    pending = list(reversed(reasons))
    while pending:
        reason = pending.pop()
        if isinstance(reason, _Reason):
            yield reason
        else:
            pending += reversed(reason)


class _Checker:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        #: reader and writer -> reasons; no reasons until the comparison of the pair has ended
        self._known: dict[tuple[int, int], _Reasons] = {}

    def check(self, pair: _Pair) -> _Reasons:
        stack: list[tuple[tuple[int, int], _Comparison]] = []
        while True:
            reasons = self._known_reasons(pair)
            if reasons is None:
                key = (id(pair.reader), id(pair.writer))
                self._known[key] = ()
                self._budget.spend(_STEPS_PER_PAIR)
                comparison = _compare(pair)
                stack.append((key, comparison))
                try:
                    pair = next(comparison)
                    continue
                except StopIteration as end:
                    stack.pop()
                    reasons = self._known[key] = end.value
            while stack:
                self._budget.spend()
                key, comparison = stack[-1]
                try:
                    pair = comparison.send(reasons)
                    break
                except StopIteration as end:
                    stack.pop()
                    reasons = self._known[key] = end.value
            else:
                return reasons

    def _known_reasons(self, pair: _Pair) -> _Reasons | None:
        reader, writer, location = pair
        if reader.type in PRIMITIVES and writer.type in PRIMITIVES:
            # The same two primitives are compared again only together with the nodes around them.
            return () if _can_read_primitive(reader, writer) else (_type_mismatch(reader, writer, location),)
        return self._known.get((id(reader), id(writer)))


def _compare(pair: _Pair) -> _Comparison:
    reader, writer, location = pair
    if isinstance(writer, Union):
        return (yield from _compare_writer_union(reader, writer, location))
    if isinstance(reader, Union):
        return (yield from _compare_reader_union(reader, writer, location))
    if isinstance(reader, Record) and isinstance(writer, Record):
        return (yield from _compare_records(reader, writer, location))
    if isinstance(reader, Container) and isinstance(writer, Container) and reader.type == writer.type:
        return (yield _Pair(reader.items, writer.items, (reader.attribute, location)))
    if isinstance(reader, Enum) and isinstance(writer, Enum):
        return _compare_names(reader, writer, location) + _compare_symbols(reader, writer, location)
    if isinstance(reader, Fixed) and isinstance(writer, Fixed):
        return _compare_names(reader, writer, location) + _compare_sizes(reader, writer, location)
    return (_type_mismatch(reader, writer, location),)


def _compare_writer_union(reader: Node, writer: Union, location: Location) -> _Comparison:
    reasons: list[_Reason | _Reasons] = []
    for position, branch in enumerate(writer.branches):
        here = (str(position), location)
        found = yield _Pair(reader, branch, None if isinstance(reader, Union) else here)
        if found and not isinstance(reader, Union):
            reasons.append(found)
        elif found and isinstance(reader, Union):
            reasons.append(_missing_branch(reader, writer, branch, here))
    return tuple(reasons)


def _compare_reader_union(reader: Union, writer: Node, location: Location) -> _Comparison:
    for branch in reader.branches:
        if not (yield _Pair(branch, writer, None)):
            return ()
    return (_missing_branch(reader, writer, writer, location),)


def _compare_records(reader: Record, writer: Record, location: Location) -> _Comparison:
    reasons: list[_Reason | _Reasons] = [*_compare_names(reader, writer, location)]
    fields_location = ("fields", location)
    for position, field in enumerate(reader.fields):
        here = (str(position), fields_location)
        writer_field = _writer_field(field, reader, writer, here)
        if writer_field is not None:
            found = yield _Pair(field.type, writer_field.type, ("type", here))
            if found:
                reasons.append(found)
        elif isinstance(field.default, NoDefault):
            if isinstance(field.type, Enum) and field.type.default is not None:
                # Java compares the enum with the writer's record, which never matches.
                reasons.append((yield _Pair(field.type, writer, ("type", here))))
            else:
                reasons.append(
                    _Reason(
                        "READER_FIELD_MISSING_DEFAULT_VALUE",
                        reader,
                        writer,
                        f"the reader's field {field.name} has no default, and the writer does not have this field",
                        here,
                    )
                )
    return tuple(reasons)


def _writer_field(field: Field, reader: Record, writer: Record, location: Location) -> Field | None:
    by_name = writer.fields_by_name
    if not field.aliases:
        return by_name.get(field.name)
    found = [by_name[name] for name in (field.name, *field.aliases) if name in by_name]
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        description = (
            f"the name and aliases of the reader's field {field.name} match several fields of the writer: {names}"
        )
        raise _AmbiguousField(_Reason("AMBIGUOUS_FIELD", reader, writer, description, location))
    return found[0] if found else None


def _compare_names(reader: Named, writer: Named, location: Location) -> tuple[_Reason, ...]:
    """Compare names without their namespaces, and the reader's aliases with the writer's full name."""
    if reader.name.name == writer.name.name or writer.name.full in reader.alias_texts():
        return ()
    description = f"the reader's {reader.type} {reader.name.full} does not have the writer's name {writer.name.full}"
    return (_Reason("NAME_MISMATCH", reader, writer, description, ("name", location)),)


def _compare_symbols(reader: Enum, writer: Enum, location: Location) -> tuple[_Reason, ...]:
    missing = set(writer.symbols).difference(reader.symbols)
    if not missing or reader.default is not None:
        return ()
    description = f"the reader's enum has no default and lacks symbols of the writer: {', '.join(sorted(missing))}"
    return (_Reason("MISSING_ENUM_SYMBOLS", reader, writer, description, ("symbols", location)),)


def _compare_sizes(reader: Fixed, writer: Fixed, location: Location) -> tuple[_Reason, ...]:
    if reader.size == writer.size:
        return ()
    description = f"the reader's fixed has {reader.size} bytes, the writer's {writer.size}"
    return (_Reason("FIXED_SIZE_MISMATCH", reader, writer, description, ("size", location)),)


def _can_read_primitive(reader: Node, writer: Node) -> bool:
    return reader.type == writer.type or writer.type in _PROMOTIONS.get(reader.type, ())


def _missing_branch(reader: Union, writer: Node, branch: Node, location: Location) -> _Reason:
    description = f"no branch of the reader's union can read the writer's {_describe(branch)}"
    return _Reason("MISSING_UNION_BRANCH", reader, writer, description, location)


def _type_mismatch(reader: Node, writer: Node, location: Location) -> _Reason:
    description = f"the reader's {_describe(reader)} cannot read the writer's {_describe(writer)}"
    return _Reason("TYPE_MISMATCH", reader, writer, description, location)


def _describe(node: Node) -> str:
    return f"{node.type} {node.name.full}" if isinstance(node, Named) else node.type


def _pointer(location: Location) -> str:
    steps: list[str] = []
    while location is not None:
        step, location = location
        steps.append(step.replace("~", "~0").replace("/", "~1"))
    return "/" + "/".join(reversed(steps))
