"""Small files on any file system that pyarrow can open: local disks, HDFS and object stores. No Spark.

A file that is replaced here is complete before it has its name, so that readers see the old file or the new one. A
local file is also synced before. In an object store a file appears when it is closed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from ottla.model.errors import OttlaError

#: file systems of pyarrow in which a file appears when it is closed
_OBJECT_STORES: Final = frozenset({"s3", "gcs", "abfs"})
#: Hadoop's names for what pyarrow calls otherwise
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}


class FileSystemUnusable(OttlaError):
    """pyarrow cannot open the file system of an address; the text says what to do."""


def open_filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URI, in Hadoop's form, and the path in it. Raise FileSystemUnusable."""
    scheme, colon, rest = uri.partition(":")
    if not colon or "/" in scheme:
        return fs.LocalFileSystem(), os.path.abspath(uri)
    if scheme == "file":
        return fs.LocalFileSystem(), "/" + rest.lstrip("/")
    try:
        filesystem, path = fs.FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}:{rest}")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise FileSystemUnusable(_cannot_open(uri, scheme, str(error))) from None
    return filesystem, path


def _cannot_open(uri: str, scheme: str, error: str) -> str:
    """Return one sentence with the cause and the remedy. Arrow lists all places where it has looked for a library."""
    if scheme in ("hdfs", "viewfs") and "lib" in error:
        return (
            f"pyarrow cannot open {uri}, because it does not find the libraries libjvm and libhdfs of Java and Hadoop: "
            "set JAVA_HOME, HADOOP_HOME (or ARROW_LIBHDFS_DIR) and CLASSPATH (to the output of "
            "'hadoop classpath --glob')"
        )
    cause = error.strip().partition("\n")[0].rstrip(".")
    return (
        f"pyarrow cannot open {uri}: {cause}. Use a directory that it can open (a path, s3://, hdfs://, gs://, abfs://)"
    )


def is_local(uri: str) -> bool:
    """Return whether another host may see other files at this place."""
    scheme, colon, _ = uri.partition(":")
    return not colon or "/" in scheme or scheme == "file"


def read_file(uri: str) -> bytes | None:
    """Return the content of a file; None if it does not exist."""
    filesystem, path = open_filesystem(uri)
    try:
        with filesystem.open_input_stream(path, compression=None) as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def list_names(uri: str) -> list[str]:
    """Return the names in a directory; none if it does not exist."""
    filesystem, path = open_filesystem(uri)
    return [info.base_name for info in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))]


def replace_file(uri: str, data: bytes) -> None:
    """Write a file, in place of one that exists."""
    filesystem, path = open_filesystem(uri)
    if not isinstance(filesystem, fs.LocalFileSystem):
        written = path
        if filesystem.type_name not in _OBJECT_STORES:
            filesystem.create_dir(os.path.dirname(path), recursive=True)
            written = _draft_name(path)
        with filesystem.open_output_stream(written) as stream:
            stream.write(data)
        if written != path:
            filesystem.move(written, path)
        return
    os.replace(_write_draft(path, data), path)
    sync_files([os.path.dirname(path)])


def delete_file(uri: str) -> None:
    """Delete a file if that is possible."""
    filesystem, path = open_filesystem(uri)
    with suppress(OSError):
        filesystem.delete_file(path)


def create_exclusively(uri: str, data: bytes) -> bool:
    """Create a local file. Return False if it exists; it is then unchanged."""
    _, path = open_filesystem(uri)
    draft = _write_draft(path, data)
    try:
        os.link(draft, path)  # unlike rename, link does not replace a file
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
    sync_files([os.path.dirname(path)])
    return True


def sync_files(paths: Iterable[str]) -> None:
    """Sync local files and the directories that they are in. Files that were deleted meanwhile are left out."""
    paths = list(paths)
    for path in (*paths, *sorted({os.path.dirname(path) for path in paths})):
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _write_draft(path: str, data: bytes) -> str:
    """Write a synced file beside the path and return its name."""
    draft = _draft_name(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return draft


def _draft_name(path: str) -> str:
    directory, name = os.path.split(path)
    return f"{directory}/.{name}.{uuid4().hex}"
