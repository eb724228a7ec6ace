"""Begins a run of the broker: reads the metadata, opens the logs, and marks those that may lack records.

`incarnation` explains the order of these steps.
"""

from __future__ import annotations

import json
import logging

from ottla.broker.cluster.incarnation import (
    Comparison,
    compare_usable,
    next_dirs,
    path_text,
    paths_by_id,
    recognise,
    write_runs,
)
from ottla.broker.cluster.membership import Membership
from ottla.broker.cluster.registration import dirs_of_last_run
from ottla.broker.cluster.unclean_logs import UncleanLogs
from ottla.broker.environment import Environment
from ottla.broker.metadata.broker_nodes import RegisteredDirs
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.nodes import BROKER_DEFAULT, CLUSTER_SECRET, broker_config_path, registered_path, topic_of
from ottla.broker.metadata.seen_metadata import SeenMetadata
from ottla.broker.metadata.store import Changed, MalformedNode, Op, in_multis
from ottla.broker.metadata.topic_plans import ops_bump_leader_epochs, put_state
from ottla.broker.metadata.view import ClusterView
from ottla.broker.partitions.served_partitions import ServedPartitions
from ottla.env.advice import directory_advice
from ottla.log.store import LogStore
from ottla.model.errors import StartError
from ottla.model.settings import InvalidSettings

log = logging.getLogger(__name__)


class RunStart:
    """The steps from the open metadata store to logs that may be written."""

    def __init__(
        self,
        *,
        environment: Environment,
        metadata: ClusterMetadata,
        partitions: ServedPartitions,
        membership: Membership,
        seen: SeenMetadata,
        log_store: LogStore,
        incarnation: bytes,
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._membership = membership
        self._seen = seen
        self._disk = environment.disk
        self._log_store = log_store
        self._incarnation = incarnation
        is_alone = not metadata.started_settings.zookeeper_connect
        self._unclean = UncleanLogs(metadata, log_store, is_alone=is_alone)
        self._monotonic = environment.clock.monotonic

    async def run(self) -> bytes:
        """Return the secret of the cluster. Raise StartError, StoreError, MalformedNode."""
        metadata, log_store = self._metadata, self._log_store
        is_alone = not metadata.started_settings.zookeeper_connect
        nodes = await self._seen.load(metadata.store, self._monotonic)
        metadata.view.apply([Changed(path, node) for path, node in nodes.items()])
        self._check_settings()
        metadata.apply_dynamic_settings()
        specs = self._partitions.all_specs()
        registered = nodes.get(registered_path(metadata.broker_id))
        last_dirs = None if registered is None else dirs_of_last_run(registered)
        try:
            compared = recognise(self._disk, log_store, last_dirs, self._incarnation.hex())
            log_store.load(specs)
        except OSError as error:
            raise StartError(f"the logs cannot be opened: {error}; check the disk") from None
        if not is_alone:
            self._check_epochs()
        elif not log_store.was_clean:
            log.warning("the last stop was not clean: logs were checked and leader epochs go up")
            await self._bump_leader_epochs()
        try:
            await self._begin_run(last_dirs, compared)
        except OSError as error:
            advice = directory_advice(error, option="--data")
            raise StartError(f"a data directory cannot be written: {advice}") from None
        return bytes.fromhex(json.loads(nodes[CLUSTER_SECRET].value)["secret"])

    async def _begin_run(self, last: RegisteredDirs | None, compared: Comparison) -> None:
        """Begin a run of this broker: from now on nothing of an earlier run counts. Mark logs that may lack records.

        ``last`` has the log directories of the last run, and ``compared`` is their comparison with the present ones.
        `incarnation` explains the order of these steps; the first one is done.
        """
        store, registration, failed_dirs = self._log_store, self._membership.registration, self._membership.failed_dirs
        run = self._incarnation.hex()
        compared = compare_usable(store, compared.present, last)  # directories may have failed since
        used = store.usable_dirs()
        is_complete = len(used) == len(store.dirs)
        if last is not None:
            present = {each.directory_id for each in store.dirs}
            store.has_absent_dirs = any(each not in present for each in last.last_runs)
        await registration.begin_run(last)
        if last is not None and compared.missing and is_complete:
            log.error(
                "log directories of the last run are missing: %s. Partitions whose logs were there have no log until "
                "it is copied from another replica. If the directories exist, add them to log.dirs again and restart "
                "partitions=%d first=%s", ", ".join(path_text(last, each) for each in compared.missing),
                len(self._log_store.created), min(map(str, self._log_store.created), default="-"),
            )  # fmt: skip
        await self._unclean.mark(last, compared)
        unusable = () if is_complete else compared.missing
        dirs = next_dirs(last, paths_by_id(store, used), run, unusable)
        await registration.write_dirs(dirs)
        failed_dirs.begin(dirs, used)
        store.begin_writing()
        for each in store.usable_dirs():
            try:
                write_runs(self._disk, each.path, each.directory_id, run)
            except OSError as error:
                store.set_unusable(each, error)
        if store.records_failures:
            await failed_dirs.record(store.set_unusable)

    def _check_settings(self) -> None:
        """Raise MalformedNode if the settings of brokers in the store are invalid."""
        metadata = self._metadata
        defaults, own = metadata.view.dynamic_config(metadata.broker_id)
        for name, config in ((BROKER_DEFAULT, defaults), (str(metadata.broker_id), own)):
            try:
                metadata.started_settings.with_dynamic(config, {})
            except InvalidSettings as error:
                raise MalformedNode(broker_config_path(name), error) from None

    def _check_epochs(self) -> None:
        """Raise StartError if a log has a later leader epoch than the store of the cluster.

        The store then lost changes. New leaders would use epochs again, and no check could find records that differ.
        """
        view, where = self._metadata.view, self._metadata.started_settings.zookeeper_connect
        for name, its_log in self._log_store.logs.items():
            stored = view.topics[name.topic].partitions[name.partition].leader_epoch
            if its_log.epochs.latest > stored:
                raise StartError(
                    f"partition {name} has leader epoch {its_log.epochs.latest} on disk, but {stored} in ZooKeeper at "
                    f"{where}: ZooKeeper lost changes, or this data directory is another cluster's; restore ZooKeeper "
                    "from a newer backup"
                )

    async def _bump_leader_epochs(self) -> None:
        """Increase the leader epochs of the partitions that this broker leads, 100 topics at a time."""
        view, own = self._metadata.view, self._metadata.broker_id
        led = [topic for topic in view.topics.values() if topic.is_led_by(own)]
        for multi in in_multis(put_state(view, topic) for topic in led):
            topics = [topic_of(op.path) for op in multi]

            def decide(view: ClusterView, topics: list[str] = topics) -> tuple[list[Op], None]:
                return ops_bump_leader_epochs(view, topics, own), None

            await self._metadata.write(decide, watched=False)
