"""A client that writes a compacted topic: the last value of each key stays, and a deleted key does not come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim_client import NOT_LEADER, RETRIABLE, Client, Lost, batches

from ottla.model.batch import CONTROL
from ottla.model.records import Record, build_batch, iterate_records
from ottla.testing.history import Place
from ottla.testing.raw import fetch_from, fetch_request, produce_request
from ottla.wire.messages.init_producer_id import InitProducerIdRequest

if TYPE_CHECKING:
    from sim_world import World

_KEYS = 6
_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1500",
}


class CompactedWriter(Client):
    """Writes numbered values and tombstones with an idempotent producer; no other client writes its topic."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._place = Place(f"{name}-topic", 0)
        self._number = 0
        #: the last record of each key that was acknowledged: its number, and whether it was a tombstone
        self._acknowledged: dict[bytes, tuple[int, bool]] = {}

    async def run(self) -> None:
        await self.create_topic(self._place.topic, _CONFIG)
        while not self.is_over:
            await self._write(await self._init())
        await self._check()

    async def _init(self) -> int:
        while True:
            try:
                reply = await self.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout=1000), 4)
                if not reply.error_code:
                    return int(reply.producer_id)
            except Lost:
                pass
            await self.pause(0.1)

    async def _write(self, producer_id: int) -> None:
        """Write until the run is over, or for some time."""
        for sequence in range(self.rng.randint(5, 200)):
            if self.is_over:
                return
            self._number += 1
            key, is_tombstone = f"key-{self.rng.randrange(_KEYS)}".encode(), self.rng.random() < 0.15
            value = None if is_tombstone else str(self._number).encode().ljust(self.rng.choice((10, 300)), b".")
            record = Record(timestamp=self.world.now_ms(), key=key, value=value)
            # The number of a tombstone is in a header, because it has no value.
            record.headers = [("number", str(self._number).encode())]
            content = build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            await self._send(content)
            self._acknowledged[key] = self._number, is_tombstone
            await self.pause(0.05)

    async def _send(self, content: bytes) -> None:
        request = produce_request((*self._place, content), acks=-1, timeout_ms=2000)
        while True:
            try:
                row: Any = (await self.ask_leader(self._place, request, 11)).responses[0].partition_responses[0]
                if not row.error_code:
                    return
                if row.error_code in NOT_LEADER:
                    self.forget_leader(self._place)
                if row.error_code not in RETRIABLE:
                    self.world.violation("refused-producer", f"{self.name}: error {row.error_code}")
                    return
            except Lost:
                pass
            await self.pause(0.1)

    async def _check(self) -> None:
        """Read the whole topic; again if a tombstone was removed while it was read."""
        found: dict[bytes, tuple[int, bool]] = {}
        for _ in range(3):
            found = await self._read_all()
            if self._find_difference(found) is None:
                return
            await self.pause(1)
        difference = self._find_difference(found)
        if difference is not None:
            self.world.violation(*difference)

    def _find_difference(self, found: dict[bytes, tuple[int, bool]]) -> tuple[str, str] | None:
        for key, (number, is_tombstone) in self._acknowledged.items():
            if key in found and found[key] != (number, is_tombstone):
                line = f"{self._place} {key.decode()}: {found[key]}, but {(number, is_tombstone)} was acknowledged"
                return ("deleted-key-is-back" if is_tombstone else "value-lost"), line
            if key not in found and not is_tombstone:
                return "value-lost", f"{self._place} {key.decode()}: nothing, but {number} was acknowledged"
        return None

    async def _read_all(self) -> dict[bytes, tuple[int, bool]]:
        """Return the last record of each key."""
        found: dict[bytes, tuple[int, bool]] = {}
        offset, end = 0, 1
        while offset < end:
            try:
                request = fetch_request({self._place.topic: [fetch_from(0, offset)]}, max_wait=0)
                row = (await self.ask_leader(self._place, request, 11)).responses[0].partitions[0]
            except Lost:
                await self.pause(0.1)
                continue
            if row.error_code or row.high_watermark < 0:
                self.forget_leader(self._place)
                await self.pause(0.1)
                continue
            end = row.high_watermark
            before = offset
            for header, content in batches(bytes(row.records or b"")):
                offset = max(offset, header.next_offset)
                for record in iterate_records(content) if not header.attributes & CONTROL else ():
                    self._note(found, record)
            if offset == before and offset < end:
                await self.pause(0.1)
        return found

    def _note(self, found: dict[bytes, tuple[int, bool]], record: Any) -> None:
        key, number = bytes(record.key), int(dict(record.headers)["number"])
        if number < found.get(key, (0, False))[0]:
            self.world.violation("values-out-of-order", f"{self._place} {key.decode()}: {number} after {found[key][0]}")
        found[key] = number, record.value is None
