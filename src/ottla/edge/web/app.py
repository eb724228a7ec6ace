"""An ASGI app made of a table of operations: each row is a method, a path, a handler and its documentation.

The same table answers requests and generates the OpenAPI document (`openapi.py`), so that the two cannot differ.

Paths are matched before percent-decoding, segment by segment: the name `a/b` arrives as `a%2Fb` and is one segment. A
slash at the end is ignored. `{name}` matches one segment; the decoded segment is in `request.path_params`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ottla.edge.web.http10 import WholeAnswer
from ottla.env.log_limit import LogLimit

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

#: bytes of a request's body, unless the operation has its own limit
BODY_BYTES_MAX: Final = 2 << 20
#: a client that sends nothing for this long in the middle of a body is disconnected
BODY_PAUSE_S_MAX: Final = 30.0
#: an operation with a larger limit reads its body in pieces and keeps none of them; for other bodies, there is a limit
#: for the time of the whole body, and for the bytes of the bodies of all requests
STREAM_BYTES_MIN: Final = 1 << 31
BODY_S_MAX: Final = 300.0
BUFFERED_BYTES_MAX: Final = 512 << 20
#: media types of bodies that are read as JSON: none, the general one, and curl's default for --data
_UNSPECIFIC: Final = ("", "application/octet-stream", "application/x-www-form-urlencoded")

Handler = Callable[[Request], Awaitable[Response]]


class HttpError(Exception):
    """An error with the status and the body `{"error_code": …, "message": …}` that the client gets."""

    def __init__(self, status: int, error_code: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code
        self.message = message
        self.headers = dict(headers or {})

    def as_json(self) -> dict[str, Any]:
        return {"error_code": self.error_code, "message": self.message}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the path or in the query, for the OpenAPI document."""

    name: str
    description: str
    #: a JSON Schema
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One row of the table."""

    #: what settings call it that disable it; empty if there are none
    name: str = ""
    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    query: Sequence[Parameter] = ()
    #: JSON Schema of the body; None if the operation reads none
    body: Mapping[str, Any] | None = None
    body_required: bool = True
    #: media types of the body
    consumes: Sequence[str] = ("application/json",)
    #: status -> JSON Schema of the answer; None if it has no body
    answers: Mapping[int, Mapping[str, Any] | None] = field(default_factory=lambda: {200: {}})
    produces: Sequence[str] = ("application/json",)
    #: status of each error that the operation can answer with, and when
    errors: Mapping[int, str] = field(default_factory=dict)
    body_bytes_max: int = BODY_BYTES_MAX
    #: whether the handler checks the Content-Type itself
    checks_media_type: bool = False
    #: whether it is answered without authentication
    is_public: bool = False


class _Node:
    """One segment of the paths: the operations that end here, and the segments that follow."""

    __slots__ = ("fixed", "operations", "variable")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node] = {}
        self.variable: _Node | None = None
        #: method -> operation and the names of its variable segments
        self.operations: dict[str, tuple[Operation, tuple[str, ...]]] = {}


class Router:
    """Finds the operation of a request: a fixed segment is preferred to a variable one, as in OpenAPI."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = tuple(operations)
        self._root = _Node()
        for operation in operations:
            self._add(operation)

    def _add(self, operation: Operation) -> None:
        node, names = self._root, []
        for segment in _segments(operation.path):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                if node.variable is None:
                    node.variable = _Node()
                node = node.variable
            else:
                node = node.fixed.setdefault(segment, _Node())
        assert operation.method not in node.operations, f"two operations for {operation.method} {operation.path}"
        node.operations[operation.method] = (operation, tuple(names))

    def find(self, method: str, raw_path: str) -> tuple[Operation, dict[str, str]]:
        """Return the operation and the decoded variable segments.

        Raise HttpError 404 if no operation has this path, 405 if none has this method there, and 400 if the path is not
        UTF-8.
        """
        allowed: set[str] = set()
        for node, values in self._matches(raw_path):
            found = node.operations.get(method) or (node.operations.get("GET") if method == "HEAD" else None)
            if found is not None:
                return found[0], dict(zip(found[1], values, strict=True))
            allowed |= node.operations.keys()
        if allowed:
            raise HttpError(405, 405, "HTTP 405 Method Not Allowed", {"allow": ", ".join(sorted(allowed))})
        raise HttpError(404, 404, "HTTP 404 Not Found")

    def methods(self, raw_path: str) -> list[str]:
        """Return the methods of a path, for an answer to OPTIONS. Raise HttpError 404 if no operation has this path."""
        found = {method for node, _ in self._matches(raw_path) for method in node.operations}
        if not found:
            raise HttpError(404, 404, "HTTP 404 Not Found")
        return sorted(found | {"OPTIONS"} | ({"HEAD"} if "GET" in found else set()))

    def _matches(self, raw_path: str) -> Iterator[tuple[_Node, tuple[str, ...]]]:
        """Return the ends of the path and the values of its variable segments, a fixed segment first."""
        segments = _segments(raw_path)
        # A list of alternatives instead of recursion: a fixed segment first, then the variable one.
        waiting: list[tuple[_Node, int, tuple[str, ...]]] = [(self._root, 0, ())]
        while waiting:
            node, position, values = waiting.pop()
            if position == len(segments):
                yield node, values
                continue
            segment = segments[position]
            decoded = _decoded(segment)
            if node.variable is not None and segment:
                waiting.append((node.variable, position + 1, (*values, decoded)))
            fixed = node.fixed.get(segment) or node.fixed.get(decoded)
            if fixed is not None:
                waiting.append((fixed, position + 1, values))


