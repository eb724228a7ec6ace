"""The process from which Spark forks the Python workers of tasks, with what they import already imported.

Spark forks a worker for each task that runs at the same time, two for a task that reads and writes. Each would import
pyarrow, pandas and our packages, and load numba's code, into its own memory: 120 MB, of which 80 MB are the same in all
workers. A fork shares memory until one side changes it. So the workers of a process that has loaded everything share
that memory, and start without importing anything.

``build_session`` sets ``spark.python.daemon.module`` to this module where all executors are on this machine. On
clusters it stays Spark's: a package that is sent with a job is not there yet when this process starts.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from typing import Final

from ottla.spark.spark_internals import TASK_WORKER, run_worker_daemon

MODULE: Final = "ottla.spark.worker_daemon"
#: what a worker that reads or writes imports; those that are not installed are left out
_IMPORTED: Final = (
    "pandas",
    "pyarrow.compute",
    "ottla.spark.source",
    "ottla.spark.sink",
    "ottla.spark.table_source",
    "ottla.spark.table_sink",
)


def load_for_workers() -> None:
    """Import what workers need. No thread may be started here: a fork has only the thread that forks.

    jemalloc, which pyarrow and deltalake bring, starts one, and starts it again in a fork that needs it.
    """
    importlib.import_module(TASK_WORKER)
    for module in _IMPORTED:
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            importlib.import_module(module)
    if importlib.import_module("ottla.spark.compiled_scan").are_compiled():
        importlib.import_module("ottla.spark.decode").load_numba()
    # The garbage collector of a worker would write to these objects, and every write copies a page.
    gc.collect()
    gc.freeze()


def main() -> None:
    """Fork workers until Spark closes the input. Spark passes the module of the workers as the only argument."""
    if sys.argv[1:] == [TASK_WORKER]:
        load_for_workers()
    run_worker_daemon()


if __name__ == "__main__":
    main()
