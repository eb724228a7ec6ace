"""A broker's copy of the cluster metadata, updated by applying the store's changes in order.

Topics are immutable: a change creates a new object, so a handler never sees a partial change.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from operator import is_
from typing import Any, NamedTuple

from ottla.broker.metadata.access_nodes import ACCESS_ROOTS, AccessView
from ottla.broker.metadata.broker_nodes import BrokerView, RegisteredBroker, broker_of, registered_broker_of
from ottla.broker.metadata.nodes import (
    BROKER_CONFIGS,
    BROKER_DEFAULT,
    BROKER_IDS,
    CONTROLLER,
    CONTROLLER_EPOCH,
    DELETED_TOPICS,
    FEATURE_LEVELS,
    GROUP_CONFIGS,
    MALFORMED,
    PRODUCER_ID_BLOCK,
    REGISTERED,
    TOPIC_CONFIGS,
    TOPICS,
    config_json,
    config_of,
    group_of,
    incarnation_of,
    is_leaving,
    is_unregistered,
    to_json,
    topic_path,
)
from ottla.broker.metadata.store import Changed, MalformedNode, Node
from ottla.model.features import FEATURES
from ottla.model.types import topic_id_text
from ottla.security.acls import Pattern
from ottla.security.quotas import Entity

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__ottla_rebalances"})

#: how long a deletion is remembered: longer than a client takes to refresh its metadata after DeleteTopics
RECENTLY_DELETED_MS = 10_000

TOPIC_ID_BYTES = 16


#: leader of a partition that has none
NO_LEADER = -1
#: end offset of a log that was lost or that is an older copy: what it contains is not known to be complete
LOG_LOST = -1
#: end offset of a log that cannot be read or written since its disk failed; a later start may find it complete
LOG_OFFLINE = -2


class LogEnd(NamedTuple):
    """The end of a log after a stop that was not clean, or a log whose disk failed: records may be missing there."""

    broker: int
    #: leader epoch of the last record; -1 if there is none. If the log is lost, or its whole directory is offline: a
    #: number of the last run that had it
    last_epoch: int
    #: the offset after the last record, LOG_LOST or LOG_OFFLINE
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """The replicas of a partition, its leader and its in-sync replicas."""

    #: broker id of the leader; NO_LEADER if no in-sync replica is alive
    leader: int
    #: incremented with every change of the leader or of the replicas
    leader_epoch: int
    #: broker ids, the preferred leader first; they include ``adding`` and ``removing``
    replicas: tuple[int, ...]
    #: in-sync replicas, a subset of ``replicas``
    isr: tuple[int, ...]
    #: incremented with every change of any field
    partition_epoch: int = 0
    #: replicas that a reassignment adds
    adding: tuple[int, ...] = ()
    #: replicas that a reassignment removes
    removing: tuple[int, ...] = ()
    #: eligible leader replicas (KIP-966): they left the ISR while it was smaller than min.insync.replicas, so they have
    #: every committed record; a subset of ``replicas``, disjoint from ``isr``
    elr: tuple[int, ...] = ()
    #: members of the ISR or the ELR that stopped uncleanly and have not been refilled from a leader since
    unclean: tuple[LogEnd, ...] = ()
    #: min.insync.replicas as the leader and the controller must use it, because the ELR depends on it; 0 in a state
    #: that an earlier release has written: then each broker uses its own setting
    min_isr: int = 0

    def lost_end(self, broker: int) -> LogEnd | None:
        """Return the mark of a replica whose log counts as lost; None if it does not."""
        return next((end for end in self.unclean if end.broker == broker and end.end_offset == LOG_LOST), None)

    def last_run_of(self, broker: int) -> int | None:
        """Return the number of the last run that had the log of a replica, if it is lost or offline; otherwise None."""
        return next((end.last_epoch for end in self.unclean if end.broker == broker and end.end_offset < 0), None)

    def applied_by(self, broker: int) -> PartitionView:
        """Return the state as a broker applies it: without its leader if it is the leader and its log may lack records.

        Another broker is elected then, or this one in a new epoch.
        """
        if self.leader == broker and any(end.broker == broker for end in self.unclean):
            return replace(self, leader=NO_LEADER)
        return self

    def changed(self, **fields: Any) -> PartitionView:
        """Return the partition with these fields changed and the next partition epoch."""
        return replace(self, partition_epoch=self.partition_epoch + 1, **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """A topic as it is in the store."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionView, ...]
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        """Return how many replicas the first partition has, or will have when its reassignment is complete."""
        return len(self.partitions[0].replicas) - len(self.partitions[0].removing) if self.partitions else 0

    def is_led_by(self, broker_id: int) -> bool:
        """Return whether the broker leads a partition of the topic."""
        return any(each.leader == broker_id for each in self.partitions)

    def assignment_json(self) -> bytes:
        return to_json(
            {
                "version": 3,
                "topic_id": topic_id_text(self.topic_id),
                "partitions": {str(number): list(p.replicas) for number, p in enumerate(self.partitions)},
                "adding_replicas": {
                    str(number): list(p.adding) for number, p in enumerate(self.partitions) if p.adding
                },
                "removing_replicas": {
                    str(number): list(p.removing) for number, p in enumerate(self.partitions) if p.removing
                },
            }
        )

    def state_json(self) -> bytes:
        rows: list[list[Any]] = []
        for p in self.partitions:
            row = [p.leader, p.leader_epoch, p.isr, p.partition_epoch]
            rows.append([*row, p.elr, p.unclean] if p.elr or p.unclean else row)
        # Brokers that do not know version 3 can still read a state that does not need it.
        version = 3 if any(p.elr or p.unclean for p in self.partitions) else 2
        value: dict[str, Any] = {"version": version, "partitions": rows}
        values = [p.min_isr for p in self.partitions]
        if any(values):
            value["min_isr"] = values[0] if len(set(values)) == 1 else values
        return to_json(value)

    def config_json(self) -> bytes:
        return config_json(self.config)


