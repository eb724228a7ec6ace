"""The end offsets of a batch are enough to recognise a repeated one: no plan loses or repeats rows."""

from __future__ import annotations

from random import Random

import pytest

from ottla.spark.commit import CheckpointMismatch, CommitProtocol
from ottla.spark.source_offsets import offsets_digest

RECORDS = 30


class Stream:
    """A query that keeps some records, its checkpoint, and a topic with what `CommitProtocol` decides to write."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.is_kept = [random.random() < 0.5 for _ in range(RECORDS)]
        #: the end of each planned batch in the checkpoint
        self.ends: list[int] = []
        self.topic: list[int] = []
        self.repeated = 0
        self.run_id = "0"
        self._protocol = CommitProtocol(lambda: pytest.fail("no cluster is needed"), "query")

    def rows_before(self, end: int) -> list[int]:
        return [record for record in range(end) if self.is_kept[record]]

    def run_batch(self, number: int) -> None:
        """Plan a batch that is not planned yet, and write it. Raise CheckpointMismatch."""
        start = self.ends[number - 1] if number else 0
        if number == len(self.ends):
            self.ends.append(self.random.randint(start, RECORDS))
        rows = [record for record in range(start, self.ends[number]) if self.is_kept[record]]
        if not rows:
            return  # as in the first step of the protocol
        digest = offsets_digest(_offsets(self.ends[number]))
        self._protocol._check_history(number, self.run_id, lambda earlier: _offsets(self.ends[earlier]))
        if self._protocol._is_committed(number, digest, len(rows)):
            self.repeated += 1
            return
        self.topic += rows
        self._protocol._token = self._protocol._next_token(number, len(rows), self.run_id, digest)

    def restore_checkpoint(self) -> None:
        """Put an older copy of the checkpoint in place. The batches after it are planned again, with other ends."""
        del self.ends[self.random.randint(0, len(self.ends)) :]
        self.run_id = str(int(self.run_id) + 1)


def _offsets(end: int) -> str:
    return f'{{"in":{{"0":{end}}}}}'


@pytest.mark.parametrize("seed", range(20))
def test_batch_that_is_planned_again_with_another_start_loses_and_repeats_no_rows(seed: int) -> None:
    """All rows up to the end of a committed batch are in the topic, wherever the batches before it began and ended."""
    random = Random(seed)
    repeated = refused = restarted = 0
    for _ in range(50):
        stream = Stream(random)
        number = 0
        for _ in range(20):
            try:
                stream.run_batch(number)
            except CheckpointMismatch:
                refused += 1
                break
            processed = stream.rows_before(stream.ends[number])
            assert stream.topic[: len(processed)] == processed, "rows were skipped that are not in the topic"
            assert stream.topic == sorted(set(stream.topic)), "rows are in the topic twice"
            number += 1
            if random.random() < 0.2:
                stream.restore_checkpoint()
                # Spark runs the last planned batch again.
                number = max(len(stream.ends) - 1, 0)
                restarted += 1
        repeated += stream.repeated
    assert repeated and refused and restarted
