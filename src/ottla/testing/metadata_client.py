"""One client of a simulated ensemble: its calls on their way, the session as it knows it, and what its watchers see."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.metadata.store import (
    ROOT,
    Changed,
    Node,
    NotConnected,
    Op,
    OutcomeUnknown,
    Session,
    SessionListener,
    SessionState,
    StoreClosed,
    StoreError,
    Watcher,
    Written,
    check_ops,
    check_path,
    check_prefix,
    is_below,
)
from ottla.testing.metadata_tree import Tree

if TYPE_CHECKING:
    from ottla.testing.metadata_store import SimulatedEnsemble

#: between two messages of one client, because a loop runs timers of the same moment in any order
_STEP_S = 1e-6


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
        node: Node | None = await self._send(_Call(partial(Tree.get, path=path)))
        return node

    async def children(self, path: str) -> tuple[str, ...]:
        check_prefix(path)
        names: tuple[str, ...] = await self._send(_Call(partial(Tree.children, path=path)))
        return names

    async def load(self, prefix: str) -> dict[str, Node]:
        check_prefix(prefix)
        nodes: dict[str, Node] = await self._send(_Call(partial(Tree.load, prefix=prefix)))
        return nodes

    async def multi(self, ops: Sequence[Op]) -> Written:
        check_ops(ops)
        written: Written = await self._send(_Call(ops=tuple(ops)))
        return written

    async def watch(self, prefix: str, watcher: Watcher) -> None:
        check_prefix(prefix)
        await self._send(_Call(partial(Tree.load, prefix=ROOT), watch=(prefix, watcher)))

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
            change, nodes = self._ensemble.read(self.client, partial(Tree.load, prefix=ROOT))
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

    read: Callable[[Tree], Any] = field(default=lambda tree: None)
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
