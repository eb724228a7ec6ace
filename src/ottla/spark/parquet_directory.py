"""A directory of Parquet files instead of a table, for programs that read only files. At least once.

Tasks write below ``_staging``, which Spark and other readers ignore. The driver moves the files to their places when
all tasks have ended. If the driver crashes meanwhile, a part of the batch is visible and the batch is repeated, so that
rows can be there twice. A Delta table does not have this problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pyarrow import fs

from ottla.spark.table_files import DataFile
from ottla.spark.table_location import TableLocation

STAGING = "_staging/"


def publish(location: TableLocation, files: Sequence[DataFile], *, overwrite: bool) -> None:
    """Move staged files to their places; with ``overwrite``, delete all files that were there."""
    root = location.files()
    before = _visible(root) if overwrite else []
    for file in files:
        target = file.path.removeprefix(STAGING)
        location.make_directory_for(target)
        root.move(file.path, target)
    for path in before:
        with suppress(FileNotFoundError):
            root.delete_file(path)


def _visible(root: fs.FileSystem) -> list[str]:
    found = root.get_file_info(fs.FileSelector("", recursive=True, allow_not_found=True))
    return [
        info.path
        for info in found
        if info.type == fs.FileType.File
        and info.path.endswith(".parquet")
        and not any(part.startswith(("_", ".")) for part in info.path.split("/"))
    ]
