"""Failures of flows: which of them another attempt cannot repair, and how they are shown in one line."""

from __future__ import annotations

import re
from typing import Final

from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException

from ottla.model.errors import OttlaError
from ottla.pipeline.exactly_once import WatermarkMissing
from ottla.pipeline.plan import EXPECTATION_FAILED, FunctionRefused, QueryNeverGrows, QueryRefused
from ottla.pipeline.table_fit import in_pipeline_words
from ottla.spark.batch_manifest import TableWasReplaced
from ottla.spark.commit_errors import CheckpointMismatch
from ottla.spark.spark_internals import java_errors
from ottla.spark.table_commit import BatchMismatch
from ottla.spark.table_schema import SchemaMismatch
from ottla.spark.wire_format import SchemaRefused

#: exceptions of Spark, of tables, of Ottla and of the operating system, whose messages are sentences
FAILURES: Final[tuple[type[Exception], ...]] = (PySparkException, *java_errors(), DeltaError, OttlaError, OSError)
_FINAL: Final = (QueryRefused, FunctionRefused, QueryNeverGrows, SchemaRefused)
#: final errors that are raised while a batch is written: Spark passes on their text and the name of their class only
_FINAL_IN_BATCHES: Final = (BatchMismatch, CheckpointMismatch, TableWasReplaced, WatermarkMissing, SchemaMismatch)
_FINAL_TEXTS: Final = (EXPECTATION_FAILED, *(each.__name__ for each in _FINAL_IN_BATCHES))


def is_final(error: BaseException) -> bool:
    """Return whether another attempt can only fail in the same way."""
    return isinstance(error, _FINAL) or any(text in str(error) for text in _FINAL_TEXTS)


def describe_failure(error: BaseException) -> str:
    """Return the message of a failure as one line. Spark wraps it in other messages and in stack traces."""
    text = in_pipeline_words(str(error))
    if EXPECTATION_FAILED in text:
        return text[text.index(EXPECTATION_FAILED) :].splitlines()[0].partition(" SQLSTATE")[0].strip("'\" .")
    # The message of an exception of Ottla is a sentence; other exceptions need their names.
    own = re.findall(r"^(?:Caused by: )?ottla(?:\.\w+)+: (.+)$", text, re.M)
    raised = re.findall(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt): .+)$", text, re.M)
    # The first line of a Java exception names the call, the second line the error.
    java = re.findall(r"^: (.+)$", text, re.M)
    name = "" if isinstance(error, FAILURES) else f"{type(error).__name__}: "
    lines = [f"{name}{line}" for line in text.splitlines()]
    line: str = [*own[-1:], *raised[-1:], *java, *lines, type(error).__name__][0]
    return line.partition("terminated with exception: ")[2] or line
