"""The manifest of a micro-batch: the versions of the tables that it reads beside its streams.

A stream can join a table. Spark computes a batch once for each output, and again after a crash; by then the table may
have a newer version, and a row of the batch could end up in two outputs or in none. Therefore the first task that reads
such a table in a batch decides the versions for the whole batch:

    CHECKPOINT/ottla-manifests/BATCH.json   {"batch": 7, "reads": {"/lake/refined/rates": {"table": ID, "version": 41}}}

The file is synced, and created only if no other process has created it. Every later read of the batch uses it. Tasks
decide, because they know the number of their batch. Spark asks a Python source for its partitions only once in the life
of a query: a version that is chosen there would be used for all batches of a run.

On a local disk exactly one process wins. Object stores cannot create a file exclusively through pyarrow. There, only
the task that reads the first part of a table decides, and the others wait for the file. Of two drivers that run at the
same time, the manifest of one may still replace the other's. Their batches then have different digests, so that an
output which has the batch of one refuses the batch of the other.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from ottla.model.errors import OttlaError
from ottla.spark.source_offsets import batch_ids
from ottla.spark.stored_files import create_exclusively, delete_file, is_local, list_names, read_file, replace_file
from ottla.spark.table_location import TableLocation

DIRECTORY = "ottla-manifests"
#: like Spark's minBatchesToRetain
_KEPT = 100
_DELETE_EVERY = 20
#: a task waits so long for the decision of another task
_WAIT_S_MAX = 120.0
_WAIT_STEP_S = 0.1


class TableWasReplaced(OttlaError):
    """The table that a batch has begun to read was deleted and created again."""


class NoDecision(OttlaError):
    """The task that decides the versions of a batch has not done so in time."""


class TableRead(NamedTuple):
    """A version of a table."""

    table_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The versions that one batch reads, by the table's address."""

    batch_id: int
    reads: Mapping[str, TableRead] = field(default_factory=dict)

    def to_json(self) -> bytes:
        reads = {uri: {"table": read.table_id, "version": read.version} for uri, read in sorted(self.reads.items())}
        return json.dumps({"batch": self.batch_id, "reads": reads}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        document = json.loads(data)
        reads = {uri: TableRead(read["table"], read["version"]) for uri, read in document["reads"].items()}
        return cls(batch_id=document["batch"], reads=reads)


class ManifestFiles:
    """The manifests in the checkpoint of one query."""

    def __init__(self, checkpoint_location: str) -> None:
        self._checkpoint = checkpoint_location.rstrip("/")

    def decide(self, batch_id: int, tables: Sequence[TableLocation]) -> Manifest:
        """Return the batch's manifest. Create it from the current versions of ``tables`` if there is none."""
        found = self._read(batch_id)
        if found is None:
            reads = {location.uri: _current(location) for location in tables}
            self._create(Manifest(batch_id=batch_id, reads=reads))
            found = self._read(batch_id)
            assert found is not None, "the manifest was just created, by this process or by another"
            if batch_id % _DELETE_EVERY == 0:
                self._delete_before(batch_id - _KEPT)
        missing = [location.uri for location in tables if location.uri not in found.reads]
        if missing:
            # The flow reads a table that it did not read when the batch was first planned. The manifest stays as it is:
            # the digest of the flow has changed too, so an output that has the batch refuses it.
            reads = {uri: _current(TableLocation.at(uri)) for uri in missing}
            return Manifest(batch_id=batch_id, reads={**found.reads, **reads})
        return found

    def await_decision(self, batch_id: int, tables: Sequence[TableLocation]) -> Manifest:
        """Return the batch's manifest when it exists. Raise NoDecision if it does not within two minutes."""
        deadline = time.monotonic() + _WAIT_S_MAX
        while not is_local(self._checkpoint) and self._read(batch_id) is None:
            if time.monotonic() > deadline:
                raise NoDecision(f"no task has created {self._path(batch_id)} within {_WAIT_S_MAX:.0f} s")
            time.sleep(_WAIT_STEP_S)
        return self.decide(batch_id, tables)

    def newest(self) -> Manifest | None:
        """Return the manifest of the last batch that has one. Raise ValueError, KeyError or TypeError if damaged."""
        numbers = self._numbers()
        return self._read(numbers[-1]) if numbers else None

    def _numbers(self) -> list[int]:
        """Return the batches that have a manifest, ascending."""
        names = (name.removesuffix(".json") for name in list_names(f"{self._checkpoint}/{DIRECTORY}"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _path(self, batch_id: int) -> str:
        return f"{self._checkpoint}/{DIRECTORY}/{batch_id}.json"

    def _read(self, batch_id: int) -> Manifest | None:
        data = read_file(self._path(batch_id))
        return None if data is None else Manifest.from_json(data)

    def _create(self, manifest: Manifest) -> None:
        create = create_exclusively if is_local(self._checkpoint) else replace_file
        create(self._path(manifest.batch_id), manifest.to_json())

    def _delete_before(self, batch_id: int) -> None:
        with suppress(OSError):
            for number in self._numbers():
                if number < batch_id:
                    delete_file(self._path(number))


def last_planned_batch(checkpoint_location: str) -> int:
    """Return the number of the last batch in Spark's offset log, which Spark writes before it plans the batch."""
    return max(batch_ids(f"{checkpoint_location.rstrip('/')}/offsets"), default=0)


def pinned_version(
    checkpoint_location: str,
    tables: Sequence[str],
    location: TableLocation,
    batch_id: int | None = None,
    *,
    decides: bool = True,
) -> int:
    """Return the version of ``location`` for a batch. Raise TableWasReplaced.

    Without ``batch_id`` it is the last batch in the offset log. A reader that does not decide waits for one that does,
    if the checkpoint is on a file system that cannot create files exclusively.
    """
    if batch_id is None:
        batch_id = last_planned_batch(checkpoint_location)
    files = ManifestFiles(checkpoint_location)
    manifest = (files.decide if decides else files.await_decision)(batch_id, [TableLocation.at(uri) for uri in tables])
    read = manifest.reads[location.uri]
    if _current(location).table_id != read.table_id:
        raise TableWasReplaced(
            f"batch {manifest.batch_id} has begun to read version {read.version} of the table {location.uri}, and the "
            "table was deleted and created again since. Restore the table, or start with a new checkpoint"
        )
    return read.version


def batch_digest(*parts: object) -> str:
    """Return a short digest of everything that a batch was made of: equal for equal parts, in any process."""
    text = json.dumps(parts, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _plain(value: object) -> object:
    if isinstance(value, Manifest):
        return json.loads(value.to_json())
    raise TypeError(f"{type(value).__name__} has no canonical form")


def _current(location: TableLocation) -> TableRead:
    table = location.table()
    return TableRead(str(table.metadata().id), table.version())
