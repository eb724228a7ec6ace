"""Producer ids, unique in the cluster: reserved in the store in blocks, allocated from memory."""

from __future__ import annotations

import asyncio
import json
from functools import partial

from ottla.broker.metadata.decide import read_and_write
from ottla.broker.metadata.nodes import PRODUCER_ID_BLOCK, to_json
from ottla.broker.metadata.store import Create, MetadataStore, Node, Op, Put
from ottla.model.errors import ErrorCode, KafkaError, Refused

BLOCK = 1000


class ProducerIds:
    """The block of ids of this broker. Ids that were not allocated before a stop are never used."""

    def __init__(self, store: MetadataStore, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id
        self._next = self._end = 0
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """Return an id that was never returned before. Raise COORDINATOR_LOAD_IN_PROGRESS if none can be reserved."""
        if self._next == self._end:
            async with self._refill:
                if self._next == self._end:
                    await self._take_block()
        self._next += 1
        return self._next - 1

    async def _take_block(self) -> None:
        # Repeatable, because a block that is reserved twice only leaves ids unused.
        try:
            self._next, self._end = await read_and_write(
                self._store, partial(self._store.get, PRODUCER_ID_BLOCK), self._reserve_block, repeatable=True
            )
        except KafkaError as error:
            # As in Kafka: clients retry after this error.
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from None

    def _reserve_block(self, node: Node | None) -> tuple[list[Op], tuple[int, int]]:
        """Return the operations that reserve the next block, and the first id of the block and of the one after it."""
        start = int(json.loads(node.value)["block_end"]) + 1 if node is not None else 0
        end = start + BLOCK
        value = to_json({"version": 1, "broker": self._broker_id, "block_start": str(start), "block_end": str(end - 1)})
        if node is None:
            return [Create(PRODUCER_ID_BLOCK, value)], (start, end)
        return [Put(PRODUCER_ID_BLOCK, value, node.version)], (start, end)
