"""The REST proxy acts towards the cluster as the user of each request, without credentials of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from secure_broker import SecureBroker

pytestmark = pytest.mark.client

#: a client that has to wait on a busy machine
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def proxy(secure_broker: SecureBroker) -> Iterator[str]:
    """The URL of a proxy whose users are those of the cluster."""
    client = {name: str(text) for name, text in secure_broker.librdkafka("SASL_SSL", "SCRAM-SHA-512").items()}
    kept = ("security.protocol", "ssl.ca.location", "sasl.mechanism")
    settings = {f"client.{name}": client[name] for name in kept}
    settings |= {"authentication.method": "BASIC", "authentication.pass.through": "true"}
    options = [f"-X{name}={text}" for name, text in settings.items()]
    command = [sys.executable, "-m", "ottla", "rest", "--bootstrap", client["bootstrap.servers"], *options]
    with subprocess.Popen([*command, "--listen", "http://127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1]
        finally:
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0


def test_user_of_the_cluster_is_authenticated_and_acts_as_itself(secure_broker: SecureBroker, proxy: str) -> None:
    client = secure_broker.librdkafka("SASL_SSL", "SCRAM-SHA-512")
    name, password = str(client["sasl.username"]), str(client["sasl.password"])
    clusters = f"{proxy}/v3/clusters"
    for wrong in (None, (name, "wrong"), ("stranger", password)):
        answer = httpx.get(clusters, auth=wrong, timeout=TIMEOUT_S)
        assert (answer.status_code, answer.json()["error_code"]) == (401, 40101)
        assert answer.headers["www-authenticate"].startswith("Basic ")
        assert password not in answer.text
    answer = httpx.get(clusters, auth=(name, password), timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    assert answer.json()["data"][0]["kind"] == "KafkaCluster"
