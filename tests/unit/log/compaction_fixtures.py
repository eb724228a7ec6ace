"""What the tests of compaction share: a store with one compacted topic, and how to look at its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.log.log_fixtures import NAME, NOW, append, contents, sync, topic
from tests.unit.log.store_fixtures import StoreFixture, disk_with, spec

from ottla.log.compaction import Compactor, plan_compaction
from ottla.log.log import Log
from ottla.model.batch import read_header
from ottla.model.records import Record, build_batch, iterate_records
from ottla.model.settings import BrokerSettings, TopicSettings
from ottla.testing.disk import MemoryDisk

Pair = tuple[bytes | None, bytes | None]


def compacted(**overrides: object) -> TopicSettings:
    """Settings under which every sealed segment that is dirty is due."""
    given = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "index_interval_bytes": 100}
    return topic(**{**given, **overrides})


def pairs_batch(
    *pairs: Pair, timestamp: int = NOW, codec: int = 0, producer: tuple[int, int, int] | None = None, **options: Any
) -> bytes:
    """A client's batch with these keys and values, a millisecond apart."""
    producer_id, producer_epoch, sequence = producer or (-1, -1, -1)
    records = [
        Record(timestamp=timestamp + number, key=key, value=value, headers=[("n", b"%d" % number)])
        for number, (key, value) in enumerate(pairs)
    ]
    return build_batch(
        records, codec=codec, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence, **options
    )


class CompactionFixture:
    """A broker's store with one topic, whose threads work when they are told to."""

    def __init__(self, path: Path, settings: TopicSettings | None = None, disk: MemoryDisk | None = None) -> None:
        self.path = path
        self.settings = settings or compacted()
        self.disk = disk or disk_with(path)
        self.broker_settings = BrokerSettings()
        self.now = 0.0
        self.start()

    def start(self) -> None:
        self.fixture = StoreFixture(self.disk, self.path)
        try:
            self.fixture.start(spec(settings=self.settings))
        except BaseException:
            self.fixture.abandon()
            raise
        threads: Any = self.fixture.threads
        self.compactor = Compactor(
            disk=self.disk, store=self.fixture.store, threads=threads, monotonic=lambda: self.now
        )

    @property
    def log(self) -> Log:
        return self.fixture.store.logs[NAME]

    @property
    def threads(self) -> Any:
        return self.fixture.threads

    # -- what happens to it -----------------------------------------------------------------------------------------

    def produce(self, *pairs: Pair, **options: Any) -> int:
        """Append and write one batch; its base offset."""
        base, _ = append(self.log, pairs_batch(*pairs, **options))
        self.log.write_pending()
        return base

    def roll(self) -> None:
        if self.log.active.size_bytes:
            self.log.roll()

    def settle(self) -> None:
        """Everything that was sealed is synced and indexed."""
        sync(self.log)
        self.threads.run()

    def begin(self, now_ms: int = NOW) -> bool:
        self.settle()
        log = self.log
        log.note_high_watermark(log.written_end_offset)
        unstable = log.first_unstable_offset
        plan = plan_compaction(log, log.written_end_offset if unstable is None else unstable, now_ms)
        return plan is not None and self.compactor.start([plan], now_ms, self.broker_settings)

    def compact(self, now_ms: int = NOW) -> bool:
        """A whole pass; False when the log was not due."""
        begun = self.begin(now_ms)
        self.threads.run()
        return begun

    def restart(self) -> None:
        self.fixture.stop()
        self.start()

    def crash(self, disk: MemoryDisk) -> CompactionFixture:
        """The machine stopped; the room that starts on what is left."""
        return CompactionFixture(self.path, self.settings, disk)

    def abandon(self) -> None:
        self.fixture.abandon()

    # -- what is in it ----------------------------------------------------------------------------------------------

    def records(self) -> list[Record]:
        return [record for batch in contents(self.log) for record in iterate_records(batch)]

    def stored_records(self) -> list[Record]:
        """Every record in the files from the log's start on: a power cut may have left nothing at its end."""
        log = self.log
        batches = [each.batch(*where) for each in log.segments if each.size_bytes for where in each.headers()]
        return [r for batch in batches for r in iterate_records(batch) if r.offset >= log.log_start_offset]

    def pairs(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(record.offset, record.key, record.value) for record in self.records()]

    def batches(self) -> list[tuple[int, int, int]]:
        """(base offset, next offset, record count) of every batch."""
        headers = [read_header(batch) for batch in contents(self.log)]
        return [(header.base_offset, header.next_offset, header.record_count) for header in headers]

    def segments(self) -> list[int]:
        return [segment.base_offset for segment in self.log.segments]

    def files(self) -> list[str]:
        folder = self.log.directory
        return sorted(self.disk.listdir(folder)) if self.disk.exists(folder) else []
