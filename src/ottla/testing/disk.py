"""A file system in memory that loses unsynced changes as a real one does: for tests with a power cut at every write.

    disk = MemoryDisk()
    disk.cut_after(17)                       # the 18th change raises DiskCut and is not applied
    ...
    booted = disk.crash(Random(1), keep="power")

A file has its current bytes and its durable bytes; a directory has its current names and its durable names.
``fdatasync`` makes the bytes of a file durable, ``fsync_dir`` the names of a directory, and ``write_file(sync=True)``
both. ``crash`` returns the disk as the next boot finds it. After the end of the process (``keep="process"``) it has all
written bytes. After a power cut (``keep="power"``) it has the durable bytes, and a part of the unsynced changes that
the random generator draws; an unsynced write may be torn at the boundaries of sectors.

``fail`` makes chosen calls fail as those of a real disk do; a part of a failed write can be applied. ``damage`` changes
the bytes of a file. ``calls`` lists every call.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

from ottla.env.disk import WriteFailed, writes

Data = bytes | bytearray | memoryview
Keep = Literal["process", "power"]

#: the unit of an atomic write: a power cut leaves all of a sector or none of it
SECTOR_BYTES = 512

#: the calls that a fault of each kind can hit; "any" hits all of them
KINDS = {
    "write": ("pwrite", "pwritev"),
    "sync": ("fdatasync", "fsync_dir"),
    "space": ("pwrite", "pwritev", "create", "write_file", "makedirs"),
    "read": ("open", "pread", "read_file", "listdir", "file_size"),
}


_NAME_BYTES_MAX = 255


class DiskCut(Exception):
    """The power was cut. Not an OSError, because no code of the program may handle it."""


class Call(NamedTuple):
    """A call of a method; ``name`` is that of the method, or ``create`` for an ``open`` that created the file."""

    name: str
    path: str


@dataclass(slots=True)
class _Fault:
    kind: str
    error: int
    skip: int
    #: how many further calls fail; None for all
    times: int | None
    path: str
    #: bytes of a write that reach the file before it fails
    applied_bytes: int

    def hits(self, call: Call) -> bool:
        names = KINDS.get(self.kind, (self.kind,))
        if (self.kind != "any" and call.name not in names) or self.path not in call.path or self.times == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


class _File:
    """The content of a file. Directories refer to it by name."""

    __slots__ = ("data", "durable", "unsynced")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        #: changes since the last sync, in order: (position, bytes), or (size, None) for a truncation
        self.unsynced: list[tuple[int, bytes | None]] = []

    def write(self, position: int, data: bytes) -> None:
        _apply(self.data, position, data)
        self.unsynced.append((position, data))

    def truncate(self, size: int) -> None:
        _apply(self.data, size, None)
        self.unsynced.append((size, None))

    def sync(self) -> None:
        if self.unsynced:
            self.durable = bytes(self.data)
            self.unsynced.clear()

    def copy(self) -> _File:
        twin = _File()
        twin.data, twin.durable, twin.unsynced = self.data[:], self.durable, self.unsynced[:]
        return twin

    def after_power_cut(self, rng: Random) -> _File:
        """Return the file with its durable bytes, and for each unsynced write all, some or none of its sectors."""
        twin = _File()
        twin.data = bytearray(self.durable)
        for position, data in self.unsynced:
            fate = rng.random()
            if fate < 0.3:
                continue
            if data is None or fate > 0.6:
                _apply(twin.data, position, data)
                continue
            for start, part in _sectors(position, data):
                if rng.random() < 0.5:
                    _apply(twin.data, start, part)
        twin.durable = bytes(twin.data)
        return twin


class _Directory:
    """The names in a directory, and those that are durable."""

    __slots__ = ("durable", "names", "unsynced")

    def __init__(self) -> None:
        self.names: dict[str, _File | _Directory] = {}
        self.durable: dict[str, _File | _Directory] = {}
        #: changes since the last sync, in order; a rename changes two names at once
        self.unsynced: list[dict[str, _File | _Directory | None]] = []

    def change(self, names: dict[str, _File | _Directory | None]) -> None:
        _rename(self.names, names)
        self.unsynced.append(names)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.unsynced.clear()

    def names_after_power_cut(self, rng: Random) -> dict[str, _File | _Directory]:
        """Return the durable names, changed by the first unsynced changes: a journal keeps the order of changes."""
        names = dict(self.durable)
        for change in self.unsynced[: rng.randint(0, len(self.unsynced))]:
            _rename(names, change)
        return names


class MemoryDisk:
    """``ottla.env.disk.Disk`` in memory."""

    def __init__(self) -> None:
        self._root = _Directory()
        self._open: dict[int, tuple[_File, str]] = {}
        self._fd_next = 3
        self._locked: list[int] = []
        self._faults: list[_Fault] = []
        self._cut_at: int | None = None
        self._torn = Random(0)

        #: all calls, including reads
        self.calls: list[Call] = []
        #: the number of calls that change something, which ``cut_after`` counts
        self.changes = 0
        #: the results of ``free_bytes`` and ``total_bytes``. A write never fails because of them; use ``fail``.
        self.free = 1 << 40
        self.total = 1 << 40

    # -- faults ---------------------------------------------------------------------------------------------------

    def fail(
        self,
        kind: str,
        error: int = errno.EIO,
        *,
        skip: int = 0,
        times: int | None = 1,
        path: str = "",
        applied_bytes: int = 0,
    ) -> None:
        """Let calls of a kind, or of a method, fail if their path contains ``path``.

        Skip the first ``skip`` calls, then let ``times`` calls fail; all if it is None.
        """
        self._faults.append(_Fault(kind, error, skip, times, path, applied_bytes))

    def damage(self, path: str, change: Callable[[bytes], bytes]) -> None:
        """Replace the content of a file, including its durable bytes, as a damaged disk does."""
        node = self._find(path)
        assert isinstance(node, _File), path
        node.data[:] = change(bytes(node.data))
        node.sync()

    def heal(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def cut_after(self, changes: int, seed: int = 0) -> None:
        """Apply this many changes. The next one raises DiskCut; if it is a write, a part of it is applied."""
        self._cut_at = self.changes + changes
        self._torn = Random(seed)

    def crash(self, rng: Random, keep: Keep) -> MemoryDisk:
        """Return the disk as the next boot finds it. This disk does not change, so that it can crash again."""
        booted = MemoryDisk()
        booted.free, booted.total = self.free, self.total
        if keep == "process":
            booted._root = _copy(self._root, {})
        else:
            booted._root = _copy_after_power_cut(self._root, rng, {})
        return booted

    def _call(self, name: str, path: str, *, changes: bool = True) -> _Fault | None:
        """Add a call to ``calls``. Raise DiskCut or the error of a fault if the call fails.

        Return the fault of a write instead, because the caller applies a part of the write before it raises.
        """
        call = Call(name, path)
        self.calls.append(call)
        if len(os.path.basename(path)) > _NAME_BYTES_MAX:
            raise (WriteFailed if changes else OSError)(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        if changes:
            if self._cut_at is not None and self.changes >= self._cut_at:
                if name in KINDS["write"]:
                    return _Fault(name, 0, 0, 1, path, -1)
                raise DiskCut(f"cut at {name} {path}")
            self.changes += 1
        for fault in self._faults:
            if fault.hits(call):
                if name in KINDS["write"]:
                    return fault
                kind = WriteFailed if changes else OSError
                raise kind(fault.error, os.strerror(fault.error), path)
        return None

    # -- files ----------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> int:
        try:
            parent, name = self._parent(path)
        except OSError as error:
            raise WriteFailed.of(error) if create else error from None
        file = parent.names.get(name)
        if file is None and create:
            self._call("create", path)
            file = _File()
            parent.change({name: file})
        else:
            self._call("open", path, changes=False)
        if not isinstance(file, _File):
            raise _missing(path)
        fd, self._fd_next = self._fd_next, self._fd_next + 1
        self._open[fd] = file, path
        return fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def pread(self, fd: int, size: int, position: int, /) -> bytes:
        file, path = self._open[fd]
        self._call("pread", path, changes=False)
        return bytes(file.data[position : position + size])

    def pwrite(self, fd: int, data: Data, position: int) -> None:
        self._write("pwrite", fd, bytes(data), position)

    def pwritev(self, fd: int, parts: list[Data], position: int) -> None:
        self._write("pwritev", fd, b"".join(parts), position)

    def _write(self, name: str, fd: int, data: bytes, position: int) -> None:
        file, path = self._open[fd]
        fault = self._call(name, path)
        if fault is None:
            file.write(position, data)
            return
        applied = fault.applied_bytes if fault.error else self._torn.randint(0, len(data))
        if applied:
            file.write(position, data[:applied])
        if fault.error:
            raise WriteFailed(fault.error, os.strerror(fault.error), path)
        raise DiskCut(f"cut {applied} bytes into {name} {path}")

    def fdatasync(self, fd: int, /) -> None:
        file, path = self._open[fd]
        self._call("fdatasync", path)
        file.sync()

    @writes
    def truncate(self, fd: int, size: int, /) -> None:
        file, path = self._open[fd]
        self._call("truncate", path)
        file.truncate(size)

    def size(self, fd: int) -> int:
        return len(self._open[fd][0].data)

    def file_size(self, path: str) -> int | None:
        self._call("file_size", path, changes=False)
        node = self._find(path)
        return len(node.data) if isinstance(node, _File) else None

    def exists(self, path: str, /) -> bool:
        return self._find(path) is not None

    def read_file(self, path: str) -> bytes | None:
        self._call("read_file", path, changes=False)
        node = self._find(path)
        return bytes(node.data) if isinstance(node, _File) else None

    @writes
    def write_file(self, path: str, data: bytes, *, sync: bool) -> None:
        """Do the steps of the real ``write_file`` as separate calls, because a power cut can follow each of them."""
        temporary = path + ".tmp"
        parent, name = self._parent(temporary)
        self._call("write_file", path)
        file = parent.names.get(name)
        if not isinstance(file, _File):
            file = _File()
            parent.change({name: file})
        file.truncate(0)
        file.write(0, data)
        if sync:
            self._call("fdatasync", temporary)
            file.sync()
        self.rename(temporary, path)
        if sync:
            self.fsync_dir(os.path.dirname(path))

    # -- names ----------------------------------------------------------------------------------------------------

    def listdir(self, path: str, /) -> list[str]:
        self._call("listdir", path, changes=False)
        return list(self._directory(path).names)

    @writes
    def makedirs(self, path: str) -> None:
        directory = self._root
        for name in _parts(path):
            node = directory.names.get(name)
            if node is None:
                self._call("makedirs", path)
                node = _Directory()
                directory.change({name: node})
            if not isinstance(node, _Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            directory = node

    @writes
    def rename(self, source: str, target: str, /) -> None:
        self._call("rename", target)
        (before, old), (after, new) = self._parent(source), self._parent(target)
        assert before is after, "the log renames within a directory only"
        node, replaced = before.names.get(old), after.names.get(new)
        if node is None:
            raise _missing(source)
        if isinstance(replaced, _Directory) and replaced.names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        before.change({old: None, new: node})

    def remove(self, path: str) -> None:
        node = self._find(path)
        if isinstance(node, _File):
            self._call("remove", path)
            parent, name = self._parent(path)
            parent.change({name: None})

    @writes
    def remove_tree(self, path: str) -> None:
        for name in list(self._directory(path).names):
            self.remove(os.path.join(path, name))
        self._call("remove_tree", path)
        parent, name = self._parent(path)
        parent.change({name: None})

    @writes
    def fsync_dir(self, path: str) -> None:
        directory = self._directory(path)
        self._call("fsync_dir", path)
        directory.sync()

    def lock(self, path: str) -> int | None:
        """Return the descriptor of the file that is now locked; None if it was locked. A crash ends all locks."""
        if any(locked == path for _, locked in self._locks()):
            return None
        fd = self.open(path, create=True)
        self._locked.append(fd)
        return fd

    def _locks(self) -> list[tuple[int, str]]:
        return [(fd, self._open[fd][1]) for fd in self._locked if fd in self._open]

    def free_bytes(self, path: str) -> int:
        return self.free

    def total_bytes(self, path: str) -> int:
        return self.total

    def _find(self, path: str) -> _File | _Directory | None:
        node: _File | _Directory | None = self._root
        for name in _parts(path):
            node = node.names.get(name) if isinstance(node, _Directory) else None
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise _missing(path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        folder, name = os.path.split(path)
        return self._directory(folder), name


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    """Write ``data`` at a position, or truncate there if it is None. Bytes between the old end and it become zeros."""
    if data is None:
        del content[position:]
        content.extend(bytes(position - len(content)))
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _sectors(position: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    start = 0
    while start < len(data):
        end = start + SECTOR_BYTES - (position + start) % SECTOR_BYTES
        yield position + start, data[start:end]
        start = end


def _rename(names: dict[str, _File | _Directory], change: dict[str, _File | _Directory | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _copy(directory: _Directory, files: dict[_File, _File]) -> _Directory:
    """Return a copy of a directory and all in it, in which unsynced changes are still unsynced."""
    nodes: dict[_File | _Directory, _File | _Directory] = {}

    def twin_of(node: _File | _Directory) -> _File | _Directory:
        if node not in nodes:
            nodes[node] = _copy(node, files) if isinstance(node, _Directory) else files.setdefault(node, node.copy())
        return nodes[node]

    twin = _Directory()
    twin.names = {name: twin_of(node) for name, node in directory.names.items()}
    twin.durable = {name: twin_of(node) for name, node in directory.durable.items()}
    twin.unsynced = [
        {name: None if node is None else twin_of(node) for name, node in change.items()}
        for change in directory.unsynced
    ]
    return twin


def _copy_after_power_cut(directory: _Directory, rng: Random, files: dict[_File, _File]) -> _Directory:
    twin = _Directory()
    for name, node in directory.names_after_power_cut(rng).items():
        if isinstance(node, _Directory):
            twin.names[name] = _copy_after_power_cut(node, rng, files)
        else:
            if node not in files:
                files[node] = node.after_power_cut(rng)
            twin.names[name] = files[node]
    twin.sync()
    return twin
