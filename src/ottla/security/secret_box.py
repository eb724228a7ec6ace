"""Encrypts short secrets, such as passwords, that are stored where others may read them: AES-256-GCM.

    box = SecretBox("the operator's secret")
    box.seal("ann:password")        # 'sealed:…', another text each time
    box.open("sealed:…")

The key is derived from the operator's secret by scrypt with a random salt, which is a part of the sealed text.
"""

from __future__ import annotations

import base64
import hashlib
import os
from functools import lru_cache
from typing import Final

_MARK: Final = "sealed:"
_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 12


class Unreadable(ValueError):
    """The text was sealed with another secret, or changed."""


def is_sealed(text: str) -> bool:
    return text.startswith(_MARK)


class SecretBox:
    """Seals and opens texts with one secret."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        #: the same until the process ends, so that the key is derived once
        self._salt = os.urandom(_SALT_BYTES)

    def seal(self, text: str) -> str:
        # Imported here, because it takes 10 MB of memory, and a registry without exporters does not need it.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(_NONCE_BYTES)
        content = AESGCM(_key(self._secret, self._salt)).encrypt(nonce, text.encode(), None)
        return _MARK + base64.b64encode(self._salt + nonce + content).decode()

    def open(self, sealed: str) -> str:
        """Return the text. Raise Unreadable if it was sealed with another secret."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            data = base64.b64decode(sealed.removeprefix(_MARK), validate=True)
            salt, rest = data[:_SALT_BYTES], data[_SALT_BYTES:]
            return AESGCM(_key(self._secret, salt)).decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], None).decode()
        except (ValueError, InvalidTag):
            raise Unreadable("it was encrypted with another secret") from None


@lru_cache(maxsize=64)
def _key(secret: bytes, salt: bytes) -> bytes:
    """Return the key; takes some 50 ms for each new salt."""
    return hashlib.scrypt(secret, salt=salt, n=1 << 14, r=8, p=1, dklen=32)
