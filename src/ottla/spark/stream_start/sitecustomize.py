"""Runs first in each Python process that Spark starts for our sources; ``stream_server.py`` says why.

A process that would run a stream or plan reads passes its work to the server of the session. If the server does not
answer, the process does its work itself. Processes that run tasks continue unchanged.
"""

import os
import sys

#: set by ``stream_server.stream_variables``
_SERVER, _STREAM, _PLANNERS = "OTTLA_STREAM_SERVER", "OTTLA_STREAM_MODULE", "OTTLA_PLANNER_MODULES"
_SECRET = "PYTHON_WORKER_FACTORY_SECRET"
_ADDRESS = ("PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SOCK_PATH", _SECRET)
#: Spark itself waits for two minutes
_ANSWER_S_MAX = 100.0


def hand_over() -> None:
    """Pass the work of this process to the server and end, if it is work for the server."""
    path, module = os.environ.get(_SERVER), sys.orig_argv[-1]
    if not path:
        return
    if module == os.environ.get(_STREAM):
        if _ask(path, "stream", *(os.environ.get(name, "") for name in _ADDRESS)):
            os._exit(0)
    elif module in os.environ.get(_PLANNERS, "").split(",") and _SECRET in os.environ:
        port = _ask(path, "planner", module, os.environ[_SECRET])
        if port:
            # Spark reads here to which port it has to connect. It expects the process to live until it closes the
            # input; what it writes to it are processes to be killed, and those are threads of the server.
            os.write(1, port)
            while os.read(0, 64):
                pass
            os._exit(0)


def _ask(path: str, *words: str) -> bytes:
    """Return the answer of the server; empty if it has none."""
    # Imported here, because most processes do not need it.
    import socket

    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(_ANSWER_S_MAX)
            server.connect(path)
            server.sendall("\0".join(words).encode() + b"\n")
            return server.recv(4)
    except OSError:
        return b""


def run_next() -> None:
    """Run the ``sitecustomize`` that Python would have found without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    this = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        # Python expects to find the module that it has just run.
        sys.modules["sitecustomize"] = this


if __name__ == "sitecustomize":
    hand_over()
    run_next()
