"""The marks of unclean logs in the states of partitions: logs that may lack records, are lost, or are offline.

`leadership.py` explains which replicas may lead in spite of their marks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from ottla.broker.metadata.leadership import ops_elect, with_partitions
from ottla.broker.metadata.nodes import registered_path
from ottla.broker.metadata.store import Check, Op
from ottla.broker.metadata.view import LOG_LOST, LOG_OFFLINE, NO_LEADER, ClusterView, LogEnd, PartitionView, TopicView

_NO_RUNS: Mapping[int, int] = {}


def mark_unclean(
    topic: TopicView,
    broker: int,
    ends: Mapping[int, LogEnd | None],
    *,
    runs: Mapping[int, int] = _NO_RUNS,
    last_run: int = -1,
    destroyed: Collection[int] = (),
    never_stored: Collection[int] = (),
) -> TopicView | None:
    """Return the topic after an unclean stop of a broker; None if the broker is in no ISR and in no ELR.

    ``ends`` are the ends of the broker's logs by partition number, after they were synced; None for a log that has all
    its records. A partition that is missing there has lost its log. A lost log counts as lost until the leader adds the
    replica to the ISR.

    ``runs`` has, for each log in a log directory that was recognised, a number of the run that had it last, and
    ``last_run`` is that of the broker's last run. They differ if the directory was absent meanwhile. A lost log is
    marked with ``last_run``. A log of exactly this run has its end again, because nothing was committed without it: the
    replica would have left the ISR and the ELR. A log of an earlier run lacks records that were committed in between,
    unless it has exactly this end already: then the start that wrote it was interrupted.

    A log that is ``destroyed`` has left traces in the directory in which it was, so no other directory can bring it
    back: it is marked without a run. A lost log was ``never_stored`` if all directories that were absent since that run
    have come back and have no trace of it: it had no synced records, so it counts with the end that it has now.

    The mark of an offline log has the number of the run that had it last if its whole directory is offline. It is
    judged in the same way, and if it is lost later, the mark keeps this number.

    The broker resigns as leader, or leaves the ISR of another leader and stays eligible with this end; the controller
    decides what follows. The leader epoch rises, so that a leader that has not learned of this change cannot serve the
    broker's next fetches: it would count them for the ISR and acknowledge records that are behind this end.
    """
    partitions = []
    for number, partition in enumerate(topic.partitions):
        if broker in partition.isr or broker in partition.elr:
            offline = next((each for each in partition.unclean if _is_awaited(each, broker)), None)
            had_last = last_run if offline is None else offline.last_epoch
            newly_lost = LogEnd(broker, -1 if number in destroyed else had_last, LOG_LOST)
            end, run = ends.get(number, newly_lost), runs.get(number, -1)
            if end is None:
                partitions.append(partition)
                continue
            lost = partition.lost_end(broker)
            if lost is not None:
                is_back = run == lost.last_epoch != -1 or number in never_stored
                is_complete = end.end_offset != LOG_LOST and is_back
                end = end if is_complete else lost  # otherwise what it has now was begun anew, or is older
            elif end.end_offset == LOG_LOST or (run not in (-1, had_last) and end not in partition.unclean):
                end = newly_lost
            elif offline is not None and end.end_offset == LOG_OFFLINE and end.last_epoch != -1:
                end = offline  # its directory still cannot be used
            partition = _marked(partition, end)
        partitions.append(partition)
    return with_partitions(topic, partitions)


def mark_offline(topic: TopicView, broker: int, runs: Mapping[int, int]) -> TopicView | None:
    """Return the topic after the disk of a broker failed; None if no partition changes.

    ``runs`` has the partitions whose logs are offline, each with a number of the run that had the log last if its whole
    directory is offline, else with -1. They are marked as those of an unclean stop are, but until the broker starts
    again their content is unknown. A log that was lost stays marked as lost.
    """
    partitions = [
        _marked(partition, LogEnd(broker, runs[number], LOG_OFFLINE))
        if number in runs and must_mark_offline(partition, broker, runs[number]) else partition
        for number, partition in enumerate(topic.partitions)
    ]  # fmt: skip
    return with_partitions(topic, partitions)


def must_mark_offline(partition: PartitionView, broker: int, run: int = -1) -> bool:
    """Return whether a replica could be elected although its log is offline, or its mark lacks the ``run``."""
    marks = (end for end in partition.unclean if end.broker == broker and end.end_offset < 0)
    is_marked = any(end.end_offset == LOG_LOST or end.last_epoch != -1 or run == -1 for end in marks)
    return not is_marked and (broker in partition.isr or broker in partition.elr)


def ops_mark_unclean(view: ClusterView, changed: Iterable[TopicView], broker: int) -> list[Op]:
    """Return the operations by which a starting broker writes the ends of its logs; none if no topic changes."""
    ops = ops_elect(view, changed)
    # An earlier process of this broker must not describe the logs of the current one.
    return [Check(registered_path(broker), view.registered[broker]), *ops] if ops else []


def _is_awaited(end: LogEnd, broker: int) -> bool:
    return end.broker == broker and end.end_offset == LOG_OFFLINE and end.last_epoch != -1


def _marked(partition: PartitionView, end: LogEnd) -> PartitionView:
    broker = end.broker
    others = (each for each in partition.unclean if each.broker != broker)
    marked = partition.changed(unclean=tuple(sorted((*others, end))), leader_epoch=partition.leader_epoch + 1)
    if partition.leader == broker:
        return replace(marked, leader=NO_LEADER)
    if partition.leader != NO_LEADER and broker in partition.isr:
        isr = tuple(each for each in partition.isr if each != broker)
        return replace(marked, isr=isr, elr=(*partition.elr, broker))
    return marked
