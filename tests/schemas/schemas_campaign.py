"""Campaign `schemas`: random schemas of each format, compared with the reference of the format."""

from __future__ import annotations

from pathlib import Path

import avro_campaign
import json_schema_campaign
import protobuf_campaign

from campaign.report import Report


def run(report: Report, *, pairs: int, seed: int, format: str, write: str) -> None:
    if format in ("", "avro"):
        verdicts = avro_campaign.compare(report, pairs=pairs, seed=seed)
        if write:
            avro_campaign.write_verdicts(verdicts, Path(write))
    if format in ("", "json"):
        json_schema_campaign.compare(report, pairs=pairs, seed=seed)
    if format in ("", "protobuf"):
        protobuf_campaign.compare(report, pairs=pairs, seed=seed)
