"""The metadata store of a cluster: a tree of nodes in ZooKeeper, below the chroot of ``zookeeper.connect``.

The store keeps a copy of the whole tree (`tree_copy.py`). It needs the copy to call watchers with values and to show
the tree of one moment, because ZooKeeper's events name changed nodes without their values, and no request reads a whole
tree:

    connected       send addWatch (recursive), then read the tree level by level
    an event        the node is stale: its value is not known
    an answer       of a read: the values of its nodes are known, as of the answer
                    of an own multi: the values that it has written are known
    end of a burst  read the stale nodes, many in one request

Events and answers are processed in the order in which the server sent them. When an answer arrives and no node is
stale, the known values are the tree at the moment of that answer. Then the store applies them to its copy, calls the
watchers with the difference, and completes the calls that wait for it:

    multi           its answer has arrived, so the watchers have got its changes and all before them
    get, children, load, watch
                    the answer of a barrier has arrived, so the copy shows everything that was written before the call

A lost connection fails all calls: multis with OutcomeUnknown, because their answers are lost, others with NotConnected.
With the next connection the store reads the whole tree again. The difference to its copy is what watchers have missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from ottla.broker.metadata.store import (
    ROOT,
    Changed,
    Check,
    Create,
    EphemeralParent,
    MultiTooLarge,
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
    UnusableStore,
    VersionConflict,
    Watcher,
    Written,
    check_ops,
    check_path,
    check_prefix,
    is_below,
    parent_of,
)
from ottla.broker.metadata.zookeeper import wire
from ottla.broker.metadata.zookeeper.acl import NO_SECURITY, OPEN_ACL, ZooKeeperSecurity, encode_acl
from ottla.broker.metadata.zookeeper.messages import Answer, Call, Connected, Event, Expired, Message, parse_address
from ottla.broker.metadata.zookeeper.tree_copy import TreeCopy

log = logging.getLogger(__name__)

#: ZooKeeper closes the connection when a request has more bytes (jute.maxbuffer)
_REQUEST_BYTES_MAX = 1_048_000
#: nodes in one read; their paths have at most 300 KB
_NODES_PER_READ = 500
_ENSEMBLE_CONFIG = "/zookeeper/config"
#: ZooKeeper's own nodes, which exist if there is no chroot
_SYSTEM_PREFIX = "/zookeeper"
_AUTH_ADVICE = "set zookeeper.auth.digest to the user and the password of the cluster's brokers"
_CONFLICTS = {
    wire.NODE_EXISTS: NodeExists,
    wire.NOT_EMPTY: NotEmpty,
    wire.BAD_VERSION: VersionConflict,
}


class ZooKeeperStore:
    """A MetadataStore in ZooKeeper 3.6 or newer."""

    watches_are_immediate = False

    def __init__(self, connect: str, session_timeout_s: float, security: ZooKeeperSecurity = NO_SECURITY) -> None:
        from ottla.broker.metadata.zookeeper.connection import Connection

        address = parse_address(connect)
        self._connect = connect
        self._chroot = address.chroot
        self._session_timeout_s = session_timeout_s
        self._loop = asyncio.get_running_loop()
        self._servers = address.servers
        self._security = security
        self._connection = Connection(
            address.servers, session_timeout_s, self._receive, digest=security.digest, tls=security.tls
        )

        # Session
        self._session = Session(0, SessionState.SUSPENDED)
        self._listeners: list[SessionListener] = []
        self._closed = False
        #: number of the current connection
        self._connection_number = 0
        #: done when the tree was read for the first time, or cannot be read
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._chroot_exists = not self._chroot

        # Calls
        #: requests without an answer, and what to do with the answer
        self._in_flight: dict[Call, _Pending] = {}
        #: reads of this iteration of the event loop, which share one barrier
        self._reads: list[_Waiter] = []
        #: calls that are answered when no node is stale
        self._waiting: list[_Waiter] = []
        #: futures of callers that are not done
        self._futures: set[asyncio.Future[Any]] = set()

        # The tree
        self._watches: list[tuple[str, Watcher]] = []
        self._tree = TreeCopy()

    @classmethod
    async def open(
        cls,
        connect: str,
        *,
        session_timeout_s: float = 6.0,
        connect_timeout_s: float = 30.0,
        security: ZooKeeperSecurity = NO_SECURITY,
    ) -> ZooKeeperStore:
        """Return a store with an established session. Raise UnusableStore if no server answers within the timeout.

        If ``security`` asks for ACLs, nodes that exist already have them, too, before this returns.
        """
        security.check()
        store = cls(connect, session_timeout_s, security)
        store._connection.start()
        try:
            async with asyncio.timeout(connect_timeout_s):
                await store._opened
                if security.sets_acl:
                    await store._protect_nodes()
        except TimeoutError:
            await store.close()
            failure = store._connection.failure
            raise UnusableStore(
                f"ZooKeeper at {connect} did not answer within {connect_timeout_s:g} s"
                f"{f' ({failure})' if failure else ''}: check that it runs, and check zookeeper.connect"
            ) from None
        except BaseException:
            await store.close()
            raise
        return store

    # -- MetadataStore --------------------------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        return self._session

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        listeners = self._listeners
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    async def heartbeat(self) -> None:
        self._check_established()
        future = self._new_future()
        self._send(wire.barrier_request(self._full(ROOT)), _Pending(partial(_complete, future), partial(_fail, future)))
        await future

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the addresses in zookeeper.connect."""
        return self._servers

    async def ensemble_config(self) -> str:
        """Return the members of the ensemble, as the server has them in /zookeeper/config; empty if it has none."""
        self._check_established()
        future = self._new_future()

        def finish(answer: Answer) -> None:
            if answer.error:
                _fail(future)
            elif not future.done():
                (found,) = answer.result
                future.set_result("" if found.node is None else found.node.value.decode(errors="replace"))

        # The path is not below the chroot.
        self._send(wire.read_request([_ENSEMBLE_CONFIG], with_children=False), _Pending(finish, partial(_fail, future)))
        text: str = await future
        return text

    async def get(self, path: str) -> Node | None:
        check_path(path)
        node: Node | None = await self._read(lambda: self._tree.nodes.get(path))
        return node

    async def children(self, path: str) -> tuple[str, ...]:
        check_prefix(path)
        names: tuple[str, ...] = await self._read(partial(self._tree.children, path))
        return names

    async def load(self, prefix: str) -> dict[str, Node]:
        check_prefix(prefix)
        nodes: dict[str, Node] = await self._read(partial(self._tree.below, prefix))
        return nodes

    async def multi(self, ops: Sequence[Op]) -> Written:
        check_ops(ops)
        self._check_established()
        ops = tuple(ops)
        request = wire.multi_request(ops, self._chroot, self._security.encoded)
        if len(request.payload) > _REQUEST_BYTES_MAX:  # a long chroot is part of every path
            raise MultiTooLarge(len(request.payload))
        future = self._new_future()
        self._tree.begin_write(op.path for op in ops)
        self._send(request, _Pending(partial(self._finish_multi, ops, future), partial(_fail, future, OutcomeUnknown)))
        written: Written = await future
        return written

    async def watch(self, prefix: str, watcher: Watcher) -> None:
        check_prefix(prefix)
        await self._read(partial(self._add_watch, prefix, watcher))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._futures:
            await asyncio.wait(self._futures)
        self._session = self._session._replace(state=SessionState.EXPIRED)
        self._listeners.clear()
        self._watches.clear()
        if not self._opened.done():
            self._opened.cancel()
        await self._connection.close()

    # -- ACLs -----------------------------------------------------------------------------------------------------

    async def _protect_nodes(self) -> None:
        """Give all nodes of the tree the ACLs that new ones get. Raise UnusableStore if ZooKeeper does not allow it."""
        paths = iter([*([ROOT] if self._chroot else []), *self._tree.nodes])
        changed = 0
        while chunk := list(islice(paths, _NODES_PER_READ)):
            found = await asyncio.gather(*(self._ask(wire.acl_request(self._full(path))) for path in chunk))
            wanted = {path: self._security.entries_of(path) for path in chunk}
            # A node without an ACL was deleted meanwhile.
            wrong = [
                path
                for path, acl in zip(chunk, found, strict=True)
                if acl is not None and set(acl) != set(wanted[path])
            ]
            await asyncio.gather(
                *(self._ask(wire.set_acl_request(self._full(path), encode_acl(wanted[path]))) for path in wrong)
            )
            changed += len(wrong)
        if changed:
            log.info("nodes in ZooKeeper have new ACLs count=%d", changed)

    async def _ask(self, request: wire.Request) -> Any:
        """Return the answer of a request, None if there is no such node. Raise UnusableStore if it is not allowed."""
        self._check_established()
        future = self._new_future()

        def finish(answer: Answer) -> None:
            if answer.error == wire.NO_AUTH:
                _fail(future, lambda: UnusableStore(f"ZooKeeper at {self._connect} refuses an ACL: {_AUTH_ADVICE}"))
            elif answer.error not in (wire.OK, wire.NO_NODE):
                _fail(future, lambda: StoreError(f"ZooKeeper refused an ACL with error {answer.error}"))
            elif not future.done():
                future.set_result(answer.result)

        self._send(request, _Pending(finish, partial(_fail, future)))
        return await future

    # -- calls ----------------------------------------------------------------------------------------------------

    def _check_established(self) -> None:
        if self._closed:
            raise StoreClosed
        if self._session.state is not SessionState.ESTABLISHED:
            raise NotConnected

    def _new_future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def _read(self, result: Callable[[], Any]) -> asyncio.Future[Any]:
        """Return a future of the result, which is computed when the copy shows all that was written before."""
        self._check_established()
        waiter = _Waiter(self._new_future(), result, NotConnected)
        self._reads.append(waiter)
        if len(self._reads) == 1:
            self._loop.call_soon(self._send_reads)
        return waiter.future

    def _send_reads(self) -> None:
        reads, self._reads = self._reads, []
        if reads:  # none if the connection was lost

            def finish(answer: Answer) -> None:
                if answer.error:
                    fail()
                else:
                    self._waiting += reads

            def fail() -> None:
                for waiter in reads:
                    waiter.fail()

            self._send(wire.barrier_request(self._full(ROOT)), _Pending(finish, fail))

    def _send(self, request: wire.Request, pending: _Pending) -> None:
        call = Call(request, self._connection_number)
        self._in_flight[call] = pending
        self._connection.send(call)

    def _finish_multi(self, ops: tuple[Op, ...], future: asyncio.Future[Any], answer: Answer) -> None:
        self._tree.finish_write(op.path for op in ops)
        if answer.error:
            _fail(future, lambda: StoreError(f"ZooKeeper refused a change with error {answer.error}"))
            return
        result: wire.MultiAnswer = answer.result
        if result.refused is not None:
            number, code = result.refused
            refusal = _refusal(ops[number], code)
            _fail(future, lambda: refusal)
            return
        versions: list[int | None] = []
        values: dict[str, Node | None] = {}  # after the last operation of each node
        for op, stat in zip(ops, result.stats, strict=True):
            node: Node | None = None
            if isinstance(op, Create):
                node = Node(op.value, 0, answer.zxid)
            elif isinstance(op, Put):
                assert stat is not None, "ZooKeeper returns a stat for each put"
                node = Node(op.value, *stat)
            versions.append(None if node is None else node.version)
            if not isinstance(op, Check):
                values[op.path] = node
        for path, node in values.items():
            self._tree.set_value(path, node, answer.zxid)
        written = Written(answer.zxid, tuple(versions))
        self._waiting.append(_Waiter(future, lambda: written, OutcomeUnknown))

    # -- messages -------------------------------------------------------------------------------------------------

    def _receive(self, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, Event):
                self._note_event(message)
            elif isinstance(message, Answer):
                pending = self._in_flight.pop(message.call, None)
                if pending is not None:
                    pending.finish(message)
                    self._apply_values()
            elif isinstance(message, Connected):
                self._begin_connection(message)
            else:
                self._end_connection()
                if isinstance(message, Expired) and self._session.session_id:
                    self._set_session(self._session._replace(state=SessionState.EXPIRED))
        if self._session.state is SessionState.ESTABLISHED:
            self._read_stale_nodes()

    def _begin_connection(self, connected: Connected) -> None:
        if connected.session_timeout_s < self._session_timeout_s:
            # A broker with a lease longer than its session would still lead after others have replaced it.
            self._refuse_server(
                f"grants sessions of at most {connected.session_timeout_s * 1000:.0f} ms: set "
                "zookeeper.session.timeout.ms to at most this, or maxSessionTimeout of ZooKeeper to more"
            )
            return
        self._connection_number = connected.number
        self._tree.begin_reload()
        if not self._chroot_exists:
            parts = self._chroot.split("/")
            for length in range(2, len(parts) + 1):
                # The parents of the chroot belong to all programs that use this ZooKeeper.
                acl = self._security.encoded(ROOT) if length == len(parts) else OPEN_ACL
                request = wire.create_request("/".join(parts[:length]), acl)
                self._send(request, _Pending(self._finish_chroot, _do_nothing))
        self._send(wire.watch_request(self._full(ROOT)), _Pending(self._finish_add_watch, _do_nothing))
        self._set_session(Session(connected.session_id, SessionState.ESTABLISHED))

    def _finish_chroot(self, answer: Answer) -> None:
        # The answer of the last part counts.
        self._chroot_exists = answer.error in (wire.OK, wire.NODE_EXISTS)

    def _finish_add_watch(self, answer: Answer) -> None:
        if not answer.error:
            return
        if answer.error == wire.UNIMPLEMENTED:
            self._refuse_server("does not know recursive watches: use version 3.6 or newer")
        else:
            self._refuse_server(f"refused a watch with error {answer.error}")

    def _refuse_server(self, reason: str) -> None:
        """Close the connection to a server that cannot be used, and report the reason."""
        log.error("ZooKeeper at %s %s", self._connect, reason)
        if not self._opened.done():
            self._opened.set_exception(UnusableStore(f"ZooKeeper at {self._connect} {reason}"))
        self._connection.drop()

    def _end_connection(self) -> None:
        if self._session.state is SessionState.ESTABLISHED:
            self._set_session(self._session._replace(state=SessionState.SUSPENDED))
        in_flight, self._in_flight = self._in_flight, {}
        for pending in in_flight.values():
            pending.fail()
        waiters, self._waiting, self._reads = self._waiting + self._reads, [], []
        for waiter in waiters:
            waiter.fail()
        self._tree.forget_changes()

    def _set_session(self, session: Session) -> None:
        if session != self._session and not self._closed:
            self._session = session
            for listener in self._listeners:
                self._loop.call_soon(listener, session)

    # -- the tree -------------------------------------------------------------------------------------------------

    def _note_event(self, event: Event) -> None:
        path = self._relative(event.path)
        if path is not None:
            self._tree.note_event(path, event.zxid)

    def _read_stale_nodes(self) -> None:
        for paths in self._tree.begin_reads(_NODES_PER_READ):
            request = wire.read_request(map(self._full, paths), with_children=self._tree.is_reloading)
            self._send(request, _Pending(partial(self._finish_read, paths), _do_nothing))

    def _finish_read(self, paths: list[str], answer: Answer) -> None:
        self._tree.finish_read(paths)
        if answer.error:
            log.warning("ZooKeeper refused a read with error %d; connecting again", answer.error)
            self._connection.drop()
            return
        for path, (node, names, is_forbidden) in zip(paths, answer.result, strict=True):
            if is_forbidden:
                # Without this node the tree would look as if it had never existed.
                self._refuse_server(f"does not let this broker read {self._full(path)}: {_AUTH_ADVICE}")
                return
            children = (f"/{name}" if path == ROOT else f"{path}/{name}" for name in names)
            self._tree.set_found(path, node, (each for each in children if not self._is_hidden(each)), answer.zxid)

    def _apply_values(self) -> None:
        """If no node is stale, apply the known values, call the watchers and complete the calls that wait."""
        changes = self._tree.apply_values()
        if changes is None:
            return
        if changes:
            for watch in self._watches:
                self._notify(watch, changes)
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.complete()
        if not self._opened.done():
            self._finish_open()

    def _finish_open(self) -> None:
        if self._chroot_exists:
            self._opened.set_result(None)
        else:
            self._opened.set_exception(
                UnusableStore(f"ZooKeeper at {self._connect} does not allow the path {self._chroot} to be created")
            )

    def _add_watch(self, prefix: str, watcher: Watcher) -> None:
        watch = (prefix, watcher)
        self._watches.append(watch)
        self._notify(watch, [Changed(path, node) for path, node in self._tree.below(prefix).items()])

    def _notify(self, watch: tuple[str, Watcher], changes: list[Changed]) -> None:
        prefix, watcher = watch
        relevant = [change for change in changes if is_below(prefix, change.path)]
        if relevant:
            # In an iteration of its own, so that a watcher that raises affects neither other watchers nor callers.
            self._loop.call_soon(watcher, relevant)

    # -- paths ----------------------------------------------------------------------------------------------------

    def _full(self, path: str) -> str:
        return (self._chroot or ROOT) if path == ROOT else self._chroot + path

    def _relative(self, full: str) -> str | None:
        """Return the path of a node of this tree, None for the root and for nodes outside of the tree."""
        if not full.startswith(self._chroot + "/"):
            return None
        path = full[len(self._chroot) :]
        return None if path == ROOT or self._is_hidden(path) else path

    def _is_hidden(self, path: str) -> bool:
        return not self._chroot and is_below(_SYSTEM_PREFIX, path)


