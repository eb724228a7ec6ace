"""Instances of `ottla registry` as processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx


class RegistryProcess:
    """A running instance. Ends with the block and with the process that started it."""

    def __init__(
        self, bootstrap: str, settings: Mapping[str, str] | None = None, *, port: int = 0, scheme: str = "http",
        client: httpx.Client | None = None, environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """``client`` sends the requests, with its credentials and certificates."""
        self.bootstrap = bootstrap
        self._scheme = scheme
        self._environment = dict(environment or {})
        self._settings = dict(settings or {})
        self._port = port
        self._process: subprocess.Popen[str] | None = None
        self._log = tempfile.TemporaryFile("w+", prefix="ottla-registry-")  # noqa: SIM115 - closed with the instance
        self.url = ""
        self.client = client or httpx.Client(timeout=60)

    def start(self) -> Self:
        """Start the process and return when it answers; a restart uses the same port."""
        command = [
            sys.executable, "-m", "ottla", "registry", "--bootstrap", self.bootstrap, "--listen",
            f"{self._scheme}://127.0.0.1:{self._port}",
            *(f"-X{name}={value}" for name, value in self._settings.items()),
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, "OTTLA_END_WITH_STDIN": "1", **self._environment},
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("ready "):
            self.kill()
            problem = f"the registry did not start: {line}{self.stderr()}"
            self.close()
            raise AssertionError(problem)
        self.url = line.split()[1]
        self._port = int(self.url.rpartition(":")[2])
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stderr(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()
        self._process = None

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        self._process.communicate(timeout=60)
        code: int = self._process.returncode
        self._process = None
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        self.client.close()
        self._log.close()

    # Requests

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return status and JSON body of an answer; None for an empty body."""
        answer = self.client.request(method, f"{self.url}{path}", json=body, headers=headers)
        return answer.status_code, answer.json() if answer.content else None

    def get(self, path: str) -> Any:
        """Return the body of an answer with status 200."""
        status, body = self.ask("GET", path)
        assert status == 200, (path, status, body)
        return body

    def register(self, subject: str, schema: str, **members: Any) -> int:
        status, body = self.ask("POST", f"/subjects/{subject}/versions", {"schema": schema, **members})
        assert status == 200, (subject, status, body)
        return int(body["id"])
