"""The copy of ZooKeeper's tree is changed only when the values of all changed nodes are known."""

from __future__ import annotations

import pytest

from ottla.broker.metadata.store import ROOT, Changed, Node
from ottla.broker.metadata.zookeeper.tree_copy import TreeCopy

A, B = Node(b"a", 0, 1), Node(b"b", 0, 2)


@pytest.fixture
def tree() -> TreeCopy:
    """A tree with the nodes /a and /b, which was read once."""
    tree = TreeCopy()
    read(tree, {"/a": A, "/b": B})
    assert tree.apply_values() == [Changed("/a", A), Changed("/b", B)]
    return tree


def read(tree: TreeCopy, nodes: dict[str, Node]) -> None:
    """Read the tree of a new connection to its end."""
    tree.begin_reload()
    (paths,) = tree.begin_reads(10)
    tree.finish_read(paths)
    tree.set_found(ROOT, None, list(nodes), 9)
    for paths in tree.begin_reads(10):
        tree.finish_read(paths)
        for path in paths:
            tree.set_found(path, nodes[path], (), 9)


def test_nothing_is_applied_while_a_node_is_stale(tree: TreeCopy) -> None:
    tree.note_event("/a", 10)
    tree.note_event("/b", 11)
    tree.set_value("/b", None, 11)
    assert tree.apply_values() is None
    assert tree.nodes == {"/a": A, "/b": B}
    tree.set_value("/a", Node(b"new", 1, 1), 11)
    assert tree.apply_values() == [Changed("/a", Node(b"new", 1, 1)), Changed("/b", None)]
    assert tree.nodes == {"/a": Node(b"new", 1, 1)}


def test_value_that_is_older_than_the_last_event_does_not_count(tree: TreeCopy) -> None:
    tree.note_event("/a", 12)
    tree.set_value("/a", Node(b"old", 1, 1), 11)
    assert tree.apply_values() is None


def test_stale_node_is_read_once_and_not_while_an_own_multi_writes_it(tree: TreeCopy) -> None:
    tree.note_event("/a", 10)
    tree.note_event("/b", 10)
    tree.begin_write(["/b"])
    assert list(tree.begin_reads(10)) == [["/a"]]
    assert list(tree.begin_reads(10)) == []
    tree.finish_write(["/b"])
    assert list(tree.begin_reads(10)) == [["/b"]]


def test_reads_have_at_most_as_many_nodes_as_allowed(tree: TreeCopy) -> None:
    for number in range(5):
        tree.note_event(f"/{number}", 10)
    assert list(tree.begin_reads(2)) == [["/0", "/1"], ["/2", "/3"], ["/4"]]


def test_nodes_that_a_new_connection_does_not_find_are_deleted(tree: TreeCopy) -> None:
    tree.note_event("/a", 10)
    tree.forget_changes()
    read(tree, {"/b": B})
    assert tree.apply_values() == [Changed("/a", None)]
    assert tree.below(ROOT) == {"/b": B} and tree.children(ROOT) == ("b",)


def test_nothing_has_changed_if_the_values_are_the_same(tree: TreeCopy) -> None:
    tree.note_event("/a", 10)
    tree.set_value("/a", A, 10)
    assert tree.apply_values() == []
