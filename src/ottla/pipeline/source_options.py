"""Options of `format("ottla")` for the sources of a pipeline. Pure."""

from __future__ import annotations

import json
from datetime import datetime

from ottla.pipeline.declaration import Declaration, Source
from ottla.spark.registry_schemas import PREFIX


def cluster_options(declaration: Declaration) -> dict[str, str]:
    """Return the options that `format("ottla")` needs to connect to the cluster of a pipeline."""
    properties = {
        f"kafka.{name}": value for name, value in declaration.properties.items() if not name.startswith(PREFIX)
    }
    return {"kafka.bootstrap.servers": declaration.brokers, **properties}


def source_options(declaration: Declaration, source: Source, *, stream: bool) -> dict[str, str]:
    """Return the options of one source, without those of its cluster."""
    isolation = {} if "isolation.level" in declaration.properties else {"kafka.isolation.level": "read_committed"}
    options = {
        **isolation,
        "subscribe": source.topic,
        "includeHeaders": "true",
        "failOnDataLoss": str(source.on_data_loss == "fail").lower(),
    }
    if not stream:
        return options
    starting = source.starting_offsets
    if isinstance(starting, datetime):
        options["startingTimestamp"] = str(int(starting.timestamp() * 1000))
        options["startingOffsetsByTimestampStrategy"] = "latest"
    elif isinstance(starting, str):
        options["startingOffsets"] = starting
    else:
        each = {str(partition): offset for partition, offset in starting.items()}
        options["startingOffsets"] = json.dumps({source.topic: each})
    if source.max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(source.max_offsets_per_trigger)
    return options