class _Pending:
    """What to do with the answer of a request, and what to do if there is none."""

    __slots__ = ("fail", "finish")

    def __init__(self, finish: Callable[[Answer], None], fail: Callable[[], None]) -> None:
        self.finish = finish
        self.fail = fail


class _Waiter:
    """A call that is answered when no node is stale."""

    __slots__ = ("future", "loss", "result")

    def __init__(self, future: asyncio.Future[Any], result: Callable[[], Any], loss: type[StoreError]) -> None:
        self.future = future
        self.result = result
        #: raised if the connection is lost before
        self.loss = loss

    def complete(self) -> None:
        if not self.future.done():  # done: the caller was cancelled
            self.future.set_result(self.result())

    def fail(self) -> None:
        _fail(self.future, self.loss)


def _complete(future: asyncio.Future[Any], answer: Answer) -> None:
    if answer.error:
        _fail(future)
    elif not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[Any], error: Callable[[], StoreError] = NotConnected) -> None:
    if not future.done():
        future.set_exception(error())


def _do_nothing() -> None:
    pass


def _refusal(op: Op, code: int) -> StoreError:
    """Return the exception for a refused operation."""
    if code == wire.NO_NODE:
        return NoNode(parent_of(op.path) if isinstance(op, Create) else op.path)
    if code == wire.NO_CHILDREN_FOR_EPHEMERALS:
        return EphemeralParent(parent_of(op.path))
    if code == wire.NO_AUTH:
        return StoreError(f"ZooKeeper does not let this broker change {op.path}: {_AUTH_ADVICE}")
    conflict = _CONFLICTS.get(code)
    return StoreError(f"ZooKeeper refused to change {op.path}: error {code}") if conflict is None else conflict(op.path)
