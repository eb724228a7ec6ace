"""Connections to ZooKeeper over TLS: which servers are trusted, and settings that are refused.

`tests/security/zookeeper_tls.py` (make campaign NAME=security) has the same with a real server.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from kazoo.exceptions import ConnectionDropped

from ottla.broker.metadata.zookeeper.access import zookeeper_security
from ottla.broker.metadata.zookeeper.connection import _Handler
from ottla.cli.zookeeper_server import Server, ServerTls, ZooKeeperFailed, write_config
from ottla.model.errors import StartError
from ottla.model.settings import BrokerSettings

_EC = trustme.KeyType.ECDSA
AUTHORITY, STRANGER = trustme.CA(key_type=_EC), trustme.CA(key_type=_EC)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def issue(authority: trustme.CA, path: Path, *names: str) -> Path:
    made = authority.issue_cert(*names, key_type=_EC)
    key: Any = load_pem_private_key(made.private_key_pem.bytes(), None)
    chain = b"".join(each.bytes() for each in made.cert_chain_pems)
    return write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + chain)


# -- connections ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of a server with a certificate for 127.0.0.1, which reads what arrives and answers nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1", key_type=_EC).configure_cert(context)

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(plain, server_side=True) as encrypted:
                    encrypted.recv(1)
            except OSError:
                pass  # the client does not trust this server

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def connect(port: int, host: str, truststore: Path, **changes: str) -> tuple[_Handler, Any]:
    """Return kazoo's handler as a broker with these settings has it, and its connection or None."""
    texts = {"client.enable": "true", "truststore.location": str(truststore), **changes}
    given = {f"zookeeper.ssl.{name.replace('_', '.')}": text for name, text in texts.items()}
    security = zookeeper_security(BrokerSettings.parse({"log.dirs": "/data", **given}))
    handler = _Handler(60.0, security.tls)
    try:
        return handler, handler.create_connection(address=("127.0.0.1", port), timeout=60.0, hostname=host)
    except ConnectionDropped:
        return handler, None


def test_server_with_a_certificate_for_its_name_is_trusted(server: int, tmp_path: Path) -> None:
    handler, connection = connect(server, "127.0.0.1", write(tmp_path / "ca.pem", AUTHORITY.cert_pem.bytes()))
    with connection:
        assert isinstance(connection, ssl.SSLSocket) and connection.version() == "TLSv1.3" and not handler.failure


def test_server_of_an_unknown_authority_is_refused_and_the_reason_is_kept(
    server: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler, connection = connect(server, "127.0.0.1", write(tmp_path / "ca.pem", STRANGER.cert_pem.bytes()))
    assert connection is None and "unable to get local issuer certificate" in handler.failure
    assert "no TLS connection to ZooKeeper" in caplog.text


def test_name_of_the_server_is_checked_unless_the_operator_says_otherwise(server: int, tmp_path: Path) -> None:
    truststore = write(tmp_path / "ca.pem", AUTHORITY.cert_pem.bytes())
    handler, connection = connect(server, "localhost", truststore)
    assert connection is None and "Hostname mismatch" in handler.failure
    for text in ("", "false"):
        _, connection = connect(server, "localhost", truststore, endpoint_identification_algorithm=text)
        assert connection is not None
        connection.close()


# -- settings ---------------------------------------------------------------------------------------------------------


def test_wrong_settings_end_the_start(tmp_path: Path) -> None:
    files = {"ca.pem": b"x", "key.p12": b"canary"}
    for name, data in files.items():
        write(tmp_path / name, data)
    cases = {
        "zookeeper.ssl.truststore.location": "/gone",
        "zookeeper.ssl.keystore.location": str(tmp_path / "key.p12"),
    }
    for name, path in cases.items():
        texts = {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.keystore.password": "canary", name: path}
        settings = BrokerSettings.parse({"log.dirs": "/data", "zookeeper.connect": "127.0.0.1:1", **texts})
        with pytest.raises(StartError, match="connections to ZooKeeper") as refused:
            zookeeper_security(settings)
        assert path in str(refused.value) and "canary" not in str(refused.value).replace(str(tmp_path), "")


def test_class_for_tls_without_tls_is_refused() -> None:
    texts = {"log.dirs": "/data", "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty"}
    with pytest.raises(StartError, match=r"set zookeeper\.ssl\.client\.enable=true"):
        zookeeper_security(BrokerSettings.parse(texts))


def test_server_with_tls_has_no_port_without_it(tmp_path: Path) -> None:
    tls = ServerTls(keystore=tmp_path / "server.pem", truststore=tmp_path / "ca.pem")
    lines = write_config(Server(data=tmp_path / "data", port=4711, tls=tls)).read_text().splitlines()
    assert "secureClientPort=4711" in lines and "ssl.clientAuth=need" in lines
    assert not [line for line in lines if line.startswith("clientPort")]


def test_files_of_a_server_are_checked_before_it_starts(tmp_path: Path) -> None:
    authority = trustme.CA(key_type=_EC)
    truststore = write(tmp_path / "ca.pem", authority.cert_pem.bytes())
    keystore = issue(authority, tmp_path / "server.pem", "localhost")
    ServerTls(keystore=keystore, truststore=truststore).check()
    keystore.chmod(0o644)
    with pytest.raises(ZooKeeperFailed, match="chmod 600"):
        ServerTls(keystore=keystore, truststore=truststore).check()
    with pytest.raises(ZooKeeperFailed, match="openssl pkcs8 -topk8"):
        ServerTls(keystore=truststore, truststore=truststore).check()
    with pytest.raises(ZooKeeperFailed, match="No such file"):
        ServerTls(keystore=tmp_path / "gone", truststore=truststore).check()
