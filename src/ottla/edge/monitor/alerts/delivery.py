"""Sends messages from the event loop: one at a time to each receiver, with pauses after failures.

A pause grows from one second to five minutes, and is varied, so that several monitors do not send at the same moment.
Messages wait nowhere: what is due is asked for again (`AlertEngine.due`) when a receiver is free.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.edge.monitor.alerts.bodies import Origin
from ottla.edge.monitor.alerts.grouping import Message
from ottla.edge.monitor.alerts.sending import DeliveryFailed, send
from ottla.env.tasks import Tasks

log = logging.getLogger(__name__)

_PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 300.0
#: messages that are sent at the same time
_THREADS_MAX: Final = 8


def wall_clock_ms() -> int:
    """Return the time of this machine in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


Send = Callable[[Message, Origin, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message that is due."""

    message: Message
    origin: Origin
    #: called when the receiver has accepted it
    accepted: Callable[[Message], None]

    @property
    def key(self) -> Hashable:
        return self.origin.cluster, self.message.group


@dataclass(slots=True)
class ReceiverState:
    """How sending to one receiver goes."""

    accepted: int = 0
    failed: int = 0
    #: failures since the last message that was accepted
    failures: int = 0
    #: why the last attempt failed; empty if it did not
    problem: str = ""
    #: when it last accepted a message; None: not since the start
    accepted_ms: int | None = None
    #: no attempt before this time of the monotonic clock
    pause_until: float = 0.0
    is_busy: bool = False
    #: groups whose last message was not accepted, in the order of the attempts
    refused: dict[Hashable, None] = field(default_factory=dict)


class Delivery:
    """Used on the event loop."""

    def __init__(
        self,
        tasks: Tasks,
        *,
        send_one: Send = send,
        now_ms: Callable[[], int] = wall_clock_ms,
        monotonic: Callable[[], float] = time.monotonic,
        vary: Callable[[], float] = random.random,
    ) -> None:
        self.states: dict[str, ReceiverState] = {}
        self._tasks = tasks
        self._send = send_one
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._vary = vary
        self._threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="alerts")

    def state_of(self, receiver: str) -> ReceiverState:
        return self.states.setdefault(receiver, ReceiverState())

    def can_send(self, receiver: str) -> bool:
        """Return whether a receiver is free."""
        state = self.state_of(receiver)
        return not state.is_busy and self._monotonic() >= state.pause_until

    def offer(self, outgoing: Sequence[Outgoing]) -> None:
        """Send to each receiver that is free one of its messages; the others are offered again later."""
        by_receiver: dict[str, list[Outgoing]] = {}
        for each in outgoing:
            by_receiver.setdefault(each.message.receiver.name, []).append(each)
        for name, offered in by_receiver.items():
            if not self.can_send(name):
                continue
            state = self.state_of(name)
            keys = {each.key for each in offered}
            state.refused = {key: None for key in state.refused if key in keys}
            # A message that a receiver always refuses must not keep the others from it.
            order = {key: place for place, key in enumerate(state.refused)}
            state.is_busy = True
            chosen = min(offered, key=lambda each: order.get(each.key, -1))
            self._tasks.start(self._deliver(chosen), f"send alerts to {name}")

    async def _deliver(self, chosen: Outgoing) -> None:
        name = chosen.message.receiver.name
        state = self.state_of(name)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, self._send, chosen.message, chosen.origin, self._now_ms())
        except DeliveryFailed as error:
            state.refused.pop(chosen.key, None)
            state.refused[chosen.key] = None
            self._failed(name, state, error)
        else:
            if state.problem:
                log.info("receiver of alerts accepts messages again receiver=%s", name)
            state.accepted += 1
            state.failures, state.problem, state.accepted_ms = 0, "", self._now_ms()
            chosen.accepted(chosen.message)
        finally:
            state.is_busy = False

    def _failed(self, name: str, state: ReceiverState, error: DeliveryFailed) -> None:
        if str(error) != state.problem:
            log.warning("receiver of alerts does not accept a message receiver=%s reason=%s", name, error)
        state.failed += 1
        state.failures += 1
        state.problem = str(error)
        pause_s = PAUSE_S_MAX if error.is_final else min(_PAUSE_S * 2 ** min(state.failures - 1, 20), PAUSE_S_MAX)
        state.pause_until = self._monotonic() + pause_s * (0.5 + 0.5 * self._vary())

    def retry_now(self) -> None:
        """End all pauses, because the file of rules was changed."""
        for state in self.states.values():
            state.pause_until = 0.0

    def view(self, receiver: str) -> dict[str, Any]:
        """Return how sending to a receiver goes."""
        state = self.state_of(receiver)
        return {
            "name": receiver, "problem": state.problem, "failures": state.failures, "accepted": state.accepted,
            "accepted_ms": state.accepted_ms,
        }  # fmt: skip

    def close(self) -> None:
        """End the threads; messages that are being sent are given up."""
        self._threads.shutdown(wait=False, cancel_futures=True)
