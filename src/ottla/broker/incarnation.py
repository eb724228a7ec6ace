"""Whether the data directories are those of this broker's last run.

Each run has a random number, its incarnation. It is in the metadata store and in a file of every data directory. A
directory that does not have the number of the last run was wiped, is new, or is an older copy: its logs may lack
records that this broker had acknowledged. The file also has the number of the run that is about to begin, because a
broker may be killed after it wrote the number to the store and before it wrote it to the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from ottla.env.disk import Disk

FILE_NAME = "incarnation.json"


def read_incarnations(disk: Disk, directory: str) -> tuple[str, ...]:
    """Return the incarnations in the file of a directory; none if the file is missing or damaged."""
    data = disk.read_file(os.path.join(directory, FILE_NAME))
    try:
        found = json.loads(data or b"{}")
        return tuple(str(found[name]) for name in ("current", "next") if found.get(name))
    except (ValueError, AttributeError):
        return ()


def write_incarnations(disk: Disk, directories: Sequence[str], current: str, next_run: str = "") -> None:
    """Write the file of each directory, and sync it."""
    data = json.dumps({"version": 1, "current": current, "next": next_run}).encode()
    for directory in directories:
        disk.write_file(os.path.join(directory, FILE_NAME), data, sync=True)


def is_of_last_run(known: Sequence[str], last: bytes | None) -> bool:
    """Return whether a directory with the incarnations ``known`` is that of the last run in the metadata store."""
    return last is None or last.hex() in known
