"""A server with a task for each connection leaves no socket open when it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.env.connections import ConnectionServer


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readline())


async def wait_for_ever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def send_more_than_fits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"x" * 50_000_000)
    await wait_for_ever(reader, writer)


async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    raise ConnectionResetError


def leaks_of(scenario: Callable[[], Coroutine[Any, Any, None]]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(scenario())
        gc.collect()
    return [str(each.message) for each in caught if issubclass(each.category, ResourceWarning)]


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


def test_connection_is_closed_after_its_reply() -> None:
    async def scenario() -> None:
        server = ConnectionServer(echo)
        host, _, port = (await server.start(host="127.0.0.1", port=0)).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"hello\n")
        assert await reader.read() == b"hello\n"
        writer.close()
        await writer.wait_closed()
        await server.close()

    assert leaks_of(scenario) == []


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("serve", [echo, wait_for_ever, send_more_than_fits, fail])
def test_no_socket_stays_open_if_a_client_connects_just_before_the_close(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]], turns: int
) -> None:
    """``turns`` of the event loop pass between the connection and the close."""

    async def scenario() -> None:
        server = ConnectionServer(serve)
        address = await server.start(host="127.0.0.1", port=0)
        with connect(address) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.close()
            client.settimeout(10)
            with contextlib.suppress(ConnectionError):
                while client.recv(1 << 20):
                    pass

    assert leaks_of(scenario) == []


def test_address_refuses_connections_once_the_server_is_closed() -> None:
    async def scenario() -> None:
        server = ConnectionServer(echo)
        address = await server.start(host="127.0.0.1", port=0)
        await server.close()
        with pytest.raises(ConnectionRefusedError):
            connect(address)
        await server.close()

    assert leaks_of(scenario) == []


def test_failure_of_a_connection_is_reported_and_the_server_goes_on() -> None:
    reported: list[str] = []

    async def fail_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not reported:
            raise ValueError("a bug")
        writer.write(b"fine")

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(str(context["exception"])))
        server = ConnectionServer(fail_once)
        host, _, port = (await server.start(host="127.0.0.1", port=0)).rpartition(":")
        for expected in (b"", b"fine"):
            reader, writer = await asyncio.open_connection(host, int(port))
            assert await reader.read() == expected
            writer.close()
        await server.close()

    assert leaks_of(scenario) == []
    assert reported == ["a bug"]
