"""Keys and certificates from PEM, PKCS12 and JKS files, and the TLS contexts that are made of them.

The only file that imports ``cryptography`` in the broker, and only in functions that need it: the import takes a tenth
of the start of a broker, and most listeners have no PKCS12 file and no client certificates.

A context is never changed after it was made: if the files change, a new one is made and tested with a handshake in
memory, and only then used for new connections.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import re
import ssl
import stat
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from ottla.model.settings_security import ListenerSettings
from ottla.security.errors import SecurityConfigError
from ottla.security.java_stores import MAGIC as JKS
from ottla.security.java_stores import BadStore, JavaStore, WrongPassword, read_store, reveal_key

log = logging.getLogger(__name__)

#: names of RFC 2253; other attributes are shown as their OID and the bytes of their value, as Java does
_ATTRIBUTES: Final = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O",
    "2.5.4.11": "OU", "0.9.2342.19200300.100.1.1": "UID", "0.9.2342.19200300.100.1.25": "DC",
}  # fmt: skip
#: tags of the string types of ASN.1, and their encodings
_STRINGS: Final = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1E: "utf-16-be"}
_FILE_BYTES_MAX: Final = 4 << 20
#: the first bytes of JCEKS files
_JCEKS: Final = b"\xce\xce\xce\xce"
#: OpenSSL's reasons for refusing a certificate that it can read
_TOO_WEAK: Final = ("CA_MD_TOO_WEAK", "EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL")
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class KeyPair(NamedTuple):
    """A key with its certificate and those of its issuers, as PEM."""

    key: bytes
    certificates: bytes

    def __repr__(self) -> str:
        return "KeyPair()"


# -- files ------------------------------------------------------------------------------------------------------------


def read_key_file(path: str) -> bytes:
    """Return the contents of a file with a key. Raise SecurityConfigError if others than its owner can read it."""
    try:
        mode = os.stat(path).st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise SecurityConfigError(f"{path} has a key and can be read by other users; run chmod 600 {path}")
        return _read(path)
    except OSError as error:
        raise SecurityConfigError(f"{path} cannot be read: {error.strerror}") from None


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SecurityConfigError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > _FILE_BYTES_MAX:
        raise SecurityConfigError(f"{path} is larger than {_FILE_BYTES_MAX} bytes")
    return data


def load_key_pair(settings: ListenerSettings) -> KeyPair:
    """Return the broker's key and certificate. Raise SecurityConfigError, which says what is missing."""
    if settings.ssl_keystore_key:
        if not settings.ssl_keystore_certificate_chain:
            raise SecurityConfigError("ssl.keystore.key needs ssl.keystore.certificate.chain")
        return KeyPair(_pem(settings.ssl_keystore_key), _pem(settings.ssl_keystore_certificate_chain))
    path = settings.ssl_keystore_location
    if not path:
        raise SecurityConfigError(
            "TLS needs a key and a certificate; set ssl.keystore.location, or create them with ottla security init"
        )
    data = read_key_file(path)
    if settings.ssl_keystore_type == "PEM":
        certificates, key = (
            b"".join(_pem_parts(data, rb"CERTIFICATE")),
            b"".join(_pem_parts(data, rb"[A-Z ]*PRIVATE KEY")),
        )
        if not key or not certificates:
            raise SecurityConfigError(f"{path} must have a private key and its certificate, both as PEM")
        return KeyPair(key, certificates)
    if _is_jks(path, data):
        return _load_jks(path, data, settings.ssl_keystore_password, settings.ssl_key_password)
    return _load_pkcs12(path, data, settings.ssl_keystore_password, settings.ssl_key_password)


def _load_jks(path: str, data: bytes, password: str, key_password: str) -> KeyPair:
    store = _read_jks(path, data, "ssl.keystore.password", password)
    if not store.keys:
        raise SecurityConfigError(f"{path} has no key with a certificate")
    protected, certificates = store.keys[0]
    try:
        key = reveal_key(protected, key_password or password)
    except WrongPassword:
        raise SecurityConfigError(f"ssl.key.password is not that of the key in {path}") from None
    except BadStore:
        raise SecurityConfigError(f"the key in {path} is damaged") from None
    text = "\n".join(textwrap.wrap(base64.b64encode(key).decode(), 64))
    return KeyPair(
        f"-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n".encode(), _pem_of_certificates(certificates)
    )


