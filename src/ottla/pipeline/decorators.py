"""Pipelines in Python: the same declaration as in YAML, with functions where YAML has names of functions.

    shop = Pipeline("shop", storage="lake")
    shop.source("orders", topic="shop.orders", format="json", schema={"order_id": "string", "amount": "decimal(10,2)"})
    shop.flow("orders_typed", zone="staging", from_="orders")

    @shop.table(zone="trusted", expect=[{"name": "paid", "that": "amount > 0", "on_violation": "drop"}])
    def orders_trusted(orders_typed):
        return orders_typed.where("amount IS NOT NULL")

A function's parameters are the names it reads, and its own name is the flow's. The words are those of Spark Declarative
Pipelines where both have the thing: `table`, `materialized_view`, `temporary_view`, `append_flow`. Keys are those of
YAML; a key that Python keeps for itself gets an underscore: `from_`, and `as_` and `with_` in steps.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ottla.pipeline.checks import check_declaration
from ottla.pipeline.declaration import Declaration
from ottla.pipeline.document import Node, node_of
from ottla.pipeline.environments import Arguments, resolve_parameters
from ottla.pipeline.problems import Place, Problems
from ottla.pipeline.project import FindFiles, ProjectReader, ReadFile, find_no_files
from ottla.pipeline.reading import DeclarationReader

_Entries = list[tuple[Node, Node]]
#: keys that are words of Python's own
_SPELLING = {"from_": "from", "as_": "as", "with_": "with"}


class Pipeline:
    """A pipeline that is being declared. `declaration` checks it and reports all problems at once."""

    def __init__(self, name: str, **keys: Any) -> None:
        self._place = _calling_place()
        self._keys = {"name": name, **keys}
        self._sources: _Entries = []
        self._flows: _Entries = []
        self._calls: dict[str, Callable[..., Any]] = {}
        self._problems = Problems()
        self._values: dict[str, Any] | None = None

    def source(self, name: str, **keys: Any) -> None:
        """Declare a topic that is read. Keys are those of a source in YAML."""
        self._add(self._sources, name, keys, _calling_place())

    def flow(self, name: str, **keys: Any) -> None:
        """Declare a flow without a function: raw, staging, or one whose step is SQL."""
        self._add(self._flows, name, keys, _calling_place())

    def table(
        self, function: Callable[..., Any] | None = None, *, name: str | None = None, **keys: Any
    ) -> Callable[..., Any]:
        """Declare a table, to which rows are appended as they arrive. The function gets and returns DataFrames."""
        return self._decorator(function, name, {"kind": "table", **keys}, _calling_place())

    def materialized_view(
        self, function: Callable[..., Any] | None = None, *, name: str | None = None, **keys: Any
    ) -> Callable[..., Any]:
        """Declare a table that is recomputed completely at each trigger."""
        return self._decorator(function, name, {"kind": "materialized_view", **keys}, _calling_place())

    def temporary_view(
        self, function: Callable[..., Any] | None = None, *, name: str | None = None, **keys: Any
    ) -> Callable[..., Any]:
        """Declare a view: it is not stored, the flows that read it compute it."""
        return self._decorator(function, name, {"kind": "view", **keys}, _calling_place())

    def append_flow(self, *, target: str, name: str | None = None, **keys: Any) -> Callable[..., Any]:
        """Declare rows that are appended to the table of another flow."""
        return self._decorator(None, name, {"append_to": target, **keys}, _calling_place())

    @property
    def file(self) -> str:
        """The file that creates the pipeline."""
        return self._place.file

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Values of the parameters, by name, while the flows are planned. Raise RuntimeError before that."""
        if self._values is None:
            raise RuntimeError("parameters have values only in functions of flows; write ${name} elsewhere")
        return self._values

    def declaration(
        self, read_file: ReadFile, find_files: FindFiles = find_no_files, arguments: Arguments | None = None
    ) -> Declaration:
        """Return the checked declaration. Raise BadDeclaration."""
        problems = Problems()
        for problem in self._problems:
            problems.add(problem.place, problem.what, problem.instead)
        entries = list(node_of(self._keys, self._place).entries)
        for key, declared in (("sources", self._sources), ("flows", self._flows)):
            place = declared[0][0].place if declared else self._place
            entries.append((node_of(key, place), Node("mapping", place, entries=tuple(declared))))
        root = Node("mapping", self._place, entries=tuple(entries))
        root = ProjectReader(self._place.file, problems, read_file, find_files).complete(root)
        resolved = resolve_parameters(root, arguments or Arguments(), problems)
        self._values = {name: value.python for name, value in resolved.values.items()}
        reader = DeclarationReader(self._place.file, problems, read_file, self._calls)
        read = reader.read(resolved.root)
        read = replace(read, environment=resolved.environment, parameters=resolved.shown_values)
        check_declaration(read, problems, reader.unzoned)
        problems.refuse_if_any()
        return read

    def _decorator(
        self, function: Callable[..., Any] | None, name: str | None, keys: Mapping[str, Any], place: Place
    ) -> Callable[..., Any]:
        def decorate(decorated: Callable[..., Any]) -> Callable[..., Any]:
            called = name or decorated.__name__
            given = {"from_": list(inspect.signature(decorated).parameters), **keys}
            given["python"] = f"{decorated.__module__}:{decorated.__qualname__}"
            self._calls[called] = decorated
            self._add(self._flows, called, given, place)
            return decorated

        # A decorator without parentheses gets the function itself and must return it.
        return decorate(function) if function is not None else decorate

    def _add(self, entries: _Entries, name: str, keys: Mapping[str, Any], place: Place) -> None:
        taken = next((key for key, _ in entries if key.text == name), None)
        if taken is not None:
            self._problems.add(
                place, f"{name!r} is declared twice, first in {taken.place.seen_from(place)}", "rename one"
            )
            return
        entries.append((node_of(name, place), node_of(_plain(keys), place)))


def _plain(value: Any) -> Any:
    """Return keys in the spelling of YAML."""
    if isinstance(value, Mapping):
        return {_SPELLING.get(key, key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _calling_place() -> Place:
    """Return the place of the call of the method that calls this function."""
    frame = sys._getframe(2)
    return Place(frame.f_code.co_filename, frame.f_lineno)
