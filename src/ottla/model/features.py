"""The features of the cluster whose levels clients see and administrators change (UpdateFeatures)."""

from __future__ import annotations

from typing import Final

GROUP_VERSION: Final = "group.version"
#: feature -> lowest and highest level that this broker supports: those of Kafka 4.3. The highest is the default.
#: Features that Ottla does not implement are absent, so that no client uses their APIs: share.version,
#: streams.version, kraft.version, eligible.leader.replicas.version.
FEATURES: Final = {
    # 1: the coordinator assigns the partitions of consumer groups (KIP-848)
    GROUP_VERSION: (0, 1),
    # 30 is Kafka 4.3; clients take it for the version of the cluster
    "metadata.version": (7, 30),
    # 2: every transaction has an epoch of its own, and its first write adds a partition to it (KIP-890)
    "transaction.version": (0, 2),
}
#: their levels cannot be changed, because no other one is implemented
FIXED: Final = frozenset({"metadata.version"})
