"""The hash with which Kafka selects the partition, and so the coordinator, of a group or a transactional id."""

from __future__ import annotations


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``, which hashes UTF-16 code units, as an unsigned 32-bit number."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    return value