class ControllerView(NamedTuple):
    """The broker that is the controller."""

    broker_id: int
    #: the version of /controller_epoch
    epoch: int


#: the patterns whose ACLs changed, and the users, client ids and addresses whose settings changed
AccessChanges = Sequence[Pattern | Entity]


class ViewChanges(NamedTuple):
    """The parts of the view that a list of changes has changed."""

    #: the changed topics as (old, new), None for a topic that did or does not exist
    topics: list[tuple[TopicView | None, TopicView | None]]
    #: whether settings of brokers changed
    broker_settings: bool
    #: whether a broker was registered, registered again or is no longer alive
    brokers: bool
    #: whether another broker became controller, the same one was elected again, or there is none
    controller: bool
    access: AccessChanges = ()


def id_bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


_Replicas = dict[int, tuple[int, ...]]


class _Assignment(NamedTuple):
    """The node of a topic: broker ids by partition number."""

    topic_id: bytes
    replicas: _Replicas
    adding: _Replicas
    removing: _Replicas


class _State(NamedTuple):
    """The row of one partition in the state of a topic."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    elr: tuple[int, ...] = ()
    unclean: tuple[LogEnd, ...] = ()
    min_isr: int = 0


def _assignment_of(value: bytes) -> _Assignment:
    data = json.loads(value)
    topic_id = id_bytes(data["topic_id"])
    if len(topic_id) != TOPIC_ID_BYTES:
        raise ValueError(f"the topic id has {len(topic_id)} bytes")
    replicas, adding, removing = (
        {int(number): tuple(map(int, ids)) for number, ids in lists.items()}
        for lists in (data["partitions"], data.get("adding_replicas", {}), data.get("removing_replicas", {}))
    )
    return _Assignment(topic_id, replicas, adding, removing)


def _states_of(value: bytes, before: Sequence[_State] = ()) -> list[_State]:
    """Return the states of a topic's partitions: the object in ``before`` of each partition that has not changed.

    A change in a topic of thousands of partitions concerns a few of them, and the others keep their objects.
    """
    data = json.loads(value)
    rows, min_isr = data["partitions"], data.get("min_isr", 0)
    values = min_isr if isinstance(min_isr, list) else [min_isr] * len(rows)
    return [
        old if old is not None and _is_unchanged(old, row, each) else _state_of(row, int(each))
        for row, each, old in zip(rows, values, chain(before, repeat(None, len(rows) - len(before))), strict=False)
    ]


def _is_unchanged(state: _State, row: list[Any], min_isr: object) -> bool:
    """Return whether a row is this state. A row with an ELR or unclean logs, of which there are few, never is."""
    return (
        len(row) == 4
        and row[3] == state.partition_epoch
        and row[1] == state.leader_epoch
        and row[0] == state.leader
        and tuple(row[2]) == state.isr
        and not state.elr
        and not state.unclean
        and min_isr == state.min_isr
    )


def _state_of(row: list[Any], min_isr: int) -> _State:
    """Return the state of a partition. A row of version 1 has no partition epoch, one of version 2 no ELR."""
    leader, leader_epoch, isr, *rest = row
    state = _State(
        int(leader), int(leader_epoch), tuple(map(int, isr)), int(rest[0]) if rest else 0, min_isr=min_isr
    )  # fmt: skip
    if len(rest) <= 1:
        return state
    _, elr, unclean = rest
    ends = (LogEnd(int(broker), int(epoch), int(end)) for broker, epoch, end in unclean)
    return state._replace(elr=tuple(map(int, elr)), unclean=tuple(ends))


def _partition(assignment: _Assignment, number: int, state: _State) -> PartitionView:
    return PartitionView(
        leader=state.leader, leader_epoch=state.leader_epoch, replicas=assignment.replicas[number], isr=state.isr,
        partition_epoch=state.partition_epoch, adding=assignment.adding.get(number, ()),
        removing=assignment.removing.get(number, ()), elr=state.elr, unclean=state.unclean, min_isr=state.min_isr,
    )  # fmt: skip


def changed_partitions(old: TopicView | None, new: TopicView) -> Iterable[int]:
    """Return the partitions of a topic that are new or differ from those of ``old``."""
    if old is None or old.topic_id != new.topic_id:
        return range(len(new.partitions))
    same = map(is_, old.partitions, new.partitions)
    changed = [number for number, is_same in enumerate(same) if not is_same]
    return [*changed, *range(len(old.partitions), len(new.partitions))]


def _metric_name(topic: str) -> str:
    """Return the name of a topic in Kafka's metrics, where a dot becomes an underscore."""
    return topic.replace(".", "_")


