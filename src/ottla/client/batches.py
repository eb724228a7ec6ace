"""The batches of a Fetch reply whose records a consumer gets: no markers, and nothing of aborted transactions."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.client.fetching import Fetched
from ottla.model.batch import CONTROL, TRANSACTIONAL, BatchHeader, read_header


def data_batches(fetched: Fetched, aborted: dict[int, int]) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the header and the bytes of each batch with committed records, or with records of no transaction.

    ``aborted`` has the aborted transactions that have not ended yet: producer id -> first offset. Pass the same
    dictionary with the following reply of the partition. It stays empty with Isolation.READ_UNCOMMITTED, because the
    broker then lists none.
    """
    starts = sorted(fetched.aborted, key=lambda row: row.first_offset, reverse=True)
    data, start = fetched.data, 0
    while start < len(data):
        header = read_header(data, start)
        batch = data[start : start + header.size_bytes]
        start += header.size_bytes
        while starts and starts[-1].first_offset <= header.base_offset:
            row = starts.pop()
            aborted[row.producer_id] = row.first_offset
        if header.attributes & CONTROL:
            # The marker ends the transaction, so later batches of this producer belong to its next one.
            aborted.pop(header.producer_id, None)
        elif not (header.attributes & TRANSACTIONAL and header.producer_id in aborted):
            yield header, batch
