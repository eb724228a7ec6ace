"""The JSON files that tools of Kafka read: partitions with offsets, elections and reassignments."""

from __future__ import annotations

import json
from typing import Any

from ottla.cli.kafka.errors import ToolError
from ottla.model.types import TopicPartition


class InvalidData(ToolError):
    """The file is not what the tool expects."""

    java_class = "org.apache.kafka.server.common.AdminOperationException"


def parse(text: str) -> Any:
    """Return the value of a JSON text, None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def partition_of(row: Any) -> TopicPartition:
    """Return the partition that an object names. Raise ToolError."""
    return TopicPartition(field(row, "topic", str), field(row, "partition", int))


def field(row: Any, name: str, kind: type) -> Any:
    """Return a field of an object. Raise ToolError if it is missing or of another type."""
    if not isinstance(row, dict):
        raise ToolError(f"Expected JSON object, received {json.dumps(row)}")
    if name not in row:
        raise ToolError(f"No such field exists: `{name}`")
    value = row[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        noun = {str: "String", int: "Integer", list: "iterable"}[kind]
        raise ToolError(f"Expected `{noun}` value, received {json.dumps(value)}")
    return value


def partition_rows(data: Any, missing: str) -> list[Any]:
    """Return the list `partitions` of an object. Raise InvalidData with this text if there is none."""
    if not isinstance(data, dict):
        raise ToolError(f"Expected JSON object, received {json.dumps(data)}")
    if "partitions" not in data:
        raise InvalidData(missing)
    rows: list[Any] = field(data, "partitions", list)
    return rows


def offset_rows(text: str) -> list[tuple[TopicPartition, int]]:
    """Return the partitions and offsets of a file for kafka-delete-records. Raise ToolError."""
    data = parse(text)
    if data is None:
        raise InvalidData("The input string is not a valid JSON")
    version = data.get("version", 1) if isinstance(data, dict) else 1
    if version != 1:
        raise InvalidData(f"Not supported version field value {version}")
    rows = partition_rows(data, "Missing partitions field")
    return [(partition_of(row), field(row, "offset", int)) for row in rows]
