"""This broker in the metadata store: it registers, stays registered, and knows how old its knowledge may be.

Start of a broker, in this order:

1. ``begin_run`` replaces /brokers/registered/N. From then on no leader can add the broker to an ISR because of what an
   earlier run of it had fetched.
2. The broker marks its logs as unclean where that is needed (`unclean_marks.mark_unclean`).
3. ``write_dirs`` adds the log directories of this run to /brokers/registered/N, and again when a directory fails.
4. ``register`` creates the ephemeral node /brokers/ids/N. Now the broker is alive and may be elected.

A clean stop begins with ``announce_leave``, which marks /brokers/registered/N. From then on no leader can add the
broker to an ISR, although it is alive until ``end`` deletes /brokers/ids/N.

A broker that was paused, or cut off from the store, cannot know whether its session has expired and others have been
elected. The lease bounds this: a read of the store that is answered proves that the session existed when the read was
sent. The event loop itself sends the reads, not a thread, because a thread would also prove the session of a broker
whose event loop does not run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ottla.broker.metadata.broker_nodes import RegisteredDirs, broker_of, registered_dirs_of
from ottla.broker.metadata.decide import established, read_and_write
from ottla.broker.metadata.nodes import (
    MALFORMED,
    broker_path,
    incarnation_of,
    is_leaving,
    is_unregistered,
    leaving_json,
    registered_json,
    registered_path,
)
from ottla.broker.metadata.store import (
    Check,
    Conflict,
    Create,
    Delete,
    MetadataStore,
    Node,
    NotConnected,
    Op,
    OutcomeUnknown,
    Put,
    Session,
    SessionState,
    StoreError,
)
from ottla.env.clock import Clock
from ottla.env.metrics import Histogram
from ottla.model.errors import StartError
from ottla.model.types import Endpoint

log = logging.getLogger(__name__)

#: heartbeats per session timeout
_HEARTBEATS = 12
#: the part of the session timeout after which the lease is over: the rest is for clocks and delays
_LEASE_PART = 2 / 3


class Lease:
    """How long this broker may assume that no other was elected in its place. Without a session that is for ever."""

    def __init__(self, session_s: float | None) -> None:
        self._length_s = session_s * _LEASE_PART if session_s is not None else None
        #: ``Clock.since_boot`` after which the broker has to assume that its session has expired
        self.until = float("inf") if session_s is None else float("-inf")

    def confirm(self, sent_at: float) -> None:
        """The store answered a read that was sent at this time, in the session in which the broker is registered."""
        if self._length_s is not None:
            self.until = max(self.until, sent_at + self._length_s)

    def end(self) -> None:
        """The session has expired, or the registration was deleted."""
        if self._length_s is not None:
            self.until = float("-inf")


class Registration:
    """The registration of one broker."""

    def __init__(
        self,
        store: MetadataStore,
        broker_id: int,
        *,
        incarnation: bytes,
        session_s: float | None,
        clock: Clock,
        value: Callable[[], bytes],
        endpoints: Callable[[], tuple[Endpoint, ...]],
        rack: str | None = None,
    ) -> None:
        """``value``, ``endpoints`` and ``rack`` are what the broker publishes; ``session_s`` is None if it is alone."""
        self._store = store
        self._id = broker_id
        self._incarnation = incarnation
        self._session_s = session_s
        self._monotonic = clock.since_boot  # a session does not wait for a machine that is suspended
        self._value = value
        self._endpoints = endpoints
        self._rack = rack
        self._run_version = -1
        #: held by each writer that depends on ``_run_version`` or changes it
        self._writing = asyncio.Lock()
        #: set when a broker that is alone has to look whether it is still registered
        self._expired = asyncio.Event()
        self.lease = Lease(session_s)
        #: the ``change`` of the multi that registered this broker; -1 while it is not registered
        self.epoch = -1
        #: from the moment at which a heartbeat was sent to its answer
        self.heartbeat_seconds = Histogram()
        #: called when the broker is registered, and when it is no longer
        self.on_change: Callable[[], None] = lambda: None

    async def begin_run(self, last: RegisteredDirs | None) -> None:
        """Replace /brokers/registered/N. It keeps the log directories of the ``last`` run.

        Raise StartError if a broker with the same id runs elsewhere, or was started since ``last`` was read.
        """
        await self._wait_for_earlier_process()

        def decide(node: Node | None) -> tuple[list[Op], int]:
            value = self._registered_json(last)
            if node is None:
                return [Create(registered_path(self._id), value)], 0
            if _incarnation_of(node) == self._incarnation:  # applied, but the answer was lost
                return [], node.version
            if dirs_of_last_run(node) != last:
                raise self._started_twice()
            return [Put(registered_path(self._id), value, node.version)], node.version + 1

        self._run_version = await read_and_write(self._store, self._read_registered, decide)

    async def write_dirs(self, dirs: RegisteredDirs) -> None:
        """Write the log directories that this run uses. Raise StartError if a later run has begun."""

        def decide(node: Node | None) -> tuple[list[Op], int]:
            if node is None or not self._is_own(node):
                raise self._started_twice()
            if dirs_of_last_run(node) == dirs:
                return [], node.version
            value = self._registered_json(dirs)
            if is_leaving(node.value):
                value = leaving_json(value)
            return [Put(registered_path(self._id), value, node.version)], node.version + 1

        async with self._writing:
            self._run_version = await read_and_write(self._store, self._read_registered, decide)

    async def _read_registered(self) -> Node | None:
        return await self._store.get(registered_path(self._id))

    def _registered_json(self, dirs: RegisteredDirs | None) -> bytes:
        run, last_runs, unusable, paths = dirs if dirs is not None else (None, None, (), None)
        return registered_json(
            self._incarnation, self._endpoints(), self._rack, log_dirs_run=run, log_dirs=last_runs,
            log_dirs_unusable=unusable, log_dirs_paths=paths,
        )  # fmt: skip

    def _started_twice(self) -> StartError:
        return StartError(f"another broker with id {self._id} was started; two brokers cannot have the same id")

    async def _wait_for_earlier_process(self) -> None:
        """Wait until the node of an earlier process is deleted. This broker deletes it if it has the same address.

        Only one process can listen on an address, so the earlier one has ended.
        """
        path = broker_path(self._id)
        patience_s = 2 * self._session_s if self._session_s is not None else 0.0
        deadline = self._monotonic() + patience_s
        while (node := await self._store.get(path)) is not None:
            try:
                theirs = broker_of(self._id, node).endpoints
            except MALFORMED:
                theirs = self._endpoints()
            if set(theirs) & set(self._endpoints()):
                await self._delete_node(node)
                continue
            if self._monotonic() >= deadline:
                raise StartError(
                    f"a broker with id {self._id} is already registered at {theirs[0]}; stop it or choose another --id"
                )
            log.warning("waiting until the session of an earlier process ends id=%d address=%s", self._id, theirs[0])
            await asyncio.sleep(min(0.5, patience_s / 10))

    async def _delete_node(self, node: Node) -> None:
        try:
            await self._store.multi([Delete(broker_path(self._id), node.version)])
        except Conflict:
            await asyncio.sleep(0.05)

    async def register(self) -> None:
        """Create /brokers/ids/N, unless a later run of this broker has begun. Raise StartError in that case."""
        async with self._writing:
            await self._register()

    async def _register(self) -> None:
        path = broker_path(self._id)
        while True:
            sent_at = self._monotonic()
            ops: list[Op] = [
                Check(registered_path(self._id), self._run_version),
                Create(path, self._value(), ephemeral=True),
            ]
            try:
                written = await self._store.multi(ops)
            except Conflict as conflict:
                node = await self._store.get(registered_path(self._id))
                if node is None or not self._is_own(node):
                    raise self._started_twice() from conflict
                self._run_version = node.version
                stale = await self._store.get(path)
                if stale is not None and incarnation_of(stale.value) == self._incarnation:
                    # Created by this process: in an earlier session, or the answer was lost.
                    await self._delete_node(stale)
                else:
                    await self._wait_for_earlier_process()
                continue
            except (OutcomeUnknown, NotConnected):
                await established(self._store)
                continue
            self.epoch = written.change
            self.lease.confirm(sent_at)
            log.info("registered id=%d epoch=%d", self._id, self.epoch)
            self.on_change()
            return

    # -- staying registered -----------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Renew the lease for ever, and register again after the session has expired or the node was deleted."""
        stop = self._store.on_session(self._session_changed)
        try:
            while True:
                if self._session_s is not None:
                    await asyncio.sleep(self._session_s / _HEARTBEATS)
                else:
                    await self._expired.wait()
                    await established(self._store)
                    self._expired.clear()
                try:
                    await self._heartbeat()
                except (NotConnected, OutcomeUnknown):
                    self._expired.set()  # the store connects again by itself
                except StoreError as error:
                    log.error("the metadata store failed error=%s", error)
        finally:
            stop()

    async def _heartbeat(self) -> None:
        sent_at = self._monotonic()
        node = await self._store.get(broker_path(self._id))
        self.heartbeat_seconds.observe(self._monotonic() - sent_at)
        if node is not None and node.created == self.epoch:
            self.lease.confirm(sent_at)
            return
        self._lost("its node was deleted" if node is None else "its node was replaced")
        await self.register()

    def _session_changed(self, session: Session) -> None:
        if session.state is SessionState.EXPIRED:
            self._expired.set()
            self._lost("the session has expired")

    def _lost(self, reason: str) -> None:
        if self.epoch >= 0:
            log.warning("no longer registered id=%d reason=%s", self._id, reason)
        self.epoch = -1
        self.lease.end()
        self.on_change()

    async def announce_leave(self) -> None:
        """Mark this run as one that stops, unless a later run has begun. Raise KafkaError or StoreError if that fails.

        The mark changes the version that each addition to an ISR checks, so that an addition that was decided before
        conflicts.
        """

        def decide(node: Node | None) -> tuple[list[Op], int]:
            if node is None or _incarnation_of(node) != self._incarnation:
                return [], self._run_version
            if is_leaving(node.value):
                return [], node.version
            return [Put(registered_path(self._id), leaving_json(node.value), node.version)], node.version + 1

        self._run_version = await read_and_write(self._store, self._read_registered, decide, repeatable=True)

    def _is_own(self, node: Node) -> bool:
        """Return whether this run has written the node, and no administrator has unregistered the broker since.

        The version may be higher than the one that this broker knows, because the answer of its last write may be lost.
        """
        is_same_run = _incarnation_of(node) == self._incarnation and node.version >= self._run_version
        return is_same_run and not is_unregistered(node.value)

    async def end(self) -> None:
        """Delete the node, so that others need not wait for the end of the session. The broker stops."""
        if self.epoch < 0:
            return
        try:
            await self._store.multi(
                [Check(registered_path(self._id), self._run_version), Delete(broker_path(self._id))]
            )
        except Conflict:
            pass  # the controller was faster: it has seen that this broker no longer listens
        except StoreError as error:
            log.warning("the registration could not be deleted error=%s", error)


def _incarnation_of(node: Node) -> bytes:
    try:
        return incarnation_of(node.value)
    except MALFORMED:
        return b""


def dirs_of_last_run(node: Node) -> RegisteredDirs:
    """Return the log directories in /brokers/registered/N. No directory is recognised if the node is malformed."""
    try:
        return registered_dirs_of(node.value)
    except MALFORMED:
        return RegisteredDirs("", {})
