"""A short slice of `make spark-kills`."""

from __future__ import annotations

from pathlib import Path

import pytest
from kill_campaign import PATIENCE_S, Campaign

#: its draws: the broker is killed under a driver that lives on, then both die with the token sent and nothing decided
_SEED = 124
_KILLS = 2


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(PATIENCE_S * (2 * _KILLS + 2))
def test_every_row_is_there_once_after_drivers_and_broker_were_killed(tmp_path: Path) -> None:
    print(Campaign(_KILLS, 20_000, _SEED, tmp_path, zombies=False, say=print).run())
