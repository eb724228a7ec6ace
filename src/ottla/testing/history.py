"""The history of a test with transactional clients: what they sent and read, and which anomalies it shows.

    recorder = Recorder()                       # or Recorder(path) in a process that may be killed
    recorder.init("p1", "my-transactions"), recorder.initialized("p1")
    txn = recorder.begin("p1")
    recorder.send(txn, Place("t", 0), "value-1"), recorder.sent(txn, "value-1", offset=0)
    recorder.end(txn, commit=True), recorder.ended(txn, Outcome.OK)
    recorder.read("reader", Place("t", 0), [(0, "value-1")]), recorder.final("reader")
    assert check(History.of(recorder.events)) == {}

A request (init, send, end) is recorded before it is sent, and a reply (initialized, sent, ended, read) after it has
arrived. Values are unique, so that the value of a record identifies its send. All readers are read_committed. Each
instance of a producer has its own name, also if it has the same transactional id as an earlier one.

An outcome is OK if the broker has confirmed it, FAILED if it is certain that the request had and will have no effect,
and UNKNOWN otherwise: after a timeout, a lost connection, or PRODUCER_FENCED in reply to a commit. For an unknown
outcome both cases are allowed, but all observations must agree on one of them.

``check`` finds these anomalies:

    inconsistent-offsets   one offset has two values, according to readers or acknowledgements
    duplicate              one value is at two offsets
    lost-write             a record is missing whose commit was confirmed, or which was read; later records are present
    unseen                 such a record is missing, and no later record is present either
    torn-transaction       some records of a transaction are present and others are missing
    torn-offsets           the committed offset of a group is not that of the last visible transaction
    aborted-read           a record was read that was refused, or whose transaction was aborted
    open-read              a record was read before the commit of its transaction was requested
    phantom                a value was read that was never sent
    nonmonotonic-send      a later record of a producer is before an earlier one
    nonmonotonic-poll      a reader got an earlier offset after a later one
    poll-skip              a reader got a later record without a committed one before it
    zombie-write           a record of a fenced producer is after a record of the producer that fenced it
    zombie-commit          a fenced producer began to commit, and the commit succeeded
    precommitted-read      a transaction read its own record
    cycle                  transactions read from each other in a cycle (G1c)
    hanging-transaction    at the end, when no client runs, the last stable offset is below the high watermark
    deleted-read           a record was read although its deletion was confirmed before the read was requested

Not an anomaly: interleaved records of several transactions, a reader that gets the records of one partition before
those of another, and gaps in the offsets, where markers and aborted records are.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from math import inf
from typing import Any, NamedTuple

Event = dict[str, Any]
Anomalies = dict[str, list[str]]


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Outcome(StrEnum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


# -- recording ------------------------------------------------------------------------------------------------------


class Recorder:
    """Records events; several threads may use it. With a path, each method returns after the event is in that file."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.events: list[Event] = []
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._descriptor = None if path is None else os.open(path, flags, 0o644)
        self._numbers = itertools.count()

    def note(self, event: str, **fields: Any) -> None:
        """Record one event with the time of the monotonic clock, which all processes of a machine share."""
        line = {"event": event, "t": time.monotonic(), **fields}
        if self._descriptor is None:
            self.events.append(line)
        else:
            os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    # -- producers ------------------------------------------------------------------------------------------------

    def init(self, producer: str, transactional_id: str) -> None:
        self.note("init", producer=producer, transactional_id=transactional_id)

    def initialized(self, producer: str) -> None:
        """Record that InitProducerId has succeeded: it fences every earlier producer with this transactional id."""
        self.note("initialized", producer=producer)

    def begin(self, producer: str) -> str:
        """Begin a transaction. Return its name."""
        txn = f"{producer}/{next(self._numbers)}"
        self.note("begin", producer=producer, txn=txn)
        return txn

    def send(self, txn: str, place: Place, value: str) -> None:
        self.note("send", txn=txn, place=place, value=value)

    def sent(self, txn: str, value: str, *, offset: int | None = None, outcome: Outcome = Outcome.OK) -> None:
        self.note("sent", txn=txn, value=value, offset=offset, outcome=outcome)

    def result(self, txn: str, value: str, result: int | str) -> None:
        """Record the result of a send for which a library may have sent several requests: its offset, or an error."""
        if isinstance(result, int):
            self.note("sent", txn=txn, value=value, offset=result, outcome=Outcome.OK)
        else:
            # The error is that of the last request. An earlier one may have succeeded.
            self.note("sent", txn=txn, value=value, offset=None, outcome=Outcome.UNKNOWN, error=result)

    def offsets(self, txn: str, group: str, place: Place, offset: int) -> None:
        """Record that the transaction is about to commit an offset of a group (TxnOffsetCommit)."""
        self.note("offsets", txn=txn, group=group, place=place, offset=offset)

    def end(self, txn: str, *, commit: bool) -> None:
        self.note("end", txn=txn, commit=commit)

    def ended(self, txn: str, outcome: Outcome, error: str = "") -> None:
        self.note("ended", txn=txn, outcome=outcome, error=error)

    # -- readers --------------------------------------------------------------------------------------------------

    def assigned(self, reader: str, place: Place, offset: int) -> None:
        """Record that the reader begins to read at this offset."""
        self.note("assigned", reader=reader, place=place, offset=offset)

    def read(self, reader: str, place: Place, records: Sequence[tuple[int, str]], txn: str | None = None) -> None:
        self.note("read", reader=reader, place=place, records=records, txn=txn)

    def final(self, reader: str) -> None:
        """Record that this reader has read every partition completely, after all other clients had ended."""
        self.note("final", reader=reader)

    def log_end(self, place: Place, last_stable: int, high_watermark: int) -> None:
        """Record the offsets of a partition after all clients have ended."""
        self.note("log_end", place=place, last_stable=last_stable, high_watermark=high_watermark)

    def delete(self, place: Place, offset: int) -> None:
        """Record that DeleteRecords below this offset is requested: the records may be missing from now on."""
        self.note("delete", place=place, offset=offset)

    def deleted(self, place: Place, offset: int) -> None:
        """Record that DeleteRecords has confirmed this log start: later reads must return no record below it."""
        self.note("deleted", place=place, offset=offset)

    def committed(self, group: str, place: Place, offset: int) -> None:
        """Record the committed offset of a group after all clients have ended; -1 if it has none."""
        self.note("committed", group=group, place=place, offset=offset)


