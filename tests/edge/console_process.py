"""Starts `ottla console` as a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

_PASSWORD = re.compile(r"log in as (\w+) with the password (\S+)")
_CSRF = re.compile(r'name="csrf" value="([^"]+)"')


@dataclass
class ConsoleClient:
    """Requests to one console, as a browser sends them."""

    url: str
    pid: int
    #: what the first start has printed; empty if the console has users already
    name: str = ""
    password: str = ""
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = self.browser()

    def browser(self) -> httpx.Client:
        """Return a client with cookies of its own, which follows no redirects."""
        return httpx.Client(base_url=self.url, timeout=60)

    def json(self, path: str) -> dict[str, object]:
        found = self.http.get(path, headers={"accept": "application/json"})
        assert found.status_code == 200, found.text
        value: dict[str, object] = found.json()
        return value

    def log_in(self, browser: httpx.Client | None = None, name: str = "", password: str = "") -> httpx.Client:
        """Log in by the form and return the client, which has the cookie now."""
        browser = browser or self.http
        answer = browser.post("/login", data={"name": name or self.name, "password": password or self.password})
        assert answer.status_code == 303, answer.text
        return browser

    def act(self, path: str, browser: httpx.Client | None = None, **form: str) -> httpx.Response:
        """Show the plan of an action and confirm it, as a person does. Return the answer to the confirmation."""
        browser = browser or self.http
        token = csrf_of(browser.get("/c/main/changes").text)
        plan = browser.post(path, data={**form, "csrf": token})
        assert plan.status_code == 200, plan.text
        typed = re.search(r"Type <strong>(.*?)</strong>", plan.text)
        return browser.post(path, data={**form, "csrf": token, "confirm": typed[1] if typed else "yes"})


def csrf_of(page: str) -> str:
    """Return the token in the forms of a page; empty without a login."""
    found = _CSRF.search(page)
    return found[1] if found else ""


@contextmanager
def console_process(bootstrap: str, settings: Mapping[str, str] | None = None, *words: str) -> Iterator[ConsoleClient]:
    """Run a console with a state directory of its own until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="ottla-console-") as folder:
        log = os.path.join(folder, "log")
        command = [
            sys.executable, "-m", "ottla", "console", "-b", bootstrap, "--listen", "http://127.0.0.1:0",
            *words, *(f"-X{name}={value}" for name, value in {"data.dir": folder, **(settings or {})}.items()),
        ]  # fmt: skip
        with open(log, "w") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, "OTTLA_END_WITH_STDIN": "1"},
            )  # fmt: skip
        with process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                with open(log) as written:
                    text = written.read()
                assert line.startswith("ready "), line + text
                found = _PASSWORD.search(text)
                name, password = (found[1], found[2]) if found else ("", "")
                client = ConsoleClient(line.split()[1].partition(",")[0], process.pid, name, password)
                yield client
                client.http.close()
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(30)
