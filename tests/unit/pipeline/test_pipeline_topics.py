"""Topics that flows write: how they are made, what deletes a key, and what would not work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from small_pipeline import HEAD, NEXT_LINE

from ottla.pipeline.declaration import Declaration, TopicSink

Problems = Callable[[str], list[str]]


def sink(declaration: Declaration, flow: str) -> TopicSink:
    (found,) = declaration.flows[flow].sinks
    assert isinstance(found, TopicSink)
    return found


def test_topic_is_made_as_the_sink_says(read: Callable[..., Declaration]) -> None:
    text = "  t: {zone: trusted, from: staged, to: {topic: t, key: order_id, partitions: 6, config: {cleanup.policy: "
    made = sink(read(HEAD + text + "'compact,delete', retention.ms: 1000}}}\n"), "t")
    assert made.partitions == 6
    assert made.config == {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
    assert made.compacted


def test_topic_is_as_the_brokers_have_it_without_a_word(read: Callable[..., Declaration]) -> None:
    made = sink(read(HEAD + "  t: {zone: trusted, from: staged, to: {topic: t}}\n"), "t")
    assert (made.partitions, made.config, made.compacted, made.tombstone_when) == (None, {}, False, None)


@pytest.mark.parametrize(
    ("to", "what", "instead"),
    [
        ("topic: x, config: {cleanup.policy: compact}", "writes a compacted topic without a key", "add key: COLUMN"),
        ("topic: x, tombstone_when: amount = 0", "tombstones without a key, which delete nothing", "add key: COLUMN"),
        (
            "topic: x, key: order_id, tombstone_when: amout = 0",
            "asks for 'amout', which is not a column",
            "write amount",
        ),
        ("topic: x, key: order_id, tombstone_when: (amount", "tombstone_when does not parse", "close it with"),
        ("topic: x, partitions: none", "'partitions' is 'none'", "write a whole number above 0"),
        ("topic: x, config: compact", "'config' is 'compact'", "write a mapping"),
        ("table: x, partitions: 3", "unknown key 'partitions'", "write partition_by"),
    ],
)
def test_sink_that_would_not_work_is_refused_where_it_stands(
    with_flows: Problems, to: str, what: str, instead: str
) -> None:
    (problem,) = with_flows(f"t: {{zone: trusted, from: staged, to: {{{to}}}}}\n")
    assert problem.startswith(f"p.yaml:{NEXT_LINE}:") and what in problem and instead in problem


def test_flows_that_write_one_topic_make_the_same_of_it(with_flows: Problems) -> None:
    one = "a: {zone: trusted, from: staged, to: {topic: x, partitions: 3}}\n"
    assert with_flows(one + one.replace("a:", "b:", 1)) == []
    (problem,) = with_flows(one + "b: {zone: trusted, from: staged, to: {topic: x}}\n")
    assert problem.startswith(f"p.yaml:{NEXT_LINE + 1}:") and "other than flow 'a' does" in problem


def test_records_without_a_value_are_rows_where_the_source_keeps_them(read: Callable[..., Declaration]) -> None:
    assert read(HEAD).sources["orders"].null_values == "reject"
    kept = read(HEAD.replace("format: json", "format: json\n    null_values: keep"))
    assert kept.sources["orders"].null_values == "keep"


def test_format_that_has_null_values_anyway_is_not_asked_to_keep_them(problems: Problems) -> None:
    (problem,) = problems(
        "name: p\nstorage: lake\nsources:\n  s: {topic: s, format: string, null_values: keep}\n"
        "flows: {f: {zone: raw, from: s}}\n"
    )
    assert problem.startswith("p.yaml:4:") and "format string keeps values that are null" in problem


class _Cluster:
    """Notes which topics are made."""

    made: dict[str, tuple[int, Mapping[str, str]]]

    def __init__(self, *_: object, **__: object) -> None:
        type(self).made = {}

    def __enter__(self) -> _Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topics(self, names: list[str]) -> dict[str, object]:
        return {name: object() for name in names if name == "there"}

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> bool:
        self.made[name] = (partitions, config)
        return True


def test_missing_topics_are_made_and_others_left_alone(
    read: Callable[..., Declaration], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")
    from ottla.pipeline import run

    flows: Any = """\
  a: {zone: trusted, from: staged, to: {topic: new, key: order_id, partitions: 6, config: {cleanup.policy: compact}}}
  b: {zone: trusted, from: staged, to: [{topic: there, partitions: 9}], late_rows: {topic: late}}
"""
    monkeypatch.setattr(run, "open_cluster", _Cluster)
    run.make_topics(read(HEAD + flows))
    assert _Cluster.made == {"late": (-1, {}), "new": (6, {"cleanup.policy": "compact"})}
