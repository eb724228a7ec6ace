"""Send a request that only the leader can answer to the leader, and its answer to the client.

The request keeps the credentials of its user, so that the leader authenticates the user itself.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.registry import errors
from ottla.edge.registry.election import Instance
from ottla.env.tasks import start_task

if TYPE_CHECKING:
    import httpx

    from ottla.security.certificates import Certificates

#: with this header the leader does not forward the request again: two instances may disagree about the leader briefly
_FORWARDED: Final = "x-forward"
#: where the leader had read the topic when it answered a forwarded request
_POSITION: Final = "ottla-position"
_PASSED_ON: Final = ("authorization", "accept", "content-type", "x-request-id")
_TIMEOUT_S: Final = 30.0
_CONNECT_S: Final = 5.0
#: longer than a request takes
_OLD_CLIENT_S: Final = 120.0


class LeaderUnreachable(Exception):
    """No connection to the leader can be opened: its process has probably ended. The request was not sent."""


def with_position(request: Request, response: Response, position: int) -> Response:
    """Return the answer to a forwarded request with the position up to which the leader has read the topic."""
    if _FORWARDED in request.headers:
        response.headers[_POSITION] = str(position)
    return response


class Forwarding:
    """Connections to the leader."""

    def __init__(self, certificates: Certificates | None = None) -> None:
        """``certificates`` are those with which https addresses of other instances are checked.

        Without them, the authorities of the system are trusted.
        """
        self._certificates = certificates
        self._client: httpx.AsyncClient | None = None
        #: what the client was made with
        self._context: ssl.SSLContext | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def send(self, leader: Instance, request: Request, body: bytes) -> tuple[Response, int]:
        """Return the leader's answer, and the offset up to which it had read the topic; -1 if the answer has none.

        Raise LeaderUnreachable if the request could not be sent.
        Raise HttpError 50003 if the leader gives no answer or its certificate is not trusted, and 50004 if another
        instance has forwarded the request.
        """
        import httpx  # takes 0.1 s: a leader, and an instance without others, never load it

        if _FORWARDED in request.headers:
            await self._connect(leader)
            raise errors.leader_unknown()
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        path = request.scope.get("raw_path") or request.scope["path"].encode()
        url = httpx.URL(leader.url).copy_with(raw_path=path.partition(b"?")[0] + _query(request))
        client = self._current_client()
        try:
            answer = await client.request(request.method, url, content=body, headers=headers | {_FORWARDED: "true"})
        except (httpx.ConnectError, httpx.ConnectTimeout, AttributeError) as error:
            raise _unreachable(leader, error) from error
        except httpx.HTTPError as error:
            text = f"the leader {leader.url} does not answer: {type(error).__name__}; try again"
            raise errors.forwarding_failed(text) from None
        position = int(answer.headers.get(_POSITION, "-1"))
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type")), position

    async def _connect(self, leader: Instance) -> None:
        """Raise LeaderUnreachable if no connection can be opened."""
        import httpx

        client = self._current_client()
        try:
            await client.get(leader.url)
        except (httpx.ConnectError, httpx.ConnectTimeout, AttributeError) as error:
            raise _unreachable(leader, error) from error
        except httpx.HTTPError:
            pass

    def _close_later(self, client: httpx.AsyncClient) -> None:
        closing = start_task(client.aclose(), "close connections to another instance")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _current_client(self) -> httpx.AsyncClient:
        """Return a client with the certificates that the files have now. It is made when the first request needs it."""
        import httpx

        if self._certificates is not None:
            self._certificates.reload("connections to other instances")
        context = None if self._certificates is None else self._certificates.context
        if self._client is None or context is not self._context:
            old, self._context = self._client, context
            timeout = httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_S)
            self._client = httpx.AsyncClient(timeout=timeout, verify=context or True, trust_env=False)
            if old is not None:
                # Not at once: requests that the old client has sent are in progress.
                loop = asyncio.get_running_loop()
                loop.call_later(_OLD_CLIENT_S, self._close_later, old)
        return self._client


def _unreachable(leader: Instance, error: Exception) -> Exception:
    """Return the error of a connection that could not be opened.

    It is an AttributeError if the connection is reset while it is opened, as by a process that is killed: uvloop has no
    socket any more, and anyio, which httpx uses, asks it for its address before anything is sent.

    A leader whose certificate is refused is alive. If it counted as ended, this instance would replace it.
    """
    refusal = next((each for each in _causes(error) if isinstance(each, ssl.SSLError)), None)
    if refusal is None:
        return LeaderUnreachable(leader.url)
    reason = getattr(refusal, "verify_message", "") or refusal.reason or str(refusal)
    return errors.forwarding_failed(
        f"no TLS connection to the leader {leader.url}: {reason}; set ssl.truststore.location to the file of the "
        "authority that signed its certificate, and host.name of the leader to a name in it"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _query(request: Request) -> bytes:
    query: bytes = request.scope["query_string"]
    return b"?" + query if query else b""
