"""An open file of a segment, and a range of its bytes that is not read yet."""

from __future__ import annotations

from ottla.env.disk import Disk


class SegmentFile:
    """An open file, closed with its last reference.

    Replies that are being sent and threads that look up a timestamp keep a reference to this object. They must not keep
    the descriptor's number, because the kernel may reuse it for another file.
    """

    __slots__ = ("_disk", "fd")

    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk = disk
        self.fd = fd

    def __del__(self) -> None:
        self._disk.close(self.fd)


class FileRegion:
    """A range of bytes in a file, not yet read: the result of ``Log.read``."""

    __slots__ = ("disk", "file", "position", "size_bytes")

    def __init__(self, disk: Disk, file: SegmentFile, position: int, size_bytes: int) -> None:
        self.disk = disk
        self.file = file
        self.position = position
        self.size_bytes = size_bytes

    def read(self) -> bytes:
        return self.disk.pread(self.file.fd, self.size_bytes, self.position)
