"""Salts of unknown users look like those of known users, whichever tool has created these."""

from __future__ import annotations

import base64
import random
import statistics
from collections import Counter
from collections.abc import Callable

import pytest

from ottla.security.salts import OWN_SHAPE, SaltShape, choose, make_salt, shape_of
from ottla.security.scram import Mechanism, ScramCredential, ScramServer

SECRET = b"secret of the cluster"
SHA256 = Mechanism.SCRAM_SHA_256
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def java_salt(rng: random.Random) -> bytes:
    """As Kafka's tools make it: a number of 130 bits in base 36."""
    number, text = rng.getrandbits(130), ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text.encode()


#: salts and iterations of users that were created by different tools
TOOLS: dict[str, Callable[[random.Random], tuple[bytes, int]]] = {
    "ottla": lambda rng: (rng.randbytes(24), 4096),
    "kafka-configs": lambda rng: (java_salt(rng), 4096),
    "kafka-configs with iterations": lambda rng: (java_salt(rng), 8192),
    "librdkafka": lambda rng: (rng.randbytes(64), 10_000),
    "a mixture": lambda rng: (java_salt(rng), 8192) if rng.random() < 0.7 else (rng.randbytes(32), 4096),
}


def challenge(user: str, known: dict[str, ScramCredential], shapes: Counter[SaltShape]) -> tuple[bytes, int]:
    """Return what a client sees of a user."""
    server = ScramServer(SHA256, known.get, nonce="S", secret=SECRET)
    server.shapes = shapes
    fields = dict(part.split("=", 1) for part in server.respond(f"n,,n={user},r=C".encode()).decode().split(","))
    return base64.b64decode(fields["s"]), int(fields["i"])


@pytest.mark.parametrize("tool", TOOLS)
def test_no_feature_of_a_challenge_tells_whether_the_user_exists(tool: str) -> None:
    """Each feature alone classifies half of the users correctly; the limit has room for chance in 2,000 tries."""
    rng = random.Random(tool)
    known: dict[str, ScramCredential] = {}
    for number in range(1000):
        salt, iterations = TOOLS[tool](rng)
        known[f"user-{number}"] = ScramCredential(salt, bytes(32), bytes(32), iterations)
    shapes = Counter(each.shape for each in known.values())
    of_known = [challenge(f"user-{number}", known, shapes) for number in range(1000)]
    of_unknown = [challenge(f"unknown-{number}", known, shapes) for number in range(1000)]
    features: dict[str, Callable[[bytes, int], float]] = {
        "length": lambda salt, _: len(salt), "iterations": lambda _, iterations: iterations,
        "first byte": lambda salt, _: salt[0], "last byte": lambda salt, _: salt[-1],
        "highest": lambda salt, _: max(salt),
        "lowest": lambda salt, _: min(salt), "mean": lambda salt, _: statistics.fmean(salt),
        "is text": lambda salt, _: float(salt.isalnum()),
    }  # fmt: skip
    for name, feature in features.items():
        right = best_threshold([feature(*each) for each in of_known], [feature(*each) for each in of_unknown])
        assert right < 0.56, f"{name}: {right:.1%}"


def best_threshold(known: list[float], unknown: list[float]) -> float:
    """Return the share of users that the best limit on a feature classifies correctly, learned on these users."""
    counts = Counter(known)
    counts.subtract(Counter(unknown))
    best = balance = 0
    for value in sorted(counts):
        balance += counts[value]
        best = max(best, abs(balance))
    return 0.5 + best / (2 * len(known))


@pytest.mark.parametrize(
    ("salt", "shape"),
    [
        (b"x" * 24, SaltShape(4096, 0)),
        (b"1" + b"0" * 25, SaltShape(4096, 0)),
        (b"2" + b"0" * 25, SaltShape(4096, 26)),  # more than 130 bits
        (b"0" + b"1" * 24, SaltShape(4096, 25)),
        (b"X" * 24, SaltShape(4096, 24)),
        (b"abc", SaltShape(4096, 3)),
        (bytes(64), SaltShape(4096, 64)),
    ],
)
def test_shape_of_a_salt(salt: bytes, shape: SaltShape) -> None:
    assert shape_of(salt, 4096) == shape


def test_salt_is_always_the_same_and_another_one_for_each_name() -> None:
    for shape in (OWN_SHAPE, SaltShape(4096, 0), SaltShape(4096, 200)):
        salts = {make_salt(SECRET, f"name-{number}", shape) for number in range(100)}
        assert salts == {make_salt(SECRET, f"name-{number}", shape) for number in range(100)}
        assert len(salts) == 100
        assert {shape_of(salt, 4096) for salt in salts} == {shape}


def test_new_user_of_a_known_shape_changes_few_choices() -> None:
    java, other = SaltShape(4096, 0), SaltShape(8192, 32)
    before = [choose(SECRET, str(number), {java: 70, other: 30}, OWN_SHAPE) for number in range(1000)]
    after = [choose(SECRET, str(number), {java: 71, other: 30}, OWN_SHAPE) for number in range(1000)]
    assert sum(one != two for one, two in zip(before, after, strict=True)) < 20
    assert choose(SECRET, "name", {}, OWN_SHAPE) == OWN_SHAPE
