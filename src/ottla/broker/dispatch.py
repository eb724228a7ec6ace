"""Dispatch of request frames to API handlers: the table of APIs, the checks before a handler, and errors.

    frame ──► key, version ──► Produce, Fetch: by hand, synchronous
                          └──► the others: version served? ──► decode ──► handler ──► encode ──► reply

A frame that is not small is deferred when much has been done in this iteration of the loop, and a Fetch is deferred
while another one of its connection waits. Until it is handled its connection is not read from.

While a handler waits (for the store, for a thread), its connection is not read from, as in Kafka. The reply of a
handler that does not wait is sent at the end of the turn. An unknown API or version, or bytes that cannot be decoded,
close the connection, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from inspect import isawaitable
from struct import error as StructError
from typing import Any

from ottla.broker.access.permissions import Access
from ottla.broker.access.throttling import UNCOUNTED, Throttling, Usage, with_throttle_time
from ottla.broker.cluster.metadata_apis import api_versions
from ottla.broker.component import Component, ServedApi
from ottla.broker.coordinators.pending_reply import PendingReply
from ottla.broker.fetch.api import FetchApi
from ottla.broker.fetch.counted import CountedFetch, handle_counted
from ottla.broker.fetch.fetch import Fetch
from ottla.broker.fetch.traced import TracedFetch, handle_traced
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.store import StoreError
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.record_traces import RecordTraces
from ottla.broker.produce.api import ProduceApi
from ottla.broker.produce.traced import traced_produce
from ottla.broker.request import RequestContext
from ottla.env.deferred import UNITS_MAX, Deferred
from ottla.env.log_limit import LogLimit
from ottla.env.tasks import Tasks
from ottla.model.errors import ErrorCode, OttlaError
from ottla.model.types import FrameBuffer
from ottla.net.connection import Connection, Handler, Slot
from ottla.security.quotas import Quota
from ottla.wire import (
    APIS,
    REQUEST_ELEMENTS_MAX,
    Message,
    WireError,
    decode,
    encode,
    request_class,
    request_header_version,
    response_header_version,
)
from ottla.wire.frame import HEADER_TAGS_MAX, REQUEST_START, frame_reply, read_client_id, skip_client_id, skip_tags
from ottla.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from ottla.wire.messages.sasl_handshake import SaslHandshakeResponse

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

PRODUCE, FETCH, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 0, 1, 17, 18, 36
#: Records apart, no request needs as much: the largest is the SyncGroup of a leader, with the assignments of a group.
MESSAGE_BYTES_MAX = 8 << 20

#: a smaller request is handled at once, however much has been done in this iteration of the loop
_SMALL_BYTES = 1024
#: about what one partition takes in a request
_BYTES_PER_UNIT = 32
#: what a request is counted for whose reply may be large: two of them run in one iteration of the loop
_LARGE_REPLY_UNITS = UNITS_MAX // 2

#: first version of Metadata with a throttle time, which is its first field
_METADATA_THROTTLE_FROM = 3

#: handles the frame ``buffer[start:end]``, whose version and correlation id are known
_HandWritten = Callable[[Connection, FrameBuffer, memoryview, int, int, int, int], object]
_unpack_start = REQUEST_START.unpack_from


def table_of(components: Iterable[Component]) -> dict[int, ServedApi]:
    """Return the APIs of these components and of the dispatcher itself by API key, in the order of their keys."""
    table = {
        SASL_HANDSHAKE: ServedApi(0, 1),
        API_VERSIONS: ServedApi(0, 4),
        SASL_AUTHENTICATE: ServedApi(0, 2),
    }
    for component in components:
        for key, api in component.apis().items():
            assert key not in table, f"two components serve API {key}"
            table[key] = api
    return dict(sorted(table.items()))


class Dispatcher:
    """Handles the frames of one listener."""

    def __init__(
        self,
        listener: str,
        apis: dict[int, ServedApi],
        *,
        produce: ProduceApi,
        fetch: FetchApi,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        access: Access,
        throttling: Throttling,
        deferred: Deferred,
        traces: RecordTraces | None = None,
    ) -> None:
        self._listener = listener
        self._apis = apis
        self._metadata = metadata
        self._access = access
        self._throttling = throttling
        self._produce_api, self._fetch_api = produce, fetch
        self._produce: _HandWritten = produce.handle
        self._fetch: _HandWritten = fetch.handle
        #: None: nothing is traced, and the handlers are called directly
        self._traces = traces
        #: whether there are quotas that other APIs are counted for
        self._is_counted = False
        self._throttling.on_change(self._quotas_changed)
        self._waiting_fetches = fetch.waiting
        self._deferred = deferred
        #: handles a login of a client that is authenticated already; None if the listener has no logins
        self.handle_login: Handler | None = None
        self._tasks = Tasks()
        self._cache = _ReplyCache(metadata, replicas, access)
        self.refused = 0

    def _quotas_changed(self) -> None:
        """Count requests only while there are quotas for them."""
        produce, fetch, is_active = self._produce_api, self._fetch_api, self._throttling.is_active
        self._produce = produce.handle_counted if is_active(Quota.PRODUCE, Quota.REQUEST) else produce.handle
        if is_active(Quota.FETCH, Quota.REQUEST):
            self._fetch, fetch.new_fetch = partial(handle_counted, fetch), CountedFetch
        else:
            self._fetch, fetch.new_fetch = fetch.handle, Fetch
        if self._traces is not None:
            self._produce = traced_produce(self._produce, self._traces)
            if fetch.new_fetch is Fetch:  # `handle_counted` notes the sender, too
                self._fetch = partial(handle_traced, fetch)
            fetch.new_fetch = TracedFetch
        self._is_counted = is_active(Quota.REQUEST, Quota.CONTROLLER_MUTATION)

    async def stop(self) -> None:
        await self._tasks.stop()

    def handle(
        self,
        connection: Connection,
        buffer: FrameBuffer,
        view: memoryview,
        start: int,
        end: int,
        *,
        postponed: bool = False,
    ) -> None:
        """Handle the frame ``buffer[start:end]``; it has at least the eight bytes that every request starts with."""
        api_key, version, correlation_id = _unpack_start(buffer, start)
        try:
            if api_key == PRODUCE and 3 <= version <= 13:
                self._produce(connection, buffer, view, start, end, version, correlation_id)
            elif end - start > _SMALL_BYTES and not postponed and self._must_defer(end - start):
                self._deferred.add(self._postpone(connection, bytearray(view[start:end])))
            elif api_key == FETCH and 4 <= version <= 18:
                waiting = self._waiting_fetches.get(connection)
                if waiting is not None and not waiting.is_replica:
                    # Kafka, too, handles one request of a connection at a time.
                    handle = self._postpone(connection, bytearray(view[start:end]))
                    waiting.on_done = partial(self._deferred.add, handle)
                    connection.watch_peer()
                else:
                    if waiting is not None:
                        waiting.answer_now()
                    self._fetch(connection, buffer, view, start, end, version, correlation_id)
            else:
                self._handle_message(
                    connection, buffer, view, start, end,
                    api_key=api_key, version=version, correlation_id=correlation_id, postponed=postponed,
                )  # fmt: skip
        except (WireError, StructError, IndexError) as error:
            self._refuse(connection, api_key, version, error)
        except Exception:
            # A bug. A reply slot may be reserved that is never filled, so the connection cannot go on.
            log.exception("request failed api=%d version=%d peer=%s", api_key, version, connection.peer_host)
            connection.abort()

    def _must_defer(self, size_bytes: int) -> bool:
        if size_bytes > MESSAGE_BYTES_MAX:
            raise WireError(f"{size_bytes} bytes, and no Produce")
        return not self._deferred.may_run(size_bytes // _BYTES_PER_UNIT)

    def _postpone(self, connection: Connection, frame: bytearray) -> Callable[[], None]:
        """Read nothing more from the connection until the job that this returns has handled the frame."""
        connection.mute()
        return partial(self._handle_postponed, connection, frame)

    def _handle_postponed(self, connection: Connection, frame: bytearray) -> None:
        if not connection.closing:
            connection.touch()  # so that there is a turn, at whose end the reply leaves
            with memoryview(frame) as view:
                self.handle(connection, frame, view, 0, len(frame), postponed=True)
            connection.unmute()

    def _handle_message(
        self,
        connection: Connection,
        buffer: FrameBuffer,
        view: memoryview,
        start: int,
        end: int,
        *,
        api_key: int,
        version: int,
        correlation_id: int,
        postponed: bool,
    ) -> None:
        api = self._apis.get(api_key)
        if api is None or not api.version_min <= version <= api.version_max:
            if api_key == API_VERSIONS:
                self._answer_unknown_version(connection, correlation_id)
                return
            raise WireError("API or version is not served")
        if api_key in (SASL_HANDSHAKE, SASL_AUTHENTICATE) and self.handle_login is not None:
            self.handle_login(connection, buffer, view, start, end)
            return
        position = skip_client_id(buffer, start + 8, end)
        connection.client_id = client_id = read_client_id(buffer, start + 8, end)
        usage = self._throttling.usage(connection, api_key, version) if self._is_counted else UNCOUNTED
        if request_header_version(api_key, version) == 2:
            position = skip_tags(buffer, position, end, HEADER_TAGS_MAX)
        body = bytes(view[position:end])
        if api.cached and (reply := self._cache.get(version, body, connection)) is not None:
            usage.pause()
            if (throttle_ms := usage.throttle_ms()) and version >= _METADATA_THROTTLE_FROM:
                reply = with_throttle_time(reply, 0, throttle_ms)
            connection.reserve(api_key).fill(
                frame_reply(correlation_id, reply, response_header_version(api_key, version))
            )
            return
        if api.large_reply and not postponed and not self._may_make_large_reply():
            self._deferred.add(self._postpone(connection, bytearray(view[start:end])))
            return
        stamp = self._cache.stamp() if api.cached else _NO_STAMP
        request, _ = decode(request_class(api_key), version, body, 0, REQUEST_ELEMENTS_MAX)
        context = RequestContext(
            api_key=api_key, version=version, client_id=client_id, listener=self._listener, connection=connection,
            correlation_id=correlation_id, access=self._access, usage=usage,
        )  # fmt: skip
        answer: Message | Awaitable[Message]
        try:
            if api.handler is not None:
                answer = api.handler(request, context)
            elif api_key == API_VERSIONS:
                answer = self._api_versions(request, context)
            else:
                answer = _refuse_login(api_key)
        except OttlaError as error:
            self._refuse(connection, api_key, version, error)
            return
        slot = connection.reserve(api_key)
        usage.pause()
        if isinstance(answer, PendingReply):
            connection.mute()
            if answer.abandon is not None:
                connection.on_close[answer.abandon] = None
                connection.watch_peer()
            answer.then(partial(self._answered, slot, context, answer.abandon))
        elif isawaitable(answer):
            connection.mute()
            work = self._await(answer, slot, context, correlation_id, body if api.cached else None)
            self._tasks.start(work, APIS[api_key].name)
        else:
            is_throttled = _tell_throttle_time(answer, usage)
            reply = encode(answer, version)
            if api.cached and not is_throttled:
                self._cache.put(version, body, connection, reply, stamp)
            slot.fill(frame_reply(correlation_id, reply, response_header_version(api_key, version)))

    def _may_make_large_reply(self) -> bool:
        # Behind work that is deferred already, it would be served before clients that came first.
        return not len(self._deferred) and self._deferred.may_run(_LARGE_REPLY_UNITS)

    def _answered(
        self, slot: Slot, context: RequestContext, abandon: Callable[[], None] | None, answer: Message
    ) -> None:
        """Fill the slot of a coordinator's reply.

        This may happen while files are written, so requests that were held back are handled in the next turn.
        """
        api_key, version, connection = context.api_key, context.version, context.connection
        if abandon is not None:
            connection.on_close.pop(abandon, None)
        try:
            _tell_throttle_time(answer, context.usage)
            reply = encode(answer, version)
        except Exception:
            log.exception("request failed api=%d version=%d", api_key, version)
            connection.abort()
            return
        slot.fill(frame_reply(context.correlation_id, reply, response_header_version(api_key, version)))
        asyncio.get_running_loop().call_soon(connection.unmute)

    async def _await(
        self, answer: Awaitable[Message], slot: Slot, context: RequestContext, correlation_id: int, body: bytes | None
    ) -> None:
        api_key, version, connection = context.api_key, context.version, context.connection
        stamp = self._cache.stamp()
        try:
            message = await context.usage.timed(answer)
            is_throttled = _tell_throttle_time(message, context.usage)
            reply = encode(message, version)
            if body is not None and not is_throttled:
                self._cache.put(version, body, connection, reply, stamp)
            slot.fill(frame_reply(correlation_id, reply, response_header_version(api_key, version)))
        except OttlaError as error:
            if isinstance(error, StoreError):
                log.error("the metadata store failed api=%s error=%s", APIS[api_key].name, error)
            connection.withdraw(slot)
            self._refuse(connection, api_key, version, error)
        except Exception:
            log.exception("request failed api=%d version=%d", api_key, version)
            connection.abort()
        finally:
            connection.unmute()

    def _api_versions(self, request: Any, context: RequestContext) -> Message:
        rows = (
            (key, api.version_min if api.advertised_min is None else api.advertised_min, api.version_max)
            for key, api in self._apis.items()
        )
        return api_versions(request, context, rows, self._metadata.view)

    def _answer_unknown_version(self, connection: Connection, correlation_id: int) -> None:
        """Answer an unknown version of ApiVersions: newer clients retry with a version from this reply, which is v0."""
        api = self._apis[API_VERSIONS]
        answer = ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[ApiVersion(api_key=API_VERSIONS, min_version=api.version_min, max_version=api.version_max)],
        )
        connection.reserve(API_VERSIONS).fill(frame_reply(correlation_id, encode(answer, 0), 0))

    def _refuse(self, connection: Connection, api_key: int, version: int, error: Exception) -> None:
        self.refused += 1
        log.info("connection closed peer=%s api=%d version=%d reason=%s", connection.peer_host, api_key, version, error)
        connection.close()


#: versions of the metadata and of the replicas, and the leaders that were just lost
Stamp = tuple[int, int, frozenset[int]]
_NO_STAMP: Stamp = (-1, -1, frozenset())


def _tell_throttle_time(answer: Message, usage: Usage) -> bool:
    """Mute the connection if a quota is exceeded, and let the answer name the time. Return whether it is muted."""
    throttle_ms = usage.throttle_ms()
    if throttle_ms and hasattr(answer, "throttle_time"):
        answer.throttle_time = throttle_ms
    return throttle_ms > 0


def _refuse_login(api_key: int) -> Message:
    """Return the answer to a login on a listener without logins."""
    if api_key == SASL_HANDSHAKE:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="this listener has no logins; do not use SASL with it"
    )


#: version, body, address that the client connected to, client
_ReplyKey = tuple[int, bytes, tuple[str, int], str]


class _ReplyCache:
    """Encoded replies to Metadata. Encoding 1,000 partitions takes a millisecond, and many clients ask at once."""

    _ENTRIES_MAX = 64
    _BODY_BYTES_MAX = 4096

    def __init__(self, metadata: ClusterMetadata, replicas: ReplicaManager, access: Access) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._access = access
        self._stamp: object = None
        self._replies: dict[_ReplyKey, bytes] = {}

    def stamp(self) -> Stamp:
        """Return a value that changes whenever a cached reply could be outdated."""
        return self._metadata.view.version, self._replicas.generation, self._metadata.just_lost()

    def get(self, version: int, body: bytes, connection: Connection) -> bytes | None:
        if self._metadata.is_cut_off:
            return None  # the handler closes each connection
        if self._stamp != self.stamp():
            self._replies.clear()
            self._stamp = self.stamp()
        return self._replies.get(self._key(version, body, connection))

    def put(self, version: int, body: bytes, connection: Connection, reply: bytes, stamp: Stamp) -> None:
        """Cache a reply, unless the metadata changed while it was built, for example by auto-creation."""
        if stamp == self.stamp() and len(self._replies) < self._ENTRIES_MAX and len(body) <= self._BODY_BYTES_MAX:
            self._replies[self._key(version, body, connection)] = reply

    def _key(self, version: int, body: bytes, connection: Connection) -> _ReplyKey:
        """Return what a reply depends on; with ACLs that includes who the client is and where it connects from."""
        client = "" if self._access.authorizer is None else f"{connection.principal} {connection.peer_host}"
        return version, body, connection.local_address, client
