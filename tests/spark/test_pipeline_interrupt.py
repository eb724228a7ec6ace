"""Ctrl-C while `ottla pipeline run` or `ottla demo` starts Spark: no traceback, and no JVM is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shop_pipeline import write_shop

from ottla.client.cluster import Cluster
from ottla.demo.parts import session_members
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


@pytest.fixture
def java_home(tmp_path: Path) -> str:
    """Return the home of a Java that never becomes ready."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(_JAVA)
    java.chmod(0o755)
    return str(java.parent.parent)


def test_ctrl_c_while_the_jvm_starts_ends_the_jvm_and_is_exit_code_130(
    broker: BrokerProcess, java_home: str, tmp_path: Path
) -> None:
    with Cluster(broker.bootstrap) as cluster:
        cluster.create_topic("interrupted-orders", 1)
    file = write_shop(tmp_path, broker.bootstrap, "interrupted-orders")
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", "pipeline", "run", str(file)], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "JAVA_HOME": java_home},
    )  # fmt: skip
    log = tmp_path / "lake" / "_status" / "shop.log"
    wait_for_java(log, process)
    process.send_signal(signal.SIGINT)
    # The first line is written before Java starts.
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (130, "", "Starting Spark ...")
    java_process = int(log.read_text().split()[-1])
    assert not Path(f"/proc/{java_process}").exists()


@pytest.mark.broker
def test_ctrl_c_while_the_jvm_of_a_demonstration_starts_leaves_no_process(java_home: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", "demo", "--data", str(tmp_path / "demo")], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "JAVA_HOME": java_home},
    )  # fmt: skip
    wait_for_java(tmp_path / "demo" / "lake" / "_status" / "shop.log", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, ""), out
    parts = {int(pid) for pid in re.findall(r"process (\d+)", out)}
    assert len(parts) == 2
    assert not any(session_members(pid) for pid in parts)


def wait_for_java(log: Path, process: subprocess.Popen[str]) -> None:
    """Return when the log of the run has the line that Java prints."""
    deadline = time.monotonic() + _WAIT_S_MAX
    while not log.exists() or "java started" not in log.read_text():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
