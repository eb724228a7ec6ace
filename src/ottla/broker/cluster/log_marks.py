"""Writes marks of logs into the states of topics: which logs may lack records, and which are offline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.multis import names_by_multi
from ottla.broker.metadata.store import Op
from ottla.broker.metadata.unclean_marks import ops_mark_unclean
from ottla.broker.metadata.view import ClusterView, TopicView

#: topics whose states are written in one multi
TOPICS_PER_MULTI = 100

#: returns a topic with the marks of some of its logs, None if nothing changes
Mark = Callable[[TopicView], TopicView | None]


async def write_marks(
    metadata: ClusterMetadata, view: ClusterView, names: Sequence[str], mark: Mark, *, watched: bool
) -> None:
    """Write what ``mark`` makes of these topics, some of them in each multi. Raise KafkaError, StoreError.

    The first decision is made from ``view``, as in ``ClusterMetadata.write``.
    """
    for batch in names_by_multi(view, names, TOPICS_PER_MULTI):

        def decide(view: ClusterView, batch: Sequence[str] = batch) -> tuple[Sequence[Op], None]:
            marked = [mark(view.topics[name]) for name in batch if name in view.topics]
            return ops_mark_unclean(view, [topic for topic in marked if topic is not None], metadata.broker_id), None

        await metadata.write(decide, view=view, watched=watched)
