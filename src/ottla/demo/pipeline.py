"""`python -m ottla.demo.pipeline FILE`: run a pipeline until SIGTERM, or until whoever started it is gone.

A process of its own, so that a broker can be shown without Spark's packages in the same process, and so that Ctrl-C
reaches Spark in the right order: after the events, before the broker.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import uuid

from ottla.model.errors import OttlaError
from ottla.pipeline import load
from ottla.pipeline.ownership import Ownership
from ottla.pipeline.run import Supervisor, stopped_by_signals
from ottla.spark.session import build_session

log = logging.getLogger("ottla.demo")


def run(file: str) -> int:
    """Run the pipeline in this file until it ends; return the exit code."""
    declaration = load(file)
    with Ownership.of(declaration, uuid.uuid4().hex) as ownership:
        # The coordinator takes 3 s to decide, and Spark starts meanwhile.
        ownership.start(log.info)
        spark = build_session(f"ottla {declaration.name}", conf=declaration.spark)
        # A query that is stopped in the middle of a batch fills logs with Java's traces.
        spark.sparkContext.setLogLevel("OFF")
        try:
            supervisor = Supervisor(declaration, spark, ownership=ownership)
            with stopped_by_signals(supervisor):
                return 1 if supervisor.run().failed else 0
        finally:
            spark.stop()


def _end_with_stdin() -> None:
    # Not through sys.stdin, whose lock this thread would still hold when the interpreter ends.
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s")
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        sys.exit(run(sys.argv[1]))
    except OttlaError as error:
        sys.exit(f"error: {error}")
