"""The directories of a pipeline: tables by zone, side outputs, checkpoints, the status file.

storage/raw|staging|trusted|refined/TABLE      storage/quarantine|late/TABLE
storage/_status/PIPELINE.json                  storage/_backfill/...   while one is under way
checkpoints/PIPELINE/FLOW-vVERSION
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ottla.pipeline.declaration import Declaration, Flow, PartitionColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Absolute paths, or addresses of an object store."""

    pipeline: str
    storage: str
    checkpoints: str

    @classmethod
    def of(cls, declaration: Declaration) -> Self:
        return cls(
            pipeline=declaration.name,
            storage=resolve(declaration, declaration.storage),
            checkpoints=resolve(declaration, declaration.checkpoints),
        )

    def table(self, directory: str, name: str) -> str:
        """Return the path of a table in a zone, in `quarantine` or in `late`."""
        return f"{self.storage}/{directory}/{name}"

    def checkpoint(self, flow: Flow) -> str:
        return f"{self.checkpoints}/{self.pipeline}/{flow.name}-v{flow.version}"

    @property
    def status(self) -> str:
        return f"{self.storage}/_status"

    def scratch(self, run: str) -> Layout:
        """Return the layout of a backfill, whose rows are invisible to readers until it has ended."""
        place = f"{self.storage}/_backfill/{run}"
        return Layout(pipeline=self.pipeline, storage=place, checkpoints=f"{place}/_checkpoints")


def resolve(declaration: Declaration, path: str) -> str:
    """Return the absolute path, or the address, of a path in a declaration, which is relative to its file."""
    if "://" in path:
        return path.rstrip("/")
    return str((Path(declaration.file).parent / Path(path).expanduser()).resolve())


def partition_name(partition: PartitionColumn) -> str:
    """Return the name of a partition column; a part of a time has a column of its own."""
    return partition.column if partition.part is None else f"_{partition.part}_{partition.column}"
