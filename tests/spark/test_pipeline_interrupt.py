"""Ctrl-C while `ottla pipeline run` starts Spark: no traceback, and no JVM is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shop_pipeline import write_shop

from ottla.client.cluster import Cluster
from ottla.testing import BrokerProcess

pytestmark = pytest.mark.spark

#: answers the question for its version, says when it is started for Spark, and then never becomes ready
_JAVA = """#!/bin/sh
case "$*" in
  *org.apache.spark.launcher.Main*) printf '\\0\\n%s\\0SparkSubmit\\0' "$0"; exit 0 ;;
  *-XshowSettings*|*-version*|*--list-modules*) echo 'openjdk version "17.0.1"' >&2; exit 0 ;;
esac
echo 'java started' >&2
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
    assert process.stderr is not None
    assert process.stderr.readline() == "java started\n"
    process.send_signal(signal.SIGINT)
    # The JVM has inherited standard error: this returns when both processes have ended.
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, "")
