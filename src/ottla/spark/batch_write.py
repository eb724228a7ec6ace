"""Write the rows of a batch with one of our writers, from the process that runs foreachBatch.

``DataFrame.write.format(...)`` needs three more Python processes: one creates the data source, one plans the write, one
commits it. Flows that run side by side need these processes each. Here the writer is made and commits in this process,
and its tasks run in the workers that Spark has for reading anyway (``mapInArrow``).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceArrowWriter, WriterCommitMessage

_MESSAGE: Final = pa.schema([("message", pa.binary())])


def write_batch(
    rows: DataFrame, source: type[DataSource], options: Mapping[str, str], *, overwrite: bool = False
) -> None:
    """Write all rows or none, as ``rows.write.format(...).options(...).save()`` does."""
    data_source = source(CaseInsensitiveDict(options))
    writer = data_source.writer(rows.schema, overwrite)
    assert isinstance(writer, DataSourceArrowWriter), f"{source.name()} has no writer for Arrow's batches"
    pickled = rows.mapInArrow(_Task(writer), "message BINARY").collect()
    # These bytes come from tasks of this job, as those of Spark's own commit messages do.
    messages: list[WriterCommitMessage | None] = [pickle.loads(row[0]) for row in pickled]  # noqa: S301
    try:
        writer.commit(messages)
    except BaseException:
        writer.abort(messages)
        raise


class _Task:
    """Writes the rows of one partition and yields the message of the writer. Spark pickles it for the tasks."""

    def __init__(self, writer: DataSourceArrowWriter) -> None:
        self._writer = writer

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        message = pickle.dumps(self._writer.write(iter(batches)))
        yield pa.RecordBatch.from_arrays([pa.array([message])], schema=_MESSAGE)
