"""JKS files, the stores of Java before version 9 and of many clusters of Kafka.

    magic, version, number of entries
    entry    1, alias, time, protected key, number of certificates, certificates     a key with its chain
             2, alias, time, certificate                                             a trusted certificate
    digest   SHA-1 of the password, a constant and all bytes before

A key is protected with a stream of SHA-1 digests of its password, which is weak: the file must be kept secret like a
key without a password.
"""

from __future__ import annotations

import hashlib
from struct import Struct, error
from typing import Final, NamedTuple

MAGIC: Final = b"\xfe\xed\xfe\xed"
_DIGEST_BYTES: Final = 20
#: what Java appends to the password before it computes the digest of a file
_DIGEST_CONSTANT: Final = b"Mighty Aphrodite"
#: 1.3.6.1.4.1.42.2.17.1.1, Java's own protection of keys, as DER
_PROTECTION: Final = b"\x06\x0a\x2b\x06\x01\x04\x01\x2a\x02\x11\x01\x01"
_INT, _SHORT = Struct(">I"), Struct(">H")
_TIME_BYTES: Final = 8
_KEY, _TRUSTED = 1, 2
_SEQUENCE, _OCTETS = 0x30, 0x04


class BadStore(Exception):
    """The bytes are no JKS file, or are damaged."""


class WrongPassword(Exception):
    """The password does not fit the file or the key."""


class KeyEntry(NamedTuple):
    """A key that is still protected by its password, and its certificates as DER, that of the key first."""

    protected: bytes
    certificates: tuple[bytes, ...]


class JavaStore(NamedTuple):
    keys: tuple[KeyEntry, ...]
    #: certificates as DER
    trusted: tuple[bytes, ...]


def read_store(data: bytes, password: str) -> JavaStore:
    """Return the entries of a JKS file; without a password its digest is not checked, as in Java.

    Raise WrongPassword or BadStore.
    """
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if password and hashlib.sha1(_bytes_of(password) + _DIGEST_CONSTANT + body).digest() != digest:
        raise WrongPassword
    try:
        return _entries(_Reader(body))
    except error:
        raise BadStore from None


def reveal_key(protected: bytes, password: str) -> bytes:
    """Return the key as DER (PKCS #8). Raise WrongPassword or BadStore."""
    try:
        content = _value(protected, _SEQUENCE)[0]
        algorithm, rest = _value(content, _SEQUENCE)
        secret = _value(rest, _OCTETS)[0]
    except IndexError:
        raise BadStore from None
    if not algorithm.startswith(_PROTECTION) or len(secret) < 2 * _DIGEST_BYTES:
        raise BadStore
    salt, hidden, check = secret[:_DIGEST_BYTES], secret[_DIGEST_BYTES:-_DIGEST_BYTES], secret[-_DIGEST_BYTES:]
    password_bytes = _bytes_of(password)
    stream = bytearray()
    while len(stream) < len(hidden):
        salt = hashlib.sha1(password_bytes + salt).digest()
        stream += salt
    key = bytes(one ^ other for one, other in zip(hidden, stream, strict=False))
    if hashlib.sha1(password_bytes + key).digest() != check:
        raise WrongPassword
    return key


def _bytes_of(password: str) -> bytes:
    return password.encode("utf-16-be")


class _Reader:
    """Reads big-endian numbers and byte strings. Raises struct.error at the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: Struct = _INT) -> int:
        value: int = form.unpack_from(self._data, self._at)[0]
        self._at += form.size
        return value

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise error("the bytes end early")
        self._at += size
        return self._data[self._at - size : self._at]


def _entries(reader: _Reader) -> JavaStore:
    if reader.take(len(MAGIC)) != MAGIC:
        raise BadStore
    version = reader.number()
    keys, trusted = [], []
    for _ in range(reader.number()):
        kind = reader.number()
        reader.take(reader.number(_SHORT) + _TIME_BYTES)
        if kind == _KEY:
            protected = reader.take(reader.number())
            keys.append(KeyEntry(protected, tuple(_certificate(reader, version) for _ in range(reader.number()))))
        elif kind == _TRUSTED:
            trusted.append(_certificate(reader, version))
        else:
            raise BadStore
    return JavaStore(tuple(keys), tuple(trusted))


def _certificate(reader: _Reader, version: int) -> bytes:
    if version > 1:
        reader.take(reader.number(_SHORT))  # the type, always X.509
    return reader.take(reader.number())


def _value(der: bytes, tag: int) -> tuple[bytes, bytes]:
    """Return the contents of the first element of DER, and the bytes after it. Raise BadStore or IndexError."""
    start, size = 2, der[1]
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[2:start])
    if der[0] != tag or len(der) < start + size:
        raise BadStore
    return der[start : start + size], der[start + size :]
