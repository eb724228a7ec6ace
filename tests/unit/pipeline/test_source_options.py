"""Options of `format("ottla")` for the sources of a pipeline."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from small_pipeline import HEAD

from ottla.pipeline.declaration import Declaration
from ottla.pipeline.source_options import cluster_options, source_options

_ALWAYS = {"subscribe": "shop.orders", "includeHeaders": "true", "failOnDataLoss": "true"}


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("", {"startingOffsets": "earliest"}),
        ("starting_offsets: latest", {"startingOffsets": "latest"}),
        ("starting_offsets: {0: 7}", {"startingOffsets": '{"shop.orders": {"0": 7}}'}),
        (
            "starting_offsets: 2026-01-01T00:00:00Z",
            {"startingTimestamp": "1767225600000", "startingOffsetsByTimestampStrategy": "latest"},
        ),
        ("max_offsets_per_trigger: 5", {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}),
        ("on_data_loss: continue", {"startingOffsets": "earliest", "failOnDataLoss": "false"}),
    ],
)
def test_stream_starts_where_the_source_says(
    read: Callable[..., Declaration], key: str, options: dict[str, str]
) -> None:
    declaration = read(HEAD.replace("    format: json", f"    format: json\n    {key}"))
    source = declaration.sources["orders"]
    isolation = {"kafka.isolation.level": "read_committed"}
    assert source_options(declaration, source, stream=True) == isolation | _ALWAYS | options
    data_loss = {name: value for name, value in options.items() if name == "failOnDataLoss"}
    assert source_options(declaration, source, stream=False) == isolation | _ALWAYS | data_loss


def test_isolation_level_of_the_pipeline_is_used(read: Callable[..., Declaration]) -> None:
    properties = "storage: lake\nproperties: {isolation.level: read_uncommitted}"
    declaration = read(HEAD.replace("storage: lake", properties))
    assert cluster_options(declaration)["kafka.isolation.level"] == "read_uncommitted"
    assert "kafka.isolation.level" not in source_options(declaration, declaration.sources["orders"], stream=True)
