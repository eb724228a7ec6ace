"""The leader epochs of a log and the start offset of each: ``leader-epoch-checkpoint``.

Both epochs and start offsets increase. With them the leader answers OffsetsForLeaderEpoch: a follower or a consumer
asks at which offset its log diverges from the leader's log.
"""

from __future__ import annotations

from bisect import bisect_right

UNDEFINED = -1


class LeaderEpochs:
    """The epochs of one log, oldest first."""

    __slots__ = ("epochs", "starts")

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.starts: list[int] = []

    @property
    def latest(self) -> int:
        """Return the newest epoch; UNDEFINED if there is none."""
        return self.epochs[-1] if self.epochs else UNDEFINED

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Add ``epoch`` with its start offset. Return False, without a change, if it is not newer than the latest."""
        if epoch <= self.latest:
            return False
        # Remove epochs that started here but appended nothing.
        while self.starts and self.starts[-1] >= start_offset:
            self.starts.pop()
            self.epochs.pop()
        self.epochs.append(epoch)
        self.starts.append(start_offset)
        return True

    def epoch_at(self, offset: int) -> int:
        """Return the epoch in which ``offset`` was appended; UNDEFINED if it is unknown."""
        found = bisect_right(self.starts, offset) - 1
        return self.epochs[found] if found >= 0 else UNDEFINED

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch that is at most ``epoch``, and its end offset.

        As in Kafka's LeaderEpochFileCache.endOffsetFor, return (-1, -1) if ``epoch`` is newer than all known epochs,
        and ``epoch`` with the first known start offset if it is older than all.
        """
        if epoch == UNDEFINED or not self.epochs or epoch > self.latest:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        after = bisect_right(self.epochs, epoch)
        if after == 0:
            return epoch, self.starts[0]
        return self.epochs[after - 1], self.starts[after]

    def truncate_from_end(self, end_offset: int) -> bool:
        """Remove the epochs that start at or after ``end_offset``. Return False if there is none."""
        count = len(self.starts)
        while self.starts and self.starts[-1] >= end_offset:
            self.starts.pop()
            self.epochs.pop()
        return len(self.starts) < count

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that end before ``start_offset``. The epoch that contains it then starts there."""
        keep = bisect_right(self.starts, start_offset) - 1
        if keep > 0:
            del self.epochs[:keep], self.starts[:keep]
        if self.starts and self.starts[0] < start_offset:
            self.starts[0] = start_offset

    def copy(self) -> LeaderEpochs:
        copied = LeaderEpochs()
        copied.epochs, copied.starts = self.epochs[:], self.starts[:]
        return copied

    def to_text(self) -> str:
        """Return the content of the checkpoint."""
        lines = ["0", str(len(self.epochs)), *(f"{e} {s}" for e, s in zip(self.epochs, self.starts, strict=True))]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_text(cls, text: str) -> LeaderEpochs:
        """Return the epochs in the checkpoint. Raise ValueError or IndexError if it is damaged."""
        loaded = cls()
        lines = text.split("\n")
        if lines[0].strip() != "0":
            raise ValueError("leader-epoch-checkpoint has an unknown version")
        if len(lines) != int(lines[1]) + 3 or lines[-1]:
            raise ValueError("leader-epoch-checkpoint is incomplete")
        for line in lines[2:-1]:
            epoch, start = line.split()
            loaded.assign(int(epoch), int(start))
        return loaded
