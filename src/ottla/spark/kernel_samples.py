"""Encode and decode a few records, so that numba loads its kernels with the types that readers and writers use."""

from __future__ import annotations

import pyarrow as pa

from ottla.spark import kernels
from ottla.spark.decode import decode
from ottla.spark.encode import encode, murmur2_partitions


def run_all() -> None:
    """Use numba's kernels from now on, and call each of them once."""
    kernels.KERNELS.use_compiled()
    keys, values = pa.array([b"a", None, b"longer"]), pa.array([b"1", b"22", None])
    murmur2_partitions(keys, 2)
    for encoded in encode(keys, values, None, None, codec=0, batch_bytes_max=1 << 20, now_ms=0):
        # A reply may be written to, what was decompressed may not: numba compiles a kernel for each.
        for data in (memoryview(bytearray(encoded.data)), memoryview(encoded.data)):
            decode(data, start=0, end=encoded.records, aborted=None, headers=False)
