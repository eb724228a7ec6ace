"""Asks several brokers at the same time: all requests are sent before the first reply is awaited."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from ottla.client.cluster import Cluster
from ottla.client.connection import VERSION_MAX, BrokerConnection
from ottla.client.errors import ClientError
from ottla.client.protocol.metadata import Node
from ottla.wire import Message

_T = TypeVar("_T")
_Request = TypeVar("_Request", bound=Message)


def parts_of(rows: Iterable[_T], size: int) -> Iterator[tuple[_T, ...]]:
    """Yield the rows in parts of at most this size."""
    left = iter(rows)
    while part := tuple(islice(left, size)):
        yield part


def ask_many(
    cluster: Cluster,
    requests: Iterable[tuple[Node, _Request]],
    deadline: float,
    *,
    version_min: int = 0,
    version_max: int = VERSION_MAX,
) -> Iterator[tuple[Node, _Request, Any]]:
    """Yield each broker with its request, and its reply or the ClientError that came instead of one.

    A broker gets one request at a time; two requests to one broker are answered over two connections.
    """
    waiting: list[tuple[Node, _Request, BrokerConnection | ClientError]] = []
    try:
        for node, request in requests:
            waiting.append((node, request, _sent(cluster, node, request, deadline, (version_min, version_max))))
        while waiting:
            node, request, connection = waiting.pop(0)
            if isinstance(connection, ClientError):
                yield node, request, connection
                continue
            try:
                reply = connection.receive(deadline)
            except ClientError as error:
                reply = error
            finally:
                cluster.give_back(connection)
            yield node, request, reply
    finally:
        # Those whose replies are not read are closed by the pool.
        for _, _, connection in waiting:
            if isinstance(connection, BrokerConnection):
                cluster.give_back(connection)


def _sent(
    cluster: Cluster, node: Node, request: Message, deadline: float, versions: tuple[int, int]
) -> BrokerConnection | ClientError:
    try:
        connection = cluster.borrow(node, deadline)
    except ClientError as error:
        return error
    try:
        connection.send(request, deadline=deadline, version_min=versions[0], version_max=versions[1])
    except ClientError as error:
        cluster.give_back(connection)
        return error
    return connection
