"""Find code that reaches the operating system: a clock, random numbers, files, sockets, threads, processes, SQLite.

The simulation (tests/sim) replaces the modules that may do this, so all other modules of the broker must not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

#: modules of which every use counts
MODULES = frozenset(
    {
        "concurrent.futures", "fcntl", "multiprocessing", "random", "resource", "secrets", "select", "selectors",
        "signal", "socket", "sqlite3", "ssl", "subprocess", "threading", "time",
    }
)  # fmt: skip
#: functions of other modules
FUNCTIONS = frozenset(
    {
        "asyncio.create_subprocess_exec", "asyncio.open_connection", "asyncio.start_server", "asyncio.to_thread",
        "datetime.now", "datetime.utcnow", "os.fdatasync", "os.fork", "os.fsync", "os.ftruncate", "os.getpid",
        "os.getrandom", "os.listdir", "os.makedirs", "os.open", "os.pread", "os.pwrite", "os.pwritev", "os.read",
        "os.remove", "os.rename", "os.replace", "os.rmdir", "os.sendfile", "os.stat", "os.statvfs", "os.unlink",
        "os.urandom", "os.write", "uuid.uuid1", "uuid.uuid4",
    }
)  # fmt: skip
#: methods, of whatever object
METHODS = frozenset(
    {"run_in_executor", "create_server", "create_connection", "add_reader", "read_bytes", "write_bytes"}
)


def accesses(tree: ast.Module) -> list[str]:
    """Return the names of the modules, functions and methods that a module uses, each once, sorted."""
    return sorted(set(_imports(tree)) | set(_calls(tree)))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in MODULES:
                    yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if node.module in MODULES or full in MODULES:
                    yield full if full in MODULES else node.module
                elif full in FUNCTIONS:
                    yield full


def _calls(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            full = f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else ""
            if full in FUNCTIONS:
                yield full
            elif node.attr in METHODS:
                yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            yield "open"
