"""The choice of a function for each type of an Avro schema, for the encoder and the decoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

from ottla.schemas.avro.nodes import Array, Enum, Fixed, Map, Node, Record, Union

F = TypeVar("F")


class NodeFunctions(ABC, Generic[F]):
    """Makes the functions of one schema: one for each record, also if it contains itself."""

    def __init__(self, primitives: Mapping[str, F]) -> None:
        self._primitives = primitives
        #: by identity of the node; ``_record`` adds it
        self._records: dict[int, F] = {}

    def of(self, node: Node) -> F:
        """Return the function for a type."""
        if isinstance(node, Record):
            known = self._records.get(id(node))
            return known if known is not None else self._record(node)
        if isinstance(node, Union):
            return self._union(node)
        if isinstance(node, Array):
            return self._array(node)
        if isinstance(node, Map):
            return self._map(node)
        if isinstance(node, Enum):
            return self._enum(node)
        if isinstance(node, Fixed):
            return self._fixed(node)
        return self._primitives[node.type]

    @abstractmethod
    def _record(self, node: Record) -> F:
        """Return the function for a record. The functions of its fields are made with the first value."""

    @abstractmethod
    def _union(self, node: Union) -> F: ...

    @abstractmethod
    def _array(self, node: Array) -> F: ...

    @abstractmethod
    def _map(self, node: Map) -> F: ...

    @abstractmethod
    def _enum(self, node: Enum) -> F: ...

    @abstractmethod
    def _fixed(self, node: Fixed) -> F: ...
