"""What a micro-batch was made of: the offsets that Spark has written down before it runs the batch.

Spark replays the last batch and no other, and makes it of the same offsets. A sink that has a batch already compares
them: if they differ, the checkpoint is one from another time, and to skip the batch would lose its rows.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress

from pyarrow import fs

from ottla.spark.staging import StagingError, open_filesystem

#: lines of a file of Spark's offset log before those of the sources: version, metadata
_HEADER_LINES = 2


def read_source_offsets(checkpoint_location: str | None, batch_id: int) -> str | None:
    """What Spark has planned to read for a batch, None when its checkpoint is out of reach."""
    if checkpoint_location is None:
        return None
    with suppress(OSError, StagingError):
        filesystem, path = open_filesystem(f"{checkpoint_location.rstrip('/')}/offsets/{batch_id}")
        with filesystem.open_input_stream(path) as stream:
            lines = bytes(stream.read()).decode().splitlines()
        return "\n".join(lines[_HEADER_LINES:])
    return None


def batch_ids(directory: str) -> list[int]:
    """Return the ids of the batches in a log of a checkpoint (`offsets`, `commits`), ascending; none without a log."""
    filesystem, path = open_filesystem(directory)
    found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return sorted(int(info.base_name) for info in found if info.base_name.isdecimal())


def offsets_digest(source_offsets: str) -> str:
    """A short name for the source offsets of a batch."""
    return hashlib.sha256(source_offsets.encode()).hexdigest()[:24]
