"""Which leader epoch wrote from which offset on: ``leader-epoch-checkpoint``.

Both columns only grow. A follower or a consumer that fell behind asks with it where its history parts from ours.
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
        return self.epochs[-1] if self.epochs else UNDEFINED

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that ``epoch`` writes from ``start_offset`` on; False when that was known."""
        if epoch <= self.latest:
            return False
        # An epoch that started here and wrote nothing gives way to the one that does.
        while self.starts and self.starts[-1] >= start_offset:
            self.starts.pop()
            self.epochs.pop()
        self.epochs.append(epoch)
        self.starts.append(start_offset)
        return True

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote ``offset``."""
        found = bisect_right(self.starts, offset) - 1
        return self.epochs[found] if found >= 0 else UNDEFINED

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch not above ``epoch``, and the offset at which it ends.

        As LeaderEpochFileCache.endOffsetFor: unknown and newer than all gives (-1, -1); older than all gives the
        asked epoch and the first known start.
        """
        if epoch == UNDEFINED or not self.epochs or epoch > self.latest:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        after = bisect_right(self.epochs, epoch)
        if after == 0:
            return epoch, self.starts[0]
        return self.epochs[after - 1], self.starts[after]

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that start at or behind ``end_offset``."""
        while self.starts and self.starts[-1] >= end_offset:
            self.starts.pop()
            self.epochs.pop()

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget what ended before ``start_offset``; the epoch that spans it now starts there."""
        keep = bisect_right(self.starts, start_offset) - 1
        if keep > 0:
            del self.epochs[:keep], self.starts[:keep]
        if self.starts and self.starts[0] < start_offset:
            self.starts[0] = start_offset

    def to_text(self) -> str:
        lines = ["0", str(len(self.epochs)), *(f"{e} {s}" for e, s in zip(self.epochs, self.starts, strict=True))]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_text(cls, text: str) -> LeaderEpochs:
        """Parse the checkpoint; raises ValueError when it is damaged."""
        known = cls()
        lines = text.split("\n")
        if lines[0].strip() != "0":
            raise ValueError("leader-epoch-checkpoint has an unknown version")
        if len(lines) != int(lines[1]) + 3 or lines[-1]:
            raise ValueError("leader-epoch-checkpoint is not whole")
        for line in lines[2:-1]:
            epoch, start = line.split()
            known.assign(int(epoch), int(start))
        return known
