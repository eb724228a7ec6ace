"""Ctrl-C while `ottla pipeline run` starts Spark: no traceback, and no JVM is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shop_pipeline import write_shop

from ottla.client.cluster import Cluster
from ottla.testing import BrokerProcess

pytestmark = pytest.mark.spark

_WAIT_S_MAX = 120.0
#: answers the question for its version, says when it is started for Spark, and then never becomes ready
_JAVA = """#!/bin/sh
case "$*" in
  *org.apache.spark.launcher.Main*) printf '\\0\\n%s\\0SparkSubmit\\0' "$0"; exit 0 ;;
  *-XshowSettings*|*-version*|*--list-modules*) echo 'openjdk version "17.0.1"' >&2; exit 0 ;;
esac
echo "java started as process $$" >&2
exec sleep 3600
"""


def test_ctrl_c_while_the_jvm_starts_ends_the_jvm_and_is_exit_code_130(broker: BrokerProcess, tmp_path: Path) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(_JAVA)
    java.chmod(0o755)
    with Cluster(broker.bootstrap) as cluster:
        cluster.create_topic("interrupted-orders", 1)
    file = write_shop(tmp_path, broker.bootstrap, "interrupted-orders")
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", "pipeline", "run", str(file)], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "JAVA_HOME": str(java.parent.parent)},
    )  # fmt: skip
    log = tmp_path / "lake" / "_status" / "shop.log"
    wait_for_java(log, process)
    process.send_signal(signal.SIGINT)
    # The first line is written before Java starts.
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (130, "", "Starting Spark ...")
    java_process = int(log.read_text().split()[-1])
    assert not Path(f"/proc/{java_process}").exists()


def wait_for_java(log: Path, process: subprocess.Popen[str]) -> None:
    """Return when the log of the run has the line that Java prints."""
    deadline = time.monotonic() + _WAIT_S_MAX
    while not log.exists() or "java started" not in log.read_text():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
