"""What the operating system says about this process, under the names that Prometheus' clients use."""

from __future__ import annotations

import os
import resource
import time
from typing import Final

from ottla.env.metrics import Page

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
#: fields of /proc/self/stat after the name of the program: the time of the start is the 22nd of all
_START_FIELD: Final = 19


def thread_cpu_s() -> float:
    """Return the processor time of the thread that calls this."""
    return time.thread_time()


def fill_process(page: Page) -> None:
    """Write the figures that this operating system has."""
    page.counter("process_cpu_seconds", "Processor time of the process.", time.process_time())
    page.gauge(
        "process_max_fds", "Open files that the process may have.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    )
    try:
        page.gauge("process_open_fds", "Open files.", len(os.listdir("/proc/self/fd")))
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
        page.gauge("process_resident_memory_bytes", "Memory of the process.", pages * _PAGE_BYTES)
        page.gauge("process_start_time_seconds", "When the process was started.", _started_s())
    except (OSError, ValueError, IndexError):
        return  # there is no /proc on macOS


def _started_s() -> float:
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        ticks = int(file.read().rpartition(")")[2].split()[_START_FIELD])
    with open("/proc/stat", encoding="ascii") as file:
        boot_s = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    return boot_s + ticks / _TICKS_PER_S