def _read_jks(path: str, data: bytes, setting: str, password: str) -> JavaStore:
    try:
        return read_store(data, password)
    except WrongPassword:
        raise SecurityConfigError(f"{setting} is not that of {path}, or the file is damaged") from None
    except BadStore:
        raise SecurityConfigError(f"{path} is a damaged JKS file") from None


def _pem_of_certificates(certificates: Iterable[bytes]) -> bytes:
    return "".join(map(ssl.DER_cert_to_PEM_cert, certificates)).encode()


def _load_pkcs12(path: str, data: bytes, password: str, key_password: str) -> KeyPair:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    try:
        found = load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        raise SecurityConfigError(f"{path} is no PKCS12 file, or ssl.keystore.password is wrong") from None
    if found.key is None or found.cert is None:
        raise SecurityConfigError(f"{path} has no key with a certificate")
    encryption = (
        serialization.BestAvailableEncryption(key_password.encode()) if key_password else serialization.NoEncryption()
    )
    key = found.key.private_bytes(Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    chain = [found.cert.certificate, *(each.certificate for each in found.additional_certs)]
    return KeyPair(key, b"".join(each.public_bytes(Encoding.PEM) for each in chain))


def load_trusted(settings: ListenerSettings) -> str:
    """Return the certificates that are trusted as PEM; empty if none are set. Raise SecurityConfigError."""
    if settings.ssl_truststore_certificates:
        return _pem(settings.ssl_truststore_certificates).decode()
    path = settings.ssl_truststore_location
    if not path:
        return ""
    data = _read(path)
    if settings.ssl_truststore_type == "PEM":
        found = b"".join(_pem_parts(data, rb"CERTIFICATE"))
    elif _is_jks(path, data):
        store_of_java = _read_jks(path, data, "ssl.truststore.password", settings.ssl_truststore_password)
        # Java trusts the certificate of a key, too, but not those of its issuers.
        own = [certificate for each in store_of_java.keys for certificate in each.certificates[:1]]
        found = _pem_of_certificates([*store_of_java.trusted, *own])
    else:
        from cryptography.hazmat.primitives.serialization import Encoding
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

        password = settings.ssl_truststore_password
        try:
            store = load_pkcs12(data, password.encode() if password else None)
        except ValueError:
            raise SecurityConfigError(f"{path} is no PKCS12 file, or ssl.truststore.password is wrong") from None
        certificates = [*([store.cert] if store.cert is not None else []), *store.additional_certs]
        found = b"".join(each.certificate.public_bytes(Encoding.PEM) for each in certificates)
    if not found:
        raise SecurityConfigError(f"{path} has no certificate")
    return found.decode()


def store_type(path: str) -> str:
    """Return the form of a file with keys or certificates: PEM, or PKCS12, which includes JKS.

    Raise SecurityConfigError if it cannot be read.
    """
    return "PEM" if path and b"-----BEGIN" in _read(path) else "PKCS12"


def _is_jks(path: str, data: bytes) -> bool:
    """Return whether a file is a JKS store. Raise SecurityConfigError for a JCEKS store.

    The setting of the type does not decide: keytool makes PKCS12 files since Java 9, and Java reads them with
    ``ssl.keystore.type=JKS``, Kafka's default, too.
    """
    if data.startswith(_JCEKS):
        raise SecurityConfigError(
            f"{path} is a JCEKS file, which only Java reads; convert it with "
            f"keytool -importkeystore -srckeystore {path} -destkeystore NEW.p12 -deststoretype PKCS12"
        )
    return data.startswith(JKS)


def _pem_parts(data: bytes, kind: bytes) -> Iterator[bytes]:
    for match in re.finditer(rb"-----BEGIN (" + kind + rb")-----.*?-----END \1-----", data, re.DOTALL):
        yield match[0] + b"\n"


def _pem(text: str) -> bytes:
    """Return PEM from a setting, in which lines may be joined by spaces as Kafka's documentation does."""
    match = re.findall(r"-----BEGIN ([A-Z ]+)-----(.*?)-----END \1-----", text, re.DOTALL)
    if not match:
        raise SecurityConfigError("a setting with PEM has no -----BEGIN and -----END")
    blocks = []
    for kind, body in match:
        lines = "\n".join(body.split())
        blocks.append(f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n")
    return "".join(blocks).encode()


# -- contexts ---------------------------------------------------------------------------------------------------------


def server_context(settings: ListenerSettings) -> ssl.SSLContext:
    """Return the context of a listener. Raise SecurityConfigError if a file is missing or the key does not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _configure(context, settings)
    _load_chain(context, load_key_pair(settings), settings.ssl_key_password)
    trusted = load_trusted(settings)
    if settings.ssl_client_auth != "none":
        if not trusted:
            raise SecurityConfigError(f"ssl.client.auth={settings.ssl_client_auth} needs ssl.truststore.location")
        _trust(context, trusted)
        required = settings.ssl_client_auth == "required"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def client_context(settings: ListenerSettings) -> ssl.SSLContext:
    """Return the context with which this broker connects to others. Raise SecurityConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _configure(context, settings)
    if trusted := load_trusted(settings):
        _trust(context, trusted)
    else:
        context.load_default_certs()
    if settings.ssl_keystore_location or settings.ssl_keystore_key:
        _load_chain(context, load_key_pair(settings), settings.ssl_key_password)
    if not settings.ssl_endpoint_identification_algorithm:
        context.check_hostname = False
    return context


def _configure(context: ssl.SSLContext, settings: ListenerSettings) -> None:
    versions = sorted(_VERSIONS[each] for each in settings.ssl_enabled_protocols if each in _VERSIONS)
    if not versions:
        raise SecurityConfigError("ssl.enabled.protocols has neither TLSv1.2 nor TLSv1.3; use TLSv1.2,TLSv1.3")
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    suites = [openssl_name(each) for each in settings.ssl_cipher_suites]
    if names := [each for each in suites if not each.startswith("TLS_")]:
        try:
            context.set_ciphers(":".join(names))
        except ssl.SSLError:
            raise SecurityConfigError("ssl.cipher.suites names no suite that OpenSSL has") from None


def openssl_name(suite: str) -> str:
    """Return the name that OpenSSL has for a suite of TLS 1.2 with Java's name.

    >>> openssl_name("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
    'ECDHE-RSA-AES128-GCM-SHA256'
    """
    before, is_old, after = suite.removeprefix("TLS_").partition("_WITH_")
    if not is_old:
        return suite
    cipher = re.sub(r"AES_(128|256)_CBC", r"AES\1", re.sub(r"AES_(128|256)_GCM", r"AES\1_GCM", after))
    exchange = "" if before == "RSA" else before.replace("_", "-") + "-"
    return (
        exchange + re.sub(r"_SHA256\Z", "", cipher.replace("CHACHA20_POLY1305", "CHACHA20-POLY1305")).replace("_", "-")
        if "CHACHA20" in cipher
        else exchange + cipher.replace("_", "-")
    )


def _load_chain(context: ssl.SSLContext, pair: KeyPair, password: str) -> None:
    # OpenSSL reads files only. This one has no name in any directory, so the key never reaches a disk.
    with _memory_file(pair.certificates + pair.key) as path:
        try:
            context.load_cert_chain(path, password=password or _no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise SecurityConfigError("the key and the certificate do not belong together") from None
            if error.reason in _TOO_WEAK:
                raise SecurityConfigError(
                    "the certificate is signed with SHA-1 or has a key of less than 2048 bits, which OpenSSL refuses; "
                    "issue a new one"
                ) from None
            raise SecurityConfigError("the key cannot be read; check ssl.key.password and that it is PEM") from None


def _no_password() -> str:
    raise SecurityConfigError("the key is encrypted; set ssl.key.password")


class _memory_file:
    """A file in memory, under a path that this process can open."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __enter__(self) -> str:
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create("key")
        else:
            self._fd, path = tempfile.mkstemp()
            os.unlink(path)
        os.write(self._fd, self._data)
        return f"/proc/self/fd/{self._fd}" if os.path.exists("/proc/self/fd") else f"/dev/fd/{self._fd}"

    def __exit__(self, *exception: object) -> None:
        os.close(self._fd)


def _trust(context: ssl.SSLContext, pem: str) -> None:
    try:
        context.load_verify_locations(cadata=pem)
    except ssl.SSLError:
        raise SecurityConfigError("the certificates of the truststore cannot be read") from None


def check_handshake(server: ssl.SSLContext) -> None:
    """Raise SecurityConfigError if a client cannot complete a handshake with this context."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(back, there)
    other = server.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
                    return  # everything up to the client's certificate has worked
                raise SecurityConfigError(f"a handshake with the new certificate fails: {error.reason}") from None


class Certificates:
    """The current TLS context of a listener, or of connections to other brokers."""

    def __init__(
        self, settings: ListenerSettings, make: Callable[[ListenerSettings], ssl.SSLContext] = server_context
    ) -> None:
        self._settings = settings
        self._make = make
        self._seen = self._stamps()
        self.context = self._made()

    def _made(self) -> ssl.SSLContext:
        context = self._make(self._settings)
        if context.protocol is ssl.PROTOCOL_TLS_SERVER:
            check_handshake(context)
        return context

    def _stamps(self) -> list[tuple[int, int, int]]:
        """Return the modification time, size and inode of the files, which change when they are replaced."""
        found = []
        for path in (self._settings.ssl_keystore_location, self._settings.ssl_truststore_location):
            with contextlib.suppress(OSError):
                status = os.stat(path)
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return found

    def reload(self, listener: str) -> None:
        """Make a new context if a file has changed. A certificate that does not work is reported and not used."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self.context = self._made()
        except SecurityConfigError as error:
            log.error("new certificate is not used, the old one stays listener=%s error=%s", listener, error)
            return
        log.info("new certificate is used for new connections listener=%s", listener)


# -- names ------------------------------------------------------------------------------------------------------------


def subject_of(certificate_der: bytes) -> str:
    """Return the subject of a certificate as Java writes it: RFC 2253, the last attribute first.

    Raise ValueError if the certificate or one of its texts cannot be decoded.
    """
    from cryptography import x509

    subject = x509.load_der_x509_certificate(certificate_der).subject.public_bytes()
    names = []
    for relative in _items(_content(subject)[1]):
        pairs = [_items(_content(pair)[1]) for pair in _items(_content(relative)[1])]
        names.append("+".join(_attribute(oid, value) for oid, value in pairs))
    return ",".join(reversed(names))


def _attribute(oid_der: bytes, value_der: bytes) -> str:
    oid = _oid(_content(oid_der)[1])
    tag, content = _content(value_der)
    if oid not in _ATTRIBUTES or tag not in _STRINGS:
        return f"{oid}=#{value_der.hex()}"
    return f"{_ATTRIBUTES[oid]}={_escape(content.decode(_STRINGS[tag]))}"


def _escape(text: str) -> str:
    escaped = re.sub(r'([,+"\\<>;])', r"\\\1", text)
    if escaped[:1] in ("#", " "):
        escaped = "\\" + escaped
    return escaped[:-1] + "\\ " if escaped.endswith(" ") and len(text) > 1 else escaped


def _content(der: bytes) -> tuple[int, bytes]:
    """Return the tag and the content of a value in DER."""
    header = 2 + (der[1] & 0x7F if der[1] & 0x80 else 0)
    return der[0], der[header:]


def _items(content: bytes) -> list[bytes]:
    """Return the values in the content of a sequence or a set."""
    found, position = [], 0
    while position < len(content):
        length, header = content[position + 1], 2
        if length & 0x80:
            header += length & 0x7F
            length = int.from_bytes(content[position + 2 : position + header], "big")
        found.append(content[position : position + header + length])
        position += header + length
    return found


def _oid(content: bytes) -> str:
    numbers, value = [], 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))
