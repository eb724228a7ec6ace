"""Instances of the registry with https, certificates of a private authority, and basic authentication."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
import trustme
from edge_broker import edge_broker
from registry_process import RegistryProcess
from starlette.requests import Request

from ottla.edge.registry.election import Instance
from ottla.edge.registry.forwarding import Forwarding
from ottla.edge.web.app import HttpError
from ottla.model.settings_security import listener_settings
from ottla.security.certificates import Certificates, client_context
from ottla.security.password_hashes import hash_password, user_line

_EC = trustme.KeyType.ECDSA


class Stores:
    """The files of a private authority: its certificate, and a key with a certificate for 127.0.0.1."""

    def __init__(self, directory: Path, name: str) -> None:
        self.authority = trustme.CA(key_type=_EC)
        self._path = directory / name
        self.authority.cert_pem.write_to_path(f"{self._path}-ca.pem")
        self.authority.issue_cert("127.0.0.1", key_type=_EC).private_key_and_cert_chain_pem.write_to_path(
            f"{self._path}.pem"
        )
        Path(f"{self._path}.pem").chmod(0o600)

    @property
    def keystore(self) -> dict[str, str]:
        return {"ssl.keystore.location": f"{self._path}.pem", "ssl.keystore.type": "PEM"}

    @property
    def truststore(self) -> dict[str, str]:
        return {"ssl.truststore.location": f"{self._path}-ca.pem", "ssl.truststore.type": "PEM"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"), "one")


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with edge_broker() as broker:
        yield broker.bootstrap


Start = Callable[[Mapping[str, str]], RegistryProcess]


@pytest.fixture(scope="module")
def start(bootstrap: str, stores: Stores) -> Start:
    """Return what makes an https instance; requests to it come from ann."""

    def make(settings: Mapping[str, str]) -> RegistryProcess:
        context = ssl.create_default_context()
        stores.authority.configure_trust(context)
        client = httpx.Client(timeout=60, verify=context, auth=("ann", "secret of ann"))
        return RegistryProcess(bootstrap, {**stores.keystore, **settings}, scheme="https", client=client)

    return make


def users(directory: Path, *names: str) -> dict[str, str]:
    path = directory / "-".join(names)
    lines = [
        user_line(name, hash_password(f"secret of {name}".encode(), b"salt" * 4, ln=10, r=8, p=1)) for name in names
    ]
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    return {"authentication.method": "BASIC", "authentication.users.file": str(path)}


@pytest.fixture(scope="module")
def leader(start: Start, stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    own = {"inter.instance.protocol": "https", **stores.truststore, **users(tmp_path_factory.mktemp("users"), "ann")}
    with start(own) as running:
        running.register("first", '"int"')
        yield running


def test_follower_forwards_over_https_with_the_credentials_of_the_user(
    leader: RegistryProcess, start: Start, stores: Stores, tmp_path: Path
) -> None:
    follower_only = {"leader.eligibility": "false", **stores.truststore, **users(tmp_path, "ann", "bob")}
    with start(follower_only) as follower:
        schema_id = follower.register("forwarded", '"string"')
        assert leader.get(f"/schemas/ids/{schema_id}")["schema"] == '"string"'
        assert follower.get(f"/schemas/ids/{schema_id}")["schema"] == '"string"'
        # The follower knows bob and the leader does not: it is the leader that decides about a change.
        bob = {"auth": ("bob", "secret of bob")}
        assert follower.client.get(f"{follower.url}/subjects", **bob).status_code == 200
        answer = follower.client.post(f"{follower.url}/subjects/b/versions", json={"schema": '"int"'}, **bob)
        assert (answer.status_code, answer.json()["error_code"]) == (401, 40101)
        assert follower.client.get(f"{follower.url}/subjects", auth=("ann", "wrong")).status_code == 401
        follower.stop()  # and leave the group: the next test would wait for the end of the session
        # The client keeps its connection open and does not read.
        assert "timeout graceful shutdown exceeded" not in follower.stderr()


def test_leader_with_a_certificate_of_another_authority_is_refused_and_stays_the_leader(
    leader: RegistryProcess, start: Start, tmp_path: Path
) -> None:
    other = Stores(tmp_path, "other")
    with start({**other.truststore, **users(tmp_path, "ann")}) as follower:
        status, answer = follower.ask("POST", "/subjects/refused/versions", {"schema": '"int"'})
        assert (status, answer["error_code"]) == (500, 50003)
        assert "ssl.truststore.location" in answer["message"]
        assert follower.get("/_health")["status"]["leader"] == leader.url
        follower.stop()
    assert leader.get("/_health")["status"]["is_leader"] is True
    assert "refused" not in leader.get("/subjects")


def test_host_name_of_the_leader_is_checked(leader: RegistryProcess, stores: Stores) -> None:
    """The certificate is for 127.0.0.1, which is also the address of localhost."""
    port = int(leader.url.rpartition(":")[2])

    async def root(host: str, settings: Mapping[str, str]) -> int:
        forwarding = Forwarding(Certificates(listener_settings({**stores.truststore, **settings}), client_context))
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
        try:
            response, _ = await forwarding.send(Instance("https", host, port), Request(scope), b"")
            return response.status_code
        finally:
            await forwarding.close()

    assert asyncio.run(root("127.0.0.1", {})) == 200
    assert asyncio.run(root("localhost", {"ssl.endpoint.identification.algorithm": ""})) == 200
    with pytest.raises(HttpError, match=r"host\.name") as refusal:
        asyncio.run(root("localhost", {}))
    assert refusal.value.error_code == 50003


def test_new_authority_is_used_without_a_restart(leader: RegistryProcess, stores: Stores, tmp_path: Path) -> None:
    port = int(leader.url.rpartition(":")[2])
    file = tmp_path / "ca.pem"
    Stores(tmp_path, "other").authority.cert_pem.write_to_path(file)

    async def check() -> None:
        texts = {"ssl.truststore.location": str(file), "ssl.truststore.type": "PEM"}
        forwarding = Forwarding(Certificates(listener_settings(texts), client_context))
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
        there = Instance("https", "127.0.0.1", port)
        with pytest.raises(HttpError, match=r"ssl\.truststore\.location"):
            await forwarding.send(there, Request(scope), b"")
        file.write_bytes(stores.authority.cert_pem.bytes() + b"\n")
        response, _ = await forwarding.send(there, Request(scope), b"")
        assert response.status_code == 200
        await forwarding.close()

    asyncio.run(check())


def test_protocol_between_instances_needs_a_listener(bootstrap: str) -> None:
    with pytest.raises(AssertionError, match="needs a listener https://HOST:PORT"):
        RegistryProcess(bootstrap, {"inter.instance.protocol": "https"}).start()


# -- an exporter to this registry -------------------------------------------------------------------------------------


class Source:
    """A registry without https whose exporters copy to the one with https."""

    def __init__(self, registry: RegistryProcess, target: RegistryProcess) -> None:
        self.registry = registry
        self._target = target

    def create(self, name: str, **config: str) -> None:
        self.registry.register(f"{name}-value", f'{{"type":"fixed","name":"F","size":{len(name)}}}')
        body = {
            "name": name, "subjects": [f"{name}*"], "contextType": "CUSTOM", "context": name,
            "config": {"schema.registry.url": self._target.url, **config},
        }  # fmt: skip
        assert self.registry.ask("POST", "/exporters", body) == (200, {"name": name})

    def change(self, name: str, **config: str) -> None:
        for path, body in (
            ("pause", {}), ("config", {"schema.registry.url": self._target.url, **config}), ("resume", {}),
        ):  # fmt: skip
            status, answer = self.registry.ask("PUT", f"/exporters/{name}/{path}", body)
            assert status == 200, answer

    def trace(self, name: str) -> str:
        """Return why the exporter does not start, as soon as it says so."""
        return wait_for(lambda: str(self.registry.get(f"/exporters/{name}/status")["trace"]))

    def copied(self, name: str) -> list[str]:
        """Return the subjects that the exporter has copied, as soon as there is one."""
        return wait_for(lambda: list(self._target.get(f"/subjects?subjectPrefix=:.{name}:")))


Found = TypeVar("Found")


def wait_for(find: Callable[[], Found]) -> Found:
    deadline = time.monotonic() + 60
    while not (found := find()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def source(bootstrap: str, leader: RegistryProcess, stores: Stores) -> Iterator[Source]:
    directory = os.path.dirname(stores.truststore["ssl.truststore.location"])
    own = {
        "kafkastore.topic": "_schemas_source", "schema.registry.group.id": "source",
        "exporter.files.directory": directory,
    }  # fmt: skip
    with RegistryProcess(bootstrap, own) as running:
        yield Source(running, leader)


ANN = {"basic.auth.credentials.source": "USER_INFO", "basic.auth.user.info": "ann:secret of ann"}


def test_exporter_copies_to_a_registry_with_a_private_authority_and_basic_authentication(
    source: Source, stores: Stores
) -> None:
    source.create("librdkafka", **ANN, **{"ssl.ca.location": stores.truststore["ssl.truststore.location"]})
    assert source.copied("librdkafka") == [":.librdkafka:librdkafka-value"]


def test_exporter_says_why_it_cannot_log_in_and_shows_no_secret(source: Source, stores: Stores) -> None:
    """The names are those of Confluent's exporters, with and without the prefix of its clients."""
    source.create("java", **ANN)
    assert "CERTIFICATE_VERIFY_FAILED" in source.trace("java")
    store = {f"schema.registry.{name}": text for name, text in stores.truststore.items()}
    wrong = {"basic.auth.user.info": "ann:wrong secret", "ssl.truststore.password": "unused secret", **store}
    source.change("java", **wrong)
    assert "40101" in wait_for(lambda: (trace := source.trace("java")) and "40101" in trace and trace)
    shown = [source.registry.get(f"/exporters/java{path}") for path in ("", "/config", "/status")]
    assert shown[1]["basic.auth.user.info"] == shown[1]["ssl.truststore.password"] == "[hidden]"
    source.change("java", **ANN, **store)
    assert source.copied("java") == [":.java:java-value"]
    wait_for(lambda: source.registry.get("/exporters/java/status")["state"] == "RUNNING")
    for text in (
        str(shown),
        source.registry.stderr(),
        source.registry.client.get(f"{source.registry.url}/metrics").text,
    ):
        assert "secret" not in text


def test_exporter_with_a_file_that_cannot_be_used_is_refused(source: Source, stores: Stores) -> None:
    directory = Path(stores.truststore["ssl.truststore.location"]).parent / "unusable"
    directory.mkdir()
    fifo = directory / "fifo"
    os.mkfifo(fifo)
    (directory / "text").write_text("secret words")
    for path in (directory / "missing", directory, fifo, directory / "text", "/etc/passwd", "/etc/missing"):
        config = {"schema.registry.url": "https://127.0.0.1:1", "ssl.ca.location": str(path)}
        status, answer = source.registry.ask("POST", "/exporters", {"name": "refused", "config": config})
        assert (status, answer["error_code"]) == (409, 40951)
        assert "ssl.ca.location" in answer["message"] and "words" not in answer["message"]