def can_collide(topic: str) -> bool:
    """Return whether another topic's name can differ from this one only in dots and underscores."""
    return "." in topic or "_" in topic


class ClusterView:
    """Topics, live brokers, and settings of brokers and groups, and the version of every node that they come from."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicView] = {}
        self.topics_by_id: dict[bytes, TopicView] = {}
        #: the brokers that are alive, by id. A node of an earlier start than that in /brokers/registered does not
        #: count: that process has ended, and only its session has not expired yet
        self.brokers: dict[int, BrokerView] = {}
        #: version of /brokers/registered/N by broker id; also of brokers that are not alive
        self.registered: dict[int, int] = {}
        #: the brokers that have begun a clean stop and must not join an ISR before their next start
        self.leaving: set[int] = set()
        #: address and rack of these brokers; a broker of an earlier release is absent
        self.last_starts: dict[int, RegisteredBroker] = {}
        #: None while no broker is controller
        self.controller: ControllerView | None = None
        #: overrides by broker id as text; the default for all brokers under "<default>"
        self.broker_configs: dict[str, dict[str, str]] = {}
        #: levels of features that an administrator has set
        self.feature_levels: dict[str, int] = {}
        #: group name -> its own settings; a group without any is absent
        self.group_configs: dict[str, dict[str, str]] = {}
        #: topic name -> wall-clock time of its deletion in ms, oldest first; at most DELETIONS_MAX of the controller
        self.deletions: dict[str, int] = {}
        #: ACLs, users and quotas
        self.access = AccessView()
        self._access_changes: list[Pattern | Entity] = []
        #: path -> version of each node that this view was built from
        self.versions: dict[str, int] = {}
        #: incremented by every change; a value that was computed from an older version is stale
        self.version = 0
        #: incremented when a topic is created, deleted or changed
        self.topics_version = 0
        self._assignments: dict[str, _Assignment] = {}
        self._states: dict[str, list[_State]] = {}
        #: what the partitions of each topic were made of
        self._built_of: dict[str, tuple[_Assignment, list[_State]]] = {}
        self._configs: dict[str, dict[str, str]] = {}
        #: the topics by the name that they have in Kafka's metrics
        self._topics_alike: dict[str, set[str]] = {}
        #: the nodes of /brokers/ids, and the latest starts, by broker id
        self._registrations: dict[int, BrokerView] = {}
        self._incarnations: dict[int, bytes] = {}
        #: broker id in /controller, None if there is no such node
        self._controller_id: int | None = None

    def has_partition(self, topic: bytes, number: int, *, by_id: bool) -> bool:
        """Return whether the cluster has this partition, on whichever broker; the topic is named by name or by id."""
        found = self.topics_by_id.get(topic) if by_id else self.topics.get(topic.decode(errors="replace"))
        return found is not None and 0 <= number < len(found.partitions)

    def apply(self, changes: Iterable[Changed]) -> ViewChanges:
        """Apply the store's changes and return which parts of the view differ. Raise MalformedNode for a bad value."""
        topics: dict[str, None] = {}
        settings_changed = False
        brokers_before = self.brokers
        are_brokers_applied = False
        for path, node in changes:
            if node is not None:
                self.versions[path] = node.version
            else:
                self.versions.pop(path, None)
            try:
                if path.startswith((BROKER_IDS + "/", REGISTERED + "/")) or path == CONTROLLER:
                    self._apply_broker(path, node)
                    are_brokers_applied = True
                    continue
                topic, is_broker_setting = self._apply_node(path, node.value if node is not None else None)
            except MALFORMED as error:
                raise MalformedNode(path, error) from None
            if topic is not None:
                topics[topic] = None
            settings_changed |= is_broker_setting
        self.version += 1
        access, self._access_changes = self._access_changes, []
        differing = [pair for pair in map(self._refresh, topics) if pair[0] != pair[1]]
        self.topics_version += bool(differing)
        if are_brokers_applied:
            self._refresh_brokers()
        controller = self.controller
        # Computed from both nodes after the loop, because one multi changes them and the list has them in any order.
        self.controller = (
            None if self._controller_id is None
            else ControllerView(self._controller_id, self.versions.get(CONTROLLER_EPOCH, 0))
        )  # fmt: skip
        return ViewChanges(
            differing,
            settings_changed,
            brokers=self.brokers != brokers_before,
            controller=self.controller != controller,
            access=access,
        )

    def _apply_broker(self, path: str, node: Node | None) -> None:
        """Apply the node of a live broker, of a broker's latest start, or of the controller."""
        if path == CONTROLLER:
            self._controller_id = None if node is None else int(json.loads(node.value)["brokerid"])
            return
        broker_id = int(path.rpartition("/")[2])
        if path.startswith(REGISTERED + "/"):
            self.registered.pop(broker_id, None)
            self.last_starts.pop(broker_id, None)
            self._incarnations.pop(broker_id, None)
            self.leaving.discard(broker_id)
            if node is not None:
                if is_leaving(node.value):
                    self.leaving.add(broker_id)
                if not is_unregistered(node.value):
                    self.registered[broker_id] = node.version
                    if (last_start := registered_broker_of(node.value)) is not None:
                        self.last_starts[broker_id] = last_start
                self._incarnations[broker_id] = incarnation_of(node.value)
        else:
            self._registrations.pop(broker_id, None)
            if node is not None:
                self._registrations[broker_id] = broker_of(broker_id, node)

    def _refresh_brokers(self) -> None:
        """Compute the live brokers as a new dict, so that code that iterates over the old one never sees a change."""
        self.brokers = {
            broker_id: broker
            for broker_id, broker in sorted(self._registrations.items())
            if self._incarnations.get(broker_id, broker.incarnation) == broker.incarnation
        }

    def _apply_node(self, path: str, value: bytes | None) -> tuple[str | None, bool]:
        """Return the topic that the node belongs to, None for others, and whether it holds broker settings."""
        if path.startswith(ACCESS_ROOTS):
            if (about := self.access.apply(path, value)) is not None:
                self._access_changes.append(about)
            return None, False
        if path.startswith(TOPICS + "/"):
            topic, _, rest = path.removeprefix(TOPICS + "/").partition("/")
            self._apply_topic(topic, rest, value)
            return topic, False
        if path.startswith(TOPIC_CONFIGS + "/"):
            topic = path.removeprefix(TOPIC_CONFIGS + "/")
            self._configs.pop(topic, None) if value is None else self._configs.update({topic: config_of(value)})
            return topic, False
        if path.startswith(GROUP_CONFIGS + "/"):
            self.group_configs.pop(group_of(path), None)
            if value is not None:
                self.group_configs[group_of(path)] = config_of(value)
        if path.startswith(BROKER_CONFIGS + "/"):
            broker = path.removeprefix(BROKER_CONFIGS + "/")
            self.broker_configs[broker] = config_of(value) if value is not None else {}
            return None, True
        if path.startswith(DELETED_TOPICS + "/"):
            topic = path.removeprefix(DELETED_TOPICS + "/")
            self.deletions.pop(topic, None)
            if value is not None:
                self.deletions[topic] = int(json.loads(value)["deleted_ms"])
        elif path == FEATURE_LEVELS:
            levels = json.loads(value)["levels"] if value is not None else {}
            self.feature_levels = {str(name): int(level) for name, level in levels.items()}
        elif path == PRODUCER_ID_BLOCK and value is not None:
            # Checked now, because the node is otherwise read only when the first producer asks for an id.
            int(json.loads(value)["block_end"])
        return None, False

    def _apply_topic(self, topic: str, rest: str, value: bytes | None) -> None:
        if rest == "state":
            if value is None:
                self._states.pop(topic, None)
            else:
                self._states[topic] = _states_of(value, self._states.get(topic, ()))
        elif value is None:
            self._assignments.pop(topic, None)
        else:
            self._assignments[topic] = _assignment_of(value)

    def _refresh(self, topic: str) -> tuple[TopicView | None, TopicView | None]:
        """Rebuild one topic from its nodes. Return the old and the new topic; None without assignment or state."""
        old = self.topics.pop(topic, None)
        if old is not None:
            self.topics_by_id.pop(old.topic_id, None)
            alike = self._topics_alike[_metric_name(topic)]
            alike.discard(topic)
            if not alike:
                del self._topics_alike[_metric_name(topic)]
        assignment, state = self._assignments.get(topic), self._states.get(topic)
        if assignment is None or state is None:
            self._built_of.pop(topic, None)
            return old, None
        if any(number not in assignment.replicas for number in range(len(state))):
            raise MalformedNode(topic_path(topic), "it has fewer partitions than its state")
        known: Sequence[_State] = ()
        if old is not None and (built_of := self._built_of.get(topic)) is not None and built_of[0] is assignment:
            known = built_of[1]
        partitions = tuple(
            old.partitions[number]
            if old is not None and number < len(known) and row is known[number]
            else _partition(assignment, number, row)
            for number, row in enumerate(state)
        )
        self._built_of[topic] = assignment, state
        topic_id = assignment.topic_id
        new = TopicView(name=topic, topic_id=topic_id, partitions=partitions, config=self._configs.get(topic, {}))
        self.topics[topic] = self.topics_by_id[topic_id] = new
        self._topics_alike.setdefault(_metric_name(topic), set()).add(topic)
        return old, new

    def feature_level(self, name: str) -> int:
        """Return the level of a feature of FEATURES; its highest one if none was set."""
        return self.feature_levels.get(name, FEATURES[name][1])

    @property
    def feature_epoch(self) -> int:
        """Return a number that rises with every change of a level."""
        return self.versions.get(FEATURE_LEVELS, -1) + 1

    def topic_that_collides(self, topic: str) -> str | None:
        """Return another topic whose name differs from this one only in dots and underscores; None if there is none."""
        return min(self._topics_alike.get(_metric_name(topic), set()) - {topic}, default=None)

    def recently_deleted(self, topic: str, now_ms: int) -> bool:
        """Return whether a topic of this name was deleted less than RECENTLY_DELETED_MS ago."""
        deleted_ms = self.deletions.get(topic)
        # The absolute value, because the clock of the broker that deleted the topic may be ahead of this one's.
        return deleted_ms is not None and abs(now_ms - deleted_ms) < RECENTLY_DELETED_MS

    def dynamic_config(self, broker_id: int) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return the dynamic settings: the default of all brokers, and those of this broker."""
        return self.broker_configs.get(BROKER_DEFAULT, {}), self.broker_configs.get(str(broker_id), {})
