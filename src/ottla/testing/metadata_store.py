"""A simulated ensemble of ZooKeeper servers in memory, with a MetadataStore for each of its clients.

The ensemble runs on the event loop that it is given and uses its timers only, so a loop with virtual time makes a run
repeatable: the same loop, the same ``random.Random`` and the same calls give the same run.

    ensemble = SimulatedEnsemble(loop, rng)
    store = ensemble.connect("broker-1")     a MetadataStore with an established session
    ensemble.cut("broker-1")                 no message passes in either direction; nobody is informed
    ensemble.heal("broker-1")                messages pass again; the client connects again
    ensemble.break_connection("broker-1")    the connection is closed; the client notices at once and connects again
    ensemble.lose_answer("broker-1", applied=True)    the next multi is applied or not, and its answer is lost
    ensemble.expire("broker-1")              the ensemble ends the session
    ensemble.delay_watches("broker-1", 2.0)  changes arrive this much later at its watchers; requests are not delayed
    ensemble.crash("broker-1")               the client process ends; its session expires later
    ensemble.lag("broker-1", 3.0)            the server of the client applies changes this much later: reads are old
    ensemble.catch_up("broker-1")            ends the lag, and the delay of its watchers
    ensemble.tree()                          the nodes, for checkers

A request takes a random time to the ensemble, is applied there, and its answer takes a random time back. Requests of
one client keep their order, and so do its answers. Watches take a time of their own, so that a client sees the changes
of other clients late, and several of them merged. The tree stays while clients end and connect again.

A server that lags answers reads from an older tree. A multi and a heartbeat go to the leader of the ensemble, and their
answers come when the server has applied what came before them. A process that starts may connect to such a server. A
client that loses its connection connects to another server, because it does not accept one that is behind what the
client has seen.

A client notices a cut only after ``suspend_after_s``: until then its calls wait. The ensemble expires the session of a
client that it has not heard of for ``session_timeout_s``; the client learns of it when it connects again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from typing import Any, NamedTuple

from ottla.broker.metadata.store import (
    ROOT,
    Changed,
    Create,
    Delete,
    EphemeralParent,
    Node,
    NodeExists,
    NoNode,
    NotConnected,
    NotEmpty,
    Op,
    OutcomeUnknown,
    Put,
    Session,
    SessionListener,
    SessionState,
    StoreClosed,
    StoreError,
    VersionConflict,
    Watcher,
    Written,
    check_ops,
    check_path,
    check_prefix,
    is_below,
    parent_of,
)

#: the range from which a delay is drawn
Seconds = tuple[float, float]

#: between two messages of one client, because a loop runs timers of the same moment in any order
_STEP_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Delays and probabilities of a simulated ensemble."""

    #: a request on its way to the ensemble, or an answer on its way back
    message_s: Seconds = (0.0002, 0.002)
    #: a change on its way to the watchers of another client
    watch_s: Seconds = (0.0002, 0.02)
    #: from the loss of a connection to the next one
    reconnect_s: Seconds = (0.01, 0.2)
    #: silence after which the ensemble expires a session
    session_timeout_s: float = 6.0
    #: silence after which a client suspends its session
    suspend_after_s: float = 2.3
    #: probability that the answer of a multi is lost; half of these multis are applied
    lost_answer_rate: float = 0.0


