"""A directory in the shared directory of temporary files, where other users create files first."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ottla.env.private_directory import NotPrivate, private_directory


def test_directory_is_created_for_this_user_alone_and_used_again(tmp_path: Path) -> None:
    made = private_directory("logs", str(tmp_path))
    assert made == tmp_path / f"logs-{os.getuid()}"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o755)
    assert private_directory("logs", str(tmp_path)) == made
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["link", "dangling link", "file"])
def test_other_file_in_its_place_is_refused(tmp_path: Path, kind: str) -> None:
    place = tmp_path / f"logs-{os.getuid()}"
    if kind == "file":
        place.touch()
    else:
        place.symlink_to(tmp_path if kind == "link" else tmp_path / "missing")
    with pytest.raises(NotPrivate, match="set TMPDIR"):
        private_directory("logs", str(tmp_path))


def test_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.getuid() + 1
    (tmp_path / f"logs-{other}").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(NotPrivate, match="does not belong to this user"):
        private_directory("logs", str(tmp_path))
