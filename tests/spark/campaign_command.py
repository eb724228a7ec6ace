"""The command line that the campaigns share: how many kills, how many rows, how many brokers, and the seed."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Campaign(Protocol):
    """A campaign that can be run once."""

    def run(self) -> object:
        """Return the figures. Raise AssertionError if a row is lost or doubled."""


class Create(Protocol):
    """The class of a campaign."""

    def __call__(
        self, kills: int, rows: int, seed: int, directory: Path, *, say: Callable[[str], None], broker_count: int
    ) -> Campaign: ...


def run_campaign(description: str, prefix: str, kills: int, create: Create) -> None:
    """Run a campaign with the arguments of this process. A campaign that fails keeps its directory."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--brokers", type=int, default=1, help="3 runs ZooKeeper and a cluster of three brokers")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    where = f"--seed {given.seed}, in {directory}"
    _say(where)
    # The processes that a campaign has started end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        campaign = create(given.kills, given.rows, given.seed, directory, say=_say, broker_count=given.brokers)
        _say(str(campaign.run()))
    except BaseException:
        _say(f"failed: {where}")
        raise
    shutil.rmtree(directory)


def _say(line: str) -> None:
    print(line, flush=True)