class SimulatedEnsemble:
    """The servers: one tree, the sessions of the clients, and the network between them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: Random, *, timing: Timing | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self._loop = loop
        self._rng = rng
        self.timing = timing or Timing()
        self._trace = trace
        self._tree = _Tree()
        #: number of the last applied multi
        self._change = 0
        self._sessions: dict[int, _SessionRecord] = {}
        self._session_count = 0
        #: the store of each client that is neither closed nor crashed
        self._stores: dict[str, SimulatedStore] = {}
        #: clients whose messages do not pass
        self._cut: set[str] = set()
        #: how much later changes arrive at the watchers of a client
        self._watch_delays_s: dict[str, float] = {}
        #: clients whose next multi loses its answer, and whether it is applied
        self._answers_to_lose: dict[str, bool] = {}
        #: clients whose server lags: since when, and by how many seconds
        self._lags: dict[str, tuple[float, float]] = {}
        #: earlier trees, with the time and the number of the change that made each, and the change itself, while a
        #: server lags
        self._past: list[tuple[float, int, _Tree, list[Changed]]] = []

    # -- for tests ------------------------------------------------------------------------------------------------

    def connect(self, client: str) -> SimulatedStore:
        """Return the store of a client. Its session is established, or suspended if the client is cut off."""
        if client in self._stores:
            raise ValueError(f"client {client!r} is connected; close or crash it first")
        store = self._stores[client] = SimulatedStore(self, client)
        if client not in self._cut:
            store.establish(self._new_session(client))
        return store

    def cut(self, client: str) -> None:
        """Let no message of the client pass. The client notices after ``suspend_after_s``."""
        if client in self._cut:
            return
        self._cut.add(client)
        self._note(f"cut client={client}")
        store = self._stores.get(client)
        if store is not None and store.connected:
            self._disconnect(store)
            store.notice_loss_after(self.timing.suspend_after_s)

    def heal(self, client: str) -> None:
        """Let the messages of the client pass again."""
        if client not in self._cut:
            return
        self._cut.remove(client)
        self._note(f"heal client={client}")
        store = self._stores.get(client)
        if store is not None:
            store.notice_loss_after(0.0)
            self._reconnect_later(store)

    def break_connection(self, client: str) -> None:
        """Close the connection of the client, which notices at once and connects again."""
        store = self._stores.get(client)
        if store is None or not store.connected:
            return
        self._note(f"connection broken client={client}")
        self._disconnect(store)
        store.notice_loss_after(0.0)
        self._reconnect_later(store)

    def lose_answer(self, client: str, *, applied: bool) -> None:
        """Lose the answer of the client's next multi, which is applied or not. The connection breaks."""
        self._answers_to_lose[client] = applied

    def delay_watches(self, client: str, seconds: float) -> None:
        """Let the changes from now on arrive later at the watchers of the client; 0 ends that."""
        self._watch_delays_s[client] = seconds

    def watch_delay(self, client: str) -> float:
        """Return the time that a change takes to the watchers of a client."""
        return self.delay(self.timing.watch_s) + max(self._watch_delays_s.get(client, 0.0), self.lag_of(client))

    def expire(self, client: str) -> None:
        """End the client's session: delete its ephemeral nodes. The client learns of it when it connects again."""
        self.break_connection(client)
        for record in [record for record in self._sessions.values() if record.client == client]:
            self._expire(record)

    def crash(self, client: str) -> None:
        """End the client's process: its calls never return. Its session expires later."""
        store = self._stores.pop(client, None)
        if store is None:
            return
        self._note(f"crash client={client}")
        if store.connected:
            self._disconnect(store)
        store.silence()

    def lag(self, client: str, seconds: float) -> None:
        """Let the server of the client apply changes this much later, from now on."""
        self._note(f"server lags client={client} seconds={seconds:.3f}")
        if not self._lags:
            self._past = [(self._loop.time(), self._change, self._tree.copy(), [])]
        self._lags.setdefault(client, (self._loop.time(), seconds))

    def catch_up(self, client: str) -> None:
        """End the lag of the client's server and the delay of its watches."""
        ended = self._lags.pop(client, None), self._watch_delays_s.pop(client, None)
        if any(each is not None for each in ended):
            self._note(f"server has caught up client={client}")

    def tree(self) -> dict[str, Node]:
        """Return all nodes by path, sorted."""
        return self._tree.load(ROOT)

    # -- requests -------------------------------------------------------------------------------------------------

    def delay(self, bounds: Seconds) -> float:
        return self._rng.uniform(*bounds)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def read(self, client: str, work: Callable[[_Tree], Any]) -> tuple[int, Any]:
        """Return the number of the last change that the client's server has applied, and the result of the read."""
        if client not in self._lags:
            return self._change, work(self._tree)
        since_s, lag_s = self._lags[client]
        until_s = max(since_s, self._loop.time() - lag_s)
        _, change, tree, _ = [each for each in self._past if each[0] <= until_s][-1]
        return change, work(tree)

    def changes_after(self, change: int) -> list[tuple[int, list[Changed]]]:
        """Return the changes after one that a lagging server has applied last."""
        return [(number, changes) for _, number, _, changes in self._past if number > change]

    def lag_of(self, client: str) -> float:
        """Return how much later the client's server applies changes."""
        return self._lags[client][1] if client in self._lags else 0.0

    def multi(self, store: SimulatedStore, ops: Sequence[Op]) -> Written | None:
        """Apply a multi and send its changes to all watchers. Return None if the answer is lost."""
        applied = self._answers_to_lose.pop(store.client, None)
        if applied is None and self._rng.random() < self.timing.lost_answer_rate:
            applied = self._rng.random() < 0.5
        if applied is False:
            self._note(f"multi lost client={store.client}")
            return None
        written, changes = self._tree.multi(ops, self._change + 1, store.session.session_id)
        self._note(f"multi client={store.client} change={written.change} paths={' '.join(op.path for op in ops)}")
        self._publish(changes)
        if applied:
            self._note(f"answer lost client={store.client} change={written.change}")
            return None
        return written

    def end_session(self, store: SimulatedStore) -> None:
        """Apply the client's request to close its session."""
        record = self._sessions.get(store.session.session_id)
        if record is not None:
            self._expire(record)

    def forget(self, store: SimulatedStore) -> None:
        """Remove a store that was closed."""
        if self._stores.get(store.client) is store:
            del self._stores[store.client]

    def abandon(self, store: SimulatedStore) -> None:
        """Let the session of a store that was closed without a connection expire."""
        if store.connected:
            self._disconnect(store)
        self.forget(store)

    # -- sessions -------------------------------------------------------------------------------------------------

    def _new_session(self, client: str) -> int:
        self._session_count += 1
        self._sessions[self._session_count] = _SessionRecord(client, self._session_count)
        self._note(f"session established client={client} session={self._session_count}")
        return self._session_count

    def _disconnect(self, store: SimulatedStore) -> None:
        """End the connection for the ensemble. The requests on their way arrive up to a random one of them."""
        requests = store.requests_on_their_way()
        for request in requests[: self._rng.randint(0, len(requests))]:
            store.arrive_without_answer(request)
        store.disconnect()
        record = self._sessions.get(store.session.session_id)
        if record is not None:
            # The session timeout counts from the last ping, which clients send after a third of it.
            silent_s = self._rng.uniform(0.0, self.timing.session_timeout_s / 3)
            # Every request counts as a ping, too.
            silent_s = min(silent_s, self._loop.time() - store.last_request_s)
            expiry = partial(self._expire, record)
            record.expiry = self._loop.call_later(self.timing.session_timeout_s - silent_s, expiry)

    def _expire(self, record: _SessionRecord) -> None:
        if self._sessions.pop(record.session_id, None) is None:
            return
        if record.expiry is not None:
            record.expiry.cancel()
        self._note(f"session ended client={record.client} session={record.session_id}")
        self._publish(self._tree.delete_ephemerals(record.session_id))

    def _reconnect_later(self, store: SimulatedStore) -> None:
        self._loop.call_later(self.delay(self.timing.reconnect_s), self._reconnect, store)

    def _reconnect(self, store: SimulatedStore) -> None:
        if self._stores.get(store.client) is not store or store.connected or store.client in self._cut:
            return
        self.catch_up(store.client)
        record = self._sessions.get(store.session.session_id)
        if record is not None:
            if record.expiry is not None:
                record.expiry.cancel()
            record.expiry = None
            self._note(f"session resumed client={store.client} session={record.session_id}")
            store.establish(record.session_id)
        else:
            store.expire()
            store.establish(self._new_session(store.client))
        # The client reads the tree again, because it missed the changes since the connection was lost.
        store.receive_tree(self._change, self.tree())

    def _publish(self, changes: list[Changed]) -> None:
        self._change += 1
        if self._lags:
            self._past.append((self._loop.time(), self._change, self._tree.copy(), changes))
        for store in self._stores.values():
            if store.connected:
                store.receive_changes(self._change, changes)

    def _note(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"metadata {text}")