def read_events(path: str | os.PathLike[str]) -> list[Event]:
    """Return the events in a file. Ignore an incomplete last line, whose process was killed."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    return [json.loads(line) for line in lines[:-1]]


# -- the history ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Producer:
    """One instance of a producer."""

    name: str
    transactional_id: str
    init_at: float
    initialized_at: float = inf


@dataclass(slots=True)
class Send:
    txn: Transaction
    place: Place
    value: str
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None


@dataclass(slots=True)
class Transaction:
    name: str
    producer: str
    sends: list[Send] = field(default_factory=list)
    commit_at: float = inf
    abort_at: float = inf
    is_committed: bool = False
    is_aborted: bool = False
    asked: bool | None = None

    def ended(self, outcome: Outcome) -> None:
        self.is_committed |= self.asked is True and outcome is Outcome.OK
        self.is_aborted |= self.asked is False and outcome is Outcome.OK

    @property
    def fate(self) -> str:
        """Return the outcome that the producer knows, as a text for people."""
        if self.is_committed or self.is_aborted:
            return "committed" if self.is_committed else "aborted"
        return "left open" if self.asked is None else f"{'commit' if self.asked else 'abort'} unknown"


class Read(NamedTuple):
    t: float
    offset: int
    value: str
    #: the log start that DeleteRecords had confirmed before the read was requested
    log_start: int = 0


@dataclass(slots=True)
class Stretch:
    """The records of a partition that a reader got from one assignment to the next one."""

    reader: str
    place: Place
    start: int
    reads: list[Read] = field(default_factory=list)


class Offsets(NamedTuple):
    t: float
    txn: Transaction
    offset: int


@dataclass(slots=True)
class History:
    """The events of all recorders by what they are about, each in the order of time."""

    producers: dict[str, Producer] = field(default_factory=dict)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    sends: dict[str, Send] = field(default_factory=dict)
    stretches: list[Stretch] = field(default_factory=list)
    #: the reads inside transactions: name of the transaction and value
    read_within: list[tuple[str, str]] = field(default_factory=list)
    final_reader: str = ""
    log_ends: dict[Place, tuple[int, int]] = field(default_factory=dict)
    offsets: dict[tuple[str, Place], list[Offsets]] = field(default_factory=lambda: defaultdict(list))
    committed: dict[tuple[str, Place], int] = field(default_factory=dict)
    #: by partition: the highest offset for which DeleteRecords was requested
    delete_before: dict[Place, int] = field(default_factory=dict)
    #: by partition: the highest log start that DeleteRecords has confirmed
    log_starts: dict[Place, int] = field(default_factory=dict)
    #: by reader and partition: the stretch of the current assignment
    _current: dict[tuple[str, Place], Stretch] = field(default_factory=dict)

    @staticmethod
    def of(*parts: Iterable[Event]) -> History:
        """Return the history of the events of one or several recorders."""
        history = History()
        for event in sorted(itertools.chain(*parts), key=lambda each: each["t"]):
            if "place" in event:
                event = {**event, "place": Place(*event["place"])}
            getattr(history, f"_on_{event['event']}")(event)
        return history

    def _on_init(self, event: Event) -> None:
        name = event["producer"]
        assert name not in self.producers, f"{name} is the name of two producers"
        self.producers[name] = Producer(name, event["transactional_id"], event["t"])

    def _on_initialized(self, event: Event) -> None:
        self.producers[event["producer"]].initialized_at = event["t"]

    def _on_begin(self, event: Event) -> None:
        self.transactions[event["txn"]] = Transaction(event["txn"], event["producer"])

    def _on_send(self, event: Event) -> None:
        txn = self.transactions[event["txn"]]
        value = event["value"]
        assert value not in self.sends, f"{value} was sent twice: values must be unique"
        self.sends[value] = Send(txn, event["place"], value)
        txn.sends.append(self.sends[value])

    def _on_sent(self, event: Event) -> None:
        send = self.sends[event["value"]]
        send.outcome, send.offset = Outcome(event["outcome"]), event["offset"]

    def _on_offsets(self, event: Event) -> None:
        txn = self.transactions[event["txn"]]
        self.offsets[event["group"], event["place"]].append(Offsets(event["t"], txn, event["offset"]))

    def _on_end(self, event: Event) -> None:
        txn = self.transactions[event["txn"]]
        txn.asked = event["commit"]
        if txn.asked:
            txn.commit_at = min(txn.commit_at, event["t"])
        else:
            txn.abort_at = min(txn.abort_at, event["t"])

    def _on_ended(self, event: Event) -> None:
        self.transactions[event["txn"]].ended(Outcome(event["outcome"]))

    def _on_assigned(self, event: Event) -> None:
        stretch = Stretch(event["reader"], event["place"], event["offset"])
        self._current[stretch.reader, stretch.place] = stretch
        self.stretches.append(stretch)

    def _on_read(self, event: Event) -> None:
        key = event["reader"], event["place"]
        if key not in self._current:
            self._on_assigned({**event, "offset": 0})
        log_start = event.get("log_start", 0)
        self._current[key].reads += [Read(event["t"], offset, value, log_start) for offset, value in event["records"]]
        if event.get("txn") is not None:
            self.read_within += [(event["txn"], value) for _, value in event["records"]]

    def _on_final(self, event: Event) -> None:
        self.final_reader = event["reader"]

    def _on_log_end(self, event: Event) -> None:
        self.log_ends[event["place"]] = event["last_stable"], event["high_watermark"]

    def _on_delete(self, event: Event) -> None:
        self.delete_before[event["place"]] = max(event["offset"], self.delete_before.get(event["place"], 0))

    def _on_deleted(self, event: Event) -> None:
        self.log_starts[event["place"]] = max(event["offset"], self.log_starts.get(event["place"], 0))

    def _on_committed(self, event: Event) -> None:
        self.committed[event["group"], event["place"]] = event["offset"]


# -- the checker ----------------------------------------------------------------------------------------------------


def check(history: History) -> Anomalies:
    """Return the anomalies: by name, one line of text for each. Empty if there are none."""
    assert history.final_reader, "the history has no final reader, which reads all records at the end"
    return _Checker(history).run()


class _Checker:
    def __init__(self, history: History) -> None:
        self._history = history
        self._found: Anomalies = defaultdict(list)
        #: what the final reader read: by partition, the offsets and values in order
        self._final: dict[Place, list[tuple[int, str]]] = defaultdict(list)
        for stretch in history.stretches:
            if stretch.reader == history.final_reader:
                self._final[stretch.place] += [(read.offset, read.value) for read in stretch.reads]
        for records in self._final.values():
            records.sort()
        self._offset_of = {value: offset for records in self._final.values() for offset, value in records}
        self._read_values = {read.value for stretch in history.stretches for read in stretch.reads}
        #: the offset of every value that was read or acknowledged
        self._known_offset = {read.value: read.offset for stretch in history.stretches for read in stretch.reads}
        for send in history.sends.values():
            if send.offset is not None:
                self._known_offset.setdefault(send.value, send.offset)

    def run(self) -> Anomalies:
        """Return the anomalies by name. An anomaly that can cause others is before them."""
        for place, (last_stable, high_watermark) in self._history.log_ends.items():
            if last_stable != high_watermark:
                self._say("hanging-transaction", f"{place}: committed to {last_stable} of {high_watermark}")
        self._check_offsets()
        self._check_zombies()
        self._check_values()
        self._check_presence()
        self._check_group_offsets()
        self._check_send_order()
        self._check_read_order()
        self._check_cycles()
        self._check_deleted()
        return dict(self._found)

    def _say(self, name: str, line: str) -> None:
        self._found[name].append(line)

    def _is_visible(self, txn: Transaction) -> bool:
        return any(send.value in self._offset_of for send in txn.sends)

    def _may_be_deleted(self, send: Send) -> bool:
        """Return whether a record may be missing because of DeleteRecords."""
        before = self._history.delete_before.get(send.place, 0)
        return self._known_offset.get(send.value, -1 if before else 0) < before

    def _check_offsets(self) -> None:
        values: dict[tuple[Place, int], str] = {}
        offsets: dict[str, tuple[Place, int]] = {}

        def note(place: Place, offset: int, value: str, witness: str) -> None:
            other = values.setdefault((place, offset), value)
            if other != value:
                self._say("inconsistent-offsets", f"{place} offset {offset}: {other} and {value} ({witness})")
            elsewhere = offsets.setdefault(value, (place, offset))
            if elsewhere != (place, offset):
                self._say("duplicate", f"{value}: {elsewhere} and {(place, offset)} ({witness})")

        for stretch in self._history.stretches:
            for read in stretch.reads:
                note(stretch.place, read.offset, read.value, stretch.reader)
        for send in self._history.sends.values():
            if send.offset is not None and send.offset >= 0:
                note(send.place, send.offset, send.value, f"acknowledged to {send.txn.producer}")

    def _check_values(self) -> None:
        for stretch in self._history.stretches:
            for read in stretch.reads:
                line = f"{stretch.place} offset {read.offset}: {read.value} ({stretch.reader})"
                send = self._history.sends.get(read.value)
                if send is None or send.place != stretch.place:
                    self._say("phantom", line)
                    continue
                txn = send.txn
                if txn.is_aborted or send.outcome is Outcome.FAILED or (txn.commit_at == inf and txn.abort_at < inf):
                    self._say("aborted-read", f"{line} of {txn.name}")
                elif read.t < txn.commit_at:
                    self._say("open-read", f"{line} of {txn.name}")

    def _check_presence(self) -> None:
        end = {place: records[-1][0] for place, records in self._final.items() if records}
        for txn in self._history.transactions.values():
            read = [send for send in txn.sends if send.value in self._read_values]
            if not txn.is_committed and not read:
                continue
            missing = [
                send for send in txn.sends
                if send.outcome is not Outcome.FAILED and send.value not in self._offset_of
                and not self._may_be_deleted(send)
            ]  # fmt: skip
            if missing and read:
                there = len(txn.sends) - len(missing)
                self._say("torn-transaction", f"{txn.name}: {there} of {len(txn.sends)} are present")
            for send in missing:
                if txn.is_committed or send.value in self._read_values:
                    is_behind = (send.offset if send.offset is not None else -1) > end.get(send.place, -1)
                    name = "unseen" if is_behind else "lost-write"
                    self._say(name, f"{send.place} {send.value} of {txn.name}: was at offset {send.offset}")

    def _check_group_offsets(self) -> None:
        producers = self._history.producers
        for key, committed in self._history.committed.items():
            by_age = sorted(
                self._history.offsets.get(key, []),
                key=lambda each: (producers[each.txn.producer].initialized_at, each.t),
            )
            visible = [each for each in by_age if each.txn.is_committed or self._is_visible(each.txn)]
            expected = visible[-1].offset if visible else -1
            # If the reply to a commit was lost and the records were deleted, the outcome cannot be known.
            unknown = {
                each.offset for each in by_age
                if not each.txn.is_aborted and any(self._may_be_deleted(send) for send in each.txn.sends)
            }  # fmt: skip
            if committed != expected and committed not in unknown:
                last = visible[-1].txn.name if visible else "no transaction"
                self._say("torn-offsets", f"{key[0]} {key[1]}: {committed}, but {last} committed {expected}")

    def _check_send_order(self) -> None:
        last: dict[tuple[str, Place], Send] = {}
        for send in self._history.sends.values():
            if send.value not in self._offset_of:
                continue
            key = send.txn.producer, send.place
            before = last.get(key)
            if before is not None and self._offset_of[send.value] < self._offset_of[before.value]:
                self._say("nonmonotonic-send", f"{send.place} {send.value} is before {before.value}")
            last[key] = send

    def _check_read_order(self) -> None:
        for stretch in self._history.stretches:
            offsets = [offset for offset, _ in self._final[stretch.place]]
            following = stretch.start
            for read in stretch.reads:
                if read.offset < following:
                    line = f"{stretch.reader} {stretch.place}: offset {read.offset} after {following - 1}"
                    self._say("nonmonotonic-poll", line)
                else:
                    first = bisect_left(offsets, following)
                    if first < len(offsets) and offsets[first] < read.offset:
                        line = f"{stretch.reader} {stretch.place}: {read.offset} where {offsets[first]} was due"
                        self._say("poll-skip", line)
                following = read.offset + 1

    def _check_deleted(self) -> None:
        for stretch in self._history.stretches:
            is_final = stretch.reader == self._history.final_reader
            least = self._history.log_starts.get(stretch.place, 0) if is_final else 0
            for read in stretch.reads:
                log_start = max(read.log_start, least)
                if read.offset < log_start:
                    line = f"{stretch.reader} {stretch.place}: offset {read.offset}, {read.value}"
                    self._say("deleted-read", f"{line}, but records before {log_start} had been deleted")

    def _check_zombies(self) -> None:
        by_id: dict[str, list[Producer]] = defaultdict(list)
        for producer in self._history.producers.values():
            by_id[producer.transactional_id].append(producer)
        transactions: dict[str, list[Transaction]] = defaultdict(list)
        for txn in self._history.transactions.values():
            transactions[txn.producer].append(txn)
        for producers in by_id.values():
            for old, new in itertools.permutations(producers, 2):
                # If both were initialized at the same time, either of them may have fenced the other.
                if old.initialized_at < new.init_at and new.initialized_at < inf:
                    self._check_zombie(old, new, transactions)

    def _check_zombie(self, old: Producer, new: Producer, transactions: dict[str, list[Transaction]]) -> None:
        first: dict[Place, int] = {}
        for send in itertools.chain(*(txn.sends for txn in transactions[new.name])):
            offset = self._offset_of.get(send.value)
            if offset is not None:
                first[send.place] = min(offset, first.get(send.place, offset))
        for txn in transactions[old.name]:
            if not txn.sends:
                continue
            if new.initialized_at < txn.commit_at < inf and (txn.is_committed or self._is_visible(txn)):
                self._say("zombie-commit", f"{txn.name} was committed after {new.name} had fenced it")
            for send in txn.sends:
                if self._offset_of.get(send.value, -1) > first.get(send.place, inf):
                    self._say("zombie-write", f"{send.place} {send.value} is after a record of {new.name}")

    def _check_cycles(self) -> None:
        edges: dict[str, set[str]] = defaultdict(set)
        for reader, value in self._history.read_within:
            send = self._history.sends.get(value)
            if send is None:
                continue
            if send.txn.name == reader:
                self._say("precommitted-read", f"{reader} read {value} of its own")
            else:
                edges[reader].add(send.txn.name)
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            self._say("cycle", " <- ".join(error.args[1]))
