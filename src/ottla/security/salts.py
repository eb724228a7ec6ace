"""Salts for users that do not exist, which an attacker cannot distinguish from those of existing users. Pure.

A client that begins a login with SCRAM gets the salt and the iterations of the user before it has proved its identity.
An unknown user must also get a salt, always the same one. It must have the form of a real one: each tool that creates
users has its own length of salts and number of iterations, and the salts of Java's tools are texts. An unknown user
therefore gets a salt of the same shape as some known user, and each shape is as frequent among unknown users as among
known ones.

The shape of an unknown user may change when users are created or deleted, and not otherwise.
"""

from __future__ import annotations

import hmac
import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

#: size of the salts that Ottla creates
SALT_BYTES: Final = 24
ITERATIONS_MIN: Final = 4096
#: Kafka's tools write a random number of this many bits in base 36
_JAVA_BITS: Final = 130
_JAVA_SALT: Final = re.compile(rb"[1-9a-z][0-9a-z]{15,25}\Z")
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
#: only the most frequent shapes are used; there is about one for each tool
_SHAPES_MAX: Final = 8


K = TypeVar("K")


class SaltShape(NamedTuple):
    """The form of credentials that a client can see: all but the random bytes of the salt."""

    iterations: int
    #: 0 for a salt of Kafka's tools, which is a text whose length varies
    salt_bytes: int


#: the shape for users that Ottla creates, and for delegation tokens
OWN_SHAPE: Final = SaltShape(ITERATIONS_MIN, SALT_BYTES)


def shape_of(salt: bytes, iterations: int) -> SaltShape:
    is_java = _JAVA_SALT.match(salt) is not None and int(salt, 36) < 1 << _JAVA_BITS
    return SaltShape(iterations, 0 if is_java else len(salt))


def choose(secret: bytes, name: str, counts: Mapping[K, int], default: K) -> K:
    """Return the shape for a name. ``counts`` has the known users by shape, ``default`` is for no users.

    The choice is a weighted rendezvous: each shape draws a number for the name, and the highest one wins. A change of
    the counts changes as few choices as possible.
    """
    most = sorted(counts.items(), key=lambda item: -item[1])[:_SHAPES_MAX]
    return max((shape for shape, _ in most), key=lambda shape: _score(secret, name, shape, counts), default=default)


def _score(secret: bytes, name: str, shape: K, counts: Mapping[K, int]) -> float:
    drawn = int.from_bytes(hmac.digest(secret, f"shape\0{shape}\0{name}".encode(), "sha256")[:6], "big")
    return -counts[shape] / math.log((drawn + 1) / ((1 << 48) + 1))


def make_salt(secret: bytes, name: str, shape: SaltShape) -> bytes:
    """Return the salt of this shape for a name, always the same one."""
    blocks = range(shape.salt_bytes // 64 + 1)
    data = b"".join(hmac.digest(secret, f"salt\0{number}\0{name}".encode(), "sha512") for number in blocks)
    return data[: shape.salt_bytes] if shape.salt_bytes else _base_36(int.from_bytes(data, "big") % (1 << _JAVA_BITS))


def _base_36(number: int) -> bytes:
    digits: list[str] = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)).encode()
