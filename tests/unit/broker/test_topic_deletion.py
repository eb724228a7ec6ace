"""Concurrent DeleteTopics requests, which all record their deletion and remove the same outdated ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.unit.broker.cluster_fixtures import UNUSED, make_metadata
from tests.unit.broker.request_fixtures import request_context

from ottla.broker.cluster.topic_apis import TopicApis
from ottla.broker.metadata.decide import load_view
from ottla.broker.metadata.embedded import EmbeddedStore
from ottla.broker.metadata.nodes import deleted_topic_path, ops_create_skeleton, to_json
from ottla.broker.metadata.store import Create
from ottla.broker.metadata.topic_plans import NewTopic, ops_create_topic, plan_create_topic
from ottla.broker.metadata.view import ClusterView
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

NOW_MS = 1_000_000


def delete_at_once(path: Path, *names: str) -> tuple[list[int], ClusterView]:
    """Create the topics and five outdated deletions, then delete all ``names`` at the same time: codes, final view."""

    async def run() -> tuple[list[int], ClusterView]:
        store, view = EmbeddedStore.open(path / "metadata.db"), ClusterView()
        await store.multi(ops_create_skeleton(()))
        for number, name in enumerate(sorted(set(names))):
            wanted = NewTopic(name=name, partition_count=1, replication_factor=1, assignments={}, config={})
            topic = plan_create_topic(
                view, [0], wanted, topic_id=bytes([number]) * 16, default_partitions=1, default_replication_factor=1
            )
            await store.multi(ops_create_topic(await load_view(store), topic))
            await store.multi([Create(deleted_topic_path(f"old-{name}"), to_json({"deleted_ms": 1}))])
        await store.watch("/", lambda changes: void(view.apply(changes)))
        metadata = make_metadata(view, store=store, properties={"delete.topic.enable": "true"})
        clock: Any = SimpleNamespace(wall_ms=lambda: NOW_MS)
        topics = TopicApis(metadata=metadata, replicas=UNUSED, clock=clock, log_moves=UNUSED, tasks=UNUSED)
        context: Any = request_context(6)
        answers = await asyncio.gather(
            *(
                topics.delete_topics(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)]), context)
                for name in names
            )
        )
        await store.close()
        return [answer.responses[0].error_code for answer in answers], view

    return asyncio.run(run())


def void(_: object) -> None:
    """Drop the result: a watcher returns none."""


def test_topics_deleted_at_the_same_time_are_all_deleted(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(20)]
    codes, view = delete_at_once(tmp_path, *names)
    assert codes == [0] * 20
    assert not view.topics
    assert view.deletions == dict.fromkeys(names, NOW_MS)


def test_topic_deleted_twice_at_the_same_time_is_unknown_to_the_second_request(tmp_path: Path) -> None:
    codes, view = delete_at_once(tmp_path, "orders", "orders")
    assert codes == [0, 3]
    assert view.deletions == {"orders": NOW_MS}
