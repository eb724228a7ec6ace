"""Connections to the processes of other brokers, whose loss shows that a process has ended.

A session in the metadata store would end only seconds later.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from functools import partial

from ottla.broker.cluster.broker_addresses import endpoint_for_brokers
from ottla.broker.cluster.contacts import Contacts
from ottla.broker.cluster.controller import Controller
from ottla.broker.metadata.broker_nodes import BrokerView
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.store import StoreError
from ottla.broker.metadata.view import ClusterView
from ottla.client.async_connections import BrokerClients, PeerUnreachable
from ottla.env.tasks import Tasks

log = logging.getLogger(__name__)

#: between two attempts to reach a broker whose connection was lost
_PROBE_S = 0.1


class Probes:
    """The connections of this broker that are there to be lost."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        controller: Controller,
        clients: BrokerClients,
        tasks: Tasks,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._metadata = metadata
        self._controller = controller
        self._clients = clients
        self._tasks = tasks
        self._loop = loop
        self._contacts = Contacts()
        #: by broker id: the registration that is probed, and the task
        self._probes: dict[int, tuple[int, asyncio.Task[None]]] = {}

    def follow(self, view: ClusterView) -> None:
        """Keep a connection to the controller, or to every other broker if this one is the controller."""
        self._contacts.note_registered(view.brokers, view.registered, self._loop.time())
        wanted: Mapping[int, BrokerView] = view.brokers
        if not self._controller.is_active:
            leader = view.controller.broker_id if view.controller is not None else None
            wanted = {number: broker for number, broker in wanted.items() if number == leader}
        for number, (epoch, probe) in list(self._probes.items()):
            # A broker that was started again has another epoch; the view may not have shown its absence.
            if number not in wanted or wanted[number].epoch != epoch or probe.done():
                del self._probes[number]
                probe.cancel()
        for number, broker in wanted.items():
            if number != self._metadata.broker_id and number not in self._probes:
                probe = self._tasks.keep(partial(self._probe, broker), f"probe broker {number}")
                self._probes[number] = broker.epoch, probe

    async def _probe(self, broker: BrokerView) -> None:
        """Delete the registration of a broker when its connection is lost and a new one is refused.

        Then no process listens at its address, so the broker has ended. Its session would end only seconds later. See
        `contacts.py` for the connections that are refused for another reason.
        """
        while True:
            opened_at = math.inf
            try:
                connection = await self._clients.open(endpoint_for_brokers(broker, self._metadata.settings))
                opened_at = self._loop.time()
                self._contacts.note_reached(broker)
                await connection.lost
            except PeerUnreachable as error:
                view = self._metadata.view
                current, run = view.brokers.get(broker.broker_id), view.registered.get(broker.broker_id)
                is_current = current is not None and current.epoch == broker.epoch
                if error.refused and is_current and run is not None and self._may_declare_dead(broker, run):
                    # Not in this task: the change that it makes ends this task.
                    self._tasks.start(self._declare_dead(broker, run), "declare a broker dead")
            # A broker that closes each new connection is not asked in a loop.
            if self._loop.time() - opened_at < _PROBE_S:
                await asyncio.sleep(_PROBE_S)

    def _may_declare_dead(self, broker: BrokerView, run: int) -> bool:
        endpoint = endpoint_for_brokers(broker, self._metadata.settings)
        opened_at = self._clients.opened_at.get(endpoint, -math.inf)
        return self._contacts.may_declare_dead(broker, run, opened_at, self._loop.time())

    async def _declare_dead(self, broker: BrokerView, run: int) -> None:
        self._contacts.note_declared_dead(broker, run)
        try:
            await self._controller.declare_dead(broker.broker_id, run)
        except StoreError as failure:
            log.warning("a broker that has ended stays registered for now error=%s", failure)

    def stop(self) -> None:
        for _, probe in self._probes.values():
            probe.cancel()