class SimulatedStore:
    """The MetadataStore of one client of a simulated ensemble."""

    watches_are_immediate = False

    def __init__(self, ensemble: SimulatedEnsemble, client: str) -> None:
        self._ensemble = ensemble
        self._loop = ensemble.loop
        self.client = client

        # Session
        self._session = Session(0, SessionState.SUSPENDED)
        self._listeners: list[SessionListener] = []
        #: whether messages pass; the client may not know yet that they do not
        self.connected = False
        self._closed = False
        self._loss_timer: asyncio.TimerHandle | None = None

        # Requests, in the order of the calls
        #: calls that have not returned
        self._calls: dict[_Call, None] = {}
        #: when the ensemble got the last request
        self.last_request_s = -inf
        #: time of the last arrival and of the last answer, because both keep their order
        self._last_arrival_s = 0.0
        self._last_answer_s = 0.0

        # Watches
        self._watches: list[tuple[str, Watcher]] = []
        #: the tree as the watchers know it, and the number of the change that made it so
        self._seen: dict[str, Node] = {}
        self._seen_change = 0
        #: changes on their way to the watchers
        self._arriving: deque[_Arriving] = deque()

        #: called when a request of this client was applied, and when its answer arrived
        self.on_message: Callable[[], None] = lambda: None

    # -- MetadataStore --------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        return self._session

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        listeners = self._listeners
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    async def heartbeat(self) -> None:
        await self._send(_Call(is_barrier=True))

    async def get(self, path: str) -> Node | None:
        check_path(path)
        node: Node | None = await self._send(_Call(partial(_Tree.get, path=path)))
        return node

    async def children(self, path: str) -> tuple[str, ...]:
        check_prefix(path)
        names: tuple[str, ...] = await self._send(_Call(partial(_Tree.children, path=path)))
        return names

    async def load(self, prefix: str) -> dict[str, Node]:
        check_prefix(prefix)
        nodes: dict[str, Node] = await self._send(_Call(partial(_Tree.load, prefix=prefix)))
        return nodes

    async def multi(self, ops: Sequence[Op]) -> Written:
        check_ops(ops)
        written: Written = await self._send(_Call(ops=tuple(ops)))
        return written

    async def watch(self, prefix: str, watcher: Watcher) -> None:
        check_prefix(prefix)
        await self._send(_Call(partial(_Tree.load, prefix=ROOT), watch=(prefix, watcher)))

    async def close(self) -> None:
        if self._closed:
            return
        try:
            last = self._send(_Call(closes=True))
        except NotConnected:
            self._closed = True
        else:
            self._closed = True
            try:
                await last
            except StoreError:
                pass  # the connection was lost: the session expires by itself
        self._ensemble.abandon(self)
        self._session = self._session._replace(state=SessionState.EXPIRED)
        self.silence()

    # -- messages -------------------------------------------------------------------------------------------------

    def _send(self, call: _Call) -> asyncio.Future[Any]:
        if self._closed:
            raise StoreClosed
        if self._session.state is not SessionState.ESTABLISHED:
            raise NotConnected
        call.future = self._loop.create_future()
        self._calls[call] = None
        if self.connected:  # a request that is sent during a cut is lost
            delay_s = self._ensemble.delay(self._ensemble.timing.message_s)
            self._last_arrival_s = max(self._last_arrival_s + _STEP_S, self._loop.time() + delay_s)
            call.timer = self._loop.call_at(self._last_arrival_s, self._arrive, call)
        return call.future

    def requests_on_their_way(self) -> list[_Call]:
        return [call for call in self._calls if call.timer is not None and not call.arrived]

    def arrive_without_answer(self, call: _Call) -> None:
        """Apply a request whose connection is being closed."""
        call.arrived = True
        try:
            if call.ops is not None:
                self._ensemble.multi(self, call.ops)
        except StoreError:
            pass  # its answer, a conflict, is lost

    def _arrive(self, call: _Call) -> None:
        call.arrived = True
        self.last_request_s = self._loop.time()
        change = 0
        result: Any = None
        try:
            if call.ops is not None:
                result = self._ensemble.multi(self, call.ops)
                if result is None:
                    self._ensemble.break_connection(self.client)
                    return
                change = result.change
            elif call.closes:
                self._ensemble.end_session(self)
            else:
                change, result = self._ensemble.read(self.client, call.read)
        except StoreError as error:
            result = error
        delay_s = self._ensemble.delay(self._ensemble.timing.message_s)
        if call.ops is not None or call.is_barrier:
            delay_s += self._ensemble.lag_of(self.client)
        self._last_answer_s = max(self._last_answer_s + _STEP_S, self._loop.time() + delay_s)
        call.timer = self._loop.call_at(self._last_answer_s, self._answer, call, change, result)
        self.on_message()

    def _answer(self, call: _Call, change: int, result: Any) -> None:
        self._calls.pop(call, None)
        self.on_message()
        if call.ops is not None or call.watch is not None:
            self._show_changes(change)
        if call.watch is not None:
            self._watches.append(call.watch)
            prefix, _ = call.watch
            first = [Changed(path, node) for path, node in sorted(self._seen.items()) if is_below(prefix, path)]
            self._notify([call.watch], first)
        call.complete(None if call.watch is not None else result)

    # -- watches --------------------------------------------------------------------------------------------------

    def receive_changes(self, change: int, changes: list[Changed]) -> None:
        """Let the changes of one multi arrive after a delay, behind all earlier ones."""
        due_s = self._loop.time() + self._ensemble.watch_delay(self.client)
        if self._arriving:
            due_s = max(due_s, self._arriving[-1].due_s)
        self._arriving.append(_Arriving(due_s, change, changes))
        self._loop.call_at(due_s, self._show_changes, change)

    def receive_tree(self, change: int, tree: dict[str, Node]) -> None:
        """Let the difference between the tree and the watchers' copy arrive."""
        changes = [Changed(path, node) for path, node in tree.items() if self._seen.get(path) != node]
        changes += [Changed(path, None) for path in self._seen if path not in tree]
        self._arriving.clear()
        self.receive_changes(change, changes)

    def _show_changes(self, change: int) -> None:
        """Call the watchers with all changes up to this one, merged."""
        merged: dict[str, Node | None] = {}
        while self._arriving and self._arriving[0].change <= change:
            for path, node in self._arriving.popleft().changes:
                merged.pop(path, None)
                merged[path] = node
        changes = [Changed(path, node) for path, node in merged.items() if self._seen.get(path) != node]
        for path, node in changes:
            if node is None:
                del self._seen[path]
            else:
                self._seen[path] = node
        self._notify(self._watches, changes)

    def _notify(self, watches: list[tuple[str, Watcher]], changes: list[Changed]) -> None:
        for prefix, watcher in watches:
            relevant = [change for change in changes if is_below(prefix, change.path)]
            if relevant:
                # In an iteration of its own, so that a watcher that raises affects neither other watchers nor callers.
                self._loop.call_soon(watcher, relevant)

    # -- session --------------------------------------------------------------------------------------------------

    def establish(self, session_id: int) -> None:
        self.connected = True
        if self._session.session_id == 0:  # the first session of this store
            change, nodes = self._ensemble.read(self.client, partial(_Tree.load, prefix=ROOT))
            self.receive_tree(change, nodes)
            if self._ensemble.lag_of(self.client):
                for number, changes in self._ensemble.changes_after(change):
                    self.receive_changes(number, changes)
        self._set_session(Session(session_id, SessionState.ESTABLISHED))

    def expire(self) -> None:
        if self._session.session_id:
            self._set_session(self._session._replace(state=SessionState.EXPIRED))

    def disconnect(self) -> None:
        """End the connection; the client does not know it yet. Answers and changes on their way are lost."""
        self.connected = False
        self._arriving.clear()
        for call in self._calls:
            if call.timer is not None:
                call.timer.cancel()
                call.timer = None

    def notice_loss_after(self, seconds: float) -> None:
        """Suspend the session after this time, and fail the calls that wait for their answers."""
        if self._loss_timer is not None:
            self._loss_timer.cancel()
            self._loss_timer = None
        if seconds > 0:
            self._loss_timer = self._loop.call_later(seconds, self._notice_loss)
        else:
            self._notice_loss()

    def _notice_loss(self) -> None:
        self._loss_timer = None
        if self._session.state is SessionState.ESTABLISHED:
            self._set_session(self._session._replace(state=SessionState.SUSPENDED))
        calls, self._calls = list(self._calls), {}
        for call in calls:
            call.complete(OutcomeUnknown() if call.ops is not None else NotConnected())

    def silence(self) -> None:
        """Call nothing of the client any more."""
        self.connected = False
        self._closed = True
        for call in self._calls:
            if call.timer is not None:
                call.timer.cancel()
        if self._loss_timer is not None:
            self._loss_timer.cancel()
        self._calls.clear()
        self._arriving.clear()
        self._watches.clear()
        self._listeners.clear()

    def _set_session(self, session: Session) -> None:
        if session != self._session:
            self._session = session
            for listener in self._listeners:
                self._loop.call_soon(listener, session)


