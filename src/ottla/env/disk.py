"""The file system, passed in as an argument so that a test can simulate a crash at every write.

The methods are system calls, without buffers between the log and the kernel. Data is durable after ``fdatasync`` of its
file. The name of a new or renamed file is durable after ``fsync_dir`` of its directory.

A call that changes the file system and fails raises ``WriteFailed``: the log directory can no longer be trusted with
new data. A call that only reads and fails raises any other ``OSError``: one file is unreadable, and the failure
concerns the partition that the file belongs to.

New files can be read by their owner and its group, never by all users of the machine: they contain the records of
clients. ``restrict_new_files`` makes the same true for files that other code of the process creates.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

#: modes of new files and directories; the umask of the process may take away more
FILE_MODE = 0o640
DIRECTORY_MODE = 0o750
_UMASK = 0o777 & ~DIRECTORY_MODE

#: errors of a sound disk that pass when there is room again, or file descriptors
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class WriteFailed(OSError):
    """A call that writes, syncs, creates, renames or removes failed."""

    @classmethod
    def of(cls, error: OSError) -> WriteFailed:
        """Return ``error`` as a WriteFailed with the same number, text and path."""
        return error if isinstance(error, WriteFailed) else cls(error.errno, error.strerror, error.filename)


def writes(call: Callable[P, R]) -> Callable[P, R]:
    """Decorate a call of a Disk that changes the file system: its OSError becomes WriteFailed."""

    @wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except OSError as error:
            raise WriteFailed.of(error) from None

    return checked


class Disk(Protocol):
    """The file system calls that the log uses. Calls that change files raise ``WriteFailed``, others ``OSError``."""

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
    def lock(self, path: str) -> int | None:
        """Lock a file until its descriptor is closed; return the descriptor, None if another process has the lock."""


def restrict_new_files() -> None:
    """Let no file that this process and its children create be writable by the group or accessible for others.

    A umask that takes away more stays as it is.
    """
    os.umask(os.umask(_UMASK) | _UMASK)


def read_derived_file(disk: Disk, path: str) -> bytes | None:
    """Return the content of a file that can be rebuilt from the log; None if it is missing or cannot be read.

    Raise OSError only if the process has no file descriptor left: the file itself is then sound.
    """
    try:
        return disk.read_file(path)
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise
        log.error("file cannot be read and counts as missing path=%s error=%s", path, error)
        return None


class RealDisk:
    """The file system of the operating system."""

    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    listdir = staticmethod(os.listdir)
    exists = staticmethod(os.path.exists)
    fdatasync = staticmethod(writes(os.fdatasync))
    truncate = staticmethod(writes(os.ftruncate))
    rename = staticmethod(writes(os.replace))

    def open(self, path: str, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        return self._create(path, flags | os.O_CREAT) if create else os.open(path, flags)

    @staticmethod
    @writes
    def _create(path: str, flags: int) -> int:
        return os.open(path, flags, FILE_MODE)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        # Written out, unlike the others: every turn of the event loop calls this, and ``writes`` adds a function call.
        try:
            written = os.pwrite(fd, data, position)
            if written != len(data):
                self._write_rest(fd, memoryview(data)[written:], position + written)
        except OSError as error:
            raise WriteFailed.of(error) from None

    def pwritev(self, fd: int, parts: list[bytes | bytearray | memoryview], position: int) -> None:
        try:
            written = os.pwritev(fd, parts, position)
            if written != sum(map(len, parts)):
                self._write_rest(fd, memoryview(b"".join(parts))[written:], position + written)
        except OSError as error:
            raise WriteFailed.of(error) from None

    def _write_rest(self, fd: int, rest: memoryview, position: int) -> None:
        # When the disk becomes full, the kernel writes a part, and the next call raises the error.
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

    @writes
    def makedirs(self, path: str) -> None:
        os.makedirs(path, DIRECTORY_MODE, exist_ok=True)

    @writes
    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    @writes
    def remove_tree(self, path: str) -> None:
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)

    @writes
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

    @writes
    def write_file(self, path: str, data: bytes, *, sync: bool) -> None:
        """Replace a file atomically: a reader gets the old content or the new one, never a part of it."""
        temporary = path + ".tmp"
        with open(temporary, "wb", opener=_create_private) as file:
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

    def lock(self, path: str) -> int | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd


def _create_private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
