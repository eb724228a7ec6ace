"""The hashes with which Kafka selects partitions.

`java_hash` selects the coordinator of a group or a transactional id, `murmur2` the partition of a key.
"""

from __future__ import annotations


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``, which hashes UTF-16 code units, as an unsigned 32-bit number."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    return value


def murmur2(data: bytes) -> int:
    """Return the hash of a key with which Java's producers choose its partition, as an unsigned 32-bit number.

    >>> murmur2(b"21") - (1 << 32), murmur2(b"foobar") - (1 << 32)
    (-973932308, -790332482)
    """
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    value = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        value = (value * multiplier & mask) ^ word
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * multiplier & mask
    value = (value ^ value >> 13) * multiplier & mask
    return value ^ value >> 15
