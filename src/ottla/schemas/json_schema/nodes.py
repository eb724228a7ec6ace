"""Makes the nodes of the schemas of a text and of its references, each one once, when it is needed."""

from __future__ import annotations

from ottla.schemas.json_schema import classic, modern
from ottla.schemas.json_schema.documents import Documents
from ottla.schemas.json_schema.model import FalseNode, Node, ReferenceNode, TrueNode
from ottla.schemas.json_schema.text import JsonValue
from ottla.schemas.schema import InvalidSchema


class SchemaNodes:
    """The nodes of one parsed schema. Raise InvalidSchema if a reference leads only to itself."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        #: id() of a schema -> its node; the documents keep the schemas alive
        self._nodes: dict[int, Node] = {}
        self._true = TrueNode(raw=True)
        self._false = FalseNode(raw=False)
        #: a reference -> the first node behind it that is not a reference
        self._behind: dict[ReferenceNode, Node] = {}
        for schema in documents.schemas_with_reference():
            self.resolve(self.node(schema))

    @property
    def root(self) -> Node:
        return self.node(self._documents.root)

    def node(self, schema: JsonValue) -> Node:
        """Return the node of a schema of the documents."""
        if isinstance(schema, bool):
            return self._true if schema else self._false
        node = self._nodes.get(id(schema))
        if node is None:
            draft = self._documents.scope_of(schema).draft
            make = modern.make_node if draft.is_modern else classic.make_node
            node = self._nodes[id(schema)] = make(schema, draft, self)
        return node

    def has(self, schema: JsonValue) -> bool:
        """Return whether this object is a schema of the documents."""
        return isinstance(schema, dict) and self._documents.has(schema)

    def target(self, reference: str, schema: JsonValue) -> JsonValue:
        """Return the schema that a reference in this schema names."""
        return self._documents.target(reference, self._documents.scope_of(schema))

    def resolve(self, node: Node) -> Node:
        """Return the node itself, or the first one behind a reference that is not a reference."""
        passed: list[ReferenceNode] = []
        while isinstance(node, ReferenceNode):
            if node in self._behind:
                node = self._behind[node]
                break
            if node in passed[-1:] or len(passed) > len(self._nodes):
                raise InvalidSchema(f"the reference {node.reference!r} leads only to itself")
            passed.append(node)
            node = self.node(node.target)
        for reference in passed:
            self._behind[reference] = node
        return node
