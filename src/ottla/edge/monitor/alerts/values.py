"""The values that rules can compare, with their labels; and what an observation of a cluster is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ottla.health.findings import Finding

#: the check of the finding that says why a cluster could not be read
NOT_READ: Final = "cluster-not-read"


class Sample(NamedTuple):
    """One value with its labels. None: it is not known at the moment, and an open alert about it stays open."""

    labels: Mapping[str, str]
    value: float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A row of the table of values."""

    name: str
    #: the labels of its samples
    labels: tuple[str, ...]
    meaning: str
    #: seconds, records, bytes, %; empty for words and counts
    unit: str = ""
    #: the words that it can be; empty for numbers
    words: tuple[str, ...] = ()


#: Burrow's, of partitions, from the best to the worst
_STATUSES: Final = ("OK", "WARN", "ERR", "STOP", "STALL", "REWIND")

VALUES: Final[Mapping[str, Value]] = {
    each.name: each
    for each in (
        Value(
            name="group_seconds", labels=("group",), unit="seconds",
            meaning="time lag of a group: the age of the oldest record that it has not consumed",
        ),
        Value(name="group_lag", labels=("group",), unit="records", meaning="lag of a group in all its partitions"),
        Value(
            name="group_status", labels=("group",), words=("NOTFOUND", "OK", "WARN", "ERR"),
            meaning="Burrow's status of a group; ERR: a partition has one of STOP, STALL and REWIND",
        ),
        Value(
            name="group_partition_status", labels=("group",), words=_STATUSES,
            meaning="Burrow's status of the worst partition of a group",
        ),
        Value(
            name="group_trend", labels=("group",), words=("rising", "falling", "steady", "unknown"),
            meaning="how the lag of a group changes",
        ),
        Value(
            name="group_catch_up_seconds", labels=("group",), unit="seconds",
            meaning="forecast: time until a group has caught up; infinite if it never does at its present rate",
        ),
        Value(name="group_state", labels=("group",), meaning="Kafka's state of a group, such as Stable or Empty",
              words=("Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Dead",
                     "Unknown")),
        Value(
            name="topic_seconds", labels=("group", "topic"), unit="seconds",
            meaning="time lag of a group in one topic",
        ),
        Value(name="topic_lag", labels=("group", "topic"), unit="records", meaning="lag of a group in one topic"),
        Value(name="brokers", labels=(), meaning="brokers that are registered"),
        Value(
            name="directory_free_percent", labels=("broker", "directory"), unit="%",
            meaning="free space on the disk of a log directory",
        ),
        Value(name="directory_bytes", labels=("broker", "directory"), unit="bytes",
              meaning="size of all replicas in a log directory"),
        Value(name="read_seconds", labels=(), unit="seconds", meaning="time that the monitor took to read the cluster"),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the monitor knows of a cluster at one moment, as rules see it."""

    at_ms: int
    #: what the checks of `ottla doctor` have found
    findings: tuple[Finding, ...] = ()
    #: checks that could not run, so that their alerts stay as they are
    unchecked: frozenset[str] = frozenset()
    #: samples by the name of the value; a name that is missing could not be read
    samples: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
