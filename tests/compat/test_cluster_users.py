"""Services whose users are those of the cluster. The REST proxy acts as the user and has no credentials of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx
import pytest

from secure_broker import SecureBroker

pytestmark = pytest.mark.client

#: a client that has to wait on a busy machine
TIMEOUT_S = 120.0


@contextmanager
def running(command: str, bootstrap: str, settings: Mapping[str, str]) -> Iterator[str]:
    """Run a service whose users are those of the cluster. Return its URL."""
    settings = {**settings, "authentication.method": "BASIC", "authentication.pass.through": "true"}
    options = [f"-X{name}={text}" for name, text in settings.items()]
    words = [sys.executable, "-m", "ottla", command, "--bootstrap", bootstrap, "--listen", "http://127.0.0.1:0"]
    with subprocess.Popen([*words, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1]
        finally:
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0


def refuse_strangers(url: str, name: str, password: str) -> None:
    for wrong in (None, (name, "wrong"), ("stranger", password)):
        answer = httpx.get(url, auth=wrong, timeout=TIMEOUT_S)
        assert (answer.status_code, answer.json()["error_code"]) == (401, 40101)
        assert answer.headers["www-authenticate"].startswith("Basic ")
        assert password not in answer.text


@pytest.mark.parametrize(("command", "path"), [("rest", "/v3/clusters"), ("registry", "/subjects")])
def test_user_of_the_cluster_is_authenticated(secure_broker: SecureBroker, command: str, path: str) -> None:
    client = {name: str(text) for name, text in secure_broker.librdkafka("SASL_SSL", "SCRAM-SHA-512").items()}
    name, password = client["sasl.username"], client["sasl.password"]
    names = ["security.protocol", "ssl.ca.location", "sasl.mechanism"]
    if command == "registry":
        # It reads and writes its topic with its own credentials. The proxy has none.
        names += ["sasl.username", "sasl.password"]
    settings = {f"client.{each}": client[each] for each in names}
    with running(command, client["bootstrap.servers"], settings) as url:
        refuse_strangers(url + path, name, password)
        answer = httpx.get(url + path, auth=(name, password), timeout=TIMEOUT_S)
        assert answer.status_code == 200, answer.text
