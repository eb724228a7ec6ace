"""What this project says about a pair of Avro schemas, in the form of the answers of AvroVerdicts.java."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from avro_pairs import Pair

from ottla.schemas.avro import AvroSchema, parse
from ottla.schemas.avro.equality import same_schema
from ottla.schemas.schema import Budget, InvalidSchema, Reference, Resolved


def own_answer(each: Pair) -> dict[str, Any]:
    """Return what this project says about a pair, in the same form."""
    reader, writer = _parsed(each, each.reader, False), _parsed(each, each.writer, False)
    answer: dict[str, Any] = {
        "reader_new": _text(_parsed(each, each.reader, True)),
        "writer_new": _text(_parsed(each, each.writer, True)),
        "reader": _text(reader),
        "writer": _text(writer),
    }
    if reader is not None and writer is not None:
        answer["equal"] = same_schema(reader._root, writer._root, Budget())
        reasons = reader.incompatibilities(writer)
        if [reason.kind for reason in reasons] == ["AMBIGUOUS_FIELD"]:
            answer["exception"] = "AvroRuntimeException"
        else:
            answer["reasons"] = [[each.kind, each.path, each.reader_fragment, each.writer_fragment] for each in reasons]
    return answer


def without_messages(answer: dict[str, Any]) -> dict[str, Any]:
    """Return Java's answer without the descriptions, which are written differently here."""
    if "reasons" not in answer:
        return answer
    return answer | {"reasons": [[kind, path, *fragments] for kind, path, _, *fragments in answer["reasons"]]}


def _parsed(each: Pair, text: str, is_new: bool) -> AvroSchema | None:
    texts = {str(number): reference for number, reference in enumerate(each.references)}
    references = tuple(Reference(name, name, 1) for name in texts)
    try:
        return parse(text, Resolved(references, texts), is_new=is_new)
    except InvalidSchema:
        return None


def _text(schema: AvroSchema | None) -> str | None:
    return None if schema is None else schema.text


def digest(answer: dict[str, Any]) -> list[Any]:
    """Return an answer in short: the kinds and paths of the reasons, and a hash of the whole answer."""
    whole = hashlib.sha256(json.dumps(answer, sort_keys=True).encode()).hexdigest()[:16]
    return [whole, *[f"{kind} {path}" for kind, path, *_ in answer.get("reasons", [])]]
