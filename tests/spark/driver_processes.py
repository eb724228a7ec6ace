"""The drivers that a campaign starts: each in a session of its own, so that one signal reaches all its processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

import ottla
from campaign.processes import kill_session

#: the limit of a wait for a driver: its start, its first batch or its end, on a busy machine
PATIENCE_S = 180.0
_SHOWN_CHARACTERS = 5000


@dataclass(slots=True)
class DriverProcesses:
    """Starts drivers in a directory and ends those that are left."""

    directory: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a driver with these environment variables in addition. Its output goes to the log of all drivers."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(ottla.__file__).resolve().parents[1]),
            # What killed drivers leave behind is deleted with the campaign.
            "SPARK_LOCAL_DIRS": str(self.directory / "spark-local"),
            **variables,
        }
        with (self.directory / "drivers.log").open("ab") as log:
            driver = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment,
                cwd=self.directory,
            )  # fmt: skip
        self.started.append(driver)
        return driver

    def cluster_variables(self) -> dict[str, str]:
        """Return the variables of a driver whose master is ``local-cluster``.

        Its workers keep their files in the home of Spark. This home is a directory of links to the real one.
        """
        home = self.directory / "spark-home"
        if not home.exists():
            home.mkdir()
            for part in Path(pyspark.__file__).parent.iterdir():
                (home / part.name).symlink_to(part)
        return {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}

    def output(self) -> str:
        """Return the end of the log of all drivers."""
        return (self.directory / "drivers.log").read_text(errors="replace")[-_SHOWN_CHARACTERS:]

    def close(self) -> None:
        for driver in self.started:
            kill_session(driver)
