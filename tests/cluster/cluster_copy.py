"""A topic of a cluster is copied in transactions, exactly once: copier.py of tests/transactions as processes."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, TopicPartition

from campaign.checker import longest_gap
from campaign.processes import Fleet, wait_until
from campaign.report import shorten
from campaign.workload import Seen

_TRANSACTIONS = Path(__file__).resolve().parents[1] / "transactions"
sys.path.append(str(_TRANSACTIONS))
from tally import Step, count_transactions  # noqa: E402

GROUP = "copiers"
_COPIERS = 2
_RECORDS_MAX = 50
_DEADLINE_S = 120.0


class Copy:
    """Two copiers, each with a transactional id, from ``start`` to ``finish``. One that ends is replaced."""

    def __init__(
        self, bootstrap: str, source: str, target: str, partitions: int, seed: int,
        settings: Mapping[str, str] | None = None, say: Callable[[str], None] = print,
    ) -> None:  # fmt: skip
        """``settings`` are those of the copiers: how they reach the cluster with TLS and SASL."""
        self._settings, self._say = dict(settings or {}), say
        self.source, self.target = source, target
        self._bootstrap, self._partitions, self._seed = bootstrap, partitions, seed
        self._temporary = tempfile.TemporaryDirectory(prefix="ottla-copiers-")
        self._directory = Path(self._temporary.name)
        self._fleet: Fleet | None = None
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._stopping = threading.Event()
        #: times at which a commit was first noticed
        self._commits: list[float] = [time.monotonic()]
        self._problems: list[str] = []

    @property
    def transactional_id(self) -> str:
        """The id of the first copier."""
        return f"{GROUP}-copier-0"

    def start(self) -> None:
        """Start the copiers. Return when one of them has committed."""
        self._fleet = Fleet(_TRANSACTIONS / "copier.py", self._arguments, _COPIERS, self._directory / "output.txt")
        self._watcher.start()
        self.wait_committed(time.monotonic())

    def _arguments(self, number: int, life: int) -> list[str]:
        return [
            "--bootstrap", self._bootstrap, "--source", self.source, "--target", self.target, "--group", GROUP,
            "--instance", f"copier-{number}", "--seed", str(self._seed + 1000 * number + life),
            "--records-max", str(_RECORDS_MAX), "--tally", str(self._directory / f"copier-{number}.{life}.tally"),
            "--settings", json.dumps(self._settings),
        ]  # fmt: skip

    def _watch(self) -> None:
        assert self._fleet is not None
        known = 0
        while not self._stopping.wait(0.02):
            try:
                self._fleet.tend()
            except AssertionError as error:
                self._problems.append(str(error))
                return
            tallies = self._directory.glob("*.tally")
            if (count := sum(path.read_text().count(Step.COMMITTED) for path in tallies)) > known:
                known = count
                self._commits.append(time.monotonic())

    def wait_committed(self, since: float) -> None:
        """Return when a transaction was committed after ``since``. Raise TimeoutError after two minutes."""
        wait_until(lambda: self._problems or self._commits[-1] > since, "a transaction was committed", _DEADLINE_S)
        if self._problems:
            raise RuntimeError(f"the copiers have stopped: {self._problems[0]}\n{self._last_output()}")

    def _last_output(self) -> str:
        return "\n".join((self._directory / "output.txt").read_text().splitlines()[-30:])

    def longest_gap(self, since: float, until: float) -> float:
        """Return the longest time between two commits."""
        return longest_gap(list(self._commits), since, until)

    def finish(self, ends: dict[int, int]) -> None:
        """Stop the copiers when they have copied the source up to these offsets."""
        with closing(Consumer({"bootstrap.servers": self._bootstrap, "group.id": GROUP, "log_level": 0})) as consumer:
            places = [TopicPartition(self.source, number) for number in ends]

            def is_copied() -> bool:
                rows = consumer.committed(places, timeout=_DEADLINE_S)
                copied.update({row.partition: row.offset for row in rows})
                return copied == ends

            copied: dict[int, int] = {}
            try:
                wait_until(is_copied, "all records were copied", _DEADLINE_S)
            except TimeoutError:
                self._problems.append(f"the copiers stopped at {copied} of {ends}")
        self._stopping.set()
        self._watcher.join()
        assert self._fleet is not None
        self._fleet.close()

    def check(self, seen: Seen) -> tuple[list[str], dict[int, int]]:
        """Compare the copy with the source, as the final reader of the load saw it.

        Return what went wrong and the high watermarks of the copy.
        """
        expected: dict[int, list[str]] = {number: [] for number in range(self._partitions)}
        for partition, _, value in seen.records["final"]:
            expected[partition].append(value)
        found, high_watermarks = self._read_committed()
        problems = list(self._problems)
        for partition, values in expected.items():
            copied = found[partition]
            if copied != values:
                missing, extra = set(values) - set(copied), len(copied) - len(set(copied))
                first = next((n for n, pair in enumerate(zip(values, copied, strict=False)) if len(set(pair)) > 1), -1)
                problems.append(
                    f"partition {partition} is not a copy: {len(missing)} of {len(values)} records are missing, "
                    f"{extra} are there twice, record {first} is the first that differs"
                )
        assert self._fleet is not None
        transactions = count_transactions(self._directory.glob("*.tally"))
        self._say(
            f"copied {sum(map(len, found.values()))} records; transactions: {transactions}; {self._fleet.ends} copiers "
            "ended by an error and were replaced"
        )
        for line in shorten(self._copier_errors()):
            self._say(line)
        self._temporary.cleanup()
        return problems, high_watermarks

    def _copier_errors(self) -> list[str]:
        """Return the last lines of the tracebacks of copiers."""
        output = (self._directory / "output.txt").read_text()
        return sorted({line for line in output.splitlines() if "KafkaError{" in line or line.startswith("Runtime")})

    def _read_committed(self) -> tuple[dict[int, list[str]], dict[int, int]]:
        settings = {
            "bootstrap.servers": self._bootstrap, "group.id": "never-joined", "isolation.level": "read_committed",
            "enable.partition.eof": True, "auto.offset.reset": "error", "enable.auto.commit": False, "log_level": 0,
        }  # fmt: skip
        found: dict[int, list[str]] = {number: [] for number in range(self._partitions)}
        high_watermarks = {}
        with closing(Consumer(settings)) as consumer:
            for number in range(self._partitions):
                place = TopicPartition(self.target, number)
                high_watermarks[number] = consumer.get_watermark_offsets(place, timeout=_DEADLINE_S)[1]
            consumer.assign([TopicPartition(self.target, number, 0) for number in range(self._partitions)])
            unread = dict(high_watermarks)
            deadline = time.monotonic() + _DEADLINE_S
            while unread and time.monotonic() < deadline:
                for message in consumer.consume(2000, 0.5):
                    number = message.partition() or 0
                    if message.error() is None:
                        found[number].append((message.value() or b"").decode())
                    elif message.error().code() == KafkaError._PARTITION_EOF and message.offset() >= unread.get(
                        number, 0
                    ):
                        unread.pop(number, None)
        if unread:
            self._problems.append(f"committed records end before the high watermarks {unread}: a transaction is open")
        return found, high_watermarks
