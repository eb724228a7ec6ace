"""A simulated ensemble of ZooKeeper servers in memory, with a MetadataStore for each of its clients.

The ensemble runs on the event loop that it is given and uses its timers only, so a loop with virtual time makes a run
repeatable: the same loop, the same ``random.Random`` and the same calls give the same run.

    ensemble = SimulatedEnsemble(loop, rng)
    store = ensemble.connect("broker-1")     a MetadataStore with an established session
    ensemble.cut("broker-1")                 no message passes in either direction; no side gets an error
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from ottla.broker.metadata.store import ROOT, Changed, Node, Op, Written
from ottla.testing.metadata_client import SimulatedStore
from ottla.testing.metadata_tree import Tree

__all__ = ["SimulatedEnsemble", "SimulatedStore", "Timing"]

#: the range from which a delay is drawn
Seconds = tuple[float, float]


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
        self,
        loop: asyncio.AbstractEventLoop,
        rng: Random,
        *,
        timing: Timing | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self._loop = loop
        self._rng = rng
        self.timing = timing or Timing()
        self._trace = trace
        self._tree = Tree()
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
        self._past: list[tuple[float, int, Tree, list[Changed]]] = []

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

    def read(self, client: str, work: Callable[[Tree], Any]) -> tuple[int, Any]:
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


@dataclass(slots=True, eq=False)
class _SessionRecord:
    """A session as the ensemble knows it."""

    client: str
    session_id: int
    #: set while the client is not connected
    expiry: asyncio.TimerHandle | None = None
