"""A file system in memory that forgets like a real one: for tests that cut the power at every write.

    disk = MemoryDisk()
    disk.cut_after(17)                       # the 18th change of anything raises DiskCut instead of happening
    ...
    booted = disk.crash(Random(1), keep="power")

Every file has what was written and what is durable; every directory likewise for its names. ``fdatasync`` makes a
file's bytes durable, ``fsync_dir`` a directory's names, and ``write_file(sync=True)`` both. ``crash`` gives the disk
that the next boot finds: after the death of the process (``keep="process"``) everything that was written, after a power
cut (``keep="power"``) what was durable and of the rest whatever the seed lets through, torn at sectors.

``fail`` makes chosen calls fail as those of a real disk do, with part of a write applied if that is wanted; ``damage``
changes the bytes of a file. ``calls`` lists every call.
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

#: what a disk writes as a whole or not at all
SECTOR_BYTES = 512

#: the calls that a fault of each kind can hit; "any" hits all of them
KINDS = {
    "write": ("pwrite", "pwritev"),
    "sync": ("fdatasync", "fsync_dir"),
    "space": ("pwrite", "pwritev", "create", "write_file", "makedirs"),
    "read": ("open", "pread", "read_file", "listdir", "file_size"),
}


class DiskCut(Exception):
    """The machine stopped here. Not an OSError: nothing of the program runs any more."""


class Call(NamedTuple):
    """One call; ``name`` is the method's, or ``create`` for an ``open`` that made the file."""

    name: str
    path: str


@dataclass(slots=True)
class _Fault:
    kind: str
    error: int
    skip: int
    #: calls still to fail; None for all that follow
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
    """One file, whatever its names are."""

    __slots__ = ("data", "durable", "unsynced")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        #: since the last sync, in order: (position, bytes), or (size, None) for a truncation
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
        """The durable bytes and a part of what was written since: whole calls, or some of their sectors."""
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
    """Names, and which of them a power cut would leave."""

    __slots__ = ("durable", "names", "unsynced")

    def __init__(self) -> None:
        self.names: dict[str, _File | _Directory] = {}
        self.durable: dict[str, _File | _Directory] = {}
        #: since the last sync, in order; a rename changes two names at once
        self.unsynced: list[dict[str, _File | _Directory | None]] = []

    def change(self, names: dict[str, _File | _Directory | None]) -> None:
        _rename(self.names, names)
        self.unsynced.append(names)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.unsynced.clear()

    def names_after_power_cut(self, rng: Random) -> dict[str, _File | _Directory]:
        """Journals keep the order of changes: some beginning of them is there."""
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

        #: every call so far, reads too
        self.calls: list[Call] = []
        #: calls so far that change something: what ``cut_after`` counts
        self.changes = 0
        #: what ``free_bytes`` and ``total_bytes`` answer; nothing enforces them, ``fail`` does
        self.free = 1 << 40
        self.total = 1 << 40

    # -- faults ---------------------------------------------------------------------------------------------------

    def fail(
        self, kind: str, error: int = errno.EIO, *, skip: int = 0, times: int | None = 1, path: str = "",
        applied_bytes: int = 0,
    ) -> None:  # fmt: skip
        """Let calls of a kind (or method) fail: after ``skip`` of them, the next ``times``, on paths with ``path``."""
        self._faults.append(_Fault(kind, error, skip, times, path, applied_bytes))

    def damage(self, path: str, change: Callable[[bytes], bytes]) -> None:
        """Replace the content of a file, on the platter too: bits that flip, ends that are lost."""
        node = self._find(path)
        assert isinstance(node, _File), path
        node.data[:] = change(bytes(node.data))
        node.sync()

    def heal(self) -> None:
        """Forget all faults."""
        self._faults.clear()

    def cut_after(self, changes: int, seed: int = 0) -> None:
        """Let this many changes happen; the next raises DiskCut, and if it is a write, a part of it is done."""
        self._cut_at = self.changes + changes
        self._torn = Random(seed)

    def crash(self, rng: Random, keep: Keep) -> MemoryDisk:
        """The disk as the next boot finds it. This one stays as it is, so that it can crash in other ways too."""
        booted = MemoryDisk()
        booted.free, booted.total = self.free, self.total
        if keep == "process":
            booted._root = _copy(self._root, {})
        else:
            booted._root = _copy_after_power_cut(self._root, rng, {})
        return booted

    def _call(self, name: str, path: str, *, changes: bool = True) -> _Fault | None:
        """Note a call, end it with DiskCut, or find the fault that a write must apply before it fails."""
        call = Call(name, path)
        self.calls.append(call)
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
        """As the real one, step by step: each can be the last."""
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
        """The lock is part of the open file: a crash gives a disk without open files, and so without locks."""
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
    """Write at a position, or cut there; a hole reads as zeros."""
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
    """The same directory for another process: what is unsynced stays unsynced."""
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
