"""Staged batches: tasks encode them, and the driver sends them.

The batches of a task are in its commit message if they are small, otherwise in a file:

    <staging directory>/<owner>/<number>-<uuid>.batches

The owner is a query and the number its batch id; for batch jobs, the owner is `jobs` and the number the second in which
the file was created. A file is read only through the message that names it. Files of failed attempts, tasks and drivers
are never read, and `sweep` deletes them. The directory is local or any that pyarrow can open: hdfs://, s3://, gs://,
abfs://.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from ottla.model.batch import HEADER_BYTES, checksum, read_header
from ottla.model.types import TopicPartition
from ottla.spark.stored_files import delete_file, open_filesystem

#: the owner of the files of batch jobs
JOBS = "jobs"
SUFFIX = ".batches"
#: the largest message of a task without a directory that the driver can read as well
MESSAGE_BYTES_MAX = 128 << 20

#: the share of the first task in the bytes that all messages of a job have together; the n-th task has 1/n of it
_FIRST_SHARE_BYTES = 32 << 20
_READ_BUFFER_BYTES = 4 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StagingError(Exception):
    """Staged batches cannot be written or read; the text says what to do."""


class StagedBatch(NamedTuple):
    """The position of one record batch in the bytes of a task."""

    partition: TopicPartition
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The batches of one task, in the order in which the driver sends them."""

    batches: tuple[StagedBatch, ...] = ()
    rows: int = 0
    #: the bytes, when they are not in a file
    data: bytes = b""
    file: str | None = None

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.batches)


def inline_share(task_number: int, inline_bytes_max: int) -> int:
    """Return how many bytes the task of this number, counted from 0, may put into its message.

    The driver holds the messages of all tasks, and Spark fails a job whose messages exceed spark.driver.maxResultSize
    (1 GiB by default); so would each repetition of the batch. A task does not know how many others there are, but it
    knows its own number: with shares of 1/n, 256 tasks have 143 MiB together and 100,000 tasks 334 MiB.
    """
    return min(inline_bytes_max, _FIRST_SHARE_BYTES // (task_number + 1))


class StagingWriter:
    """Stages the batches of a task in its message, and beyond ``inline_bytes_max`` in ``file``, if there is one."""

    def __init__(self, file: str | None, *, inline_bytes_max: int) -> None:
        self._file = file
        self._inline_bytes_max = inline_bytes_max if file is not None else MESSAGE_BYTES_MAX
        self._inline: list[bytes] = []
        self._stream: pa.NativeFile | None = None
        self._batches: list[StagedBatch] = []
        self._size_bytes = 0
        self._rows = 0

    def add(self, partition: TopicPartition, batch: bytes, rows: int) -> None:
        """Stage one encoded batch."""
        self._batches.append(StagedBatch(partition, self._size_bytes, len(batch)))
        self._size_bytes += len(batch)
        self._rows += rows
        if self._stream is not None:
            self._stream.write(batch)
            return
        self._inline.append(batch)
        if self._size_bytes > self._inline_bytes_max:
            self._spill()

    def finish(self) -> Staged:
        """Return the message for the driver. The file is complete and closed."""
        if self._stream is None:
            return Staged(batches=tuple(self._batches), rows=self._rows, data=b"".join(self._inline))
        self._stream.close()
        return Staged(batches=tuple(self._batches), rows=self._rows, file=self._file)

    def discard(self) -> None:
        """Delete the staged bytes of a task that has failed."""
        if self._stream is not None:
            self._stream.close()
            assert self._file is not None
            delete_file(self._file)

    def _spill(self) -> None:
        if self._file is None:
            raise StagingError(
                f"a task has more than {MESSAGE_BYTES_MAX >> 20} MiB to write, and no directory that the driver sees "
                "too: set option stagingDir to a shared directory (s3://, hdfs://, a mounted path), or use more and "
                "smaller partitions"
            )
        filesystem, path = open_filesystem(self._file)
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        self._stream = filesystem.open_output_stream(path)
        for data in self._inline:
            self._stream.write(data)
        self._inline.clear()


def read_batches(staged: Staged) -> Iterator[tuple[TopicPartition, bytearray]]:
    """Yield the staged batches in order. Raise if one is damaged, because the producer computes new checksums."""
    if staged.file is None:
        view = memoryview(staged.data)
        for batch in staged.batches:
            data = bytearray(view[batch.position : batch.position + batch.size_bytes])
            _verify(data, batch, "the commit message")
            yield batch.partition, data
        return
    filesystem, path = open_filesystem(staged.file)
    try:
        stream = filesystem.open_input_stream(path, compression=None, buffer_size=_READ_BUFFER_BYTES)
    except FileNotFoundError:
        raise StagingError(
            f"staged batches {staged.file} are not there: the driver has to see the directory that tasks write to. "
            "Set option stagingDir to a shared one"
        ) from None
    with stream:
        for batch in staged.batches:
            data = bytearray(batch.size_bytes)
            if stream.readinto(data) != batch.size_bytes:
                raise StagingError(f"{staged.file} ends in the middle of a batch: start the query again")
            _verify(data, batch, staged.file)
            yield batch.partition, data


def delete_staged(staged: Iterable[Staged]) -> None:
    """Delete the files. `sweep` deletes those that cannot be deleted now."""
    for task in staged:
        if task.file is not None:
            delete_file(task.file)


def staging_file(directory: str, owner: str, number: int) -> str:
    """Return the name of a new file."""
    return f"{directory.rstrip('/')}/{quote(owner, safe='')}/{number}-{uuid4().hex}{SUFFIX}"


def sweep(directory: str, owner: str, number_max: int) -> int:
    """Delete the files of this owner up to this number, and return how many there were."""
    filesystem, path = open_filesystem(f"{directory.rstrip('/')}/{quote(owner, safe='')}")
    removed = 0
    with suppress(OSError):
        for info in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)):
            number, _, _ = info.base_name.partition("-")
            if info.base_name.endswith(SUFFIX) and number.isdigit() and int(number) <= number_max:
                filesystem.delete_file(info.path)
                removed += 1
    return removed


def this_host() -> str:
    """Return a text that is equal in all processes that see the same local files; containers differ in host names."""
    boot_id = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
    return f"{socket.gethostname()} {boot_id}".strip()


def _verify(data: bytearray, batch: StagedBatch, place: str) -> None:
    header = read_header(data) if batch.size_bytes >= HEADER_BYTES else None
    if header is None or header.size_bytes != batch.size_bytes or header.crc != checksum(data):
        raise StagingError(f"the batch at byte {batch.position} of {place} is damaged: start the query again")
