"""kafka-streams-application-reset: what it refuses; the campaign kafka-commands compares its output with Java's."""

from __future__ import annotations

from typing import Any

import pytest
from kafka_admin import FakeAdmin, connected

from ottla.cli.kafka import streams_reset
from ottla.cli.kafka.tool import main

_WORDS = ["--application-id", "app", "--bootstrap-server", "127.0.0.1:9092"]


class Cluster(FakeAdmin):
    """A cluster with topics of an application, and a group."""

    def __init__(self, members: tuple[Any, ...] = ()) -> None:
        super().__init__()
        self._members = members
        self.deleted: list[str] = []
        self.removed: list[Any] = []

    def describe_groups(self, names: list[str]) -> list[Any]:
        return [type("Group", (), {"members": self._members})]

    def remove_members(self, group: str, members: Any) -> dict[str, Any]:
        self.removed = list(members)
        return {}

    def topics(self) -> dict[str, Any]:
        return dict.fromkeys(
            ("app-counts-changelog", "app-by-key-repartition", "app-output", "input", "apple-changelog")
        )

    def delete_topics(self, names: list[str]) -> list[Any]:
        self.deleted = list(names)
        return []


def run(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, *words: str) -> int:
    with connected(monkeypatch, streams_reset, cluster):
        return main(streams_reset.TOOL, [*_WORDS, *words])


def test_only_topics_of_kafka_streams_are_deleted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster()
    assert run(monkeypatch, cluster) == 0
    assert cluster.deleted == ["app-counts-changelog", "app-by-key-repartition"]
    assert capsys.readouterr().out == (
        "No input or intermediate topics specified. Skipping seek.\n"
        "Deleting inferred internal topics [app-counts-changelog, app-by-key-repartition]\nDone.\n"
    )
    assert run(monkeypatch, cluster, "--internal-topics", "app-counts-changelog") == 0
    assert cluster.deleted == ["app-counts-changelog"]


@pytest.mark.parametrize("topic", ["input", "app-output", "apple-changelog", "nothing"])
def test_other_topics_are_never_deleted(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    cluster = Cluster()
    assert run(monkeypatch, cluster, "--internal-topics", topic) == 1
    assert cluster.deleted == []


def test_a_dry_run_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    assert run(monkeypatch, cluster, "--dry-run") == 0
    assert cluster.deleted == []


def test_members_stop_the_reset_unless_it_is_forced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster((type("Member", (), {"member_id": "m-1"}),))
    assert run(monkeypatch, cluster) == 1
    assert (cluster.deleted, cluster.removed) == ([], [])
    assert "has following members: [m-1]" in capsys.readouterr().err
    assert run(monkeypatch, cluster, "--force") == 0
    assert len(cluster.removed) == 1


def test_only_one_new_offset_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, Cluster(), "--to-latest", "--to-earliest") == 1
