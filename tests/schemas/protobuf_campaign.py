"""Protobuf schemas compared with protoc, and their verdicts with what records do."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google
import grpc_tools
from tests.schemas.isolation import Crashed, in_child
from tests.schemas.protobuf_oracle import comparable, option_pool, unread_fields, without_order
from tests.schemas.protobuf_texts import TextGenerator
from tests.schemas.protoc import CRASHED, compile_with_protoc

from campaign.report import Report
from ottla.schemas.protobuf import ProtobufSchema, parse
from ottla.schemas.schema import Incompatibility, InvalidSchema, Resolved

_BATCH = 500


def compare_texts(first: int, count: int, *, damaged: bool = False) -> Counter[str]:
    """Compare generated texts with protoc: whether each is valid, and its descriptor. Raise AssertionError if not."""
    tally: Counter[str] = Counter()
    texts: list[str] = []
    for index in range(count):
        generator = TextGenerator(first + index)
        text = generator.render(generator.file())
        texts.append(generator.damage(text) if damaged else text)
    for index, (text, expected) in enumerate(zip(texts, compile_with_protoc(texts), strict=True)):
        if expected == CRASHED:
            tally[CRASHED] += 1
            continue
        tally[_compare_text(text, expected, f"seed {first + index}")] += 1
    return tally


def compare_damaged(first: int, count: int) -> Counter[str]:
    return compare_texts(first, count, damaged=True)


def _compare_text(text: str, expected: Any, name: str) -> str:
    try:
        schema = parse(text)
    except InvalidSchema as error:
        if not isinstance(expected, str):
            raise AssertionError(f"{name}: protoc accepts what Ottla refuses: {error}") from None
        return "invalid"
    if isinstance(expected, str):
        # An import that is missing is ignored on purpose.
        assert "File not found" in expected, f"{name}: Ottla accepts what protoc refuses: {expected}"
        return "valid without an import"
    _compare_descriptors(schema, expected, name)
    return "valid"


def _compare_descriptors(schema: ProtobufSchema, expected: Any, name: str, resolved: Resolved | None = None) -> None:
    """Compare with protoc, and after the way through the canonical text and through base64."""
    pool = option_pool(schema)
    assert comparable(schema.file_descriptor, pool) == comparable(expected, pool), f"{name}: the descriptors differ"
    resolved = resolved or Resolved()
    ordered = without_order(schema.file_descriptor, pool)
    for form in (schema.text, schema.formatted("serialized")):
        again = parse(form, resolved)
        assert without_order(again.file_descriptor, pool) == ordered, f"{name}: a round trip changes the descriptor"
        assert parse(again.text, resolved).text == again.text, f"{name}: the canonical text is not stable"


def survive(compare: Callable[[int, int], Counter[str]], first: int, count: int) -> Counter[str]:
    """Run a comparison in a child process, because Protobuf's library can crash on descriptors that it should refuse.

    Count the seeds with which the reference crashes. Raise AssertionError if parsing alone crashes: that is a bug of
    Ottla, even if it is the library that crashes.
    """
    try:
        return in_child(lambda: compare(first, count))
    except Crashed:
        if count > 1:
            half = count // 2
            return survive(compare, first, half) + survive(compare, first + half, count - half)
    try:
        in_child(lambda: _parse_all(first))
    except Crashed as error:
        raise AssertionError(f"seed {first}: parsing crashes: {error}") from None
    return Counter({"the library crashed": 1})


def _parse_all(seed: int) -> None:
    """Parse every text that a comparison makes from a seed."""
    for evolve in (False, True):
        generator = TextGenerator(seed)
        file = generator.file()
        text = generator.render(generator.evolve(file) if evolve else file)
        for each in (text, TextGenerator(seed).damage(text)):
            with contextlib.suppress(InvalidSchema):
                schema = parse(each)
                parse(schema.text), parse(schema.formatted("serialized")), schema.normalized()


def compare_pairs(first: int, count: int) -> Counter[str]:
    """Compare verdicts about generated pairs with each other and with what a reader takes from a writer's records."""
    tally: Counter[str] = Counter()
    for seed in range(first, first + count):
        generator = TextGenerator(seed)
        file = generator.file()
        try:
            writer, reader = (parse(generator.render(version)) for version in (file, generator.evolve(file)))
        except InvalidSchema:
            tally["invalid"] += 1
            continue
        found = reader.incompatibilities(writer)
        _compare_forms(writer, reader, found, seed)
        unread = unread_fields(writer, reader, seed)
        assert found or not unread, f"seed {seed}: compatible, but not read: {unread}"
        tally["incompatible" if found else "compatible"] += 1
        tally["not readable"] += bool(unread)
        tally.update(item.kind for item in found)
    return tally


def _compare_forms(writer: ProtobufSchema, reader: ProtobufSchema, found: list[Incompatibility], seed: int) -> None:
    """The verdict must not depend on the form of a schema, and a schema must be compatible with its other forms."""
    expected = {(item.kind, item.path) for item in found}
    for form in (ProtobufSchema.normalized, lambda schema: parse(schema.formatted("serialized"))):
        other_writer, other_reader = form(writer), form(reader)
        again = {(item.kind, item.path) for item in other_reader.incompatibilities(other_writer)}
        # Descriptors have a message for the entries of each map, which is compared as well.
        again = {(kind, path) for kind, path in again if not path.split("/")[-2].endswith("Entry")}
        assert again == expected, f"seed {seed}: {again} differ from {expected}"
        assert not other_writer.incompatibilities(writer), f"seed {seed}: a form is incompatible with the schema"
        assert not writer.incompatibilities(other_writer), f"seed {seed}: the schema is incompatible with a form"
        assert other_writer.normalized().text == writer.normalized().text, f"seed {seed}: the normal forms differ"


def compare_installed() -> int:
    """Compare all .proto files of google that are installed with protoc. Return their number."""
    roots = [Path(path).parent for path in google.__path__]
    roots.append(Path(grpc_tools.__file__).with_name("_proto"))
    paths = {path.relative_to(root).as_posix(): path for root in roots for path in root.glob("google/**/*.proto")}
    texts = {name: path.read_text() for name, path in paths.items()}
    results = compile_with_protoc(list(texts.values()), tuple(roots))
    for (name, text), expected in zip(texts.items(), results, strict=True):
        # protoc cannot compile a copy of a file that it uses itself.
        if not isinstance(expected, str):
            resolved = Resolved((), {path: other for path, other in texts.items() if path != name})
            _compare_descriptors(parse(text, resolved), expected, name, resolved)
    return sum(not isinstance(expected, str) for expected in results)


def compare(report: Report, *, pairs: int, seed: int) -> None:
    report.say(f"{compare_installed()} installed files: each has protoc's descriptor")
    texts: Counter[str] = Counter()
    damaged: Counter[str] = Counter()
    for first in range(seed, seed + pairs, _BATCH):
        report.progress(first - seed, pairs, "texts of Protobuf schemas")
        count = min(_BATCH, seed + pairs - first)
        texts += survive(compare_texts, first, count)
        damaged += survive(compare_damaged, first, count)
    report.say(f"texts: {dict(texts)}; damaged: {dict(damaged)}")
    report.figure(
        f"Protobuf: {sum(texts.values()):,} texts and {sum(damaged.values()):,} damaged ones have protoc's verdict and "
        "descriptor"
    )
    found = survive(compare_pairs, seed, pairs)
    report.say(f"pairs of Protobuf schemas: {dict(found)}")
    report.figure(f"{pairs:,} pairs of Protobuf schemas: no compatible reader misses a field")