def _segments(path: str) -> list[str]:
    """Return the segments of a path. One slash at the end is ignored.

    >>> _segments("/config/"), _segments("/"), _segments("/a//b")
    (['config'], [], ['a', '', 'b'])
    """
    return path.removesuffix("/").split("/")[1:]


def _decoded(segment: str) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        # With replacement characters, several names would be one.
        raise HttpError(400, 400, "a percent-encoded part of the path is not UTF-8") from None


#: returns who sent the request; raises HttpError 401 if it cannot be authenticated
Authenticate = Callable[[Request], Awaitable[Any]]
#: turns an exception of the service into what the client gets; None for one that it does not know
DescribeError = Callable[[Exception], HttpError | None]
ErrorResponse = Callable[[HttpError], Response]


class Guard(Protocol):
    """What is done with every request, besides its operation: rates, web pages of other origins, metrics."""

    def begin(self) -> None: ...

    def check_host(self, request: Request) -> None:
        """Raise HttpError if the request names a host that is not this service."""

    def preflight(self, request: Request) -> Response | None:
        """Return the answer to a preflight request of a browser; None if it is another request."""

    def check_origin(self, request: Request) -> dict[str, str]:
        """Return headers for the answer. Raise HttpError if the request is that of a web page that is not allowed."""

    def admit(self, request: Request) -> None:
        """Raise HttpError if the client sends too many requests. Its operation and its identity are known."""

    def end(self, operation: Operation | None, status: int, seconds: float) -> None:
        """The answer was sent; ``seconds`` is the time until it began."""


class _Buffered:
    """The bytes of bodies that requests hold at the moment."""

    def __init__(self) -> None:
        self.total = 0


