"""Which names a schema may use. A new schema may use ASCII only; stored schemas may use letters of all languages."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from ottla.schemas.avro.nodes import Enum, Named, Node, Record
from ottla.schemas.avro.problem import Problem
from ottla.schemas.schema import Budget

_ASCII_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RULE: Final = "a name starts with a letter or _ and goes on with letters, digits and _"


def check_new_name(name: str, kind: str) -> None:
    """Raise Problem if a new schema may not use this name."""
    if _ASCII_NAME.fullmatch(name) is None:
        raise Problem(f"the {kind} {name!r} is not valid: {_RULE} (ASCII)")


def check_stored_names(root: Node, budget: Budget) -> None:
    """Raise Problem if the name of a type, field or symbol is not valid. Namespaces and aliases are not checked."""
    pending, seen = [root], set()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        budget.spend()
        if isinstance(node, Named):
            _check_stored_name(node.name.name, "name")
        if isinstance(node, Record):
            for field in node.fields:
                _check_stored_name(field.name, "field name")
        elif isinstance(node, Enum):
            for symbol in node.symbols:
                _check_stored_name(symbol, "symbol")
        pending += node.children()


def _check_stored_name(name: str, kind: str) -> None:
    if _ASCII_NAME.fullmatch(name) is None and not (name and _is_start(name[0]) and all(map(_is_part, name))):
        raise Problem(f"the {kind} {name!r} is not valid: {_RULE}")


def _is_start(character: str) -> bool:
    # Java checks units of 16 bits. A character outside of the basic plane has two, and neither is a letter.
    return character == "_" or (character.isalpha() and character <= "\uffff")


def _is_part(character: str) -> bool:
    return _is_start(character) or (unicodedata.category(character) == "Nd" and character <= "\uffff")
