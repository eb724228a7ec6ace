"""The disk, passed in so that a test can cut it at every write.

The methods are the operating system's own calls, so that nothing stands between the log and the kernel. What is
durable when: data after ``fdatasync`` of its file, a new or renamed name after ``fsync_dir`` of its directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Protocol

#: what runs out and comes back: room on the disk, and file descriptors; the disk itself is sound
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class Disk(Protocol):
    """What the log needs of a file system. Errors are ``OSError``."""

    def open(self, path: str, *, create: bool = False) -> int: ...
    def close(self, fd: int) -> None: ...
    def pread(self, fd: int, size: int, position: int, /) -> bytes: ...
    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None: ...
    def pwritev(self, fd: int, parts: list[bytes | bytearray | memoryview], position: int) -> None: ...
    def fdatasync(self, fd: int, /) -> None: ...
    def truncate(self, fd: int, size: int, /) -> None: ...
    def size(self, fd: int) -> int: ...
    def listdir(self, path: str, /) -> list[str]: ...
    def file_size(self, path: str) -> int | None: ...
    def exists(self, path: str, /) -> bool: ...
    def makedirs(self, path: str) -> None: ...
    def rename(self, source: str, target: str, /) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...
    def fsync_dir(self, path: str) -> None: ...
    def read_file(self, path: str) -> bytes | None: ...
    def write_file(self, path: str, data: bytes, *, sync: bool) -> None: ...
    def free_bytes(self, path: str) -> int: ...
    def total_bytes(self, path: str) -> int: ...


class RealDisk:
    """The machine's own file system."""

    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    fdatasync = staticmethod(os.fdatasync)
    truncate = staticmethod(os.ftruncate)
    listdir = staticmethod(os.listdir)
    exists = staticmethod(os.path.exists)
    rename = staticmethod(os.replace)

    def open(self, path: str, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        return os.open(path, flags | os.O_CREAT if create else flags, 0o644)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        written = os.pwrite(fd, data, position)
        if written != len(data):
            self._write_rest(fd, memoryview(data)[written:], position + written)

    def pwritev(self, fd: int, parts: list[bytes | bytearray | memoryview], position: int) -> None:
        written = os.pwritev(fd, parts, position)
        if written != sum(map(len, parts)):
            self._write_rest(fd, memoryview(b"".join(parts))[written:], position + written)

    def _write_rest(self, fd: int, rest: memoryview, position: int) -> None:
        # The kernel writes less than asked when the disk fills up; the next call then says why.
        while rest:
            written = os.pwrite(fd, rest, position)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            rest = rest[written:]
            position += written

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def file_size(self, path: str) -> int | None:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def makedirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def remove_tree(self, path: str) -> None:
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)

    def fsync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read_file(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write_file(self, path: str, data: bytes, *, sync: bool) -> None:
        """Replace a file as a whole: a reader sees the old one or the new one, never a part."""
        temporary = path + ".tmp"
        with open(temporary, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if sync:
            self.fsync_dir(os.path.dirname(path))

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize


def lock_file(path: str) -> int | None:
    """Take an exclusive lock that ends with this process; None when another process holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
