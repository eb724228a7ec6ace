"""Failures of requests in a cluster that still answers requests for metadata: the cause and the next step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from ottla.admin.failure import Failure, NotFound, NotHealthy
from ottla.model.hashing import java_hash

if TYPE_CHECKING:
    from ottla.admin.topic_state import PartitionState, TopicState

#: the topics whose partitions are the coordinators of groups and of transactions
GROUPS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
_START_BROKERS = "start the brokers that do not run; 'ottla cluster status' shows what is offline"


def unknown_broker(broker_id: int, brokers: Iterable[int]) -> NotFound:
    known = ", ".join(map(str, sorted(brokers))) or "none"
    return NotFound(f"broker {broker_id} is not in the cluster (brokers: {known}); see 'ottla cluster brokers'")


def no_leader(subject: str) -> NotHealthy:
    return NotHealthy(f"{subject} has no leader; {_START_BROKERS}")


def without_leader(topic: TopicState | None, only: int | None = None) -> list[PartitionState]:
    """Return the partitions of a topic that have no leader; with `only`, no others than this one."""
    partitions = () if topic is None else topic.partitions
    return [each for each in partitions if each.leader is None and only in (None, each.name.partition)]


def without_leader_at(topic: str, *moments: Mapping[str, TopicState]) -> list[PartitionState]:
    """Return the partitions of a topic that had no leader at one of these moments."""
    found = {each.name: each for topics in moments for each in without_leader(topics.get(topic))}
    return [found[name] for name in sorted(found)]


def describe_partitions(topic: str, partitions: Collection[PartitionState]) -> str:
    """Return a text such as `partitions 0, 3 of topic a have no leader (their replicas are on brokers 1, 2)`."""
    numbers = ", ".join(str(each.name.partition) for each in partitions)
    brokers = sorted({broker for each in partitions for broker in each.replicas})
    noun, verb, whose = ("partitions", "have", "their") if len(partitions) > 1 else ("partition", "has", "its")
    where = f"broker{'s' if len(brokers) > 1 else ''} {', '.join(map(str, brokers))}"
    return f"{noun} {numbers} of topic {topic} {verb} no leader ({whose} replicas are on {where})"


def coordinator_unavailable(subject: str, group: str, topics: Mapping[str, TopicState]) -> NotHealthy:
    """Return the failure of a group whose coordinator does not answer, with the reason if the metadata show it."""
    offline = []
    if (topic := topics.get(GROUPS_TOPIC)) is not None and topic.partitions:
        # Kafka's rule: the hash of the name selects the partition whose leader is the coordinator.
        partition = (java_hash(group) & 0x7FFFFFFF) % len(topic.partitions)
        offline = without_leader(topic, partition)
    if offline:
        reason = f"{describe_partitions(GROUPS_TOPIC, offline)}; {_START_BROKERS}"
        return NotHealthy(f"the coordinator of {subject} is not available: {reason}")
    return NotHealthy(f"the coordinator of {subject} is not available; try again in a moment, or see 'ottla doctor'")


def incomplete_list(noun: str, topic: str, partitions: Collection[PartitionState]) -> NotHealthy:
    """Return the failure of a list without the groups or the transactional ids of these partitions."""
    return NotHealthy(
        f"the list is not complete: {describe_partitions(topic, partitions)}, so {noun} may be missing; "
        f"{_START_BROKERS}"
    )


def not_completed(subject: str, timeout_s: float, cause: str | None) -> Failure:
    """Return the failure of a request that was not completed, in a cluster that answers others."""
    why = f" ({cause})" if cause else ""
    return NotHealthy(
        f"{subject}: the cluster did not complete the request within {timeout_s:g} s{why}, and answers others; "
        "'ottla doctor' tests each broker, --timeout allows more time"
    )
