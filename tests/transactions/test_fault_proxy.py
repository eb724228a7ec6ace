"""The proxy does to whole requests what it says, and nothing to anybody else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from struct import Struct

import pytest

from campaign.processes import wait_until
from ottla.testing.proxy import END_TXN, FETCH, Fault, FaultProxy, Faults
from ottla.testing.raw import Closed, RawClient, request_bytes
from ottla.wire.messages.end_txn import EndTxnRequest
from ottla.wire.messages.fetch import FetchRequest

_START = Struct(">hhi")
_ANSWER = Struct(">i")
_REQUEST = EndTxnRequest(transactional_id="id", producer_id=1, producer_epoch=0, committed=True)


class EchoBroker:
    """Answers every request with its correlation id and what it was, and remembers it."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while size := stream.read(4):
                frame = stream.read(int.from_bytes(size))
                _, _, correlation_id = _START.unpack_from(frame)
                self.received.append(correlation_id)
                answer = _ANSWER.pack(correlation_id) + b"done"
                connection.sendall(_ANSWER.pack(len(answer)) + answer)


@pytest.fixture
def broker() -> Iterator[EchoBroker]:
    made = EchoBroker()
    yield made
    made.close()


@pytest.fixture
def proxy(broker: EchoBroker) -> Iterator[FaultProxy]:
    with FaultProxy(broker.address, seed=1) as made:
        yield made


def ask(client: RawClient, correlation_id: int) -> bytes:
    client.send_frame(request_bytes(_REQUEST, 1, correlation_id, client.client_id))
    return client.receive_frame()


def always(fault: Fault, delay_s: float = 0.0) -> Faults:
    return Faults(apis={END_TXN}, rate=1.0, kinds=(fault,), delay_s_max=delay_s)


def test_without_faults_everything_passes(broker: EchoBroker, proxy: FaultProxy) -> None:
    with RawClient(proxy.address) as client:
        assert [ask(client, number) for number in (5, 6)] == [_ANSWER.pack(n) + b"done" for n in (5, 6)]
    assert broker.received == [5, 6]


def test_a_duplicate_arrives_twice_and_is_answered_once(broker: EchoBroker, proxy: FaultProxy) -> None:
    proxy.faults = always(Fault.DUPLICATE)
    with RawClient(proxy.address) as client:
        assert ask(client, 5) == _ANSWER.pack(5) + b"done"
        wait_until(lambda: proxy.under_way == 0)
        proxy.faults = None
        assert ask(client, 6) == _ANSWER.pack(6) + b"done"
    assert broker.received == [5, 5, 6]


def test_a_lost_request_never_arrives(broker: EchoBroker, proxy: FaultProxy) -> None:
    proxy.faults = always(Fault.LOSE_REQUEST)
    with RawClient(proxy.address) as client, pytest.raises(Closed):
        ask(client, 5)
    assert broker.received == []


def test_a_lost_answer_is_that_of_a_request_that_arrived(broker: EchoBroker, proxy: FaultProxy) -> None:
    proxy.faults = always(Fault.LOSE_ANSWER)
    with RawClient(proxy.address) as client, pytest.raises(Closed):
        ask(client, 5)
    assert broker.received == [5]


def test_a_late_request_arrives_after_those_of_the_next_connection(broker: EchoBroker, proxy: FaultProxy) -> None:
    proxy.rng.uniform = lambda low, high: 2.0  # type: ignore[method-assign]
    proxy.faults = always(Fault.ARRIVE_LATE)
    with RawClient(proxy.address) as client, pytest.raises(Closed):
        ask(client, 5)
    proxy.faults = None
    with RawClient(proxy.address) as client:
        ask(client, 6)
    wait_until(lambda: proxy.under_way == 0)
    assert broker.received == [6, 5]


def test_a_delayed_request_holds_back_those_behind_it(broker: EchoBroker, proxy: FaultProxy) -> None:
    proxy.faults = always(Fault.DELAY, delay_s=0.05)
    with RawClient(proxy.address) as client:
        for number in (5, 6):
            client.send_frame(request_bytes(_REQUEST, 1, number))
        assert [client.receive_frame()[:4] for _ in range(2)] == [_ANSWER.pack(5), _ANSWER.pack(6)]
    assert broker.received == [5, 6]


def test_other_apis_and_other_clients_are_left_alone(broker: EchoBroker, proxy: FaultProxy) -> None:
    proxy.faults = Faults(apis={END_TXN}, rate=1.0, kinds=(Fault.LOSE_REQUEST,), client_prefix="mine")
    with RawClient(proxy.address, client_id="yours") as client:
        ask(client, 5)
    with RawClient(proxy.address, client_id="mine") as client:
        client.send_frame(request_bytes(FetchRequest(), 4, 6, "mine"))
        client.receive_frame()
    assert (broker.received, proxy.happened) == ([5, 6], [])
    assert FETCH not in proxy.faults.apis


def test_what_is_spared_never_happens(broker: EchoBroker, proxy: FaultProxy) -> None:
    proxy.faults = Faults(rate=1.0, kinds=(Fault.LOSE_REQUEST,), spared=[(Fault.LOSE_REQUEST, END_TXN)])
    with RawClient(proxy.address) as client:
        ask(client, 5)
    assert (broker.received, proxy.happened) == ([5], [])


def test_a_broker_that_is_away_is_a_connection_that_ends(proxy: FaultProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        proxy.target = f"127.0.0.1:{gone.getsockname()[1]}"
    with RawClient(proxy.address) as client, pytest.raises(Closed):
        ask(client, 5)
