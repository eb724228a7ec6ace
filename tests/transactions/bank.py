"""A bank: every transfer takes from an account of one partition and gives to an account of another, in a transaction.

As a process it is a teller that transfers until it is killed, and writes what it does to a file:

    python bank.py --bootstrap ... --topic bank --transactional-id teller-1 --name teller-1.1 --events f.jsonl --seed 7

As a module it has the auditor, who takes snapshots. A snapshot is taken so:

    1  ask for the last stable offset of all partitions, in one request
    2  read each partition up to there, committed records only
    3  a transfer of which one half was read and the other not: its marker is in one partition and not yet in the
       other, so read on in all partitions until the other half comes too

What was read up to there, with those other halves, is a set of whole transfers, and the balances of all accounts add
up to what the bank began with. If a half never comes, comes twice, or was never committed, they do not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from clients import Confluent, Failed
from reading import Poller, last_stable_offsets

from campaign.processes import end_with_parent
from ottla.testing.history import Outcome, Place, Recorder

ACCOUNTS = 10
OPENING = 1000
_TRANSACTION_MS = 60_000
_ABORTED = 0.1
_SNAPSHOT_S_MAX = 60.0


class Half(NamedTuple):
    """One record: a transfer changes the balance of an account."""

    transfer: str
    account: int
    change: int

    @property
    def value(self) -> str:
        return json.dumps(self)


def partition_of(account: int, partitions: int) -> int:
    return account % partitions


# -- the teller -----------------------------------------------------------------------------------------------------


class Teller:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._rng = random.Random(options.seed)
        self._recorder = Recorder(options.events)

    def run(self) -> None:
        options, recorder = self._options, self._recorder
        recorder.init(options.name, options.transactional_id)
        client = Confluent(options.bootstrap, options.transactional_id, options.name, _TRANSACTION_MS)
        recorder.initialized(options.name)
        for number in itertools.count():
            self._transfer(client, f"{options.name}#{number}")

    def _transfer(self, client: Confluent, transfer: str) -> None:
        """An error that aborting does not mend ends the process."""
        txn = self._recorder.begin(self._options.name)
        try:
            client.begin()
            for half in self._draw(transfer):
                place = Place(self._options.topic, partition_of(half.account, self._options.partitions))
                self._recorder.send(txn, place, half.value)
                client.send(place, half.value)
        except Failed:
            self._end(client, txn, commit=False)
            return
        is_commit = self._rng.random() >= _ABORTED
        try:
            self._end(client, txn, commit=is_commit)
        except Failed:
            self._end(client, txn, commit=False)

    def _draw(self, transfer: str) -> tuple[Half, Half]:
        giver = self._rng.randrange(ACCOUNTS)
        partitions = self._options.partitions
        others = [
            account for account in range(ACCOUNTS)
            if partition_of(account, partitions) != partition_of(giver, partitions)
        ]  # fmt: skip
        amount = self._rng.randint(1, 100)
        return Half(transfer, giver, -amount), Half(transfer, self._rng.choice(others), amount)

    def _end(self, client: Confluent, txn: str, *, commit: bool) -> None:
        self._recorder.end(txn, commit=commit)
        try:
            client.end(commit=commit)
        except Failed as failed:
            self._recorder.ended(txn, Outcome.UNKNOWN, str(failed))
            raise
        for value, result in client.results.items():
            self._recorder.result(txn, value, result)
        client.results.clear()
        self._recorder.ended(txn, Outcome.OK)


# -- the auditor ----------------------------------------------------------------------------------------------------


class Auditor:
    """Takes one snapshot after another, each with what it has read before."""

    def __init__(self, bootstrap: str, places: list[Place]) -> None:
        self.snapshots = 0
        self.late_halves = 0
        self.transfers = 0
        self._bootstrap = bootstrap
        self._places = places
        self._poller = Poller(bootstrap, places)
        #: read and not yet in a snapshot
        self._unused: list[tuple[Place, int, Half]] = []
        self._snapshot: list[Half] = []
        self._halves: Counter[str] = Counter()

    def close(self) -> None:
        self._poller.close()

    def total(self, seconds: float = _SNAPSHOT_S_MAX) -> int:
        """The balances of all accounts in a snapshot that is taken now. OSError when the broker is away."""
        ends = last_stable_offsets(self._bootstrap, self._places)
        deadline = time.monotonic() + seconds
        self._read()
        while not self._poller.has_reached(ends):
            assert time.monotonic() < deadline, f"read {self._poller.positions} of {ends}"
            self._read()
        self._take(lambda place, offset, _: offset < ends[place])
        while open_transfers := {name for name, halves in self._halves.items() if halves == 1}:
            assert time.monotonic() < deadline, f"half a transfer: {sorted(open_transfers)[:5]}"
            self.late_halves += self._take(_is_of(open_transfers))
            self._read()
        self.snapshots += 1
        self.transfers = len(self._halves)
        twice = [name for name, halves in self._halves.items() if halves != 2]
        assert not twice, f"transfers with more than two halves: {twice[:5]}"
        balances = dict.fromkeys(range(ACCOUNTS), OPENING)
        for half in self._snapshot:
            balances[half.account] += half.change
        return sum(balances.values())

    def _read(self) -> None:
        self._unused += [
            (place, offset, Half(*json.loads(value))) for place, offset, value in self._poller.poll(0.02)
        ]  # fmt: skip

    def _take(self, belongs: Callable[[Place, int, Half], bool]) -> int:
        taken = [row for row in self._unused if belongs(*row)]
        self._unused = [row for row in self._unused if not belongs(*row)]
        for _, _, half in taken:
            self._snapshot.append(half)
            self._halves[half.transfer] += 1
        return len(taken)


def _is_of(transfers: set[str]) -> Callable[[Place, int, Half], bool]:
    return lambda place, offset, half: half.transfer in transfers


def audit(bootstrap: str, places: list[Place]) -> int:
    with closing(Auditor(bootstrap, places)) as auditor:
        return auditor.total()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap", "--topic", "--transactional-id", "--name", "--events"):
        parser.add_argument(name, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--partitions", type=int, default=2)
    end_with_parent()
    Teller(parser.parse_args()).run()


if __name__ == "__main__":
    main()