class App:
    """The ASGI app: limits, authentication, routing, errors."""

    def __init__(
        self,
        router: Router,
        *,
        error_response: ErrorResponse,
        describe_error: DescribeError,
        authenticate: Authenticate | None = None,
        guard: Guard | None = None,
        path_bytes_max: int | None = None,
    ) -> None:
        self.router = router
        self._error_response = error_response
        self._describe_error = describe_error
        self._authenticate = authenticate
        self._guard = guard
        self._buffered = _Buffered()
        self._path_bytes_max = path_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            assert scope["type"] in ("lifespan", "websocket"), scope["type"]
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        began = time.monotonic()
        if self._guard is not None:
            self._guard.begin()
        if scope.get("http_version") == "1.0":
            send = WholeAnswer(send).send
        body = _Body(receive, self._buffered)
        status, seconds = 499, 0.0  # the client has disconnected
        try:
            response = await self._answer(scope, body)
            seconds = time.monotonic() - began
            if response is not None:
                status = response.status_code
                await response(scope, receive, send)
        except asyncio.CancelledError:
            _uncancel()  # the service stops: the rest of a long answer is not sent
        finally:
            body.release()
            if self._guard is not None:
                self._guard.end(scope.get("operation"), status, seconds)

    async def _answer(self, scope: Scope, body: _Body) -> Response | None:
        """Return the response of the operation, or that of an error; None if the client has disconnected."""
        try:
            return await self._respond(scope, body)
        except ClientDisconnect:
            return None
        except HttpError as error:
            found = error
        except asyncio.CancelledError:
            # The server cancels the requests that are not completed a few seconds after the service began to stop.
            _uncancel()
            found = HttpError(503, 503, "the service stops: send the request again")
        except Exception as error:
            known = self._describe_error(error)
            if known is None:
                log.exception("request %s %s failed", scope["method"], scope["path"])
                known = HttpError(500, 500, "Internal Server Error")
            found = known
        response = self._error_response(found)
        for name, value in scope.get("answer_headers", {}).items():
            response.headers.setdefault(name, value)
        return response

    async def _respond(self, scope: Scope, body: _Body) -> Response:
        request = Request(scope, body.receive)
        if self._guard is not None:
            self._guard.check_host(request)
            if (answer := self._guard.preflight(request)) is not None:
                return answer
            scope["answer_headers"] = self._guard.check_origin(request)
        raw_path = scope.get("raw_path", scope["path"].encode()).partition(b"?")[0].decode("latin-1")
        if self._path_bytes_max is not None and len(raw_path) > self._path_bytes_max:
            raise HttpError(414, 414, f"The path is longer than {self._path_bytes_max:,} bytes")
        if scope["method"] == "OPTIONS":
            return Response(headers={"allow": ", ".join(self.router.methods(raw_path))})
        operation, values = self.router.find(scope["method"], raw_path)
        scope["path_params"] = values
        scope["operation"] = operation
        body.limit = operation.body_bytes_max
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > body.limit:
            raise _too_large(body.limit)
        if operation.body is not None:
            _check_content_encoding(headers)
            if not operation.checks_media_type:
                _check_media_type(headers, operation)
        if self._authenticate is not None and not operation.is_public:
            scope["identity"] = await self._authenticate(request)
        if self._guard is not None:
            self._guard.admit(request)
        response = await operation.handler(request)
        for name, value in scope.get("answer_headers", {}).items():
            response.headers.setdefault(name, value)
        return response


def _uncancel() -> None:
    """Let a task that was cancelled end in the usual way."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


def _check_content_encoding(headers: Headers) -> None:
    """Raise HttpError 415 if a body is compressed."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise HttpError(415, 415, "a Content-Encoding is not supported: send the body uncompressed")


def _check_media_type(headers: Headers, operation: Operation) -> None:
    """Raise HttpError 415 if a body is declared as something that the operation does not read."""
    name = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not name.endswith(("/json", "+json")) and name not in (*_UNSPECIFIC, *operation.consumes):
        raise HttpError(415, 415, f"HTTP 415 Unsupported Media Type: send {operation.consumes[0]}")


def _too_large(limit: int) -> HttpError:
    return HttpError(413, 413, f"the request's body is larger than {limit:,} bytes")


class _Body:
    """The body of a request, with limits for its bytes and its time."""

    def __init__(self, receive: Receive, buffered: _Buffered) -> None:
        self._receive = receive
        self._buffered = buffered
        self.limit = BODY_BYTES_MAX
        self._seen = 0
        self._is_complete = False
        self._began = time.monotonic()

    @property
    def _is_stream(self) -> bool:
        return self.limit >= STREAM_BYTES_MIN

    async def receive(self) -> Message:
        """Return the next part. Raise HttpError: 408 too slow, 413 too large, 503 if all bodies together are."""
        if self._is_complete:
            # What follows the body is the client's disconnect, for which a long answer waits without a limit.
            return await self._receive()
        wait_s = BODY_PAUSE_S_MAX
        if not self._is_stream:
            wait_s = min(wait_s, max(self._began + BODY_S_MAX - time.monotonic(), 0.0))
        try:
            async with asyncio.timeout(wait_s):
                message = await self._receive()
        except TimeoutError:
            raise HttpError(408, 408, "the request's body did not arrive in time", {"connection": "close"}) from None
        if message["type"] == "http.request":
            self._is_complete = not message.get("more_body", False)
            self._count(len(message.get("body", b"")))
        return message

    def _count(self, size: int) -> None:
        self._seen += size
        if self._seen > self.limit:
            raise _too_large(self.limit)
        if self._is_stream:
            return
        self._buffered.total += size
        if self._buffered.total > BUFFERED_BYTES_MAX:
            self._buffered.total -= size
            self._seen -= size
            raise HttpError(503, 503, "the bodies of all requests are too large at the moment", {"retry-after": "1"})

    def release(self) -> None:
        """The request is complete."""
        if not self._is_stream:
            self._buffered.total -= min(self._seen, self._buffered.total)
            self._seen = 0
