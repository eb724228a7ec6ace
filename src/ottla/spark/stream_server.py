"""One Python process for all streams of our sources in a session.

Spark starts a Python process for each stream of a Python source, which plans the offsets of each batch. It needs 85 MB,
and half a second of a core for its start; a pipeline with a dozen flows has a dozen of them. More processes create
sources and plan reads, and end after a minute. A session of ours has one process instead:

1. ``StreamServer.start`` starts ``python -m ottla.spark.stream_server``, which listens on a socket in a private
   directory and has imported everything that a stream needs.
2. ``build_session`` gives the processes of our sources variables (``stream_variables``): the path of that socket, and
   ``stream_start`` in PYTHONPATH, where Python finds a ``sitecustomize`` and runs it first.
3. There a process for a stream sends the server the address on which Spark waits, and ends. The server connects to
   Spark in its place, and a thread does what the process would have done.
4. A process from which Spark wants to fork planners asks the server for a port and gives it to Spark instead of its
   own. For each connection of Spark a thread of the server does what a forked process would have done.

A process that cannot reach the server does its work itself, as it would without a server. The server ends with the
process that has started it: its standard input ends then.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from ottla.spark.spark_internals import PLANNERS, STREAM_RUNNER, load_stream_runner, run_planner, run_stream

log = logging.getLogger("ottla.spark")

#: where the ``sitecustomize`` of new processes lies
START_DIRECTORY: Final = Path(__file__).parent / "stream_start"
#: the variable with the path of the server's socket; the others name the modules whose processes ask the server
SERVER_VARIABLE: Final = "OTTLA_STREAM_SERVER"
_STREAM_VARIABLE: Final = "OTTLA_STREAM_MODULE"
_PLANNERS_VARIABLE: Final = "OTTLA_PLANNER_MODULES"
_WAITING_MAX: Final = 128
_REQUEST_BYTES_MAX: Final = 4096
_OK: Final = b"1"


#: of all sessions of this process
_server: StreamServer | None = None


def stream_variables() -> dict[str, str]:
    """Return the variables by which processes of our sources find the server, which is started if it does not run."""
    global _server
    if _server is None or not _server.is_running:
        _server = StreamServer.start()
    if _server is None:
        return {}
    path = os.pathsep.join(filter(None, (str(START_DIRECTORY), os.environ.get("PYTHONPATH"))))
    return {
        SERVER_VARIABLE: str(_server.path),
        _STREAM_VARIABLE: STREAM_RUNNER,
        _PLANNERS_VARIABLE: ",".join(PLANNERS),
        "PYTHONPATH": path,
    }


class StreamServer:
    """The server of this process's sessions, as its parent sees it."""

    def __init__(self, process: subprocess.Popen[bytes], path: Path) -> None:
        self._process = process
        self.path = path

    @classmethod
    def start(cls) -> StreamServer | None:
        """Start a server; None where there are no sockets in the file system, or their path would be too long."""
        if not hasattr(socket, "AF_UNIX"):
            return None
        directory = Path(tempfile.mkdtemp(prefix="ottla-streams-"))
        path = directory / "socket"
        listener = socket.socket(socket.AF_UNIX)
        try:
            # Bound here, so that it exists when the first stream starts. The imports of the server take longer.
            listener.bind(str(path))
            listener.listen(_WAITING_MAX)
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno()), str(directory)],
                stdin=subprocess.PIPE,
                pass_fds=(listener.fileno(),),
                env=_worker_environment(),
            )
        except OSError as error:
            log.warning("each stream gets a process of its own: %s", error)
            shutil.rmtree(directory, ignore_errors=True)
            return None
        finally:
            listener.close()
        server = cls(process, path)
        atexit.register(server.close)
        return server

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the server. Streams that it serves fail."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        atexit.unregister(self.close)


def _worker_environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parent.parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


# -- in the server ----------------------------------------------------------------------------------------------------


def serve(listener: socket.socket) -> None:
    """Serve streams until the process ends."""
    load_stream_runner()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve_one, args=(connection,), daemon=True).start()


def _serve_one(connection: socket.socket) -> None:
    with connection:
        with connection.makefile("rb") as stream:
            kind, *words = stream.readline(_REQUEST_BYTES_MAX).decode().rstrip("\n").split("\0")
        if kind == "stream":
            port, path, secret = words
            # The new process waits for the answer. If Spark cannot be reached from here, it tries by itself.
            run_stream(path or int(port), secret or None, lambda: connection.sendall(_OK))
        elif kind == "planner" and words[0] in PLANNERS:
            module, secret = words
            planners = socket.create_server(("127.0.0.1", 0), backlog=_WAITING_MAX)
            connection.sendall(struct.pack("!i", planners.getsockname()[1]))
            threading.Thread(target=_serve_planners, args=(planners, module, secret), daemon=True).start()


def _serve_planners(listener: socket.socket, module: str, secret: str) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=run_planner, args=(connection, module, secret), daemon=True).start()


def main() -> None:
    """Serve on the socket that the parent has opened: its number and its directory are the arguments."""
    # Ctrl-C in a terminal reaches all processes; the driver stops the streams in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    # It ends when the parent has ended. The threads need not: Spark has ended as well.
    while os.read(0, 1):
        pass
    shutil.rmtree(sys.argv[2], ignore_errors=True)


if __name__ == "__main__":
    main()
