"""Connections through proxies that hold bytes back. All of it in this process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from ottla.testing.links import CLIENTS, Links, Member, ProcessMembers
from ottla.testing.process import reserve_port

_DEADLINE_S = 60.0


class Echo(threading.Thread):
    """A member that sends back what it receives."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(daemon=True)
        self.listening = listening
        self.received: list[bytes] = []
        self.arrived = threading.Semaphore(0)
        listening.listen()
        self.start()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while chunk := connection.recv(1000):
                self.received.append(chunk)
                self.arrived.release()
                connection.sendall(chunk)

    def stop(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.join()


@pytest.fixture
def reserved() -> Iterator[socket.socket]:
    with reserve_port() as found:
        yield found


@pytest.fixture
def echo(reserved: socket.socket) -> Iterator[Echo]:
    member = Echo(listen_at(reserved))
    yield member
    if member.is_alive():
        member.stop()


@pytest.fixture
def links(reserved: socket.socket) -> Iterator[Links]:
    with Links({1: f"127.0.0.1:{reserved.getsockname()[1]}"}, lambda address: CLIENTS) as found:
        yield found


def listen_at(reserved: socket.socket) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(reserved.getsockname())
    return listening


def dial(links: Links) -> socket.socket:
    host, port = links.addresses[1].split(":")
    return socket.create_connection((host, int(port)), timeout=_DEADLINE_S)


def ask(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return connection.recv(1000)


def test_bytes_pass_in_both_directions(echo: Echo, links: Links) -> None:
    with dial(links) as connection:
        assert ask(connection, b"one") == b"one"
        assert ask(connection, b"two") == b"two"


def test_bytes_of_a_cut_arrive_after_the_heal(echo: Echo, links: Links) -> None:
    with dial(links) as connection:
        assert ask(connection, b"before") == b"before"
        links.cut(CLIENTS, 1)
        connection.sendall(b"held back")
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1000)
        assert echo.received == [b"before"]
        connection.settimeout(_DEADLINE_S)
        links.heal()
        assert connection.recv(1000) == b"held back"


def test_one_way_cut_holds_back_answers_only(echo: Echo, links: Links) -> None:
    links.cut(1, CLIENTS, one_way=True)
    with dial(links) as connection:
        connection.sendall(b"question")
        assert echo.arrived.acquire(timeout=_DEADLINE_S)
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1000)
        connection.settimeout(_DEADLINE_S)
        links.heal()
        assert connection.recv(1000) == b"question"


def test_cut_between_others_changes_nothing(echo: Echo, links: Links) -> None:
    links.cut(2, 1)
    links.cut(CLIENTS, 3)
    with dial(links) as connection:
        assert ask(connection, b"passes") == b"passes"


def test_end_of_a_connection_does_not_pass_a_cut(echo: Echo, links: Links) -> None:
    with dial(links) as connection:
        assert ask(connection, b"open") == b"open"
        links.cut(1, CLIENTS, one_way=True)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1000)
        connection.settimeout(_DEADLINE_S)
        links.heal()
        assert connection.recv(1000) == b""


def test_member_that_has_stopped_refuses_connections_until_it_listens_again(
    reserved: socket.socket, echo: Echo, links: Links
) -> None:
    echo.stop()
    until_refused(links)
    again = Echo(listen_at(reserved))
    connection = dial_until_accepted(links)
    with connection:
        assert ask(connection, b"back") == b"back"
    again.stop()


def until_refused(links: Links) -> None:
    while True:
        try:
            dial(links).close()  # the proxy learns by this connection that the member has stopped
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            continue  # the proxy closed its socket just now


def dial_until_accepted(links: Links) -> socket.socket:
    while True:
        try:
            return dial(links)
        except ConnectionRefusedError:
            continue


def test_member_is_found_by_the_process_that_dials(echo: Echo, links: Links) -> None:
    found: dict[int, Member] = {os.getpid(): 7}
    member_of = ProcessMembers(lambda: found)
    with dial(links) as connection:
        address = connection.getsockname()
        assert member_of(address) == 7
        found.clear()
        assert member_of(address) == CLIENTS
    assert ProcessMembers(lambda: {os.getpid(): 7})(("127.0.0.1", 1)) == CLIENTS
