"""Creates the components of a broker, each with the others that it needs.

A new feature is one entry here. The order of the list is that in which components learn of changes of the metadata: who
may do what, then partitions and their roles, then those who depend on roles.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from ottla.broker.access.acl_apis import AclApis
from ottla.broker.access.listening import Listening
from ottla.broker.access.permissions import Access
from ottla.broker.access.throttling import Throttling
from ottla.broker.access.token_apis import TokenApis
from ottla.broker.access.user_apis import UserApis
from ottla.broker.cluster.cluster_apis import ClusterApis
from ottla.broker.cluster.config_apis import ConfigApis
from ottla.broker.cluster.membership import Membership
from ottla.broker.cluster.metadata_apis import MetadataApis
from ottla.broker.cluster.metrics import ClusterMetrics
from ottla.broker.cluster.topic_apis import TopicApis
from ottla.broker.component import Component
from ottla.broker.coordination.coordination import Coordination
from ottla.broker.coordination.find_coordinator import CoordinatorApis
from ottla.broker.coordination.metrics import GroupMetrics
from ottla.broker.environment import Environment
from ottla.broker.fetch.api import FetchApi
from ottla.broker.groups.group_apis import GroupApis
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.seen_metadata import SeenMetadata
from ottla.broker.metadata.store import MetadataStore
from ottla.broker.metadata.view import ViewChanges
from ottla.broker.metadata.zookeeper.ensemble import Ensemble, EnsembleReader
from ottla.broker.metadata.zookeeper.store import ZooKeeperStore
from ottla.broker.partitions.log_dir_apis import LogDirApis
from ottla.broker.partitions.log_moves import LogMoves
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.offset_apis import OffsetApis
from ottla.broker.partitions.served_partitions import ServedPartitions
from ottla.broker.partitions.upkeep import Upkeep
from ottla.broker.produce.api import ProduceApi
from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.broker.transactions.transaction_apis import TransactionApis
from ottla.broker.validation.dead_letters import DeadLetters
from ottla.broker.validation.metrics import SchemaMetrics
from ottla.broker.validation.schema_lookup import SchemaLookups
from ottla.broker.validation.schema_validation import SchemaValidation
from ottla.client.async_connections import BrokerClients
from ottla.env.clock import Clock
from ottla.log.store import LogStore
from ottla.net.server import Server


@dataclass(slots=True, kw_only=True)
class Parts:
    """The components of a broker, and those that `broker.py` has to know by name."""

    components: list[Component]
    metadata: ClusterMetadata
    partitions: ServedPartitions
    membership: Membership
    coordination: Coordination
    seen: SeenMetadata
    produce: ProduceApi
    fetch: FetchApi
    lookups: SchemaLookups


def build(
    environment: Environment,
    metadata: ClusterMetadata,
    *,
    log_store: LogStore,
    replicas: ReplicaManager,
    server: Server,
    listening: Listening,
    access: Access,
    throttling: Throttling,
    incarnation: bytes,
    announce: Callable[[ViewChanges], None],
    fail: Callable[[str], None],
) -> Parts:
    """Create all components. ``announce`` tells them of changes, ``fail`` ends the process with a reason."""
    loop, clock, settings = environment.loop, environment.clock, metadata.started_settings
    session_s = settings.zookeeper_session_timeout_ms / 1000 if settings.zookeeper_connect else None

    new_clients = partial(_new_clients, environment, listening, metadata.broker_id)

    # The coordinators and the partitions need the lease of the membership, which needs them.
    def check_lease() -> None:
        membership.before_replies()

    def is_lease_over() -> bool:
        return membership.is_lease_over()

    log_moves = _log_moves(environment, metadata, replicas)
    tasks = environment.tasks
    topics = TopicApis(metadata=metadata, replicas=replicas, clock=clock, log_moves=log_moves, tasks=tasks)
    coordination = Coordination(
        metadata=metadata, replicas=replicas, topics=topics, loop=loop, clock=clock, wheel=environment.wheel,
        begin_turn=server.ensure_turn, random_bytes=environment.random_bytes, accepted=lambda: server.accepted,
        check_lease=check_lease, new_clients=partial(new_clients, "coordinator"),
    )  # fmt: skip
    partitions = ServedPartitions(
        metadata=metadata, replicas=replicas, new_name=environment.new_name, announce=announce,
        is_lease_over=is_lease_over,
    )  # fmt: skip
    membership = Membership(
        metadata=metadata, replicas=replicas, loop=loop, clock=clock, tasks=tasks, disk=environment.disk,
        log_store=log_store, endpoints=listening.advertised(), clients=new_clients("broker"), incarnation=incarnation,
        session_s=session_s, role_of=partitions.role_of, roles_changed=coordination.roles_changed, fail=fail,
    )  # fmt: skip
    lookups = SchemaLookups(loop, clock.monotonic, settings, current_settings=lambda: metadata.settings)
    replicas.inline_budget.knows_schemas = lookups.knows
    dead_letters = _dead_letters(environment, metadata, replicas, topics, coordination)
    schemas = SchemaValidation(replicas.opener, lookups, dead_letters)
    produce = ProduceApi(
        metadata=metadata, replicas=replicas, clock=clock, access=access, throttling=throttling, schemas=schemas,
        checks=coordination.checks, transactions=coordination.transactions,
    )  # fmt: skip
    fetch = FetchApi(
        metadata=metadata, replicas=replicas, loop=loop, wheel=environment.wheel, deferred=environment.deferred,
        access=access, throttling=throttling,
    )  # fmt: skip
    cluster = ClusterApis(metadata=metadata, ensemble=_ensemble_reader(environment, metadata.store))
    seen = SeenMetadata(environment.disk, log_store.usable_dirs()[0].path, is_used=session_s is not None)
    first = [
        listening,
        Upkeep(environment, metadata=metadata, replicas=replicas, seen=seen),
        AclApis(metadata=metadata, access=access),
        UserApis(metadata=metadata, throttling=throttling),
        TokenApis(metadata=metadata, clock=clock),
        lookups,
        partitions,
        LogDirApis(metadata=metadata, replicas=replicas, log_moves=log_moves),
        OffsetApis(metadata=metadata, replicas=replicas, loop=loop),
        produce,
        fetch,
        SchemaMetrics(metadata=metadata, schemas=schemas, lookups=lookups, inline=replicas.inline_budget),
    ]
    then = [
        MetadataApis(metadata=metadata, replicas=replicas, topics=topics, clock=clock),
        topics,
        ConfigApis(metadata=metadata),
        cluster,
        membership,
        ClusterMetrics(metadata=metadata, replicas=replicas, clock=clock, membership=membership, requests=cluster),
        *_coordinators(metadata, replicas, topics, coordination, clock),
    ]
    return Parts(
        components=[*first, *then], metadata=metadata, partitions=partitions, membership=membership,
        coordination=coordination, seen=seen, produce=produce, fetch=fetch, lookups=lookups,
    )  # fmt: skip


def _new_clients(environment: Environment, listening: Listening, broker_id: int, purpose: str) -> BrokerClients:
    return BrokerClients(
        environment.loop,
        environment.network,
        client_id=f"{purpose}-{broker_id}",
        security=listening.peer_security(),
    )


def _log_moves(environment: Environment, metadata: ClusterMetadata, replicas: ReplicaManager) -> LogMoves:
    return LogMoves(
        loop=environment.loop,
        replicas=replicas,
        threads=environment.threads,
        wall_ms=environment.clock.wall_ms,
        unique=environment.new_name,
        rate=lambda: metadata.settings.replica_alter_log_dirs_io_max_bytes_per_second,
    )


def _dead_letters(
    environment: Environment,
    metadata: ClusterMetadata,
    replicas: ReplicaManager,
    topics: TopicApis,
    coordination: Coordination,
) -> DeadLetters:
    return DeadLetters(
        metadata=metadata,
        replicas=replicas,
        topics=topics,
        peers=coordination.peers,
        loop=environment.loop,
        clock=environment.clock,
    )


def _coordinators(
    metadata: ClusterMetadata, replicas: ReplicaManager, topics: TopicApis, coordination: Coordination, clock: Clock
) -> tuple[Component, ...]:
    groups, transactions = coordination.runtime, coordination.transactions
    return (
        coordination,
        CoordinatorApis(
            metadata=metadata, replicas=replicas, topics=topics, groups=groups, transactions=transactions
        ),
        GroupApis(metadata=metadata, groups=groups),
        TransactionApis(
            metadata=metadata, replicas=replicas, groups=groups, transactions=transactions,
            markers=coordination.markers, checks=coordination.checks, awaited_commits=coordination.awaited_commits,
            producer_ids=ProducerIds(metadata.store, metadata.broker_id),
        ),
        GroupMetrics(metadata, replicas, clock, coordination),
    )  # fmt: skip


def _ensemble_reader(environment: Environment, store: MetadataStore) -> Callable[[], Awaitable[Ensemble | None]]:
    if isinstance(store, ZooKeeperStore):
        return EnsembleReader(environment.loop, environment.network, store.servers, store.ensemble_config).read
    return _read_no_ensemble


async def _read_no_ensemble() -> Ensemble | None:
    return None
