"""What a micro-batch was made of: the offsets that Spark has written down before it runs the batch.

Spark replays the last batch and no other, and makes it of the same offsets. A sink that has a batch already compares
them: if they differ, the checkpoint is one from another time, and to skip the batch would lose its rows. A sink that
cannot read them therefore writes nothing (``OffsetsUnreadable``): it could not tell the two cases apart.

The file of a batch has its end offsets. The start offsets are the end offsets of the batch before, and need not be
compared: batches follow each other without a gap, so a sink that has a batch has all rows up to the end of it, wherever
the batches before began and ended. A batch with the same number and the same end can be skipped although it was planned
with another start. A batch without rows is not compared, because the sink has no trace of it. So the first batch with
rows after it is written only if the last committed batch is the same one in the checkpoint. Batch 0 begins where the
source began; another beginning needs a new checkpoint, which has another query id, and so another name in the sink.
"""

from __future__ import annotations

import hashlib

from ottla.model.errors import OttlaError
from ottla.spark.stored_files import FileSystemUnusable, list_names, read_file

#: lines of a file of Spark's offset log before those of the sources: version, metadata
HEADER_LINES = 2
#: for errors about a batch that was written without a digest
DIGEST_HINT = (
    "has no digest or another number of rows (if only the query has changed, set ottla.batch.digest with "
    "ottla.spark.foreach_batch.batch_options), "
)


class OffsetsUnreadable(OttlaError):
    """The sink of a stream cannot read the offsets that Spark has planned for a batch; the text says what to do."""

    def __init__(self, batch_id: int, checkpoint_location: str | None, cause: str) -> None:
        where = f" in {checkpoint_location}" if checkpoint_location else ""
        super().__init__(
            f"the source offsets of batch {batch_id} cannot be read{where}: {cause}. Without them, another batch with "
            "this number would be taken for a repeated one and its rows would be skipped, so nothing was written. Set "
            "the option checkpointLocation of writeStream to a complete address that pyarrow can open from the driver "
            "(a local path, s3://, gs://, abfs://, or hdfs:// with libhdfs). With any other checkpoint, write inside "
            "of foreachBatch with the options of ottla.spark.foreach_batch.batch_options"
        )


def read_source_offsets(checkpoint_location: str | None, batch_id: int) -> str:
    """Return the offsets that Spark has planned to read for a batch. Raise OffsetsUnreadable if that fails."""
    if checkpoint_location is None:
        cause = "the option is not set, and a sink does not see the setting spark.sql.streaming.checkpointLocation"
        raise OffsetsUnreadable(batch_id, None, cause)
    try:
        lines = read_offset_lines(checkpoint_location, batch_id)
    except (OSError, FileSystemUnusable, UnicodeDecodeError) as error:
        raise OffsetsUnreadable(batch_id, checkpoint_location, str(error).rstrip(".")) from error
    if lines is None:
        cause = f"offsets/{batch_id} does not exist"
        if "://" not in checkpoint_location:
            cause += " on the driver's local disk (a path without a scheme may belong to Hadoop's fs.defaultFS)"
        raise OffsetsUnreadable(batch_id, checkpoint_location, cause)
    if len(lines) <= HEADER_LINES:
        raise OffsetsUnreadable(batch_id, checkpoint_location, f"offsets/{batch_id} is incomplete")
    return "\n".join(lines[HEADER_LINES:])


def read_offset_lines(checkpoint_location: str, batch_id: int) -> list[str] | None:
    """Return the lines of a file of Spark's offset log: version, metadata, one for each source. None without the file.

    The metadata is JSON, with the watermark that the batch began with and settings that the checkpoint fixes.
    """
    data = read_file(f"{checkpoint_location.rstrip('/')}/offsets/{batch_id}")
    # Not splitlines(): it also splits at U+2028 and U+0085, which JSON may contain inside of a text.
    return None if data is None else data.decode().split("\n")


def read_earlier_offsets(checkpoint_location: str, batch_id: int) -> str | None:
    """Return the offsets of a batch before the current one; None if Spark has deleted them. Raise OffsetsUnreadable."""
    if batch_id not in batch_ids(f"{checkpoint_location.rstrip('/')}/offsets"):
        return None
    return read_source_offsets(checkpoint_location, batch_id)


def batch_ids(directory: str) -> list[int]:
    """Return the ids of the batches in a log of a checkpoint (`offsets`, `commits`), ascending; none without a log."""
    return sorted(int(name) for name in list_names(directory) if name.isdecimal())


def offsets_digest(source_offsets: str) -> str:
    """Return a short digest of the source offsets of a batch."""
    return hashlib.sha256(source_offsets.encode()).hexdigest()[:24]