class _Arriving(NamedTuple):
    """The changes of one multi on their way to the watchers of a client."""

    due_s: float
    change: int
    changes: list[Changed]


@dataclass(slots=True, eq=False)
class _Call:
    """A call that has not returned: a read, a multi, a watch or the last call of a store."""

    read: Callable[[_Tree], Any] = field(default=lambda tree: None)
    ops: tuple[Op, ...] | None = None
    watch: tuple[str, Watcher] | None = None
    closes: bool = False
    #: whether the answer waits until the server has applied what came before
    is_barrier: bool = False
    future: asyncio.Future[Any] = field(init=False)
    #: of the request on its way, then of the answer; None if the message is lost
    timer: asyncio.TimerHandle | None = None
    #: whether the ensemble has got the request
    arrived: bool = False

    def complete(self, result: Any) -> None:
        if self.future.done():  # the caller was cancelled
            return
        if isinstance(result, StoreError):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


@dataclass(slots=True, eq=False)
class _SessionRecord:
    """A session as the ensemble knows it."""

    client: str
    session_id: int
    #: set while the client is not connected
    expiry: asyncio.TimerHandle | None = None


class _Tree:
    """The nodes, and the session that owns each ephemeral one."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._owners: dict[str, int] = {}
        self._child_counts: dict[str, int] = {}

    def copy(self) -> _Tree:
        """Return a tree with the same nodes, for reads."""
        twin = _Tree()
        twin._nodes = dict(self._nodes)
        return twin

    def get(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def children(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(each.rpartition("/")[2] for each in self._nodes if parent_of(each) == path))

    def load(self, prefix: str) -> dict[str, Node]:
        return {path: node for path, node in sorted(self._nodes.items()) if is_below(prefix, path)}

    def multi(self, ops: Sequence[Op], change: int, session_id: int) -> tuple[Written, list[Changed]]:
        """Apply all operations or none. Return the new versions and the changes; raise a Conflict."""
        before: list[tuple[str, Node | None, int | None]] = []
        versions: list[int | None] = []
        changes: list[Changed] = []
        try:
            for op in ops:
                old, owner = self._nodes.get(op.path), self._owners.get(op.path)
                changed = self._apply(op, change, session_id)
                if changed is not None:
                    before.append((op.path, old, owner))
                    changes.append(changed)
                versions.append(None if changed is None or changed.node is None else changed.node.version)
        except StoreError:
            for path, old, owner in reversed(before):
                self._set(path, old, owner)
            raise
        return Written(change, tuple(versions)), changes

    def delete_ephemerals(self, session_id: int) -> list[Changed]:
        paths = [path for path, owner in self._owners.items() if owner == session_id]
        for path in paths:
            self._set(path, None, None)
        return [Changed(path, None) for path in paths]

    def _apply(self, op: Op, change: int, session_id: int) -> Changed | None:
        path, old = op.path, self._nodes.get(op.path)
        if isinstance(op, Create):
            return self._apply_create(op, change, session_id)
        if old is None:
            raise NoNode(path)
        if op.version not in (None, old.version):
            raise VersionConflict(path)
        if isinstance(op, Put):
            return self._set(path, Node(op.value, old.version + 1, old.created), self._owners.get(path))
        if isinstance(op, Delete):
            if self._child_counts.get(path):
                raise NotEmpty(path)
            return self._set(path, None, None)
        return None

    def _apply_create(self, op: Create, change: int, session_id: int) -> Changed:
        parent = parent_of(op.path)
        if parent != ROOT and parent not in self._nodes:
            raise NoNode(parent)
        if parent in self._owners:
            raise EphemeralParent(parent)
        if op.path in self._nodes:
            raise NodeExists(op.path)
        return self._set(op.path, Node(op.value, 0, change), session_id if op.ephemeral else None)

    def _set(self, path: str, node: Node | None, owner: int | None) -> Changed:
        parent = parent_of(path)
        self._child_counts[parent] = self._child_counts.get(parent, 0) + (node is not None) - (path in self._nodes)
        self._nodes.pop(path, None)
        self._owners.pop(path, None)
        if node is not None:
            self._nodes[path] = node
            if owner is not None:
                self._owners[path] = owner
        return Changed(path, node)
