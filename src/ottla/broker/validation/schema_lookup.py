"""Asks the schema registry whether it knows schema ids, for topics with `schema.validation`.

    ids of a batch ──► known? ──► asked already? ──► a thread asks the registry ──► known for ever, or unknown for 1 s

A schema never changes once it has an id, so that each id is asked about once. An id that the registry does not know is
remembered for ``_UNKNOWN_S``, because a producer may register it at any time. Clients choose the ids in their records.
They must not flood the registry: ids that wait, concurrent requests and requests per second have limits, and one
request is sent for an id that many batches wait for.

After a request that failed, ids that are not known fail at once for ``_DOWN_S``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from ottla.broker.component import Component
from ottla.client.errors import ClientError, PropertyRefused
from ottla.client.registry import SchemaRegistry
from ottla.env.log_limit import LogLimit
from ottla.env.tasks import Tasks, ThreadPool
from ottla.model.schema_ids import SchemaRef
from ottla.model.settings import BrokerSettings

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

_KNOWN_MAX = 50_000
_UNKNOWN_S = 1.0
_UNKNOWN_MAX = 10_000
_DOWN_S = 1.0
#: requests to the registry at the same time, ids that wait, and requests per second with as many in a burst
_CONCURRENT_MAX = 4
_WAITING_MAX = 1000
_REQUESTS_PER_S = 200.0
#: of one request to one address of the registry
_REQUEST_S = 3.0
#: Confluent's registries have ids of 31 bits
_ID_MAX = (1 << 31) - 1

#: opens a client of the registry; raises ClientError
Connect = Callable[[BrokerSettings], SchemaRegistry]


class RegistryUnavailable(Exception):
    """The schema registry cannot be asked. The text says why."""


def connect(settings: BrokerSettings) -> SchemaRegistry:
    """Return a client. Raise PropertyRefused for a wrong property, and if a server would get another one's secret."""
    if problem := settings.misdirected_secrets(settings.explicit):
        raise PropertyRefused(problem)
    return SchemaRegistry(settings.schema_registry_url, settings.registry_properties(), timeout_s=_REQUEST_S)


