"""Keys and certificates from files and settings, contexts, and the names of subjects."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from certificate_settings import settings, write
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PKCS12Certificate,
    serialize_java_truststore,
    serialize_key_and_certificates,
)
from cryptography.x509.oid import NameOID

from ottla.security.certificates import (
    check_handshake,
    client_context,
    load_key_pair,
    load_trusted,
    openssl_name,
    server_context,
    subject_of,
)
from ottla.security.errors import SecurityConfigError
from ottla.security.principals import SslPrincipalMapper

CA = trustme.CA(key_type=trustme.KeyType.ECDSA)
CERT = CA.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
OTHER = CA.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
KEY, CHAIN = CERT.private_key_pem.bytes(), b"".join(each.bytes() for each in CERT.cert_chain_pems)
TRUSTED = CA.cert_pem.bytes()


def pkcs12(password: bytes | None = b"secret") -> bytes:
    key = load_pem_private_key(KEY, None)
    chain = x509.load_pem_x509_certificates(CHAIN)
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    return serialize_key_and_certificates(b"broker", key, chain[0], chain[1:], encryption)  # type: ignore[arg-type]


def sources(path: Path) -> dict[str, Any]:
    pem = write(path / "broker.pem", CHAIN + KEY)
    trust = write(path / "ca.pem", TRUSTED, 0o644)
    p12 = write(path / "broker.p12", pkcs12())
    truststore = serialize_java_truststore(
        [PKCS12Certificate(x509.load_pem_x509_certificate(TRUSTED), b"ca")], BestAvailableEncryption(b"secret")
    )
    return {
        "pem files": settings(
            ssl_keystore_type="PEM", ssl_keystore_location=pem,
            ssl_truststore_type="PEM", ssl_truststore_location=trust,
        ),
        "pkcs12 files": settings(
            ssl_keystore_location=p12, ssl_keystore_password="secret",
            ssl_truststore_location=write(path / "trust.p12", truststore), ssl_truststore_password="secret",
        ),
        "pem in settings": settings(
            ssl_keystore_key=KEY.decode().replace("\n", " "), ssl_keystore_certificate_chain=CHAIN.decode(),
            ssl_truststore_certificates=TRUSTED.decode().replace("\n", " "),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("source", ["pem files", "pkcs12 files", "pem in settings"])
def test_client_trusts_the_certificate(tmp_path: Path, source: str) -> None:
    given = sources(tmp_path)[source]
    server = server_context(given)
    check_handshake(server)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client_context(given).wrap_bio(back, there, server_hostname="localhost"),
        server.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(3):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    assert sides[0].version() == "TLSv1.3" and sides[0].getpeercert()


def test_encrypted_key(tmp_path: Path) -> None:
    encrypted = load_pem_private_key(KEY, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    path = write(tmp_path / "broker.pem", CHAIN + encrypted)
    server_context(settings(ssl_keystore_type="PEM", ssl_keystore_location=path, ssl_key_password="secret"))
    with pytest.raises(SecurityConfigError, match=r"ssl\.key\.password"):
        server_context(settings(ssl_keystore_type="PEM", ssl_keystore_location=path))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "broker.pem", CHAIN + KEY, mode)
    with pytest.raises(SecurityConfigError, match="chmod 600"):
        load_key_pair(settings(ssl_keystore_type="PEM", ssl_keystore_location=path))


def test_what_is_wrong_is_said_without_secrets(tmp_path: Path) -> None:
    p12 = write(tmp_path / "broker.p12", pkcs12())
    jks = write(tmp_path / "broker.jks", b"\xfe\xed\xfe\xed\0\0\0\2\0\0\0\1" + bytes(20))
    jceks = write(tmp_path / "broker.jceks", b"\xce\xce\xce\xce\0\0\0\2\0\0\0\1")
    no_key = write(tmp_path / "no-key.pem", CHAIN)
    mixed = write(tmp_path / "mixed.pem", CHAIN + OTHER.private_key_pem.bytes())
    empty = write(tmp_path / "empty.pem", b"")
    cases: list[tuple[str, dict[str, str]]] = [
        ("ottla security init", {}),
        ("cannot be read: No such file", {"ssl_keystore_location": str(tmp_path / "none")}),
        ("ssl.keystore.password is wrong", {"ssl_keystore_location": p12, "ssl_keystore_password": "canary"}),
        ("must have a private key", {"ssl_keystore_type": "PEM", "ssl_keystore_location": no_key}),
        ("do not belong together", {"ssl_keystore_type": "PEM", "ssl_keystore_location": mixed}),
        ("damaged JKS file", {"ssl_keystore_type": "JKS", "ssl_keystore_location": jks}),
        ("keytool -importkeystore -srckeystore", {"ssl_keystore_type": "JKS", "ssl_keystore_location": jceks}),
        ("-deststoretype PKCS12", {"ssl_keystore_location": jceks, "ssl_keystore_password": "canary"}),
        ("needs ssl.keystore.certificate.chain", {"ssl_keystore_key": KEY.decode()}),
        ("-----BEGIN", {"ssl_keystore_key": "canary", "ssl_keystore_certificate_chain": "canary"}),
    ]
    for said, texts in cases:
        with pytest.raises(SecurityConfigError) as refused:
            server_context(settings(**texts))
        assert said in str(refused.value) and "canary" not in str(refused.value)
    with pytest.raises(SecurityConfigError, match="has no certificate"):
        load_trusted(settings(ssl_truststore_type="PEM", ssl_truststore_location=empty))


def test_certificate_that_openssl_refuses_as_weak_is_named(tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = ssl.DER_cert_to_PEM_cert(certificate([x509.NameAttribute(NameOID.COMMON_NAME, "weak")], key)).encode()
    path = write(tmp_path / "broker.pem", chain + text)
    with pytest.raises(SecurityConfigError, match="less than 2048 bits"):
        server_context(settings(ssl_keystore_type="PEM", ssl_keystore_location=path))


def test_client_certificates_need_a_truststore(tmp_path: Path) -> None:
    path = write(tmp_path / "broker.pem", CHAIN + KEY)
    with pytest.raises(SecurityConfigError, match=r"ssl\.truststore\.location"):
        server_context(settings(ssl_keystore_type="PEM", ssl_keystore_location=path, ssl_client_auth="required"))


def test_old_versions_of_tls_cannot_be_enabled(tmp_path: Path) -> None:
    given = {"ssl_keystore_type": "PEM", "ssl_keystore_location": write(tmp_path / "broker.pem", CHAIN + KEY)}
    context = server_context(settings(**given, ssl_enabled_protocols="TLSv1.2,TLSv1.1,TLSv1"))
    assert (context.minimum_version, context.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)
    with pytest.raises(SecurityConfigError, match=r"neither TLSv1\.2 nor TLSv1\.3"):
        server_context(settings(**given, ssl_enabled_protocols="TLSv1.1"))
    with pytest.raises(ValueError, match=r"TLSv1\.2"):
        settings(ssl_enabled_protocols="SSLv3,TLSv1.2")


def test_cipher_suites_have_the_names_of_java_or_openssl() -> None:
    names = {
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256": "DHE-RSA-AES256-SHA256",
        "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
        "ECDHE-RSA-AES128-GCM-SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_AES_256_GCM_SHA384": "TLS_AES_256_GCM_SHA384",
    }
    assert {name: openssl_name(name) for name in names} == names
    known = {cipher["name"] for cipher in ssl.create_default_context().get_ciphers()}
    assert known >= set(list(names.values())[:3])


def certificate(attributes: list[x509.NameAttribute[Any]], key: Any = None) -> bytes:
    key = key or ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name(attributes), datetime.datetime(2026, 1, 1)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def test_subject_is_written_as_java_writes_it() -> None:
    attributes = [
        x509.NameAttribute(NameOID.COUNTRY_NAME, "US"), x509.NameAttribute(NameOID.STATE_OR_PROVINCE_NAME, "CA"),
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example Inc"),
        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "Eng, Core"),
        x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b.c"), x509.NameAttribute(NameOID.COMMON_NAME, "locälhost"),
    ]  # fmt: skip
    assert subject_of(certificate(attributes)) == (
        r"CN=locälhost,1.2.840.113549.1.9.1=#16056140622e63,OU=Eng\, Core,O=Example Inc,ST=CA,C=US"
    )
    assert subject_of(certificate([x509.NameAttribute(NameOID.COMMON_NAME, ' #a="b" ')])) == r"CN=\ #a=\"b\"\ "


def test_white_space_of_a_subject_is_kept() -> None:
    """A certificate for "admin" and a no-break space does not become that of admin."""
    subject = subject_of(certificate([x509.NameAttribute(NameOID.COMMON_NAME, "admin\u00a0")]))
    assert subject == "CN=admin\u00a0"
    assert SslPrincipalMapper("RULE:CN=(.*)/$1/").name(subject) == "admin\u00a0"


def test_subject_that_cannot_be_decoded_is_refused() -> None:
    """Its invalid bytes would all become the same character."""
    der = certificate([x509.NameAttribute(NameOID.COMMON_NAME, "admin")]).replace(b"admin", b"adm\xffn")
    with pytest.raises(ValueError):
        subject_of(der)


def test_pkcs12_file_with_the_type_jks_is_read_as_java_does(tmp_path: Path) -> None:
    """keytool makes PKCS12 files since Java 9, and a server.properties for Kafka often says JKS or nothing."""
    path = write(tmp_path / "broker.jks", pkcs12())
    given = {"ssl_keystore_type": "JKS", "ssl_keystore_location": path, "ssl_keystore_password": "secret"}
    server_context(settings(**given))
    trusted = {"ssl_truststore_type": "JKS", "ssl_truststore_location": path, "ssl_truststore_password": "secret"}
    assert "BEGIN CERTIFICATE" in load_trusted(settings(**trusted))
