"""The parts of a broker that exist before it knows the metadata of its cluster: logs, partitions, server, limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ottla.broker.access.listening import connection_limits
from ottla.broker.access.permissions import Access, authorizer_of
from ottla.broker.access.throttling import Throttling
from ottla.broker.environment import Environment
from ottla.broker.partitions.manager import ReplicaManager
from ottla.env.metrics import Histogram
from ottla.log.store import LogStore
from ottla.model.settings import BrokerSettings
from ottla.net.server import Server
from ottla.wire import APIS


@dataclass(slots=True, kw_only=True)
class LocalParts:
    """What all components of a broker share, apart from the metadata."""

    environment: Environment
    log_store: LogStore
    replicas: ReplicaManager
    server: Server
    access: Access
    throttling: Throttling


def build_local_parts(
    settings: BrokerSettings,
    environment: Environment,
    *,
    has_partition: Callable[[bytes, int, bool], bool],
    end_turn: Callable[[], bool],
    fail: Callable[[str], None],
) -> LocalParts:
    """Create the local parts. They open no file and no socket yet.

    ``has_partition(topic, number, by_id)`` returns whether the cluster has a partition, ``end_turn`` writes the batches
    of a turn, ``fail`` ends the process with a reason.
    """
    loop, clock, disk, threads = environment.loop, environment.clock, environment.disk, environment.threads
    log_store = LogStore(disk, settings.data_dirs, threads, needs_first=not settings.zookeeper_connect)
    replicas = ReplicaManager(
        broker_id=settings.broker_id, exists=has_partition, clock=clock, disk=disk, store=log_store, threads=threads,
        free_bytes_min=settings.log_dir_free_bytes_min, on_all_dirs_failed=fail,
    )  # fmt: skip
    server = Server(
        loop, clock=clock, request_bytes_max=settings.socket_request_max_bytes, limits=connection_limits(settings),
        idle_ms_max=settings.connections_max_idle_ms, in_flight_max=settings.queued_max_requests,
        before_replies=end_turn, latency={key: Histogram() for key in APIS}, network=environment.network,
    )  # fmt: skip
    throttling = Throttling(environment.wheel, clock.monotonic, loop)
    server.on_admitted = throttling.admit
    return LocalParts(
        environment=environment,
        log_store=log_store,
        replicas=replicas,
        server=server,
        access=Access(authorizer_of(settings), monotonic=clock.monotonic),
        throttling=throttling,
    )