class SchemaLookups(Component):
    """What this broker knows of the schemas in the registry."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        monotonic: Callable[[], float],
        settings: BrokerSettings,
        connect: Connect = connect,
        *,
        current_settings: Callable[[], BrokerSettings] | None = None,
    ) -> None:
        self._current_settings = current_settings
        self._loop = loop
        self._monotonic = monotonic
        self._connect = connect
        self._settings = settings
        self._tasks = Tasks()
        self._threads = ThreadPool(loop, _CONCURRENT_MAX, "registry")
        self._registry: SchemaRegistry | None = None
        self._known: dict[SchemaRef, None] = {}
        #: with the time until which they count as unknown, in rising order
        self._unknown: dict[SchemaRef, float] = {}
        self._asked: dict[SchemaRef, asyncio.Future[bool]] = {}
        self._free = asyncio.Semaphore(_CONCURRENT_MAX)
        #: requests that may be sent now, as of ``_counted_at``
        self._allowed = _REQUESTS_PER_S
        self._counted_at = monotonic()
        self._down_until = 0.0
        self._down_reason = ""
        #: requests to the registry by their result
        self.results = {"known": 0, "unknown": 0, "failed": 0}

    def on_settings(self) -> None:
        if self._current_settings is not None:
            self.configure(self._current_settings())

    def configure(self, settings: BrokerSettings) -> None:
        """Use the registry of these settings. What another registry knows does not count."""
        if settings.schema_registry_url != self._settings.schema_registry_url:
            self._registry, self._down_until = None, 0.0
            self._known.clear()
            self._unknown.clear()
            self._asked.clear()
        self._settings = settings

    def knows(self, schemas: Sequence[SchemaRef]) -> bool:
        """Return whether the registry has all of these schemas, as far as this is known already."""
        known = self._known
        return all(each in known for each in schemas)

    async def unknown_of(self, schemas: Iterable[SchemaRef], wait_s: float) -> tuple[SchemaRef, ...]:
        """Return the schemas that the registry does not know. Raise RegistryUnavailable after ``wait_s`` at most."""
        missing = [each for each in schemas if each not in self._known]
        asked = {each: self._ask(each) for each in missing if not self._is_unknown(each)}
        if asked:
            done, waiting = await asyncio.wait(
                asked.values(), timeout=wait_s, return_when=asyncio.FIRST_EXCEPTION
            )  # fmt: skip
            for future in done:
                if future.exception() is not None:
                    raise RegistryUnavailable(str(future.exception()))
            if waiting:
                raise RegistryUnavailable(f"the schema registry has not answered after {wait_s:g} seconds")
        return tuple(each for each in missing if each not in asked or not asked[each].result())

    async def stop(self) -> None:
        await self._tasks.stop()
        self._threads.close()
        if self._registry is not None:
            self._registry.close()

    def _is_unknown(self, schema: SchemaRef) -> bool:
        if isinstance(schema.id, int) and schema.id > _ID_MAX:
            return True
        return self._unknown.get(schema, 0.0) > self._monotonic()

    def _ask(self, schema: SchemaRef) -> asyncio.Future[bool]:
        """Return the future of the registry's answer about a schema. Raise RegistryUnavailable."""
        if (asked := self._asked.get(schema)) is not None:
            return asked
        if not self._settings.schema_registry_url:
            raise RegistryUnavailable("the broker setting schema.registry.url is empty")
        if self._monotonic() < self._down_until:
            raise RegistryUnavailable(self._down_reason)
        if len(self._asked) >= _WAITING_MAX:
            raise RegistryUnavailable("too many schema ids wait for the schema registry")
        future = self._asked[schema] = self._loop.create_future()
        future.add_done_callback(_retrieve)
        self._tasks.start(self._answer(schema, future), "ask the schema registry")
        return future

    async def _answer(self, schema: SchemaRef, future: asyncio.Future[bool]) -> None:
        settings = self._settings
        try:
            async with self._free:
                await self._wait_for_turn()
                if self._monotonic() < self._down_until:
                    _fail(future, self._down_reason)
                    return
                is_known = await self._ask_in_thread(schema)
        except ClientError as error:
            self.results["failed"] += 1
            reason = str(error)
            if self._settings is settings:
                self._down_until, self._down_reason = self._monotonic() + _DOWN_S, reason
            log.warning("the schema registry cannot be asked error=%s", reason)
            _fail(future, reason)
        else:
            self.results["known" if is_known else "unknown"] += 1
            if self._settings.schema_registry_url == settings.schema_registry_url:
                self._note(schema, is_known)
            if not future.done():
                future.set_result(is_known)
        finally:
            _fail(future, "the broker is stopping")
            if self._asked.get(schema) is future:
                del self._asked[schema]

    async def _wait_for_turn(self) -> None:
        """Wait until ``_REQUESTS_PER_S`` allows a request."""
        while True:
            now = self._monotonic()
            self._allowed = min(self._allowed + (now - self._counted_at) * _REQUESTS_PER_S, _REQUESTS_PER_S)
            self._counted_at = now
            if self._allowed >= 1:
                self._allowed -= 1
                return
            await asyncio.sleep((1 - self._allowed) / _REQUESTS_PER_S)

    async def _ask_in_thread(self, schema: SchemaRef) -> bool:
        """Return whether the registry knows a schema. Raise ClientError."""
        if self._registry is None:
            self._registry = self._connect(self._settings)
        registry = self._registry
        ended: asyncio.Future[bool] = self._loop.create_future()
        results: list[bool | ClientError] = []

        def work() -> None:
            try:
                results.append(registry.knows(schema.id, schema.subject))
            except ClientError as error:
                results.append(error)
            except (LookupError, TypeError, ValueError) as error:
                results.append(ClientError(f"the answer of the schema registry is malformed: {error}"))

        def done(error: OSError | None) -> None:
            if ended.done():
                return
            if error is not None:
                ended.set_exception(ClientError(str(error)))
            elif isinstance(result := results[0], bool):
                ended.set_result(result)
            else:
                ended.set_exception(result)

        self._threads.submit(work, done)
        return await ended

    def _note(self, schema: SchemaRef, is_known: bool) -> None:
        self._unknown.pop(schema, None)
        if is_known:
            notes: dict[SchemaRef, None] | dict[SchemaRef, float] = self._known
            self._known[schema] = None
        else:
            notes = self._unknown
            self._unknown[schema] = self._monotonic() + _UNKNOWN_S
        if len(notes) > (_KNOWN_MAX if is_known else _UNKNOWN_MAX):
            del notes[next(iter(notes))]


def _fail(future: asyncio.Future[bool], reason: str) -> None:
    if not future.done():
        future.set_exception(RegistryUnavailable(reason))


def _retrieve(future: asyncio.Future[bool]) -> None:
    """Mark the exception as seen: the batches that waited for it may have given up."""
    with suppress(asyncio.CancelledError):
        future.exception()
