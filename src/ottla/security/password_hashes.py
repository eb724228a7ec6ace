"""Salted hashes of passwords (scrypt, RFC 7914), and the file of users that has them.

    ann:{scrypt}ln=15,r=8,p=3$SALT$HASH        one line for each user; salt and hash are base64

`ottla user hash` writes such a line. The cost of the default is that of OWASP's recommendation: 32 MB of memory and
about a quarter of a second. The bounds of the costs keep a line of the file from taking all memory of the process.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.security.errors import SecurityConfigError

SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
_LINE: Final = re.compile(
    r"([^:\s][^:]*):\{scrypt\}ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([\w+/=]+)\$([\w+/=]+)", re.ASCII
)
#: limits of the exponent, the block size and the parallelism: at most 128 MB
_LN: Final = range(10, 18)
_R: Final = range(1, 9)
_P: Final = range(1, 17)
_FILE_BYTES_MAX: Final = 4 << 20


class PasswordHash(NamedTuple):
    """The hash of one password, and what its computation costs."""

    ln: int
    r: int
    p: int
    salt: bytes
    hash: bytes

    def __repr__(self) -> str:
        return f"PasswordHash(ln={self.ln}, r={self.r}, p={self.p})"

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.hash))
        return f"{{scrypt}}ln={self.ln},r={self.r},p={self.p}${salt}${digest}"

    def is_password(self, password: bytes) -> bool:
        """Return whether this is the password. Takes as long for a wrong one."""
        return hmac.compare_digest(
            self.hash, _scrypt(password, self.salt, ln=self.ln, r=self.r, p=self.p, size=len(self.hash))
        )


def hash_password(password: bytes, salt: bytes, *, ln: int = 15, r: int = 8, p: int = 3) -> PasswordHash:
    return PasswordHash(ln, r, p, salt, _scrypt(password, salt, ln=ln, r=r, p=p, size=_HASH_BYTES))


def _scrypt(password: bytes, salt: bytes, *, ln: int, r: int, p: int, size: int) -> bytes:
    memory = 128 * r * ((1 << ln) + p + 2)
    return hashlib.scrypt(password, salt=salt, n=1 << ln, r=r, p=p, maxmem=memory + (1 << 20), dklen=size)


#: what is computed for an unknown user of a file without users
FAKE: Final = PasswordHash(15, 8, 3, bytes(SALT_BYTES), bytes(_HASH_BYTES))


def user_line(name: str, password_hash: PasswordHash) -> str:
    """Return the line of a user. Raise SecurityConfigError if the name cannot be in such a file."""
    line = f"{name}:{password_hash}"
    if "\n" in name or "\r" in name or name.startswith("#") or name.strip() != name or not _LINE.fullmatch(line):
        raise SecurityConfigError("a user name must not be empty, begin with #, or have a colon or a line break")
    return line


def parse_users(path: str, text: str) -> dict[str, PasswordHash]:
    """Return the users of a file. Raise SecurityConfigError, which names the line and does not show it."""
    users: dict[str, PasswordHash] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise SecurityConfigError(f"{path}: line {number} is not NAME:{{scrypt}}...; write it with ottla user hash")
        ln, r, p = (int(match[group]) for group in (2, 3, 4))
        try:
            salt, digest = (base64.b64decode(match[group], validate=True) for group in (5, 6))
        except binascii.Error:
            raise SecurityConfigError(f"{path}: line {number} has no valid base64") from None
        if ln not in _LN or r not in _R or p not in _P or len(salt) < 8 or not 16 <= len(digest) <= 64:
            raise SecurityConfigError(f"{path}: line {number} has costs or sizes that are not allowed")
        if match[1] in users:
            raise SecurityConfigError(f"{path}: line {number} has a user that an earlier line has")
        users[match[1]] = PasswordHash(ln, r, p, salt, digest)
    return users


class UsersFile:
    """The users of a file, which is read again when it has changed. All methods may be called in any thread."""

    def __init__(self, path: str) -> None:
        """Raise SecurityConfigError if the file cannot be read, or others than its owner can read it."""
        self._path = path
        self._stamp = self._status()
        self.users: Mapping[str, PasswordHash] = self._load()

    def reload(self) -> bool:
        """Return whether the file has changed. Raise SecurityConfigError if it cannot be used: there are no users."""
        try:
            stamp = self._status()
            if stamp == self._stamp:
                return False
            self.users = self._load()
        except SecurityConfigError:
            self.users, self._stamp = {}, ()
            raise
        self._stamp = stamp
        return True

    def find(self, name: str) -> tuple[PasswordHash, bool]:
        """Return the hash of a user and whether the user exists; for an unknown one a hash with the same cost."""
        known = self.users.get(name)
        if known is not None:
            return known, True
        like = next(iter(self.users.values()), FAKE)
        return like._replace(salt=FAKE.salt, hash=bytes(len(like.hash))), False

    def _status(self) -> tuple[int, ...]:
        try:
            status = os.stat(self._path)
        except OSError as error:
            raise SecurityConfigError(f"{self._path} cannot be read: {error.strerror}") from None
        return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode

    def _load(self) -> dict[str, PasswordHash]:
        try:
            with open(self._path, encoding="utf-8") as file:
                mode = os.fstat(file.fileno()).st_mode
                if mode & (stat.S_IRWXG | stat.S_IRWXO):
                    raise SecurityConfigError(
                        f"{self._path} has hashes of passwords that other users can read; run chmod 600 {self._path}"
                    )
                text = file.read(_FILE_BYTES_MAX + 1)
        except OSError as error:
            raise SecurityConfigError(f"{self._path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SecurityConfigError(f"{self._path} is not UTF-8 text") from None
        if len(text) > _FILE_BYTES_MAX:
            raise SecurityConfigError(f"{self._path} is larger than {_FILE_BYTES_MAX} bytes")
        return parse_users(self._path, text)
