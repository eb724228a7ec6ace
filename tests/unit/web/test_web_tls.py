"""TLS of HTTP listeners: certificates of clients, new certificates without a restart, slow handshakes."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest
import trustme
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from web_fixtures import Served, read_answer, run, serving, until

from ottla.edge.web.connections import ConnectionLimits
from ottla.edge.web.service import reloading_context
from ottla.edge.web.settings import WebSettings
from ottla.security.certificates import Certificates, subject_of

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
CA, OTHER_CA = (trustme.CA(key_type=trustme.KeyType.ECDSA) for _ in range(2))


async def show_certificate(scope: Scope, receive: Receive, send: Send) -> None:
    certificate = scope.get("client_certificate")
    text = "none" if certificate is None else subject_of(certificate)
    await Response(f"{scope['scheme']} {text}")(scope, receive, send)


def write_certificate(path: Path, authority: trustme.CA = CA) -> None:
    made = authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
    path.write_bytes(made.private_key_pem.bytes() + b"".join(part.bytes() for part in made.cert_chain_pems))
    path.chmod(0o600)


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    write_certificate(tmp_path / "server.pem")
    CA.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
    }


def client(trusted: trustme.CA = CA, own: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    trusted.configure_trust(context)
    if own is not None:
        own.issue_cert("ann@example", common_name="ann", key_type=trustme.KeyType.ECDSA).configure_cert(context)
    return context


async def ask(served: Served, tls: ssl.SSLContext) -> str:
    reader, writer = await served.connect(GET, tls)
    try:
        return (await read_answer(reader))[2].decode()
    finally:
        writer.transport.abort()


def test_https_with_and_without_a_certificate_of_the_client(texts: dict[str, str]) -> None:
    async def check() -> None:
        settings = WebSettings.parse({**texts, "ssl.client.authentication": "REQUESTED"})
        async with serving(show_certificate, tls=reloading_context(Certificates(settings.tls()))) as served:
            assert await ask(served, client()) == "https none"
            assert (await ask(served, client(own=CA))).startswith("https CN=ann")
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await ask(served, client(own=OTHER_CA))

    run(check())


def test_certificate_is_required(texts: dict[str, str]) -> None:
    async def check() -> None:
        settings = WebSettings.parse({**texts, "ssl.client.auth": "true"})
        async with serving(show_certificate, tls=reloading_context(Certificates(settings.tls()))) as served:
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await ask(served, client())
            assert (await ask(served, client(own=CA))).startswith("https CN=ann")

    run(check())


def test_new_certificates_are_used_by_new_connections(texts: dict[str, str], tmp_path: Path) -> None:
    async def check() -> None:
        settings = WebSettings.parse({**texts, "ssl.client.authentication": "REQUIRED"})
        certificates = Certificates(settings.tls())
        async with serving(show_certificate, tls=reloading_context(certificates)) as served:
            assert (await ask(served, client(own=CA))).startswith("https CN=ann")
            write_certificate(tmp_path / "server.pem", OTHER_CA)
            OTHER_CA.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
            certificates.reload("https")
            with pytest.raises(ssl.SSLError):
                await ask(served, client(own=OTHER_CA))
            assert (await ask(served, client(OTHER_CA, own=OTHER_CA))).startswith("https CN=ann")
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await ask(served, client(OTHER_CA, own=CA))

    run(check())


def test_slow_handshakes_are_ended_and_do_not_keep_others_away(texts: dict[str, str]) -> None:
    async def check() -> None:
        tls = reloading_context(Certificates(WebSettings.parse(texts).tls()))
        async with serving(show_certificate, ConnectionLimits(handshakes_max=3), tls) as served:
            silent = [await served.connect() for _ in range(3)]
            await until(lambda: served.table.pending == 3)
            assert await ask(served, client()) == "https none"
            assert served.table.closed["handshakes"] == 1
            assert await silent[0][0].read() == b""
            for _, writer in silent:
                writer.transport.abort()
            await until(lambda: not served.table.pending)

    run(check())


def test_many_slow_handshakes_at_once_are_ended_too(texts: dict[str, str]) -> None:
    async def check() -> None:
        tls = reloading_context(Certificates(WebSettings.parse(texts).tls()))
        async with serving(show_certificate, ConnectionLimits(handshakes_max=3), tls) as served:
            silent = await asyncio.gather(*(served.connect(b"\x16\x03\x01") for _ in range(50)))
            await until(lambda: served.table.closed["handshakes"] == 47)
            for reader, _ in silent[:47]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            assert served.table.pending == 3
            for _, writer in silent:
                writer.transport.abort()

    run(check())


def test_handshake_has_the_setup_time(texts: dict[str, str]) -> None:
    async def check() -> None:
        tls = reloading_context(Certificates(WebSettings.parse(texts).tls()))
        async with serving(show_certificate, ConnectionLimits(setup_s=0.05), tls) as served:
            reader, writer = await served.connect()
            assert await reader.read() == b""
            writer.close()
            await until(lambda: not served.table.pending)

    run(check())
