"""A short slice of the campaign `pipeline-kills`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pipeline_campaign import Campaign
from pipeline_plan import End, Life

from campaign.report import Report
from ottla.pipeline import load
from ottla.pipeline.declaration import Trigger
from ottla.pipeline.run import Supervisor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.crash, pytest.mark.spark]

_LIFE = Life(end=End.POWER_CUT, delay_s=0.5, broker_dies=True)
#: as of the session of all tests, because so little is compiled for the few rows here; the campaign has what ships
_SPARK = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def test_every_event_is_in_one_place_after_a_power_failure_and_a_kill_of_the_broker(
    spark: SparkSession, tmp_path: Path
) -> None:
    def finish(file: Path) -> None:
        status = Supervisor(load(str(file)), spark, trigger=Trigger(kind="available-now")).run()
        assert {flow.state for flow in status.flows} == {"done"}, status

    figures = Campaign(1, 2_400, 0, tmp_path, Report(), lives=(_LIFE,), finish=finish, spark=_SPARK).run()
    print(figures)
    assert (figures.drivers, figures.brokers) == (1, 1)
    assert figures.result and figures.rejected
