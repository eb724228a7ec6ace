"""A YAML file as nodes that know where they were written. The only module of this package that imports yaml.

Only plain YAML is read: no tags that build objects, no anchors and aliases (a few hundred bytes of them can stand for
gigabytes), no merge keys, one document, bounded in size and in depth. Python declarations become the same nodes, so
that both are read by the same code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from ottla.pipeline.problems import BadDeclaration, Place, Problem, Problems
from ottla.pipeline.replaced_parts import ReplacedPart, written_position

#: a pipeline of hundreds of flows is smaller; PyYAML needs about a second for so much
SIZE_BYTES_MAX = 256 * 1024
DEPTH_MAX = 20

Kind = Literal["text", "number", "flag", "nothing", "list", "mapping"]

_KINDS: dict[str, Kind] = {
    "tag:yaml.org,2002:str": "text",
    "tag:yaml.org,2002:int": "number",
    "tag:yaml.org,2002:float": "number",
    "tag:yaml.org,2002:bool": "flag",
    "tag:yaml.org,2002:null": "nothing",
    # A date is text to us: its meaning depends on its key.
    "tag:yaml.org,2002:timestamp": "text",
    # `=` alone is text that YAML 1.1 gives a tag of its own.
    "tag:yaml.org,2002:value": "text",
    "tag:yaml.org,2002:seq": "list",
    "tag:yaml.org,2002:map": "mapping",
}
_NAMES: dict[Kind, str] = {
    "text": "text",
    "number": "a number",
    "flag": "true or false",
    "nothing": "nothing",
    "list": "a list",
    "mapping": "a mapping of keys to values",
}


@dataclass(frozen=True, slots=True)
class Written:
    """A text before parameters were replaced by their values."""

    text: str
    replaced: tuple[ReplacedPart, ...]

    def position_of(self, position: int) -> int:
        """Return the position in `text` of a position in the result; that of the parameter inside a replacement."""
        return written_position(position, self.replaced)


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text, usually SQL, and the place of each of its characters in the file."""

    text: str
    place: Place = field(compare=False)
    #: columns that every line of a block is indented by; None: only the beginning is known
    indent: int | None = field(default=None, compare=False)
    #: whether the text is a whole file, so that its lines are those of the file
    is_file: bool = field(default=False, compare=False)
    written: Written | None = field(default=None, compare=False)

    def place_of(self, position: int) -> Place:
        """Return the place of the character at this position."""
        text = self.text
        if self.written is not None:
            text, position = self.written.text, self.written.position_of(position)
        before = text[:position]
        return self.place_at(before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1)

    def place_at(self, line: int, column: int) -> Place:
        """Return the place in the file of a line and column of the text, both from 1."""
        if self.is_file:
            return Place(self.place.file, line, column)
        if self.indent is None:
            return self.place
        if self.indent < 0:
            # Plain or quoted text on one line.
            return Place(self.place.file, self.place.line, self.place.column + column - 1)
        return Place(self.place.file, self.place.line + line, self.indent + column)


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place. `text` is the scalar as written, `items` are a list's, `entries` a mapping's."""

    kind: Kind
    place: Place
    text: str = ""
    items: tuple[Node, ...] = ()
    entries: tuple[tuple[Node, Node], ...] = ()
    #: see Text
    indent: int | None = None
    is_file: bool = False
    written: Written | None = None

    @property
    def kind_name(self) -> str:
        return _NAMES[self.kind]

    @property
    def is_true(self) -> bool:
        """Whether a flag is set: YAML has several words for true."""
        return self.text.lower() in ("true", "yes", "on")

    def as_text(self) -> Text:
        return Text(self.text, self.place, self.indent, self.is_file, self.written)


def node_of(value: object, place: Place) -> Node:
    """Return a Python value as a node; all parts of it have the place of the call."""
    if isinstance(value, Mapping):
        entries = tuple((node_of(str(key), place), node_of(inner, place)) for key, inner in value.items())
        return Node("mapping", place, entries=entries)
    if isinstance(value, list | tuple):
        return Node("list", place, items=tuple(node_of(inner, place) for inner in value))
    if isinstance(value, bool):
        return Node("flag", place, text=str(value).lower())
    if isinstance(value, int | float):
        return Node("number", place, text=str(value))
    if value is None:
        return Node("nothing", place)
    return Node("text", place, text=str(value))


def read_document(data: bytes, file: str, problems: Problems) -> Node:
    """Return the root node of a YAML file. Raise BadDeclaration if it is not YAML, or not allowed here."""
    import yaml

    if len(data) > SIZE_BYTES_MAX:
        _refuse(Place(file), f"the file has {len(data)} bytes", f"split it: at most {SIZE_BYTES_MAX} are read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        _refuse(Place(file, line), "the file is not UTF-8", "save it as UTF-8")
    try:
        _check_events(yaml.parse(text, Loader=yaml.SafeLoader), file)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file, mark.line + 1, mark.column + 1) if mark is not None else Place(file)
        source_line = "".join(text.splitlines()[place.line - 1 : place.line])
        advice = _yaml_advice(str(error.problem), source_line)
        _refuse(place, f"this is not YAML: {error.problem or error.context}", advice)
    except yaml.YAMLError as error:
        # Characters that YAML forbids come without a line.
        _refuse(_place_in(file, text, getattr(error, "position", 0)), f"this is not YAML: {_one_line(error)}",
                "remove or escape the character")  # fmt: skip
    if root is None:
        _refuse(Place(file), "the file is empty", "begin with 'ottla pipeline init'")
    return _Converter(file, text.splitlines(), problems).convert(root)


def _check_events(events: Iterable[Any], file: str) -> None:
    """Raise BadDeclaration for documents that would need much memory, before any node is created."""
    import yaml

    depth = documents = 0
    for event in events:
        place = Place(file, event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            _refuse(place, "anchors (&) and aliases (*) are not read", "write the value out where it is needed")
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                _refuse(place, "a second document begins here", "keep one pipeline per file")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                _refuse(place, f"lists and mappings are nested more than {DEPTH_MAX} deep", "write it flatter")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


@dataclass(frozen=True, slots=True)
class _Converter:
    file: str
    lines: list[str]
    problems: Problems

    def convert(self, node: Any) -> Node:
        place = Place(self.file, node.start_mark.line + 1, node.start_mark.column + 1)
        kind = _KINDS.get(node.tag)
        if kind is None or (kind == "list") != (node.id == "sequence") or (kind == "mapping") != (node.id == "mapping"):
            self.problems.add(place, f"the tag {node.tag!r} is not read", "remove it; plain values are enough")
            return Node("nothing", place)
        if node.id == "mapping":
            return Node("mapping", place, entries=self._entries(node))
        if node.id == "sequence":
            return Node("list", place, items=tuple(map(self.convert, node.value)))
        return Node(kind, place, text=node.value, indent=self._indent(node))

    def _entries(self, node: Any) -> tuple[tuple[Node, Node], ...]:
        seen: dict[str, Place] = {}
        entries = []
        for key, value in node.value:
            place = Place(self.file, key.start_mark.line + 1, key.start_mark.column + 1)
            if key.tag == "tag:yaml.org,2002:merge":
                self.problems.add(place, "merge keys (<<) are not read", "write the values out")
            elif key.id != "scalar":
                self.problems.add(place, "a key must be text", "write a name before the colon")
            elif key.value in seen:
                first = seen[key.value].line
                self.problems.add(
                    place, f"{key.value!r} is written twice, first in line {first}", "remove one or rename it"
                )
            else:
                seen[key.value] = place
                entries.append((Node("text", place, text=key.value), self.convert(value)))
        return tuple(entries)

    def _indent(self, node: Any) -> int | None:
        if node.style == "|":
            for line in self.lines[node.start_mark.line + 1 : node.end_mark.line + 1]:
                if line.strip():
                    return len(line) - len(line.lstrip(" "))
        if node.start_mark.line == node.end_mark.line and node.style is None:
            return -1
        return None


def _yaml_advice(problem: str, line: str) -> str:
    if re.search(r"[{\[,:].*\$\{", line):
        return "between braces or brackets put a value with ${...} in quotes"
    if "mapping values are not allowed" in problem:
        return "put text that contains ': ' in quotes, or check the indentation of this line"
    if "\\t" in problem or "'\t'" in problem:
        return "indent with spaces, not with tabs"
    if "expected <block end>" in problem:
        return "check the indentation: it must equal that of the lines this one belongs to"
    return "check quotes, brackets and indentation here and in the line above"


def _place_in(file: str, text: str, position: int) -> Place:
    before = text[:position]
    return Place(file, before.count("\n") + 1, position - before.rfind("\n"))


def _one_line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error))


def _refuse(place: Place, what: str, instead: str) -> NoReturn:
    raise BadDeclaration([Problem(place, what, instead)])
