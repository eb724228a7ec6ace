"""Certificates of our own authority, as OpenSSL judges them."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import pytest

from ottla.security.authority import describe, issue, new_authority
from ottla.security.certificates import KeyPair, subject_of
from ottla.security.errors import SecurityConfigError

NOW = datetime.datetime.now(datetime.UTC)
AUTHORITY = new_authority("Test CA", now=NOW, days=10)
OTHER = new_authority("Other CA", now=NOW, days=10)
HOSTS = ("localhost", "127.0.0.1", "::1", "broker.example")


def issued(name: str, authority: KeyPair = AUTHORITY, *, hosts: tuple[str, ...] = (), days: int = 5) -> KeyPair:
    return issue(authority, name, hosts=hosts, for_broker=bool(hosts), now=NOW, days=days)


def connect(directory: Path, host: str, server: KeyPair, client: KeyPair | None = None) -> bytes | None:
    """Complete a handshake in memory; return the client's certificate. Raise ssl.SSLError."""
    (directory / "server.pem").write_bytes(server.key + server.certificates)
    accepts = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=AUTHORITY.certificates.decode())
    accepts.load_cert_chain(directory / "server.pem")
    accepts.verify_mode = ssl.CERT_OPTIONAL
    connects = ssl.create_default_context(cadata=AUTHORITY.certificates.decode())
    for context in (accepts, connects):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    if client is not None:
        (directory / "client.pem").write_bytes(client.key + client.certificates)
        connects.load_cert_chain(directory / "client.pem")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = connects.wrap_bio(back, there, server_hostname=host)
    other = accepts.wrap_bio(there, back, server_side=True)
    waiting = {one, other}
    for _ in range(8):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.discard(side)
            except ssl.SSLWantReadError:
                continue
    assert not waiting
    return other.getpeercert(True)


@pytest.mark.parametrize("host", HOSTS)
def test_broker_is_accepted_by_each_of_its_names(host: str, tmp_path: Path) -> None:
    assert connect(tmp_path, host, issued("broker", hosts=HOSTS)) is None


def test_broker_is_refused_by_another_name(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        connect(tmp_path, "other.example", issued("broker", hosts=HOSTS))


def test_certificate_of_a_client_cannot_be_that_of_a_broker(tmp_path: Path) -> None:
    client = issue(AUTHORITY, "c", hosts=HOSTS, for_broker=False, now=NOW, days=5)
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        connect(tmp_path, "localhost", client)


def test_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(tmp_path, "localhost", issued("broker", OTHER, hosts=HOSTS))
    with pytest.raises(ssl.SSLError):
        connect(tmp_path, "localhost", issued("broker", hosts=HOSTS), issued("alice", OTHER))


@pytest.mark.parametrize("name", ["alice", "a,b=c", "größer", "x" * 64])
def test_client_has_its_name_in_the_subject(name: str, tmp_path: Path) -> None:
    certificate = connect(tmp_path, "localhost", issued("broker", hosts=HOSTS), issued(name))
    assert certificate is not None
    assert subject_of(certificate).replace("\\", "") == f"CN={name}"


def test_description_has_names_issuer_and_end() -> None:
    (found,) = describe(issued("broker", hosts=HOSTS).certificates)
    assert (found.name, found.issuer, found.hosts) == ("broker", "Test CA", HOSTS)
    assert found.is_for_brokers and not found.is_authority
    assert found.not_after == (NOW + datetime.timedelta(days=5)).replace(microsecond=0)
    assert found.not_before < NOW
    assert not describe(issued("alice").certificates)[0].is_for_brokers
    assert describe(AUTHORITY.certificates)[0].is_authority


@pytest.mark.parametrize(("name", "hosts"), [("", ()), ("x" * 65, ()), ("a\nb", ()), ("b", ("größer.example",))])
def test_name_that_a_certificate_cannot_have_is_refused(name: str, hosts: tuple[str, ...]) -> None:
    with pytest.raises(SecurityConfigError):
        issue(AUTHORITY, name, hosts=hosts, for_broker=False, now=NOW, days=1)


def test_file_without_a_certificate_is_refused() -> None:
    with pytest.raises(SecurityConfigError, match="no certificate"):
        describe(AUTHORITY.key)
    with pytest.raises(SecurityConfigError, match="key cannot be read"):
        issue(KeyPair(b"x", AUTHORITY.certificates), "a", for_broker=False, now=NOW, days=1)
