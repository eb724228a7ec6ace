"""A pipeline of several files: included files and files with SQL become part of the document of the top file.

Everything here works on nodes and knows files only by two functions, so that a declaration in Python takes the same
way. Each node keeps the place where it was written. Paths in an included file are relative to that file; afterwards
all paths are relative to the top file.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ottla.pipeline import keys
from ottla.pipeline.document import SIZE_BYTES_MAX, Node, read_document
from ottla.pipeline.fields import Fields
from ottla.pipeline.problems import Place, Problems

#: reads a file by its path relative to the top file; raises OSError
ReadFile = Callable[[str], bytes]
#: returns the files that match a pattern, as paths relative to the top file, in sorted order
FindFiles = Callable[[str], Sequence[str]]

FILES_MAX = 1000
_DECLARED = ("sources", "flows")
_YAML = (".yaml", ".yml")


def find_no_files(pattern: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class ProjectReader:
    """Completes the document of a top file with the other files of its project."""

    file: str
    problems: Problems
    read_file: ReadFile
    find_files: FindFiles = find_no_files

    def complete(self, root: Node) -> Node:
        """Return the document with all included files, and with the content of SQL files under `sql`."""
        if root.kind != "mapping":
            return root
        entries = []
        for key, value in self._with_includes(root).entries:
            if key.text == "flows":
                value = _map_values(value, self._complete_flow)
            elif key.text == "sources":
                value = _map_values(value, self._with_schema_path)
            entries.append((key, value))
        return replace(root, entries=tuple(entries))

    # -- included files -----------------------------------------------------------------------------------------------

    def _with_includes(self, root: Node) -> Node:
        documents = [self._read_included(path, place) for path, place in self._included_paths(root)]
        if not documents:
            return root
        merged = [(key, value) for key, value in root.entries if key.text not in _DECLARED]
        for name in _DECLARED:
            found = [entry for each in (root, *documents) for entry in each.entries if entry[0].text == name]
            if found:
                merged.append((found[0][0], self._merge(name, [value for _, value in found])))
        return replace(root, entries=tuple(merged))

    def _included_paths(self, root: Node) -> Iterator[tuple[str, Place]]:
        """Yield each path that `include` names, once, and the place that names it."""
        found: dict[str, Place] = {}
        for word in _only(root, "include", self.problems).words("include"):
            if not is_inside(word.text):
                what = f"include: {word.text!r} is not in the directory of the project"
                self.problems.add(word.place, what, "name files in that directory, relative to this file")
                continue
            paths = [path for path in self.find_files(word.text) if path != os.path.basename(self.file)]
            if not paths:
                self.problems.add(word.place, f"include: no file matches {word.text!r}", "correct or remove it")
            for path in paths:
                found.setdefault(path, word.place)
        if len(found) > FILES_MAX:
            self.problems.add(root.place, f"include: {len(found)} files match", f"include at most {FILES_MAX}")
            return
        yield from found.items()

    def _read_included(self, path: str, named_at: Place) -> Node:
        name = os.path.join(os.path.dirname(self.file), path)
        nothing = Node("nothing", Place(name))
        if not path.endswith(_YAML):
            advice = "include YAML files; name a file with SQL in 'sql_file' of a flow"
            self.problems.add(named_at, f"include: {path} is not a YAML file", advice)
            return nothing
        try:
            data = self.read_file(path)
        except OSError as error:
            self.problems.add(named_at, f"include: {path} cannot be read: {error.strerror or error}", "correct that")
            return nothing
        root = read_document(data, name, self.problems)
        # Reports a document that is not a mapping, and unknown keys.
        Fields(root, keys.INCLUDED, "an included file", self.problems)
        return root

    def _merge(self, name: str, parts: Sequence[Node]) -> Node:
        """Return one mapping of all names. The same name in two files is a problem; in one file YAML reports it."""
        entries: dict[str, tuple[Node, Node]] = {}
        for part in parts:
            if part.kind != "mapping":
                # The reader reports what stands in place of the mapping.
                return part
            for key, value in part.entries:
                first = entries.setdefault(key.text, (key, value))[0]
                if first is not key:
                    what = f"{name[:-1]} {key.text!r} is declared twice, first in {first.place.seen_from(key.place)}"
                    self.problems.add(key.place, what, "rename one or remove it")
        return replace(parts[0], entries=tuple(entries.values()))

    # -- files that flows and sources name ----------------------------------------------------------------------------

    def _complete_flow(self, flow: Node) -> Node:
        flow = self._with_sql(flow)
        entries = []
        for key, value in flow.entries:
            if key.text == "steps":
                value = _map_items(value, self._with_sql)
            elif key.text == "to":
                value = _map_items(value, self._with_schema_path)
            entries.append((key, value))
        return replace(flow, entries=tuple(entries))

    def _with_sql(self, step: Node) -> Node:
        """Return a flow or step with `sql` in place of `sql_file`."""
        named = next((entry for entry in step.entries if entry[0].text == "sql_file"), None)
        if named is None:
            return step
        others = tuple(entry for entry in step.entries if entry is not named)
        taken = next((key.text for key, _ in others if key.text in ("sql", "python", "steps")), None)
        if taken is not None:
            self.problems.add(named[0].place, f"'sql_file' and {taken!r} exclude each other", "keep one")
            return replace(step, entries=others)
        sql = self._read_sql(named[1])
        return replace(step, entries=(*others, (replace(named[0], text="sql"), sql)))

    def _read_sql(self, node: Node) -> Node:
        # A query that does nothing wrong takes the place of one that cannot be read.
        nothing = Node("text", node.place, text="SELECT *")
        path = self._beside(node) if node.kind == "text" else ""
        if not path.endswith(".sql"):
            self.problems.add(node.place, f"{node.text or node.kind_name!r} is not an SQL file", "name a file x.sql")
            return nothing
        if not is_inside(path):
            what = f"{node.text!r} is not in the directory of the project"
            self.problems.add(node.place, what, "name a file in that directory, relative to this one")
            return nothing
        try:
            data = self.read_file(path)
        except OSError as error:
            what = f"{node.text} cannot be read: {error.strerror or error}"
            self.problems.add(node.place, what, "name a file relative to this one")
            return nothing
        place = Place(os.path.join(os.path.dirname(self.file), path))
        if len(data) > SIZE_BYTES_MAX:
            self.problems.add(place, f"the file has {len(data)} bytes", f"split it: at most {SIZE_BYTES_MAX} are read")
            return nothing
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            self.problems.add(Place(place.file, line), "the file is not UTF-8", "save it as UTF-8")
            return nothing
        if not text.strip():
            self.problems.add(place, "the file is empty", "write SELECT ... FROM an input")
            return nothing
        return Node("text", place, text=text.replace("\r\n", "\n"), is_file=True)

    def _with_schema_path(self, node: Node) -> Node:
        entries = []
        for key, value in node.entries:
            if key.text == "schema_file" and value.kind == "text" and value.text:
                value = replace(value, text=self._beside(value))
            entries.append((key, value))
        return replace(node, entries=tuple(entries))

    def _beside(self, node: Node) -> str:
        """Return the path that a node names, relative to the top file. The node's own file may be in a subdirectory."""
        if os.path.isabs(node.text) or "://" in node.text:
            return node.text
        directory = os.path.relpath(os.path.dirname(node.place.file) or ".", os.path.dirname(self.file) or ".")
        if directory == ".":
            return node.text
        return posixpath.normpath(posixpath.join(directory.replace(os.sep, "/"), node.text))


def is_inside(path: str) -> bool:
    """Return whether a path or pattern stays in the directory that it is relative to.

    >>> [is_inside(path) for path in ("flows/*.yaml", "flows/../a.sql", "../a.sql", "/a.sql", "flows/../../a.sql")]
    [True, True, False, False, False]
    """
    plain = posixpath.normpath(path.replace("\\", "/"))
    return not plain.startswith(("../", "/")) and plain != ".." and not os.path.isabs(path)


def _only(root: Node, key: str, problems: Problems) -> Fields:
    """Return one key of a document, to be read without a look at the others."""
    section = replace(keys.PIPELINE, keys={key: keys.PIPELINE.keys[key]})
    entries = tuple(entry for entry in root.entries if entry[0].text == key)
    return Fields(replace(root, entries=entries), section, "the pipeline", problems)


def _map_values(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return a mapping with its mappings changed; anything else as it is."""
    changed = ((key, change(value) if value.kind == "mapping" else value) for key, value in node.entries)
    return replace(node, entries=tuple(changed))


def _map_items(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return a mapping changed, or a list with its mappings changed."""
    if node.kind == "mapping":
        return change(node)
    return replace(node, items=tuple(change(item) if item.kind == "mapping" else item for item in node.items))
