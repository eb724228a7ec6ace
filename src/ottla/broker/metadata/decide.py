"""Write what was decided from the metadata, and decide again if the metadata has changed meanwhile.

A decision is a function from the metadata to operations. Each operation names the version that the decision is based
on: a Put or a Delete that of its node, a Check that of another node that the decision depends on, a Create the absence
of its node. So either the multi is applied to exactly the metadata that the decision was made from, or it conflicts and
nothing changes. Then the metadata is read again and the decision is made again.

The first decision is made from the broker's view, which costs no read. On a distributed store this view can lag behind.
A multi that is based on an old view conflicts. A refusal is not based on a multi, so it is final only if it was decided
from metadata that were read after the request arrived.

If the answer of a multi is lost, the nodes are read back. The multi was applied if every node is as the multi left it;
it was not applied if every node is as it was before. Otherwise other writers have changed them since, and the client
gets an error that says so; it has to look for itself, as after every request that timed out.

This conclusion needs two properties of a multi. It names the version of a node that is never deleted, because a node
that it created may have been deleted since. It writes a random value, unless another writer of the same values has the
same effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from ottla.broker.metadata.store import (
    ROOT,
    Changed,
    Check,
    Conflict,
    Create,
    Delete,
    MetadataStore,
    MultiTooLarge,
    Node,
    NotConnected,
    Op,
    OutcomeUnknown,
    Put,
    Session,
    SessionState,
    StoreClosed,
    StoreError,
)
from ottla.broker.metadata.view import ClusterView
from ottla.model.errors import ErrorCode, KafkaError, PolicyViolation, Refused, StorageError

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

#: a decision conflicts at most once with each change of the same nodes that another broker makes meanwhile
ATTEMPTS_MAX = 100
#: how long a writer waits for a connection to find out whether its multi was applied
_READ_BACK_S = 20.0


async def decide_and_write(
    store: MetadataStore,
    view: ClusterView,
    decide: Callable[[ClusterView], tuple[Sequence[Op], R]],
    *,
    turn: asyncio.Lock,
    watched: bool = True,
    repeated: bool = False,
) -> R:
    """Write the operations that ``decide`` returns for the current metadata, and return its other result.

    ``view`` is kept current by a watch if it is ``watched``. ``decide`` must not change anything: it is called again
    after a conflict, with ``view`` if it is current by then or with a view that was just loaded. Requests of one broker
    share a ``turn``. One of them at a time decides again, so that n requests that conflict need 2n multis, not n * n.
    A ``repeated`` decision is made after every change of the watched view. If it finds nothing to write, that is the
    result although the view may be old: the caller decides again when the watch delivers the change. Others load the
    metadata then, which takes milliseconds of a broker that has thousands of partitions.

    Raise the KafkaError of ``decide``; REQUEST_TIMED_OUT if there are too many conflicts, if the store is not
    connected, or if it is unknown whether the change was applied; PolicyViolation if the change is too large for the
    store; StorageError if the store fails, for example because of its disk.
    """
    stays_current = store.watches_are_immediate and watched
    done = await _try(store, view, decide, is_current=stays_current or repeated)
    if done is not None:
        return done.result
    async with turn:
        for _ in range(ATTEMPTS_MAX):
            if not stays_current:
                view = await load_view(store)
            done = await _try(store, view, decide, is_current=True)
            if done is not None:
                return done.result
    raise _too_many_conflicts()


class _Done(NamedTuple, Generic[R]):
    """The result of a decision that was written."""

    result: R


async def _try(
    store: MetadataStore,
    view: ClusterView,
    decide: Callable[[ClusterView], tuple[Sequence[Op], R]],
    *,
    is_current: bool,
) -> _Done[R] | None:
    """Decide and write once. Return None after a conflict, and if a refusal may be based on an old view."""
    try:
        ops, result = decide(view)
    except KafkaError:
        if is_current:
            raise
        return None
    if await _write(store, ops) if ops else is_current:
        return _Done(result)
    return None


async def read_and_write(
    store: MetadataStore,
    read: Callable[[], Awaitable[T]],
    decide: Callable[[T], tuple[Sequence[Op], R]],
    *,
    repeatable: bool = False,
) -> R:
    """Write the operations that ``decide`` returns for what ``read`` returns, and return its other result.

    After a conflict, read and decide again. A ``repeatable`` change may be applied twice: it is also decided again if
    it is unknown whether it was applied. Raise as ``decide_and_write``.
    """
    for _ in range(ATTEMPTS_MAX):
        ops, result = decide(await _connected(read()))
        if not ops or await _write(store, ops, repeatable=repeatable):
            return result
    raise _too_many_conflicts()


async def load_view(store: MetadataStore) -> ClusterView:
    """Return a view of the metadata as they are now."""
    view = ClusterView()
    nodes = await _connected(store.load(ROOT))
    view.apply([Changed(path, node) for path, node in nodes.items()])
    return view


async def _connected(reading: Awaitable[T]) -> T:
    """Return the result of a read. Raise REQUEST_TIMED_OUT if the store is not connected, StorageError if it fails."""
    try:
        return await reading
    except NotConnected as error:
        raise _timed_out(f"{error}; try again") from None
    except StoreClosed:
        raise
    except StoreError as error:
        raise _failed(error) from None


async def _write(store: MetadataStore, ops: Sequence[Op], *, repeatable: bool = False) -> bool:
    """Return whether the operations were applied; False after a conflict."""
    assert all(op.version is not None for op in ops if not isinstance(op, Create)), "a write names its version"
    try:
        await store.multi(ops)
    except Conflict:
        return False
    except MultiTooLarge as error:
        raise PolicyViolation(str(error)) from None
    except NotConnected as error:
        raise _timed_out(f"{error}; try again") from None
    except OutcomeUnknown as error:
        if repeatable:
            return False
        outcome = await _read_back(store, ops)
        if outcome is Outcome.UNKNOWN:
            raise _timed_out(str(error)) from None
        return outcome is Outcome.APPLIED
    except StoreClosed:
        raise
    except StoreError as error:
        raise _failed(error) from None
    return True


class Outcome(Enum):
    APPLIED = "applied"
    NOT_APPLIED = "not applied"
    UNKNOWN = "unknown"


async def _read_back(store: MetadataStore, ops: Sequence[Op]) -> Outcome:
    """Wait for a connection and return whether the operations, whose answer was lost, were applied."""
    try:
        async with asyncio.timeout(_READ_BACK_S):
            while True:
                await established(store)
                try:
                    nodes = await store.load(ROOT)  # all nodes as of one moment
                except NotConnected:
                    continue
                return outcome_of(ops, nodes)
    except TimeoutError:
        return Outcome.UNKNOWN


async def established(store: MetadataStore) -> None:
    """Wait until the session of the store is established."""
    connected = asyncio.Event()

    def changed(session: Session) -> None:
        if session.state is SessionState.ESTABLISHED:
            connected.set()

    stop = store.on_session(changed)
    try:
        if store.session.state is not SessionState.ESTABLISHED:
            await connected.wait()
    finally:
        stop()


def outcome_of(ops: Sequence[Op], nodes: Mapping[str, Node]) -> Outcome:
    """Return whether ``ops`` were applied, given the nodes as they were at one moment afterwards."""
    if all(_is_as_before(op, nodes.get(op.path)) for op in ops):
        return Outcome.NOT_APPLIED
    if all(_is_as_written(op, nodes.get(op.path)) for op in ops):
        return Outcome.APPLIED
    return Outcome.UNKNOWN


def _is_as_before(op: Op, node: Node | None) -> bool:
    return node is None if isinstance(op, Create) else node is not None and node.version == op.version


def _is_as_written(op: Op, node: Node | None) -> bool:
    if isinstance(op, Delete):
        return node is None
    if isinstance(op, Check):  # the multi may have changed the node after the check, and others after the multi
        return True
    version = op.version + 1 if isinstance(op, Put) and op.version is not None else 0
    return node is not None and (node.value, node.version) == (op.value, version)


def _too_many_conflicts() -> KafkaError:
    return _timed_out("too many requests change the same metadata at once; try again")


def _failed(error: StoreError) -> StorageError:
    """Return the error for clients. The connection of a client that only looks for a coordinator must not be closed."""
    log.error("the metadata store failed error=%s", error)
    return StorageError(str(error))


def _timed_out(text: str) -> KafkaError:
    return Refused(ErrorCode.REQUEST_TIMED_OUT, text)
