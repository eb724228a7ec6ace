"""A finding: one thing that is wrong with a cluster, in the words of Kafka, with the next step."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.IntEnum):
    """Larger is worse."""

    INFO = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem, of one or of several objects of the same kind."""

    #: the check that found it, stable for alerts and tests, such as `offline-partitions`
    check: str
    severity: Severity
    #: one line that names what is wrong, with figures
    text: str
    #: one line that says what to do next
    advice: str
    #: the kind of the objects: cluster, broker, topic, partition, group, transaction, directory, client
    kind: str
    #: the names of the objects, the worst first; partitions as `topic-3`
    names: tuple[str, ...] = ()
