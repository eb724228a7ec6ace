"""A broker with the files of `ottla security init`, for tests: SASL_SSL with a password, SSL with a certificate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_WAIT_S = 60
_OTTLA = [sys.executable, "-m", "ottla"]


def run_ottla(*words: str) -> str:
    """Run a command and return what it prints. Raise AssertionError if it fails."""
    done = subprocess.run([*_OTTLA, *words], capture_output=True, text=True, timeout=_WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


class SecureBroker:
    """The broker, and the settings of clients for its addresses."""

    def __init__(self, directory: Path, *, has_files: bool = False) -> None:
        """Create the files in a new directory, unless it has them, and start the broker."""
        self.directory = directory
        self.clients: dict[str, Any] = {}
        if not has_files:
            printed = run_ottla("security", "init", "--data", str(directory), "--port", "0", "-o", "json")
            self.clients = json.loads(printed)["clients"]
        self._process = subprocess.Popen(
            [*_OTTLA, "broker", "--config", str(directory / "server.properties")], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env={**os.environ, "OTTLA_END_WITH_STDIN": "1"},
        )  # fmt: skip
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        assert ready.startswith("ready"), "the broker did not start"
        #: of the listeners SASL_SSL and SSL
        self.ports = [int(address.rpartition(":")[2]) for address in ready.split()[1].split(",")]

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=_WAIT_S)

    def with_password(self) -> dict[str, str]:
        """Return librdkafka's settings of the admin user, for the listener SASL_SSL."""
        return {**self.clients["librdkafka"], "bootstrap.servers": f"localhost:{self.ports[0]}"}

    def with_certificate(self, name: str) -> dict[str, str]:
        """Return librdkafka's settings of the owner of a certificate, for the listener SSL."""
        file = str(self.directory / "tls" / f"{name}.pem")
        return {
            "bootstrap.servers": f"localhost:{self.ports[1]}", "security.protocol": "SSL",
            "ssl.ca.location": str(self.directory / "tls" / "ca.pem"), "ssl.certificate.location": file,
            "ssl.key.location": file,
        }  # fmt: skip

    def spark_options(self) -> dict[str, str]:
        """Return the options of Spark's sources and sinks for the admin user."""
        return {**self.clients["spark"], "kafka.bootstrap.servers": f"localhost:{self.ports[0]}"}
