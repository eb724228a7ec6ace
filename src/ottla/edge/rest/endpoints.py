"""Which operations are served: `api.v2.enable`, `api.v3.enable`, `api.endpoints.allowlist`, `api.endpoints.blocklist`.

The lists have the names of Confluent's proxy. `api.v3.topics.*` is every operation of topics, and
`api.v3.topics.delete` is one of them. A disabled operation is answered as if it did not exist, before the user is
authenticated: 404 for GET, 405 for other methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.rest.settings import RestSettings
from ottla.edge.web.app import HttpError, Operation
from ottla.model.errors import StartError


def served(operations: Sequence[Operation], settings: RestSettings) -> list[Operation]:
    """Return the operations without those that the settings disable. Raise StartError if a name is not known."""
    known = {name for operation in operations for name in (operation.name, _group(operation.name))}
    for name in (*settings.api_endpoints_allowlist, *settings.api_endpoints_blocklist):
        if name not in known:
            raise StartError(f"no operation has the name {name}; docs/reference/rest.md lists the names")
    versions = {"api.v2.": settings.api_v2_enable, "api.v3.": settings.api_v3_enable}
    return [
        each if _is_enabled(each.name, settings) else _disabled(each) for each in operations if versions[each.name[:7]]
    ]


def _group(name: str) -> str:
    """Return the name of all operations of the same kind.

    >>> _group("api.v3.partitions.list.offsets")
    'api.v3.partitions.*'
    """
    return ".".join((*name.split(".")[:3], "*"))


def _is_enabled(name: str, settings: RestSettings) -> bool:
    names = {name, _group(name)}
    allowed = settings.api_endpoints_allowlist
    return (not allowed or not names.isdisjoint(allowed)) and names.isdisjoint(settings.api_endpoints_blocklist)


def _disabled(operation: Operation) -> Operation:
    """Return the operation with a handler that answers as if it did not exist."""

    async def refuse(request: Request) -> Response:
        if operation.method == "GET":
            raise HttpError(404, 404, "HTTP 404 Not Found")
        raise HttpError(405, 405, "HTTP 405 Method Not Allowed")

    return replace(operation, handler=refuse, is_public=True, body=None)
