"""Asks the cluster every few seconds whether it answers. `/health` and the log show the result."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ottla.client.errors import ClientError
from ottla.client.reachability import why_unreachable
from ottla.edge.rest.kafka import SERVICE, Kafka

log = logging.getLogger(__name__)

_PAUSE_S: Final = 5.0
#: while the cluster does not answer
_SHORT_PAUSE_S: Final = 1.0


class Reachability:
    """The states are: not asked yet, reachable, unreachable with a reason. Each change is logged."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._where = kafka.settings.bootstrap_servers
        #: None before the first answer
        self._is_unreachable: bool | None = None

    def health(self) -> str | None:
        """Return why the proxy cannot do its work; None if it can. Everybody may read it, so it names no address."""
        if self._is_unreachable is None:
            return "the cluster was not asked yet"
        return "the cluster cannot be reached; the log has the reason" if self._is_unreachable else None

    async def watch(self) -> None:
        """Ask again and again, until the task is cancelled."""
        while True:
            await asyncio.sleep(_SHORT_PAUSE_S if self._is_unreachable else _PAUSE_S)
            await self.ask()

    async def ask(self) -> None:
        """Ask once, for up to 3 s, and log a change."""
        # With pass-through the users log in, and the proxy may have no login of its own.
        needs_login = not self._kafka.settings.authentication_pass_through
        try:
            reason = await self._kafka.call(SERVICE, why_unreachable, needs_login=needs_login)
        except ClientError as error:  # of properties that cannot be used
            reason = str(error) if needs_login else None
        is_unreachable = reason is not None
        if is_unreachable and not self._is_unreachable:
            log.warning("%s: requests get errors until the cluster answers; trying again", reason)
        elif self._is_unreachable and not is_unreachable:
            log.warning("the cluster at %s answers now", self._where)
        self._is_unreachable = is_unreachable
