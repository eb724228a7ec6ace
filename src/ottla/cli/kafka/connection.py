"""The cluster of a tool: its address, its properties, and a client whose errors are those of Java's client."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ottla.admin.client import AdminClient
from ottla.cli import java_properties
from ottla.cli.kafka.errors import ClientTimeout, IllegalArgument, RequestError, ToolError
from ottla.cli.kafka.tool import print_error
from ottla.client.cluster import Cluster
from ottla.client.errors import BrokerError, ClientError, ConnectionLost, PropertyRefused, TimedOut, Unreachable
from ottla.client.protocol.metadata import parse_bootstrap
from ottla.wire import Message
from ottla.wire.messages.metadata import MetadataResponse

_CLIENT_ID = "adminclient-1"
#: Java's default.api.timeout.ms
_TIMEOUT_S = 60.0
_CONNECT_S = 10.0
_PAUSE_S = 0.2


class Admin(AdminClient):
    """The client of a tool. A request that fails raises `RequestError` or `ClientTimeout`, with Java's texts."""

    #: the call that Java's client names when it times out
    call_name = "call"

    def cluster_metadata(self, topics: Iterable[str]) -> MetadataResponse:
        """Return the metadata of these topics; a topic that does not exist has an error code."""
        named = list(topics)
        return self.call(lambda cluster: cluster.metadata(named, time.monotonic() + self.timeout_s))

    def ask_owner_of_metadata(self, request: Message, version_min: int = 0) -> Any:
        """Return the reply of the controller, or of a broker that forwards such requests to it."""

        def ask(cluster: Cluster) -> Any:
            deadline = time.monotonic() + self.timeout_s
            return cluster.ask(cluster.controller(deadline), request, deadline=deadline, version_min=version_min)

        return self.call(ask)

    @contextmanager
    def _failures(self, subject: str = "", group: str | None = None) -> Iterator[None]:
        try:
            yield
        except BrokerError as error:
            raise RequestError(error.code, error.text) from None
        except PropertyRefused as error:
            raise ToolError(str(error)) from None
        except (Unreachable, ConnectionLost, TimedOut) as error:
            if isinstance(cause := error.__cause__, BrokerError):
                raise RequestError(cause.code, cause.text) from None
            raise ClientTimeout(f"Timed out waiting for a node assignment. Call: {self.call_name}") from None
        except ClientError as error:
            raise ToolError(str(error)) from None
        except ValueError as error:
            raise IllegalArgument(str(error)) from None


def properties_of(path: str | None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the properties of a file of --command-config, and further ones, which take precedence."""
    return {**({} if path is None else java_properties.load(path)), **(more or {})}


def connect(bootstrap: str | None, properties: Mapping[str, str], *, call: str) -> Admin:
    """Return a client of the cluster, once one of its addresses accepts a connection.

    Raise ClientTimeout, which names `call`, if none does for a minute: containers that start together rely on the wait.
    """
    given = dict(properties)
    filed = given.pop("bootstrap.servers", None)
    addresses = bootstrap or filed
    if not addresses:
        raise ToolError("No resolvable bootstrap urls given in bootstrap.servers")
    timeout_s = float(given.pop("default.api.timeout.ms", _TIMEOUT_S * 1000)) / 1000
    try:
        translated = java_properties.translate(given)
    except ValueError as error:
        raise ToolError(str(error)) from None
    admin = Admin(addresses, translated, timeout_s=timeout_s, client_id=given.get("client.id", _CLIENT_ID))
    admin.call_name = call
    _await_address(addresses, timeout_s, call)
    return admin


def _await_address(addresses: str, timeout_s: float, call: str) -> None:
    deadline = time.monotonic() + timeout_s
    listed = parse_bootstrap(addresses)
    is_reported = False
    while True:
        for host, port in listed:
            try:
                socket.create_connection((host, port), timeout=min(timeout_s, _CONNECT_S)).close()
                return
            except OSError:
                if not is_reported:
                    where = f"node -1 ({host}:{port})"
                    print_error(f"WARN Connection to {where} could not be established. Node may not be available.")
        is_reported = True
        if time.monotonic() + _PAUSE_S >= deadline:
            raise ClientTimeout(f"Timed out waiting for a node assignment. Call: {call}")
        time.sleep(_PAUSE_S)
