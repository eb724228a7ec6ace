"""Creates the components of a broker, each with the others that it needs.

A new feature is one entry here. The order of the list is that in which components learn of changes of the metadata: who
may do what, then partitions and their roles, then those who depend on roles.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from ottla.broker.access.acl_apis import AclApis
from ottla.broker.access.listening import Listening
from ottla.broker.access.token_apis import TokenApis
from ottla.broker.access.user_apis import UserApis
from ottla.broker.cluster.cluster_apis import ClusterApis
from ottla.broker.cluster.config_apis import ConfigApis
from ottla.broker.cluster.membership import Membership
from ottla.broker.cluster.metadata_apis import MetadataApis
from ottla.broker.cluster.metrics import ClusterMetrics
from ottla.broker.cluster.run_start import RunStart
from ottla.broker.cluster.topic_apis import TopicApis
from ottla.broker.component import Component
from ottla.broker.coordination.coordination import Coordination
from ottla.broker.coordination.find_coordinator import CoordinatorApis
from ottla.broker.coordination.metrics import GroupMetrics
from ottla.broker.coordination.rebalance_journal import RebalanceJournal
from ottla.broker.dispatch import Dispatcher, table_of
from ottla.broker.environment import Environment
from ottla.broker.fetch.api import FetchApi
from ottla.broker.groups.group_apis import GroupApis
from ottla.broker.jmx_metrics import JmxMetrics
from ottla.broker.local_parts import LocalParts
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
from ottla.broker.partitions.record_traces import RecordTraces
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


@dataclass(slots=True, kw_only=True)
class Parts:
    """The components of a broker, and those that others than components have to know by name."""

    components: list[Component]
    metadata: ClusterMetadata
    run_start: RunStart
    membership: Membership
    produce: ProduceApi
    fetch: FetchApi


def build(
    local: LocalParts,
    listening: Listening,
    metadata: ClusterMetadata,
    *,
    announce: Callable[[ViewChanges], None],
    fail: Callable[[str], None],
) -> Parts:
    """Create all components. ``announce`` tells them of changes, ``fail`` ends the process with a reason."""
    environment, log_store, replicas = local.environment, local.log_store, local.replicas
    loop, clock, tasks, settings = environment.loop, environment.clock, environment.tasks, metadata.started_settings
    incarnation, begin_turn = environment.new_id(), local.server.ensure_turn
    new_clients = partial(_new_clients, environment, listening, metadata.broker_id)

    log_moves = _log_moves(environment, metadata, replicas)
    topics = TopicApis(metadata=metadata, replicas=replicas, clock=clock, log_moves=log_moves, tasks=tasks)
    journal = RebalanceJournal(metadata=metadata, replicas=replicas, topics=topics, clock=clock, begin_turn=begin_turn)
    coordination = Coordination(
        environment=environment, metadata=metadata, replicas=replicas, begin_turn=begin_turn,
        accepted=lambda: local.server.accepted, on_rebalance=journal.note,
        new_clients=partial(new_clients, "coordinator"),
    )  # fmt: skip
    membership = Membership(
        environment=environment, metadata=metadata, replicas=replicas, log_store=log_store, incarnation=incarnation,
        endpoints=listening.advertised(), clients=new_clients("broker"), roles_changed=coordination.roles_changed,
        fail=fail,
    )  # fmt: skip
    # The membership needs the coordinators, which therefore get its lease check last.
    coordination.runtime.context.check_lease = membership.lease_check.check_now
    partitions = ServedPartitions(
        metadata=metadata, replicas=replicas, new_name=environment.new_name, announce=announce,
        is_lease_over=membership.is_lease_over,
    )  # fmt: skip
    seen = SeenMetadata(environment.disk, log_store.usable_dirs()[0].path, is_used=bool(settings.zookeeper_connect))
    run_start = RunStart(
        environment=environment, metadata=metadata, partitions=partitions, membership=membership, seen=seen,
        log_store=log_store, incarnation=incarnation,
    )  # fmt: skip
    lookups, schemas = _schema_validation(environment, metadata, replicas, topics, coordination)
    produce = ProduceApi(
        metadata=metadata, replicas=replicas, clock=clock, access=local.access, throttling=local.throttling,
        schemas=schemas, checks=coordination.checks, transactions=coordination.transactions,
    )  # fmt: skip
    fetch = FetchApi(
        metadata=metadata, replicas=replicas, loop=loop, wheel=environment.wheel, deferred=environment.deferred,
        access=local.access, throttling=local.throttling,
    )  # fmt: skip
    cluster = ClusterApis(metadata=metadata, ensemble=_ensemble_reader(environment, metadata.store))
    components = [
        listening,
        Upkeep(environment, metadata=metadata, replicas=replicas, seen=seen),
        AclApis(metadata=metadata, access=local.access),
        UserApis(metadata=metadata, throttling=local.throttling),
        TokenApis(metadata=metadata, clock=clock),
        lookups,
        partitions,
        LogDirApis(metadata=metadata, replicas=replicas, log_moves=log_moves),
        OffsetApis(metadata=metadata, replicas=replicas, loop=loop),
        produce,
        fetch,
        SchemaMetrics(metadata=metadata, schemas=schemas, lookups=lookups, inline=replicas.inline_budget),
        MetadataApis(metadata=metadata, replicas=replicas, topics=topics, clock=clock),
        topics,
        ConfigApis(metadata=metadata),
        cluster,
        membership,
        ClusterMetrics(metadata=metadata, replicas=replicas, clock=clock, membership=membership, requests=cluster),
        *_coordinators(metadata, replicas, topics, coordination, clock),
        journal,
        _jmx_metrics(local, metadata, fetch, membership, requests=cluster, coordination=coordination),
    ]
    return Parts(
        components=components, metadata=metadata, run_start=run_start, membership=membership, produce=produce,
        fetch=fetch,
    )  # fmt: skip


def new_dispatchers(local: LocalParts, parts: Parts, listeners: Iterable[str]) -> dict[str, Dispatcher]:
    """Return what handles the frames of each of these listeners: it serves the APIs of all components."""
    apis = table_of(parts.components)
    environment, traces = local.environment, None
    if environment.spans is not None:
        clock = environment.clock
        traces = RecordTraces(
            environment.spans, local.replicas, broker_id=parts.metadata.broker_id, wall_ms=clock.wall_ms,
            monotonic=clock.monotonic,
        )  # fmt: skip
        parts.fetch.traces = traces
    return {
        listener: Dispatcher(
            listener, apis, produce=parts.produce, fetch=parts.fetch, metadata=parts.metadata,
            replicas=local.replicas, access=local.access, throttling=local.throttling,
            deferred=environment.deferred, traces=traces,
        )
        for listener in listeners
    }  # fmt: skip


def _jmx_metrics(
    local: LocalParts,
    metadata: ClusterMetadata,
    fetch: FetchApi,
    membership: Membership,
    *,
    requests: ClusterApis,
    coordination: Coordination,
) -> JmxMetrics:
    return JmxMetrics(
        server=local.server, metadata=metadata, replicas=local.replicas, fetch=fetch, membership=membership,
        requests=requests, coordination=coordination, clock=local.environment.clock,
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


def _schema_validation(
    environment: Environment,
    metadata: ClusterMetadata,
    replicas: ReplicaManager,
    topics: TopicApis,
    coordination: Coordination,
) -> tuple[SchemaLookups, SchemaValidation]:
    loop, clock = environment.loop, environment.clock
    lookups = SchemaLookups(
        loop, clock.monotonic, metadata.started_settings, current_settings=lambda: metadata.settings
    )  # fmt: skip
    replicas.inline_budget.knows_schemas = lookups.knows
    dead_letters = DeadLetters(
        metadata=metadata, replicas=replicas, topics=topics, peers=coordination.peers, loop=loop, clock=clock
    )
    return lookups, SchemaValidation(replicas.opener, lookups, dead_letters)


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
