"""Opens the metadata store of a broker that starts, and finds out which cluster it belongs to."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from ottla.broker.cluster.data_directories import lock_data
from ottla.broker.cluster.incarnation import read_runs
from ottla.broker.metadata.access_nodes import ACCESS_SKELETON
from ottla.broker.metadata.decide import read_and_write
from ottla.broker.metadata.embedded import FILE_NAME, EmbeddedStore
from ottla.broker.metadata.nodes import CLUSTER_ID, CLUSTER_SECRET, MALFORMED, ops_create_skeleton, to_json
from ottla.broker.metadata.store import Create, MalformedNode, MetadataStore, Node, Op, StoreError
from ottla.broker.metadata.zookeeper.access import zookeeper_security
from ottla.broker.metadata.zookeeper.store import ZooKeeperStore
from ottla.env.disk import Disk
from ottla.log.store import LogStore
from ottla.model.errors import KafkaError, StartError
from ottla.model.settings import BrokerSettings

OpenStore = Callable[[BrokerSettings], Awaitable[MetadataStore]]


def store_path(settings: BrokerSettings) -> str:
    """Return the path of the metadata store of a broker that is alone."""
    return os.path.join(settings.data_dirs[0], FILE_NAME)


@contextmanager
def store_errors_explained(settings: BrokerSettings) -> Iterator[None]:
    """Raise StartError, which says what to do, when the metadata store fails while the broker starts."""
    try:
        yield
    except StartError:
        raise
    except MalformedNode as error:
        path = store_path(settings)
        raise StartError(f"{path} is damaged, {error}; restore the file from a backup") from None
    except (StoreError, KafkaError) as error:
        raise StartError(f"{error}; {_store_advice(settings)}") from None


def _store_advice(settings: BrokerSettings) -> str:
    if settings.zookeeper_connect:
        return f"check that ZooKeeper at {settings.zookeeper_connect} runs, then start again"
    return f"see that the disk of {settings.data_dirs[0]} has room and works, then start again"


async def open_store(settings: BrokerSettings) -> MetadataStore:
    """Open the metadata store: that of the cluster, or the file of a broker that is alone."""
    if not settings.zookeeper_connect:
        return EmbeddedStore.open(store_path(settings))
    return await ZooKeeperStore.open(
        settings.zookeeper_connect,
        session_timeout_s=settings.zookeeper_session_timeout_ms / 1000,
        security=zookeeper_security(settings),
    )


class ClusterIdentity:
    """The cluster that the data directories and the metadata store of a broker belong to."""

    def __init__(
        self, settings: BrokerSettings, *, disk: Disk, log_store: LogStore, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._settings = settings
        self._disk = disk
        self._log_store = log_store
        self._random_bytes = random_bytes
        #: the cluster that the first data directory belongs to
        self._known: str | None = None

    def lock(self) -> None:
        """Lock the data directories. Raise StartError if they cannot be used by this broker."""
        metadata = None if self._settings.zookeeper_connect else store_path(self._settings)
        self._known = lock_data(
            self._disk, self._log_store, broker_id=self._settings.broker_id, metadata=metadata
        )  # fmt: skip

    async def complete(self, store: MetadataStore) -> str:
        """Create the missing nodes of the metadata store, sign the data directories, and return the cluster id."""
        cluster_id = await read_and_write(store, partial(store.load, "/"), self._complete_tree)
        # This is last: after a kill before this line, the next start must not report missing metadata.
        try:
            self._log_store.write_meta(cluster_id, self._settings.broker_id, self._new_directory_id)
        except OSError as error:
            first = self._settings.data_dirs[0]
            raise StartError(f"data directory {first} cannot be signed: {error}; check the disk") from None
        return cluster_id

    def _complete_tree(self, nodes: Mapping[str, Node]) -> tuple[list[Op], str]:
        """Return the operations that create missing nodes, and the cluster id. Raise StartError or MalformedNode."""
        node = nodes.get(CLUSTER_ID)
        try:
            stored = None if node is None else str(json.loads(node.value)["id"])
        except MALFORMED as error:
            raise MalformedNode(CLUSTER_ID, error) from None
        self._check(stored)
        cluster_id = stored or self._known or self._new_text_id()
        ops = [*ops_create_skeleton(nodes), *(Create(path) for path in ACCESS_SKELETON if path not in nodes)]
        if stored is None:
            ops.append(Create(CLUSTER_ID, to_json({"version": 1, "id": cluster_id})))
        if CLUSTER_SECRET not in nodes:
            ops.append(Create(CLUSTER_SECRET, to_json({"version": 1, "secret": self._random_bytes(32).hex()})))
        return ops, cluster_id

    def _check(self, stored: str | None) -> None:
        """Raise StartError if the metadata store has another cluster than the data directories."""
        known, settings = self._known, self._settings
        if known is None or stored == known:
            return
        path, first = store_path(settings), settings.data_dirs[0]
        if settings.zookeeper_connect:
            raise StartError(
                f"ZooKeeper at {settings.zookeeper_connect} has {f'cluster {stored}' if stored else 'no cluster'}, but "
                f"{first} belongs to cluster {known}; check zookeeper.connect and its chroot, or choose another --data "
                "directory"
            )
        if stored is None:
            raise StartError(
                f"{path} names no cluster, but {first} belongs to cluster {known}: a part of the file was lost; "
                "restore it from a backup"
            )
        raise StartError(
            f"{path} and meta.properties name different clusters: one of them was copied here or is damaged; restore "
            "both from a backup"
        )

    def _new_directory_id(self, path: str) -> str:
        """Return the id of a directory whose ``meta.properties`` has none, or is missing."""
        return read_runs(self._disk, path).directory_id or self._new_text_id()

    def _new_text_id(self) -> str:
        """Return a random id of 22 characters that does not start with "-", which command lines take for an option."""
        while True:
            text = base64.urlsafe_b64encode(self._random_bytes(16)).decode().rstrip("=")
            if not text.startswith("-"):
                return text
