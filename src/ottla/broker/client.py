"""The client that sent a request, as the coordinators know it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

#: returns whether a client may know that a topic exists
MaySee = Callable[[str], bool]


class Client(NamedTuple):
    """The client that sent the request."""

    client_id: str
    host: str
    #: API version of the request
    version: int
    #: number of the connection, in the order in which the broker accepted them; 0 if unknown
    connection: int = 0
    #: correlation id of the request
    correlation_id: int = 0
    #: None if the client may know all topics
    may_see: MaySee | None = None
