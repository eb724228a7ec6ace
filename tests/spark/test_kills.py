"""A short slice of `make spark-kills`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kill_campaign import PATIENCE_S, Campaign
from kill_driver import Copy
from kill_plan import End, Life

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: driver and broker die with a batch sent and nothing decided, and with the table in any state
_LIFE = Life(end=End.AT_PLACE, place="topic sent token", first=True, broker_dies=True)


@pytest.mark.crash
def test_every_row_is_in_topic_and_table_once_after_driver_and_broker_were_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    def finish(copy: Copy) -> None:
        for query in copy.start(spark, obeying=False):
            assert query.awaitTermination(int(PATIENCE_S))

    figures = Campaign(2, 20_000, 0, tmp_path, lives=(_LIFE,), finish=finish, say=print).run()
    print(figures)
    assert (figures.drivers, figures.brokers) == (1, 1)
