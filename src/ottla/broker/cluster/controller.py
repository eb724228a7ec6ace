"""The controller: one broker at a time, elected by the ephemeral node /controller, makes the automatic decisions.

Every broker runs this task. While there is no controller it tries to become it: one multi creates /controller and
raises /controller_epoch. The controller looks at the topics that have changed, and writes what `leadership.py` decides
about them. When brokers or their settings have changed, and every ten seconds, it looks at all topics: with thousands
of them that takes too long to do it for each topic that is created. It keeps no state of its own besides the time since
when a partition is below ``min.insync.replicas``, so that a new controller continues where the last one stopped. All
its multis check the controller epoch: those of a former controller change nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from ottla.broker.metadata.decide import decide_and_write
from ottla.broker.metadata.leadership import (
    IMBALANCE_PERCENTAGE,
    BelowMin,
    MinIsr,
    WantedMinIsr,
    balance_leaders,
    elect,
    ops_elect,
    set_min_isr,
    topics_of,
)
from ottla.broker.metadata.multis import TOPICS_PER_MULTI, in_one_multi
from ottla.broker.metadata.nodes import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    broker_path,
    controller_epoch_json,
    controller_json,
    registered_path,
)
from ottla.broker.metadata.reassignment import ops_reassign, progress_all
from ottla.broker.metadata.store import Check, Conflict, Create, Delete, MetadataStore, Op, Put, StoreError
from ottla.broker.metadata.view import NO_LEADER, ClusterView, ControllerView, TopicView
from ottla.env.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError, Refused

log = logging.getLogger(__name__)

#: each of these has an assignment, too
_TOPICS_PER_REASSIGNMENT = 50
#: how often the controller makes the decisions that depend on time
_TICK_S = 1.0
#: how often it looks at all topics although nothing has changed, which takes microseconds per partition
_LOOK_S = 10.0
_RETRY_S = 0.2


class Changes(NamedTuple):
    """How much a decision changes."""

    topics: int = 0
    #: partitions with a new leader
    elections: int = 0
    #: those whose new leader was neither in the ISR nor in the ELR, so that it may lack committed records
    unclean_elections: int = 0


def count_changes(view: ClusterView, topics: Sequence[TopicView]) -> Changes:
    """Return how much changes if the topics of the view become these."""
    elections = unclean = 0
    for topic in topics:
        for old, new in zip(view.topics[topic.name].partitions, topic.partitions, strict=False):
            if new.leader not in (old.leader, NO_LEADER):
                elections += 1
                unclean += new.leader not in old.isr and new.leader not in old.elr
    return Changes(len(topics), elections, unclean)


class Controller:
    """The task of one broker that becomes and is the controller."""

    def __init__(
        self,
        store: MetadataStore,
        broker_id: int,
        *,
        view: Callable[[], ClusterView],
        may_lead: Callable[[], bool],
        min_isr: MinIsr,
        wanted_min_isr: WantedMinIsr,
        unclean_allowed: Callable[[TopicView], bool],
        clock: Clock,
        balance_s: float = math.inf,
        imbalance_percentage: float = IMBALANCE_PERCENTAGE,
    ) -> None:
        """``may_lead``: whether this broker is registered and its lease is valid.

        ``wanted_min_isr`` is the min.insync.replicas that the states of partitions must have, ``min_isr`` the one that
        counts until they have it.

        ``balance_s`` is how often leaders move back to the first replicas if more than ``imbalance_percentage`` of
        those of a broker are led elsewhere; infinity for never.
        """
        self._store = store
        self._id = broker_id
        self._view = view
        self._may_lead = may_lead
        self._min_isr = min_isr
        self._wanted_min_isr = wanted_min_isr
        self._unclean_allowed = unclean_allowed
        self._clock = clock
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._below_min = BelowMin()
        #: topics that have changed since it was decided about them, in this order; None for all topics
        self._undecided: dict[str, None] | None = None
        self._is_deciding = False
        self._look_due = 0.0
        self._balance_s = balance_s
        self._balance_due = clock.monotonic() + balance_s
        self._imbalance_percentage = imbalance_percentage
        #: called when this broker has become the controller
        self.on_elected: Callable[[], None] = lambda: None
        #: the epoch in which this broker is the controller; -1 if it is not
        self.epoch = -1
        # Counters
        self.elections = 0
        self.unclean_elections = 0

    @property
    def is_active(self) -> bool:
        return self.epoch >= 0 and self._view().controller == ControllerView(self._id, self.epoch)

    def wake(self, topics: Iterable[str] | None = None) -> None:
        """These topics of the view have changed; None if brokers or settings have, which concern all topics."""
        if topics is None:
            self._undecided = None
        elif self._undecided is not None:
            self._undecided.update(dict.fromkeys(topics))
        self._wake.set()

    async def run(self) -> None:
        """Become the controller when there is none, and decide while this broker is it."""
        self._undecided = None  # also after a bug has ended this task in the middle of a decision
        while True:
            self._wake.clear()
            try:
                await self._step()
            except (KafkaError, StoreError) as error:
                log.warning("a decision of the controller must wait error=%s", error)
                self._undecided = None
                await asyncio.sleep(_RETRY_S)
            await self._changed()

    async def _changed(self) -> None:
        try:
            async with asyncio.timeout(_TICK_S):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _step(self) -> None:
        view = self._view()
        if not self._may_lead():
            return
        if view.controller is None:
            await self._stand(view)
        elif self.is_active:
            if self._must_decide():
                await self._decide()
        elif view.controller.broker_id == self._id and view.controller.epoch > self.epoch:
            # The answer of the multi was lost, or an earlier run of this broker was the controller: no other broker is
            # it while the node exists.
            self._become(view.controller.epoch)
        else:
            self.epoch = -1

    async def _stand(self, view: ClusterView) -> None:
        """Try to become the controller."""
        version = view.versions.get(CONTROLLER_EPOCH, 0)
        ops: list[Op] = [
            Create(CONTROLLER, controller_json(self._id, self._clock.wall_ms()), ephemeral=True),
            Put(CONTROLLER_EPOCH, controller_epoch_json(self._id), version),
        ]
        try:
            written = await self._store.multi(ops)
        except Conflict:
            return  # another broker was faster
        self._become(written.versions[1] or 0)

    def _become(self, epoch: int) -> None:
        self.epoch = epoch
        self._below_min = BelowMin()
        log.info("this broker is the controller epoch=%d", epoch)
        self.on_elected()
        self.wake()

    def _must_decide(self) -> bool:
        """Return whether the view has changed, or a decision may be due by time."""
        return self._undecided is None or bool(self._undecided) or bool(self._below_min) or self._must_look_at_all()

    def _must_look_at_all(self) -> bool:
        return self._clock.monotonic() >= min(self._balance_due, self._look_due)

    async def _decide(self) -> None:
        """Write all changes that the current view asks for, some topics at a time."""
        if self._must_look_at_all():
            self._undecided = None
        topics, self._undecided = self._undecided, {}
        if topics is None:
            self._look_due = self._clock.monotonic() + _LOOK_S
        else:
            topics.update(dict.fromkeys(self._below_min.topics()))
        decide = partial(self._next_changes, topics)
        self._is_deciding = True
        try:
            while True:
                changes = await decide_and_write(self._store, self._view(), decide, turn=self._turn, repeated=True)
                self.elections += changes.elections
                self.unclean_elections += changes.unclean_elections
                if not changes.topics:
                    break
        finally:
            self._is_deciding = False
        if self._clock.monotonic() >= self._balance_due:
            self._balance_due = self._clock.monotonic() + self._balance_s

    def _next_changes(self, names: Collection[str] | None, view: ClusterView) -> tuple[Sequence[Op], Changes]:
        """Return the next changes of these topics, or of all. The order of the steps matters."""
        if view.controller != ControllerView(self._id, self.epoch):
            raise Refused(ErrorCode.NOT_CONTROLLER, "another broker is the controller")
        resized = (set_min_isr(view, topic, self._wanted_min_isr) for topic in topics_of(view, names))
        if topics := in_one_multi([*islice((topic for topic in resized if topic is not None), TOPICS_PER_MULTI)]):
            return ops_elect(view, topics, self.epoch), count_changes(view, topics)
        now = self._clock.monotonic()
        topics = in_one_multi(
            elect(
                view, names, min_isr=self._min_isr, now=now, below_min=self._below_min,
                unclean_allowed=self._unclean_allowed, limit=TOPICS_PER_MULTI,
            )
        )  # fmt: skip
        if topics:
            return ops_elect(view, topics, self.epoch), count_changes(view, topics)
        moved = in_one_multi(progress_all(view, names, min_isr=self._min_isr), _TOPICS_PER_REASSIGNMENT)
        if moved:
            return ops_reassign(view, moved, self.epoch), count_changes(view, moved)
        if names is None and now >= self._balance_due:
            balanced = in_one_multi(balance_leaders(view, percentage=self._imbalance_percentage))
            if balanced:
                return ops_elect(view, balanced, self.epoch), count_changes(view, balanced)
        return [], Changes()

    def overlooked(self) -> list[TopicView]:
        """Return what a look at all topics would change, although there is nothing left to decide.

        Only the simulator calls this. It also finds changes that are written but not in the view of this broker yet.
        """
        if not self.is_active or self._is_deciding or self._undecided is None or self._undecided:
            return []
        view = self._view()
        resized = [set_min_isr(view, topic, self._wanted_min_isr) for topic in view.topics.values()]
        return [
            *(topic for topic in resized if topic is not None),
            *elect(view, min_isr=self._min_isr, unclean_allowed=self._unclean_allowed),
            *progress_all(view, min_isr=self._min_isr),
        ]

    async def declare_dead(self, broker_id: int, run_version: int) -> None:
        """Delete the registration of a broker whose process has ended, unless a new run of it has begun.

        The controller does this for the others, and every broker does it for the controller, which is then replaced.
        """
        view = self._view()
        controller = view.controller
        if not self._may_lead() or controller is None or (controller.broker_id != broker_id and not self.is_active):
            return
        ops: list[Op] = [
            Check(CONTROLLER_EPOCH, controller.epoch),
            Check(registered_path(broker_id), run_version),
            *([Delete(CONTROLLER)] if controller.broker_id == broker_id else []),
            *([Delete(broker_path(broker_id))] if broker_id in view.brokers else []),
        ]
        try:
            await self._store.multi(ops)
        except Conflict:
            return
        log.warning("broker %d does not run any more; its registration was deleted", broker_id)

    async def resign(self) -> None:
        """Delete /controller, so that another broker is elected at once. The broker stops."""
        if self.is_active:
            try:
                await self._store.multi([Check(CONTROLLER_EPOCH, self.epoch), Delete(CONTROLLER)])
            except StoreError as error:
                log.warning("the controller could not resign error=%s", error)
