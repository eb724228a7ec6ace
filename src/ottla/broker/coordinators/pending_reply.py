"""The reply to a request that a coordinator answers later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from ottla.wire import Message

#: returns the reply for a result
ReplyBuilder = Callable[[Any], Message]
#: returns the reply for an error code that applies to the whole request
Refusal = Callable[[int], Message]


class PendingReply:
    """A ticket: holds the reply to a request, and the callback or the task that waits for the reply.

    ``answer`` calls the callback synchronously, which an asyncio future does not do. A reply that is waiting for a
    write is therefore sent in the same turn of the event loop as the write.
    """

    __slots__ = ("_build", "_build_refusal", "_future", "_message", "_then", "abandon")

    def __init__(self, build: ReplyBuilder, build_refusal: Refusal) -> None:
        self._build = build
        self._build_refusal = build_refusal
        #: for a parked request: called when the client has closed the connection
        self.abandon: Callable[[], None] | None = None
        self._message: Message | None = None
        self._then: Callable[[Message], None] | None = None
        self._future: asyncio.Future[Message] | None = None

    def answer(self, result: Any) -> None:
        """Build the reply for the result of the request, and pass it to the waiter."""
        self._complete(self._build(result))

    def refuse(self, code: int) -> None:
        """Build the reply for an error code, and pass it to the waiter."""
        self._complete(self._build_refusal(code))

    def _complete(self, message: Message) -> None:
        self._message = message
        # Both callbacks refer to this object: no reference cycle may remain (see `env/collector.py`).
        then, self._then, self.abandon = self._then, None, None
        if then is not None:
            then(message)
        if self._future is not None and not self._future.done():
            self._future.set_result(message)

    def then(self, callback: Callable[[Message], None]) -> None:
        """Register the callback that gets the reply. The reply must not be known yet."""
        assert self._message is None and self._then is None
        self._then = callback

    def done(self) -> bool:
        return self._message is not None

    def result(self) -> Message:
        assert self._message is not None, "the reply is not known yet"
        return self._message

    def now_or_later(self) -> Message | PendingReply:
        """Return the reply if it is known, else the ticket itself."""
        return self if self._message is None else self._message

    def __await__(self) -> Generator[Any, None, Message]:
        if self._message is None:
            self._future = asyncio.get_running_loop().create_future()
            yield from self._future
        return self.result()


class Unstored(Message):
    """The result of a wait for durability that failed; never sent to a client."""

    __slots__ = ("error_code",)

    def __init__(self, error_code: int) -> None:
        self.error_code = error_code
