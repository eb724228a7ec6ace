"""The metadata of the cluster as this broker knows them, the settings that they contain, and the way to change them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from ottla.broker.metadata.decide import decide_and_write
from ottla.broker.metadata.store import Changed, MetadataStore, Op
from ottla.broker.metadata.view import ClusterView, TopicView, ViewChanges
from ottla.model.settings import BrokerSettings, TopicSettings, min_insync_replicas
from ottla.model.types import Endpoint

R = TypeVar("R")

_MIN_INSYNC = "min.insync.replicas"
#: bound of the settings of topics that are kept
_RESOLVED_MAX = 1000


class ResolvedSettings:
    """Settings of topics. Topics with the same overrides share one object, because it takes 50 us to make one."""

    def __init__(self) -> None:
        #: by number of replicas and overrides; valid for these settings of the broker
        self._found: dict[tuple[object, ...], TopicSettings] = {}
        self._broker: BrokerSettings | None = None

    def of(self, topic: TopicView, broker: BrokerSettings) -> TopicSettings:
        """Return the settings of a topic. Raise InvalidSettings."""
        if self._broker is not broker or len(self._found) >= _RESOLVED_MAX:
            self._broker, self._found = broker, {}
        key = topic.replication_factor, *topic.config.items()
        if (found := self._found.get(key)) is None:
            found = self._found[key] = TopicSettings.resolve(topic.config, broker, topic.replication_factor)
        return found


class ClusterMetadata:
    """The view of the cluster, kept current by a watch, and decisions that are written to the metadata store."""

    def __init__(
        self,
        store: MetadataStore,
        settings: BrokerSettings,
        *,
        cluster_id: str,
        new_id: Callable[[], bytes],
        view: ClusterView | None = None,
    ) -> None:
        self.store = store
        self.view = view or ClusterView()
        self.broker_id = settings.broker_id
        self.cluster_id = cluster_id
        #: the settings at the start; ``settings`` includes dynamic changes
        self.started_settings = settings
        self.settings = settings
        #: returns 16 random bytes, for topic ids, fetch sessions and others
        self.new_id = new_id
        #: advertised address by listener name; a listener without one advertises the address that the client dialled
        self.advertised: dict[str, Endpoint] = {each.name: each for each in settings.advertised_endpoints}
        #: this broker reaches neither the metadata store nor in-sync replicas, and has stopped leading partitions
        self.is_cut_off = False
        #: returns the ids of leaders whose connection to this broker was closed a moment ago: they have probably ended
        self.just_lost: Callable[[], frozenset[int]] = frozenset
        #: held by a request that decides again, after a conflict
        self._turn = asyncio.Lock()
        self._resolved = ResolvedSettings()

    async def write(
        self,
        decide: Callable[[ClusterView], tuple[Sequence[Op], R]],
        *,
        view: ClusterView | None = None,
        watched: bool = True,
    ) -> R:
        """Write the operations that ``decide`` returns for the metadata, and return its other result.

        The first decision is made from the view of this broker, or from another one, which may not be ``watched``.
        `decide_and_write` says what else ``decide`` must be prepared for, and what this raises.
        """
        return await decide_and_write(self.store, view or self.view, decide, turn=self._turn, watched=watched)

    async def follow(self, announce: Callable[[ViewChanges], None]) -> None:
        """Apply all metadata to the view, then all changes, and report them to ``announce``."""
        await self.store.watch("/", partial(self._apply, announce))

    def _apply(self, announce: Callable[[ViewChanges], None], changes: list[Changed]) -> None:
        """Apply changes of the store. It calls this in commit order, before it completes the request for the change."""
        changed = self.view.apply(changes)
        if changed.broker_settings:
            self.apply_dynamic_settings()
        announce(changed)

    def apply_dynamic_settings(self) -> None:
        """Use the settings that the view has for this broker and for all brokers. Raise InvalidSettings."""
        defaults, own = self.view.dynamic_config(self.broker_id)
        self.settings = self.started_settings.with_dynamic(defaults, own)

    def topic_settings(self, topic: TopicView) -> TopicSettings:
        return self._resolved.of(topic, self.settings)

    def wanted_min_isr(self, view: ClusterView, config: Mapping[str, str], replicas: int) -> int:
        """Return min.insync.replicas for partitions with this many replicas of a topic with these settings.

        It is the topic's, else that of the cluster, else the one in the file of this broker. The file counts on the
        controller, which corrects the states of all topics, so that brokers with different files do not disagree.
        """
        defaults, _ = view.dynamic_config(self.broker_id)
        given = config if _MIN_INSYNC in config or _MIN_INSYNC not in defaults else defaults
        return min_insync_replicas(given, self.started_settings, replicas)

    def live_brokers(self, view: ClusterView) -> list[int]:
        """Return the brokers that are alive; only this one before the first broker has registered."""
        return list(view.brokers) or [self.broker_id]

    def own_endpoint(self, listener: str, dialled: tuple[str, int]) -> tuple[str, int]:
        """Return the address of this broker for clients of a listener: the advertised one, or the one they dialled."""
        advertised = self.advertised.get(listener)
        if advertised is not None:
            return advertised.host, advertised.port
        host, port = dialled
        return host.removeprefix("::ffff:"), port
