"""Send a request that only the leader can answer to the leader, and its answer to the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.registry import errors
from ottla.registry.election import Instance

if TYPE_CHECKING:
    import httpx

#: tells the leader not to forward the request again: two instances may disagree about the leader for a moment
_FORWARDED: Final = "x-forward"
_PASSED_ON: Final = ("authorization", "accept", "content-type", "x-request-id")
_TIMEOUT_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 5.0


class LeaderUnreachable(Exception):
    """No connection to the leader can be opened: its process has probably ended. The request was not sent."""


class Forwarding:
    """Connections to the leader."""

    def __init__(self, verify: str | bool = True) -> None:
        """`verify` is the file of the certificates that https addresses of other instances are checked with."""
        self._verify = verify
        self._client: httpx.AsyncClient | None = None

    def _open(self) -> httpx.AsyncClient:
        """Return the client. It is made for the first request, because httpx takes a fifth of the time of a start."""
        import httpx

        if self._client is None:
            timeout = httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
            self._client = httpx.AsyncClient(timeout=timeout, verify=self._verify, trust_env=False)
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def send(self, leader: Instance, request: Request, body: bytes) -> Response:
        """Return the leader's answer. Raise LeaderUnreachable if the request could not be sent.

        Raise HttpError 50003 if the leader gives no answer, and 50004 if another instance has forwarded the request.
        """
        import httpx

        if _FORWARDED in request.headers:
            await self._connect(leader)
            raise errors.leader_unknown()
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        path = request.scope.get("raw_path") or request.scope["path"].encode()
        url = httpx.URL(leader.url).copy_with(raw_path=path.partition(b"?")[0] + _query(request))
        try:
            answer = await self._open().request(
                request.method, url, content=body, headers=headers | {_FORWARDED: "true"}
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise LeaderUnreachable(leader.url) from error
        except httpx.HTTPError as error:
            text = f"the leader {leader.url} does not answer: {type(error).__name__}; try again"
            raise errors.forwarding_failed(text) from None
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    async def _connect(self, leader: Instance) -> None:
        """Raise LeaderUnreachable if no connection can be opened."""
        import httpx

        try:
            await self._open().get(leader.url)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise LeaderUnreachable(leader.url) from error
        except httpx.HTTPError:
            pass


def _query(request: Request) -> bytes:
    query: bytes = request.scope["query_string"]
    return b"?" + query if query else b""
