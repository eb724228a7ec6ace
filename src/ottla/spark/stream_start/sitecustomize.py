"""Runs first in each Python process that Spark starts for a stream of our sources; ``stream_server.py`` says why.

The process passes the address on which Spark waits to the server of the session and ends. If the server does not
answer, the process does its work itself. Other Python processes of our sources run on unchanged.
"""

import os
import sys

#: set by ``stream_server.stream_variables``
_SERVER, _MODULE = "OTTLA_STREAM_SERVER", "OTTLA_STREAM_MODULE"
_ADDRESS = ("PYTHON_WORKER_FACTORY_PORT", "PYTHON_WORKER_FACTORY_SOCK_PATH", "PYTHON_WORKER_FACTORY_SECRET")
#: Spark itself waits for two minutes
_ANSWER_S_MAX = 100.0


def hand_over() -> None:
    """End this process if the server has taken its work."""
    path, module = os.environ.get(_SERVER), os.environ.get(_MODULE)
    if not path or module not in sys.orig_argv:
        return
    # Imported here, because most processes do not need it.
    import socket

    address = "\0".join(os.environ.get(name, "") for name in _ADDRESS)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(_ANSWER_S_MAX)
            server.connect(path)
            server.sendall(address.encode() + b"\n")
            if server.recv(1) == b"1":
                os._exit(0)
    except OSError:
        return


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
