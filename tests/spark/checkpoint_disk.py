"""The disk that has the checkpoints of the campaign's pipeline, and that can lose its power together with a driver."""

from __future__ import annotations

import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from campaign.faults import Ext4, freeze
from campaign.processes import kill_session, session_of, signal_session

_MEGABYTES = 1024


class CheckpointDisk:
    """An ext4 file system, or a directory if this machine cannot mount one: then no power is cut."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._disk: Ext4 | None = None
        #: why no power can be cut; empty if it can
        self.missing = ""
        try:
            self._disk = Ext4(directory, _MEGABYTES)
        except pytest.skip.Exception as skipped:
            self.missing = str(skipped)

    @property
    def checkpoints(self) -> Path:
        return (self._directory if self._disk is None else self._disk.path) / "checkpoints"

    def cut_power(self, driver: subprocess.Popen[bytes]) -> None:
        """Drop everything that was not synced, and kill the driver that uses the disk."""
        if self._disk is None:
            kill_session(driver)
            return
        # Frozen first, because a sync during the power cut can return although it has stored nothing.
        signal_session(driver, signal.SIGSTOP)
        for pid in list(session_of(driver)):
            with suppress(FileNotFoundError, ProcessLookupError):
                freeze(pid)
        self._disk.cut_power()
        kill_session(driver)
        self._disk.unmount()
        self._disk.mount()

    def close(self, *, keep: bool) -> None:
        """Unmount the disk; ``keep`` copies the checkpoints to a directory beside it."""
        if self._disk is None:
            return
        if keep and self.checkpoints.exists():
            shutil.copytree(self.checkpoints, self._directory / "checkpoints-at-failure", dirs_exist_ok=True)
        self._disk.unmount()
