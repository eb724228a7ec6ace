"""One mapping of a declaration, read key by key. Keys that are missing, unknown or of a wrong type are problems.

Every method returns a usable value after a problem, too, so that reading continues and finds all problems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ottla.pipeline.document import Node, Text
from ottla.pipeline.duration import parse_duration_ms
from ottla.pipeline.keys import Section
from ottla.pipeline.problems import Place, Problems, nearest, suggestion

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}", re.ASCII)
#: words of other products, with the words of pipelines for the same thing
_SYNONYMS = {
    "bronze": "raw", "landing": "raw", "silver": "trusted", "curated": "trusted", "gold": "refined",
    "proto": "protobuf", "text": "string", "binary": "bytes", "iceberg": "delta", "streaming_table": "table",
    "append": "final", "update": "changes", "complete": "changes", "expect_or_drop": "drop", "expect_or_fail": "fail",
}  # fmt: skip
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


class Fields:
    """The entries of a mapping that belongs to a section; `called` is how a message names it."""

    def __init__(self, node: Node, section: Section, called: str, problems: Problems) -> None:
        self.place = node.place
        self.called = called
        self._section = section
        self._problems = problems
        self._values: dict[str, tuple[Node, Node]] = {}
        if node.kind != "mapping":
            keys = ", ".join(key.name for key in section.keys.values() if key.required) or ", ".join(section.keys)
            self.problem(node.place, f"{called} is {node.kind_name}", f"write a mapping with the keys {keys}")
            return
        # A required key that is misspelt is reported as unknown, not also as missing.
        misspelt = set()
        for key, value in node.entries:
            if key.text in section.keys:
                self._values[key.text] = (key, value)
            else:
                misspelt.add(self._unknown(key))
        for name, required in section.keys.items():
            if required.required and name not in self._values and name not in misspelt:
                wanted = required.value.replace("`", "")
                self.problem(node.place, f"{called} has no {name!r}", f"add '{name}:' with {_article(wanted)}")

    def has(self, key: str) -> bool:
        return key in self._values

    def node(self, key: str) -> Node | None:
        return self._values[key][1] if key in self._values else None

    def place_of(self, key: str) -> Place:
        """Return the place of the key, or of the mapping if it does not have the key."""
        return self._values[key][0].place if key in self._values else self.place

    def problem(self, place: Place, what: str, instead: str) -> None:
        self._problems.add(place, what, instead)

    def text(self, key: str, default: str = "") -> str:
        node = self._scalar(key)
        return default if node is None else node.text

    def written(self, key: str) -> Text | None:
        """Return a text together with its place in the file; None without the key."""
        node = self._scalar(key)
        return None if node is None else node.as_text()

    def name(self, key: str) -> str | None:
        """Return a name. Add a problem if SQL or a file system does not allow it."""
        node = self._scalar(key)
        if node is None:
            return None
        check_name(node, f"{self.called}: {key}", self._problems)
        return node.text

    def topic(self, key: str) -> str:
        node = self._scalar(key)
        if node is None:
            return ""
        if not _TOPIC.fullmatch(node.text) or node.text in (".", ".."):
            what = f"{node.text!r} is not the name of a topic"
            self.problem(node.place, what, "use letters, digits, '.', '_' and '-', at most 249 of them")
        return node.text

    def choice(self, key: str, words: Sequence[str], default: str = "") -> str:
        node = self._scalar(key)
        if node is None:
            return default or words[0]
        if node.text not in words:
            synonym = _SYNONYMS.get(node.text.lower())
            instead = f"write {synonym}" if synonym in words else suggestion(node.text, words, none="")
            self.problem(node.place, f"{self.called}: {key} {node.text!r} is not known", instead)
            return default or words[0]
        return node.text

    def flag(self, key: str, default: bool) -> bool:
        node = self.node(key)
        if node is None:
            return default
        if node.kind != "flag":
            self._wrong_type(key, node, "true or false")
            return default
        return node.is_true

    def count(self, key: str) -> int | None:
        node = self.node(key)
        if node is None:
            return None
        if node.kind != "number" or not re.fullmatch(r"[1-9][0-9_]{0,17}", node.text):
            self._wrong_type(key, node, "a whole number above 0")
            return None
        return int(node.text)

    def duration_ms(self, key: str) -> int:
        node = self._scalar(key, also_numbers=True)
        if node is None:
            return 0
        try:
            return parse_duration_ms(node.text)
        except ValueError as error:
            unit = (
                f"write a unit, such as {node.text}s or {node.text}m"
                if node.text.isdecimal()
                else "write 10s, 5m, 1h30m or 2d"
            )
            self.problem(node.place, f"{self.called}: {key}: {error}", unit)
            return 0

    def words(self, key: str) -> tuple[Node, ...]:
        """Return one text or a list of texts. Add a problem for a text that occurs twice."""
        node = self.node(key)
        if node is None:
            return ()
        items = node.items if node.kind == "list" else (node,)
        found: dict[str, Node] = {}
        for item in items:
            if item.kind != "text" or not item.text.strip():
                self._wrong_type(key, item, "a name or a list of names")
            elif item.text in found:
                self.problem(item.place, f"{self.called}: {item.text!r} is in {key!r} twice", "remove one")
            else:
                found[item.text] = item
        if node.kind == "list" and not items:
            self.problem(node.place, f"{self.called}: {key!r} is empty", "add a name, or remove the key")
        return tuple(found.values())

    def columns(self, key: str) -> tuple[str, ...]:
        return tuple(node.text for node in self.words(key))

    def properties(self, key: str) -> dict[str, str]:
        """Return a mapping of names to plain values, as text."""
        node = self.node(key)
        if node is None:
            return {}
        if node.kind != "mapping":
            self._wrong_type(key, node, "a mapping, one 'name: value' per line")
            return {}
        found = {}
        for name, value in node.entries:
            if value.kind in ("list", "mapping", "nothing"):
                self.problem(value.place, f"{self.called}: {name.text!r} is {value.kind_name}", "write one plain value")
            else:
                found[name.text] = value.text
        return found

    def items(self, key: str) -> tuple[Node, ...]:
        """Return one value or a list of them; empty without the key."""
        node = self.node(key)
        if node is None or node.kind == "nothing":
            return ()
        return node.items if node.kind == "list" else (node,)

    def named(self, key: str) -> Iterator[tuple[Node, Node]]:
        """Yield the entries of a mapping of names to mappings. Add a problem for each name that is not valid."""
        node = self.node(key)
        if node is None:
            return
        if node.kind != "mapping":
            self._wrong_type(key, node, "a mapping of names, one 'name:' per line, without dashes")
            return
        if not node.entries:
            self.problem(node.place, f"{self.called}: {key!r} is empty", "declare at least one")
        for name, value in node.entries:
            check_name(name, f"{key[:-1]} {name.text!r}", self._problems)
            yield name, value

    def refuse(self, key: str, what: str, instead: str) -> None:
        """Add a problem if the mapping has this key."""
        if key in self._values:
            self.problem(self.place_of(key), f"{self.called}: {what}", instead)

    def _scalar(self, key: str, *, also_numbers: bool = False) -> Node | None:
        node = self.node(key)
        if node is None:
            return None
        if node.kind == "text" and node.text.strip():
            return node
        if node.kind == "number" and also_numbers:
            return node
        wanted = self._section.keys[key].value.replace("`", "")
        self._wrong_type(key, node, "text" if wanted == "text" else f"text: {wanted}")
        return None

    def _wrong_type(self, key: str, node: Node, wanted: str) -> None:
        what = "empty" if node.kind == "nothing" or (node.kind == "text" and not node.text.strip()) else node.kind_name
        if node.kind in ("text", "number") and node.text.strip():
            what = repr(node.text)
        advice = f"write {wanted}"
        if node.kind in ("number", "flag") and wanted.startswith(("text", "a name")):
            advice = f'put it in quotes: "{node.text}"'
        self.problem(node.place, f"{self.called}: {key!r} is {what}", advice)

    def _unknown(self, key: Node) -> str | None:
        close = nearest(key.text, self._section.keys)
        instead = f"write {close}" if close else f"known are {', '.join(self._section.keys)}"
        self.problem(key.place, f"{self.called}: unknown key {key.text!r}", instead)
        return close


def _article(words: str) -> str:
    return words if words.startswith(("a ", "one ", "HOST")) or "," in words or " or " in words else f"a {words}"


def check_name(node: Node, called: str, problems: Problems) -> None:
    """Add a problem if a node is not a name. Names become names of views in SQL and of directories."""
    if node.kind != "text" or not NAME.fullmatch(node.text):
        plain = re.sub(r"\W+", "_", node.text).strip("_").lower()
        advice = f"write {plain}" if NAME.fullmatch(plain) else "begin with a letter, then letters, digits and _"
        problems.add(node.place, f"{called}: {node.text!r} is not a name", advice)


def as_mapping(node: Node) -> Mapping[str, Node]:
    return {key.text: value for key, value in node.entries}
