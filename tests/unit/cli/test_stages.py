"""Stages of a start: what is done now, and how long it took."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ottla.cli.stages import Stages
from ottla.pipeline.layout import Layout
from ottla.pipeline.run_log import log_path


def run_stage(*, in_place: bool) -> str:
    stream = io.StringIO()
    times = iter([10.0, 16.25])
    with Stages(stream, in_place=in_place, now=lambda: next(times)).stage("Starting Spark"):
        pass
    return stream.getvalue()


def test_stage_is_announced_and_its_time_is_shown() -> None:
    assert run_stage(in_place=False) == "Starting Spark ...\nStarting Spark: 6.2 s\n"
    assert run_stage(in_place=True) == "\r\x1b[KStarting Spark ...\r\x1b[KStarting Spark: 6.2 s\n"


@pytest.mark.parametrize("in_place", [False, True])
def test_stage_that_fails_ends_its_line_and_has_no_time(in_place: bool) -> None:
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Stages(stream, in_place=in_place).stage("Starting Spark"):
        raise KeyboardInterrupt
    assert stream.getvalue().endswith("Starting Spark ...\n")


def test_log_is_beside_the_status_or_in_a_private_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Layout(pipeline="shop", storage=str(tmp_path), checkpoints="")
    assert log_path(local) == tmp_path / "_status" / "shop.log"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = log_path(Layout(pipeline="shop", storage="s3://lake", checkpoints=""))
    assert (path.name, path.parent.parent, stat.S_IMODE(path.parent.stat().st_mode)) == ("shop.log", tmp_path, 0o700)


_SCRIPT = """
import logging, subprocess, sys, warnings
from pathlib import Path
from ottla.pipeline.run_log import children_write_to, run_log

path = Path(sys.argv[1])
for number in (1, 2):
    with run_log(path):
        with children_write_to(path):
            subprocess.run(["sh", "-c", f"echo java {number}; echo warning of java >&2"], check=True)
        logging.getLogger("ottla.pipeline").info("a batch of run %d", number)
        logging.getLogger("py4j").warning("a warning of py4j")
        warnings.warn("a warning of python")
    print("screen", number)
    print("also the screen", file=sys.stderr)
"""


def test_output_of_child_processes_and_loggers_goes_to_the_log_and_the_last_log_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "shop.log"
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(path)], capture_output=True, text=True, check=True, env=os.environ
    )
    assert (done.stdout, done.stderr) == ("screen 1\nscreen 2\n", "also the screen\n" * 2)
    for number, file in ((2, path), (1, path.with_name("shop.log.1"))):
        text = file.read_text()
        assert text.startswith(f"java {number}\nwarning of java\n")
        for line in (f"a batch of run {number}", "a warning of py4j", "a warning of python"):
            assert line in text
