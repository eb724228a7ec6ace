"""A store in a real ZooKeeper server that has only a port for TLS: needs Java and pyspark."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificate

from campaign.report import Report
from ottla.broker.metadata.store import Create, Put, UnusableStore
from ottla.broker.metadata.zookeeper.access import zookeeper_security
from ottla.broker.metadata.zookeeper.store import ZooKeeperStore
from ottla.cli.zookeeper_server import Server, ServerProcess, ServerTls
from ottla.model.settings import BrokerSettings
from ottla.testing import BrokerProcess
from ottla.testing.process import reserve_port

SESSION_S = 40.0
_EC = trustme.KeyType.ECDSA
#: time after which a connection counts as refused; the server answers others within milliseconds then
_REFUSED_S = 5.0


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def issue(authority: trustme.CA, path: Path, *names: str) -> Path:
    made = authority.issue_cert(*names, key_type=_EC)
    key: Any = load_pem_private_key(made.private_key_pem.bytes(), None)
    chain = b"".join(each.bytes() for each in made.cert_chain_pems)
    write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + chain)
    certificate = load_pem_x509_certificate(made.cert_chain_pems[0].bytes())
    store = serialize_key_and_certificates(b"b", key, certificate, None, BestAvailableEncryption(b"secret"))
    write(path.with_suffix(".p12"), store)
    return path


class Secured:
    """The files of two authorities, and a server with a certificate of the first for 127.0.0.1."""

    def __init__(self, directory: Path) -> None:
        authority, stranger = trustme.CA(key_type=_EC), trustme.CA(key_type=_EC)
        self.authority = write(directory / "ca.pem", authority.cert_pem.bytes())
        self.other_authority = write(directory / "other.pem", stranger.cert_pem.bytes())
        self.client = issue(authority, directory / "client.pem", "client.example")
        self.stranger = issue(stranger, directory / "stranger.pem", "client.example")
        self.keystore = issue(authority, directory / "server.pem", "127.0.0.1")
        self._reserved = reserve_port()
        self.port = self._reserved.getsockname()[1]
        tls = ServerTls(keystore=self.keystore, truststore=self.authority)
        self.process = ServerProcess(Server(data=directory / "data", port=self.port, tls=tls))
        self.process.wait_until_ready()

    def settings(self, **changes: str | None) -> BrokerSettings:
        """Return the settings of a broker that can connect; a change has _ instead of dots behind zookeeper.ssl."""
        texts = {
            "client.enable": "true", "truststore.location": str(self.authority),
            "keystore.location": str(self.client),
            **{name.replace("_", "."): value for name, value in changes.items()},
        }  # fmt: skip
        given = {f"zookeeper.ssl.{name}": value for name, value in texts.items() if value is not None}
        socket = {"zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty"}
        return BrokerSettings.parse({"log.dirs": "/data", "zookeeper.connect": "127.0.0.1:1", **socket, **given})

    def open(self, settings: BrokerSettings, *, host: str = "127.0.0.1", timeout_s: float = 60.0) -> None:
        """Connect as a broker does, and write and read a node that is larger than a record of TLS."""

        async def run() -> None:
            store = await ZooKeeperStore.open(
                f"{host}:{self.port}", session_timeout_s=SESSION_S, connect_timeout_s=timeout_s,
                security=zookeeper_security(settings),
            )  # fmt: skip
            try:
                value = b"x" * 100_000
                nodes = await store.load("/")
                await store.multi([Put("/tls", value) if "/tls" in nodes else Create("/tls", value)])
                assert (await store.load("/"))["/tls"].value == value
            finally:
                await store.close()

        asyncio.run(run())

    def run_broker(self) -> None:
        """Start and stop a broker with these settings."""
        settings = {
            "zookeeper.connect": f"127.0.0.1:{self.port}/cluster", "broker.id": "1", "zookeeper.set.acl": "true",
            "zookeeper.auth.digest": "ottla:secret", "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": str(self.authority),
            "zookeeper.ssl.keystore.location": str(self.client),
        }  # fmt: skip
        with BrokerProcess.start(settings=settings) as broker:
            assert " ERROR " not in broker.errors()

    def close(self) -> None:
        self.process.stop()
        self._reserved.close()


def _expect_refusal(secured: Secured, settings: BrokerSettings, words: str, *, host: str = "127.0.0.1") -> None:
    """Raise AssertionError if the connection is not refused."""
    reason = ""
    try:
        secured.open(settings, host=host, timeout_s=_REFUSED_S)
    except UnusableStore as error:
        reason = str(error)
    assert reason, "accepted"
    assert words in reason, reason


def check(report: Report) -> None:
    """Report each connection that is refused and must not be, or the other way round."""
    with tempfile.TemporaryDirectory() as name:
        secured = Secured(Path(name))
        try:
            for case, connect in _cases(secured).items():
                try:
                    connect()
                except (AssertionError, UnusableStore) as error:
                    report.problem(f"ZooKeeper over TLS, {case}: {error}")
                report.say(f"ZooKeeper over TLS: {case}")
            report.figure(f"{len(_cases(secured))} connections to ZooKeeper over TLS")
        finally:
            secured.close()


def _cases(secured: Secured) -> dict[str, Callable[[], None]]:
    """Return what is tried; a function raises AssertionError or UnusableStore if it goes the other way."""
    p12 = {"keystore_location": str(secured.client.with_suffix(".p12")), "keystore_password": "secret"}
    any_name = secured.settings(endpoint_identification_algorithm="")
    other = secured.settings(truststore_location=str(secured.other_authority))
    stranger = secured.settings(keystore_location=str(secured.stranger))
    plain = BrokerSettings.parse({"log.dirs": "/data", "zookeeper.connect": "127.0.0.1:1"})
    return {
        "PEM files are accepted": lambda: secured.open(secured.settings()),
        "PKCS12 file is accepted": lambda: secured.open(secured.settings(**p12)),
        "another name that is not checked is accepted": lambda: secured.open(any_name, host="localhost"),
        "broker that protects its nodes is accepted": secured.run_broker,
        "server of an unknown authority is refused": lambda: _expect_refusal(
            secured, other, "local issuer certificate"
        ),
        "server with another name is refused": (
            lambda: _expect_refusal(secured, secured.settings(), "mismatch", host="localhost")
        ),
        "client without a certificate is refused": (
            lambda: _expect_refusal(secured, secured.settings(keystore_location=None), "")
        ),
        "client of an unknown authority is refused": lambda: _expect_refusal(secured, stranger, ""),
        "client without TLS is refused": lambda: _expect_refusal(secured, plain, ""),
    }
