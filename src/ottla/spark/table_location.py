"""The location of a table: its files are opened with pyarrow, its log with deltalake."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyarrow import fs

from ottla.model.errors import OttlaError


class TableMissing(OttlaError):
    """There is no table at an address."""

    def __init__(self, location: TableLocation) -> None:
        super().__init__(f"there is no table at {location.uri}: check the path, or write to it first, which makes one")


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A local directory or an address in an object store. Spark pickles it for the tasks."""

    uri: str
    storage: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def at(cls, path: str, storage: Mapping[str, str] | None = None) -> Self:
        """Return the location of a path in any of the forms that users write."""
        parts = urlsplit(path)
        if parts.scheme == "file":
            path = unquote(parts.path)
        if is_local(path):
            path = os.path.abspath(os.path.expanduser(path))
        return cls(path.rstrip("/"), dict(storage or {}))

    @property
    def local(self) -> bool:
        return is_local(self.uri)

    def files(self) -> fs.FileSystem:
        """Return a filesystem whose root is the directory of the table."""
        if self.local:
            return fs.SubTreeFileSystem(self.uri, fs.LocalFileSystem())
        # deltalake's access to object stores, so that files and log have the same storage options.
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.uri, dict(self.storage)))

    def make_directory_for(self, path: str) -> None:
        """Create the directory of a file on a local disk. Object stores have no directories."""
        if self.local:
            os.makedirs(os.path.dirname(os.path.join(self.uri, path)), exist_ok=True)

    def exists(self) -> bool:
        return DeltaTable.is_deltatable(self.uri, dict(self.storage) or None)

    def table(self, version: int | None = None) -> DeltaTable:
        try:
            return DeltaTable(self.uri, version=version, storage_options=dict(self.storage) or None)
        except TableNotFoundError:
            raise TableMissing(self) from None


def is_local(path: str) -> bool:
    return "://" not in path
