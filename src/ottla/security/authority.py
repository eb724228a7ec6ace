"""A certificate authority for one cluster: creates its key, and signs the certificates of brokers and clients.

Keys are EC P-256, because a handshake with one costs half of one with RSA. A client's name is the common name of its
certificate. The names of a broker are in its subjectAltName, where clients look for them.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ottla.security.certificates import KeyPair
from ottla.security.errors import SecurityConfigError

#: a certificate is valid from this time before its creation, because the clocks of other machines may be behind
_EARLIER: Final = datetime.timedelta(minutes=10)
_NAME_CHARS_MAX: Final = 64


class CertificateInfo(NamedTuple):
    """The fields of a certificate that `ottla cert` prints."""

    #: the common name; the whole subject if it has none
    name: str
    issuer: str
    #: host names and addresses that it is for
    hosts: tuple[str, ...]
    not_before: datetime.datetime
    not_after: datetime.datetime
    is_authority: bool
    #: whether brokers can use it; all can be used by clients
    is_for_brokers: bool
    serial: str


def new_authority(name: str, *, now: datetime.datetime, days: int) -> KeyPair:
    """Return the key and the certificate of a new authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    usage = _key_usage(signs_certificates=True)
    builder = _builder(subject, subject, key, key, now=now, days=days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    return _pair(key, [builder.sign(key, hashes.SHA256())])


def issue(
    authority: KeyPair, name: str, *, hosts: Iterable[str] = (), for_broker: bool, now: datetime.datetime, days: int
) -> KeyPair:
    """Return a new key with a certificate that the authority has signed. Raise SecurityConfigError.

    The certificate of a broker is also valid for a client, because brokers connect to each other.
    """
    signer: Any = _load_key(authority)
    issuer = _load(authority.certificates)[0]
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if for_broker:
        uses.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
    builder = _builder(_subject(name), issuer.subject, key, signer, now=now, days=days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    if names := [_general_name(host) for host in dict.fromkeys(hosts)]:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _pair(key, [builder.sign(signer, hashes.SHA256())])


def is_pair(pair: KeyPair) -> bool:
    """Return whether the key is that of the first certificate. Raise SecurityConfigError if one of them is no PEM."""
    signer: Any = _load_key(pair)
    return bool(_load(pair.certificates)[0].public_key() == signer.public_key())


def describe(pem: bytes) -> list[CertificateInfo]:
    """Return what the certificates in a PEM file say. Raise SecurityConfigError if there is none."""
    return [_describe(each) for each in _load(pem)]


def _describe(certificate: x509.Certificate) -> CertificateInfo:
    is_authority, is_for_brokers, hosts = False, True, []
    for extension in certificate.extensions:
        value = extension.value
        if isinstance(value, x509.BasicConstraints):
            is_authority = value.ca
        elif isinstance(value, x509.ExtendedKeyUsage):
            is_for_brokers = ExtendedKeyUsageOID.SERVER_AUTH in value
        elif isinstance(value, x509.SubjectAlternativeName):
            hosts = [str(each.value) for each in value if isinstance(each, x509.DNSName | x509.IPAddress)]
    return CertificateInfo(
        _name_of(certificate.subject), _name_of(certificate.issuer), tuple(hosts), certificate.not_valid_before_utc,
        certificate.not_valid_after_utc, is_authority, is_for_brokers and not is_authority,
        f"{certificate.serial_number:x}",
    )  # fmt: skip


def _name_of(subject: x509.Name) -> str:
    found = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else subject.rfc4514_string()


def _subject(name: str) -> x509.Name:
    if not 0 < len(name) <= _NAME_CHARS_MAX or not name.isprintable():
        raise SecurityConfigError(f"a name has 1 to {_NAME_CHARS_MAX} printable characters; {name!r} has not")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise SecurityConfigError(f"{host!r} is no host name; write international names as xn--...") from None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Any, signer: Any, *, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER).not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )  # fmt: skip


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs_certificates, crl_sign=signs_certificates, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pair(key: Any, certificates: Sequence[x509.Certificate]) -> KeyPair:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(private, b"".join(each.public_bytes(Encoding.PEM) for each in certificates))


def _load(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise SecurityConfigError("the file has no certificate as PEM") from None


def _load_key(pair: KeyPair) -> Any:
    try:
        return load_pem_private_key(pair.key, None)
    except (ValueError, TypeError):
        raise SecurityConfigError("the key cannot be read: it is not PEM, or it has a password") from None
