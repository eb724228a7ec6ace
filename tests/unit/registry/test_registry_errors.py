"""The table of the registry's errors."""

from __future__ import annotations

import ast
from pathlib import Path
from string import Formatter

from ottla.edge.registry import errors

PACKAGE = Path(errors.__file__).parent
KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, errors.ErrorKind)}


def test_every_error_is_raised_with_a_value_for_each_place_of_its_text() -> None:
    used = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("errors."):
                name = ast.unparse(node.func).removeprefix("errors.")
                places = [place for _, place, _, _ in Formatter().parse(KINDS[name].text) if place is not None]
                assert len(node.args) == len(places), f"{path.name}:{node.lineno}: {name}"
                used.add(name)
    assert used == KINDS.keys()


def test_first_three_digits_of_a_code_are_its_status() -> None:
    assert all(str(kind.code).startswith(str(kind.status)) for kind in KINDS.values())
