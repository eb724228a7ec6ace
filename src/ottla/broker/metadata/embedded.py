"""The metadata store of a single broker: one SQLite file in the data directory.

All SQL runs in one thread (group commit). Calls that arrive while the thread is busy are queued and then share one
transaction. Every multi has its own savepoint in it: a multi that conflicts is rolled back alone, and all others cost
one sync of the disk. After the commit the event loop gets the changes and the results, in the order of the calls:

    _submit          queues a call as a job
    _run_group       in the thread: BEGIN, the work of each job, COMMIT
    _finish_group    on the event loop: calls the watchers, completes the jobs, starts the next group

A committed multi survives a power cut: SQLite syncs its write-ahead log with every commit.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ottla.broker.metadata.store import (
    ROOT,
    Changed,
    Conflict,
    Create,
    Delete,
    EphemeralParent,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    Put,
    Session,
    SessionListener,
    SessionState,
    StoreClosed,
    StoreError,
    UnusableStore,
    VersionConflict,
    Watcher,
    Written,
    check_ops,
    check_path,
    check_prefix,
    is_below,
    parent_of,
)

FILE_NAME = "metadata.db"
#: only the owner reads the file, because it has the keys of users; SQLite gives its other files the same mode
_MODE = 0o600

#: identifies the file as a metadata store of Ottla, also for the command ``file``: "Ottl" in ASCII
_APPLICATION_ID = 0x4F74746C
_SCHEMA_VERSION = 2
_CHANGE_TABLE = (
    # One row: the number of multis applied so far, also of those whose nodes were deleted.
    "CREATE TABLE change (last INTEGER NOT NULL)",
    "INSERT INTO change VALUES (0)",
)
_SCHEMA = (
    """
    CREATE TABLE node (
        path TEXT PRIMARY KEY,
        parent TEXT NOT NULL,
        value BLOB NOT NULL,
        version INTEGER NOT NULL,
        ephemeral INTEGER NOT NULL,
        created INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID
    """,
    "CREATE INDEX node_parent ON node (parent)",
    *_CHANGE_TABLE,
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_SCHEMA_VERSION}",
)
#: changes a file of format 1, which did not tell the creations of a node apart
_UPGRADE_FROM_1 = (
    "ALTER TABLE node ADD COLUMN created INTEGER NOT NULL DEFAULT 0",
    *_CHANGE_TABLE,
    f"PRAGMA user_version = {_SCHEMA_VERSION}",
)
#: maximum number of calls in one transaction, which bounds the time that the first of them waits
_GROUP_MAX = 1000
#: a broker that is stopping may hold the lock of the file a moment longer
_LOCK_WAIT_SECONDS = 0.2


class EmbeddedStore:
    """A MetadataStore in a SQLite file that only this process has open. Its session is established until ``close``."""

    #: because all writers of the file share this object
    watches_are_immediate = True

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata")
        self._watches: list[_Watch] = []
        #: jobs of the next transaction
        self._waiting: list[_Job] = []
        #: a transaction is running or about to start
        self._busy = False
        self._closed = False

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> EmbeddedStore:
        """Open the file, or create it. Needs no event loop. Raise UnusableStore if the file cannot be used."""
        return cls(_open_connection(Path(path)))

    @property
    def session(self) -> Session:
        return Session(1, SessionState.EXPIRED if self._closed else SessionState.ESTABLISHED)

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        """Never call ``listener``: the session of this store does not change before ``close``."""
        return lambda: None

    async def heartbeat(self) -> None:
        await self._submit(lambda connection: None)

    async def get(self, path: str) -> Node | None:
        check_path(path)
        node: Node | None = await self._submit(partial(_get, path=path))
        return node

    async def children(self, path: str) -> tuple[str, ...]:
        check_prefix(path)
        names: tuple[str, ...] = await self._submit(partial(_children, path=path))
        return names

    async def load(self, prefix: str) -> dict[str, Node]:
        check_prefix(prefix)
        nodes: dict[str, Node] = await self._submit(partial(_load, prefix=prefix))
        return nodes

    async def multi(self, ops: Sequence[Op]) -> Written:
        check_ops(ops)
        applied: _Applied = await self._submit(partial(_multi, ops=tuple(ops)), writes=True)
        versions = [
            changed.node.version if changed is not None and changed.node is not None else None
            for changed in applied.changes
        ]
        return Written(applied.change, tuple(versions))

    async def watch(self, prefix: str, watcher: Watcher) -> None:
        check_prefix(prefix)
        await self._submit(partial(_load, prefix=prefix), watch=_Watch(prefix, watcher))

    async def close(self) -> None:
        if self._closed:
            return
        last = self._submit(_delete_ephemerals)
        self._closed = True
        try:
            await last
        finally:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
            self._thread.shutdown(wait=False)

    def _submit(self, work: _Work, *, writes: bool = False, watch: _Watch | None = None) -> asyncio.Future[Any]:
        if self._closed:
            raise StoreClosed
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future(), writes, watch)
        self._waiting.append(job)
        if not self._busy:
            self._busy = True
            # In the next iteration of the event loop, so that all calls of this iteration share the transaction.
            loop.call_soon(self._start_group)
        return job.future

    def _start_group(self) -> None:
        group, self._waiting = self._waiting[:_GROUP_MAX], self._waiting[_GROUP_MAX:]
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._thread, _run_group, self._connection, group)
        running.add_done_callback(partial(self._finish_group, group))

    def _finish_group(self, group: list[_Job], running: asyncio.Future[None]) -> None:
        # 1 schedule the watchers  2 complete the jobs  3 start the next group. Watchers and callers run after this
        # method, in the order in which it schedules them.
        defect = running.exception()
        changes: list[Changed] = []
        for job in group:
            job.error = job.error or defect
            if job.error is not None:
                continue
            if job.writes:
                changes += [changed for changed in job.result.changes if changed is not None]
            elif job.watch is not None:
                # The new watcher's first call includes these changes, so it must not get them a second time.
                self._notify_watchers(changes)
                changes = []
                self._watches.append(job.watch)
                job.watch.notify([Changed(path, node) for path, node in job.result.items()])
        self._notify_watchers(changes)
        for job in group:
            job.complete()
        if self._waiting:
            self._start_group()
        else:
            self._busy = False

    def _notify_watchers(self, changes: list[Changed]) -> None:
        for watch in self._watches:
            watch.notify(changes)


_Work = Callable[[sqlite3.Connection], Any]


class _Watch(NamedTuple):
    prefix: str
    watcher: Watcher

    def notify(self, changes: list[Changed]) -> None:
        relevant = [change for change in changes if is_below(self.prefix, change.path)]
        if relevant:
            # In an iteration of its own, so that a watcher that raises affects neither other watchers nor callers.
            asyncio.get_running_loop().call_soon(self.watcher, relevant)


class _Applied(NamedTuple):
    """The result of a multi in the thread: its number, and the change that each operation made, None for a Check."""

    change: int
    changes: list[Changed | None]


class _Job:
    """One call: the work to do in the thread, and the future of its caller."""

    __slots__ = ("error", "future", "result", "watch", "work", "writes")

    def __init__(self, work: _Work, future: asyncio.Future[Any], writes: bool, watch: _Watch | None) -> None:
        self.work = work
        self.future = future
        #: whether the result is an _Applied
        self.writes = writes
        #: the watcher whose first call gets the result, None if the job is no watch
        self.watch = watch
        self.result: Any = None
        self.error: BaseException | None = None

    def complete(self) -> None:
        if self.future.done():  # the caller was cancelled
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(None if self.watch else self.result)


def _open_connection(path: Path) -> sqlite3.Connection:
    with suppress(OSError):  # SQLite reports what is wrong
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))
    try:
        connection = sqlite3.connect(path, timeout=_LOCK_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _prepare(path, connection)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise _unusable(path, error) from error
    return connection


def _prepare(path: Path, connection: sqlite3.Connection) -> None:
    """Check the file, then set it up. Raise UnusableStore and leave the file unchanged if it is not a usable store."""
    execute = connection.execute
    execute("PRAGMA locking_mode = EXCLUSIVE")
    (application_id,) = execute("PRAGMA application_id").fetchone()
    (version,) = execute("PRAGMA user_version").fetchone()
    empty = execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None
    if not empty and application_id != _APPLICATION_ID:
        raise UnusableStore(f"{path} is a database of another program: move it away, or choose another data directory")
    if version > _SCHEMA_VERSION:
        raise UnusableStore(
            f"{path} was written by a newer Ottla (format {version}, this one knows {_SCHEMA_VERSION}): "
            "start the newer version again"
        )
    (finding,) = execute("PRAGMA integrity_check(1)").fetchone()
    if finding != "ok":
        raise _damaged(path, finding)
    if not empty:
        _check_schema(path, connection, version)
    if path.stat().st_mode & 0o077:
        # A file of an earlier version. By its path: SQLite would lose its locks if another descriptor was closed.
        path.chmod(_MODE)
    execute("PRAGMA journal_mode = WAL")
    execute("PRAGMA synchronous = FULL")
    execute("BEGIN IMMEDIATE")
    if empty or version < _SCHEMA_VERSION:
        for statement in _SCHEMA if empty else _UPGRADE_FROM_1:
            execute(statement)
    _delete_ephemerals(connection)
    execute("COMMIT")


def _check_schema(path: Path, connection: sqlite3.Connection, version: int) -> None:
    """Raise UnusableStore if a table is not ours, or a row holds values of other types than ours do."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not names >= {"node", "node_parent", *(("change",) if version > 1 else ())}:
        raise _damaged(path, "a table or an index is missing")
    columns = {"path": "text", "parent": "text", "value": "blob", "version": "integer", "ephemeral": "integer"}
    if version > 1:
        columns["created"] = "integer"
        rows = connection.execute("SELECT typeof(last) FROM change").fetchall()
        if rows != [("integer",)]:
            raise _damaged(path, "the number of changes is missing")
    differs = " OR ".join(f"typeof({column}) != '{kind}'" for column, kind in columns.items())
    (strange,) = connection.execute(f"SELECT count(*) FROM node WHERE {differs}").fetchone()
    if strange:
        raise _damaged(path, f"{strange} rows are of the wrong type")
    for _ in connection.execute("SELECT path, parent FROM node"):
        pass  # text that is not UTF-8 cannot be fetched


def _unusable(path: Path, error: sqlite3.Error) -> UnusableStore:
    # Errors of Python's own, such as text that is not UTF-8, have no code.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code == sqlite3.SQLITE_BUSY:
        return UnusableStore(f"{path} is in use: stop the other broker, or choose another data directory")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return _damaged(path, str(error))
    return UnusableStore(
        f"{path} cannot be opened ({error}): check that its directory exists, may be written and has free space"
    )


def _damaged(path: Path, finding: str) -> UnusableStore:
    return UnusableStore(
        f"{path} is damaged or no metadata store ({' '.join(finding.split())}): restore it from a backup, "
        "or start with another --data directory"
    )


def _run_group(connection: sqlite3.Connection, group: list[_Job]) -> None:
    """Run in the thread: do the work of every job in one transaction and set its result or its error."""
    try:
        connection.execute("BEGIN")
        for job in group:
            try:
                job.result = job.work(connection)
            except Conflict as conflict:
                job.error = conflict
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        # A full or failing disk aborts the whole transaction. No caller has got a result yet, so all get the error.
        for job in group:
            job.error = StoreError(f"the metadata store failed: {error}")
    finally:
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")


def _get(connection: sqlite3.Connection, path: str) -> Node | None:
    row = connection.execute("SELECT value, version, created FROM node WHERE path = ?", (path,)).fetchone()
    return Node(*row) if row else None


def _children(connection: sqlite3.Connection, path: str) -> tuple[str, ...]:
    rows = connection.execute("SELECT path FROM node WHERE parent = ? ORDER BY path", (path,))
    return tuple(child.rpartition("/")[2] for (child,) in rows)


def _load(connection: sqlite3.Connection, prefix: str) -> dict[str, Node]:
    # "0" is the character after "/", so the range contains every path that starts with the prefix and a slash.
    below = "" if prefix == ROOT else prefix
    rows = connection.execute(
        "SELECT path, value, version, created FROM node WHERE path = ? OR (path > ? AND path < ?) ORDER BY path",
        (prefix, below + "/", below + "0"),
    )
    return {path: Node(value, version, created) for path, value, version, created in rows}


def _multi(connection: sqlite3.Connection, ops: tuple[Op, ...]) -> _Applied:
    connection.execute("SAVEPOINT multi")
    try:
        connection.execute("UPDATE change SET last = last + 1")
        (change,) = connection.execute("SELECT last FROM change").fetchone()
        changes = [_apply(connection, op, change) for op in ops]
    except Conflict:
        connection.execute("ROLLBACK TO multi")
        connection.execute("RELEASE multi")
        raise
    connection.execute("RELEASE multi")
    return _Applied(change, changes)


def _apply(connection: sqlite3.Connection, op: Op, change: int) -> Changed | None:
    path = op.path
    if isinstance(op, Create):
        _apply_create(connection, op, change)
        return Changed(path, Node(op.value, 0, change))
    row = connection.execute("SELECT version, created FROM node WHERE path = ?", (path,)).fetchone()
    if row is None:
        raise NoNode(path)
    version, created = row
    if op.version not in (None, version):
        raise VersionConflict(path)
    if isinstance(op, Put):
        connection.execute("UPDATE node SET value = ?, version = version + 1 WHERE path = ?", (op.value, path))
        return Changed(path, Node(op.value, version + 1, created))
    if isinstance(op, Delete):
        if connection.execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
            raise NotEmpty(path)
        connection.execute("DELETE FROM node WHERE path = ?", (path,))
        return Changed(path, None)
    return None


def _apply_create(connection: sqlite3.Connection, op: Create, change: int) -> None:
    parent = parent_of(op.path)
    if parent != ROOT:
        row = connection.execute("SELECT ephemeral FROM node WHERE path = ?", (parent,)).fetchone()
        if row is None:
            raise NoNode(parent)
        if row[0]:
            raise EphemeralParent(parent)
    inserted = connection.execute(
        "INSERT OR IGNORE INTO node (path, parent, value, version, ephemeral, created) VALUES (?, ?, ?, 0, ?, ?)",
        (op.path, parent, op.value, op.ephemeral, change),
    )
    if not inserted.rowcount:
        raise NodeExists(op.path)


def _delete_ephemerals(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM node WHERE ephemeral")
