"""The process from which Spark forks workers: what it has loaded, and that a fork of it is safe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from ottla.spark import compiled_scan, decode
from ottla.spark.session import settings_of
from ottla.spark.worker_daemon import MODULE

_LOAD = """
import sys
from pathlib import Path
from ottla.spark.worker_daemon import load_for_workers
load_for_workers()
print(*sorted(set(sys.modules) & {"pyspark.worker", "pyarrow", "ottla.spark.sink"}))
print(*(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")))
"""
#: a memory allocator that starts this thread again after a fork where it is needed
_JEMALLOC = "jemalloc_bg_thd"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="lists threads in /proc")
def test_everything_is_loaded_and_no_thread_is_running_that_a_fork_would_miss() -> None:
    # Spark sets the variable for the process, too.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", _LOAD], env=environment, capture_output=True, text=True, timeout=300)
    modules, threads = done.stdout.splitlines()
    assert modules.split() == ["ottla.spark.sink", "pyarrow", "pyspark.worker"], done.stderr
    assert len([name for name in threads.split() if name != _JEMALLOC]) == 1


def test_numba_is_loaded_for_the_types_of_replies_and_of_decompressed_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(compiled_scan, "SCANNER", compiled_scan.Scanner())
    decode.load_numba()
    assert len(compiled_scan._scan_sections.signatures) == 2


@pytest.mark.parametrize(
    ("master", "expected"), [("local[2]", MODULE), ("spark://127.0.0.1:7077", MODULE), ("spark://host:7077", None)]
)
def test_only_sessions_on_one_machine_use_it(master: str, expected: str | None) -> None:
    assert settings_of("test", master, {}, {}).get("spark.python.daemon.module") == expected


def test_the_users_own_module_is_kept() -> None:
    settings = settings_of("test", "local[2]", {"spark.python.daemon.module": "mine"}, {})
    assert settings["spark.python.daemon.module"] == "mine"
