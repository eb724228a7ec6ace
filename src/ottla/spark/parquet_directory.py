"""A directory of Parquet files instead of a table: for those who read files and nothing else. At least once.

Tasks write below ``_staging``, which Spark and other readers pass over; the driver moves the files to their places
when all tasks are done. A driver that dies while it moves leaves part of a batch visible, and the batch comes again:
rows may be there twice. Readers of a Delta table never see that.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pyarrow import fs

from ottla.spark.table_files import DataFile
from ottla.spark.table_location import TableLocation

STAGING = "_staging/"


def publish(location: TableLocation, files: Sequence[DataFile], *, overwrite: bool) -> None:
    """Move staged files to where readers look; with ``overwrite``, instead of all that was there."""
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
