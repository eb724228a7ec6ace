"""The admin clients of others, as administrators of a cluster use them: one class for each client, the same methods.

A client that lacks an operation has no method for it. Methods about one partition mean partition 0.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, ElectionType, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource as KafkaResource
from kafka.admin import ConfigResourceType
from kafka.errors import BrokerResponseError, NoError

from drivers import DEADLINE_S, Refused
from drivers.cluster import Described

#: replicas, replicas to add, replicas to remove
Move = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
DOWNGRADE, UPGRADE = 2, 1


class ConfluentAdmin:
    """librdkafka has no requests for reassignments, log directories, features and transactions."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create(self, topic: str, partitions: int, factor: int) -> None:
        self._only(self._admin.create_topics([NewTopic(topic, partitions, factor)]))

    def create_assigned(self, topic: str, replicas: list[list[int]]) -> None:
        self._only(self._admin.create_topics([NewTopic(topic, len(replicas), replica_assignment=replicas)]))

    def grow(self, topic: str, total: int, replicas: list[list[int]]) -> None:
        self._only(self._admin.create_partitions([NewPartitions(topic, total, replicas)]))

    def describe(self, topic: str) -> list[Described]:
        found = self._only(self._admin.describe_topics(TopicCollection([topic])))
        return [
            Described(
                each.leader.id if each.leader is not None else -1,
                tuple(node.id for node in each.replicas),
                tuple(node.id for node in each.isr),
            )
            for each in found.partitions
        ]

    def elect(self, topic: str, kind: str) -> int:
        place = ConfluentPartition(topic, 0)
        found = self._admin.elect_leaders(ElectionType[kind.upper()], [place]).result(DEADLINE_S)
        return 0 if found[place] is None else int(found[place].code())

    def cluster(self) -> tuple[int, list[int]]:
        found = self._admin.describe_cluster().result(DEADLINE_S)
        return found.controller.id, sorted(node.id for node in found.nodes)

    def set_broker_config(self, broker: int, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])
        self._only(self._admin.incremental_alter_configs([resource]))

    def broker_config(self, broker: int, name: str) -> str | None:
        found = self._only(self._admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker))]))
        value: str | None = found[name].value
        return value

    def groups(self) -> set[str]:
        found = self._admin.list_consumer_groups().result(DEADLINE_S)
        assert not found.errors
        return {each.group_id for each in found.valid}

    def commit(self, group: str, topic: str, offset: int) -> None:
        wanted = ConsumerGroupTopicPartitions(group, [ConfluentPartition(topic, 0, offset)])
        (row,) = self._only(self._admin.alter_consumer_group_offsets([wanted])).topic_partitions
        assert row.error is None, row.error

    def offset(self, group: str, topic: str) -> int:
        found = self._only(self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
        (offset,) = (int(each.offset) for each in found.topic_partitions if each.topic == topic)
        return offset

    def delete_group(self, group: str) -> None:
        self._only(self._admin.delete_consumer_groups([group]))

    @staticmethod
    def _only(futures: Any) -> Any:
        (future,) = futures.values()
        try:
            return future.result(DEADLINE_S)
        except KafkaException as error:
            raise Refused(error.args[0].code(), error.args[0].str()) from None


class KafkaPythonAdmin:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        with closing(KafkaAdminClient(bootstrap_servers=self._bootstrap.split(","))) as admin:
            try:
                return getattr(admin, name)(*arguments, **options)
            except BrokerResponseError as error:
                raise Refused(error.errno, str(error)) from None

    def create(self, topic: str, partitions: int, factor: int) -> None:
        self._call("create_topics", {topic: {"num_partitions": partitions, "replication_factor": factor}})

    def create_assigned(self, topic: str, replicas: list[list[int]]) -> None:
        self._call("create_topics", {topic: {"assignments": dict(enumerate(replicas))}})

    def grow(self, topic: str, total: int, replicas: list[list[int]]) -> None:
        self._call("create_partitions", {topic: {"count": total, "assignments": replicas}})

    def describe(self, topic: str) -> list[Described]:
        (found,) = self._call("describe_topics", [topic])
        rows = sorted(found["partitions"], key=lambda row: int(row["partition_index"]))
        return [
            Described(
                row["leader_id"], tuple(row["replica_nodes"]), tuple(row["isr_nodes"]), tuple(row["offline_replicas"])
            )
            for row in rows
        ]

    def reassign(self, topic: str, replicas: Sequence[int] | None) -> None:
        (error,) = self._call("alter_partition_reassignments", {TopicPartition(topic, 0): replicas}).values()
        assert error is None, error

    def reassignments(self, topic: str) -> list[Move]:
        found = self._call("list_partition_reassignments", {topic: [0]}).values()
        return [
            (tuple(row["replicas"]), tuple(row["adding_replicas"]), tuple(row["removing_replicas"])) for row in found
        ]

    def elect(self, topic: str, kind: str) -> int:
        number = {"preferred": 0, "unclean": 1}[kind]
        found = self._call("elect_leaders", number, {topic: [0]}, raise_errors=False)
        rows = found["replica_election_results"] if isinstance(found, dict) else found.replica_election_results
        row = rows[0]["partition_result"][0] if isinstance(rows[0], dict) else rows[0].partition_result[0]
        return int(row["error_code"] if isinstance(row, dict) else row.error_code)

    def log_dirs(self, topic: str) -> dict[int, dict[int, int]]:
        sizes: dict[int, dict[int, int]] = {}
        for broker in self._call("describe_log_dirs"):
            of_broker = sizes.setdefault(int(broker["broker"]), {})
            for directory in broker["log_dirs"]:
                for row in directory["topics"]:
                    if row["name"] == topic:
                        of_broker.update({p["partition_index"]: p["partition_size"] for p in row["partitions"]})
        return sizes

    def alter_log_dir(self, topic: str, broker: int, path: str) -> int:
        (error,) = self._call("alter_replica_log_dirs", {(topic, 0, broker): path}).values()
        return int(error.errno)

    def features(self) -> dict[str, int]:
        found = self._call("describe_features")
        return {name: row["finalized"][1] for name, row in found.items() if "finalized" in row}

    def set_feature(self, name: str, level: int, kind: int) -> None:
        self._call("update_features", {name: (kind, level)})

    def cluster(self) -> tuple[int, list[int]]:
        found = self._call("describe_cluster")
        alive = sorted(int(node["broker_id"]) for node in found["brokers"] if not node["is_fenced"])
        return int(found["controller_id"]), alive

    def quorum(self) -> tuple[int, list[int]]:
        row = self._call("describe_metadata_quorum")["topics"][0]["partitions"][0]
        return int(row["leader_id"]), sorted(int(voter["replica_id"]) for voter in row["current_voters"])

    def set_broker_config(self, broker: int, name: str, value: str) -> None:
        resource = KafkaResource(ConfigResourceType.BROKER, str(broker), configs={name: value})
        self._call("alter_configs", [resource], raise_on_unknown=False)

    def broker_config(self, broker: int, name: str) -> str | None:
        resource = KafkaResource(ConfigResourceType.BROKER, str(broker))
        found = self._call("describe_configs", [resource], config_filter="all")
        ((configs,),) = (kinds.values() for kinds in found.values())
        value = configs[name]["value"]
        return None if value is None else str(value)

    def transactions(self, *names: str) -> dict[str, tuple[str, str]]:
        """Return the state of each transactional id as it is listed and as it is described."""
        listed = {
            each.transactional_id: each.state for rows in self._call("list_transactions").values() for each in rows
        }
        found = self._call("describe_transactions", names)
        return {name: (_value(listed[name]), _value(found[name].state)) for name in names}

    def groups(self) -> set[str]:
        return {str(each["group_id"]) for each in self._call("list_groups")}

    def commit(self, group: str, topic: str, offset: int) -> None:
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
        (error,) = self._call("alter_group_offsets", group, offsets).values()
        assert error is NoError, error

    def offset(self, group: str, topic: str) -> int:
        found = self._call("list_group_offsets", [group])
        return int(found[group][TopicPartition(topic, 0)].offset)

    def delete_group(self, group: str) -> None:
        self._call("delete_groups", [group])


def _value(state: Any) -> str:
    return str(getattr(state, "value", state))


class SaramaAdmin:
    """A program in Go that runs one operation for each call."""

    def __init__(self, bootstrap: str, command: Path) -> None:
        self._command = [str(command), "cluster", bootstrap]

    def _call(self, operation: str, *arguments: object) -> Any:
        words = [each if isinstance(each, str) else json.dumps(each) for each in arguments]
        command = [*self._command, operation, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        if done.stderr.startswith("refused "):
            _, code, text = done.stderr.split(" ", 2)
            raise Refused(int(code), text)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def create(self, topic: str, partitions: int, factor: int) -> None:
        self._call("create", topic, partitions, factor)

    def create_assigned(self, topic: str, replicas: list[list[int]]) -> None:
        self._call("create-assigned", topic, replicas)

    def grow(self, topic: str, total: int, replicas: list[list[int]]) -> None:
        self._call("grow", topic, total, replicas)

    def describe(self, topic: str) -> list[Described]:
        return [
            Described(row["leader"], *(tuple(row[name] or ()) for name in ("replicas", "isr", "offline")))
            for row in self._call("describe", topic)
        ]

    def reassign(self, topic: str, replicas: Sequence[int] | None) -> None:
        self._call("reassign", topic, replicas)

    def reassignments(self, topic: str) -> list[Move]:
        return [
            (tuple(replicas), tuple(adding), tuple(removing))
            for replicas, adding, removing in self._call("reassignments", topic)
        ]

    def elect(self, topic: str, kind: str) -> int:
        return int(self._call("elect", topic, kind))

    def log_dirs(self, topic: str) -> dict[int, dict[int, int]]:
        found = self._call("log-dirs", topic)
        return {int(broker): {int(number): size for number, size in sizes.items()} for broker, sizes in found.items()}

    def cluster(self) -> tuple[int, list[int]]:
        controller, brokers = self._call("cluster")
        return controller, brokers

    def set_broker_config(self, broker: int, name: str, value: str) -> None:
        self._call("set-broker-config", broker, name, value)

    def broker_config(self, broker: int, name: str) -> str | None:
        value: str | None = self._call("broker-config", broker, name)
        return value

    def groups(self) -> set[str]:
        return set(self._call("groups"))

    def commit(self, group: str, topic: str, offset: int) -> None:
        self._call("commit", group, topic, offset)

    def offset(self, group: str, topic: str) -> int:
        return int(self._call("offset", group, topic))

    def delete_group(self, group: str) -> None:
        self._call("delete-group", group)


class FranzAdmin(SaramaAdmin):
    """kadm, and requests of kmsg for what it lacks."""

    def alter_log_dir(self, topic: str, broker: int, path: str) -> int:
        return int(self._call("alter-log-dir", topic, broker, path))

    def features(self) -> dict[str, int]:
        found: dict[str, int] = self._call("features")
        return found

    def set_feature(self, name: str, level: int, kind: int) -> None:
        self._call("set-feature", name, level, kind)

    def quorum(self) -> tuple[int, list[int]]:
        leader, voters = self._call("quorum")
        return leader, voters

    def unregister(self, broker: int) -> None:
        self._call("unregister", broker)

    def transactions(self, *names: str) -> dict[str, tuple[str, str]]:
        return {name: (listed, described) for name, (listed, described) in self._call("transactions", *names).items()}
