"""What clients compress is read, what we compress is read by others' libraries, and nothing overflows."""

import gzip
import random
import subprocess
import sys
import warnings
import zlib

import aiokafka.codec
import cramjam
import lz4.frame
import pytest
import zstandard

from ottla.model.batch import CODECS
from ottla.model.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, decompress
from ottla.model.errors import InvalidRecord, RecordsTooLarge

with warnings.catch_warnings():
    # kafka-python reads its resources in a way that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec

MEBIBYTE = 1024 * 1024
TEXT = b"".join(b"a line of text, number %d\n" % number for number in range(20_000))
NOISE = random.Random(20).randbytes(300_000)
PAYLOADS = {"one byte": b"x", "text": TEXT, "noise": NOISE, "exactly a block": TEXT[: 64 * 1024]}

every_codec = pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD], ids=CODECS)
every_real_codec = pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD], ids=CODECS[1:])
every_payload = pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())


def zstd_without_content_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


#: (codec, how a client writes it); each is a variant that our own compressor does not produce
FOREIGN = {
    "gzip": (GZIP, gzip.compress),
    "gzip of two members": (GZIP, lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:])),
    "raw snappy": (SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "snappy in small xerial blocks": (SNAPPY, lambda data: aiokafka.codec.snappy_encode(data, True, 1000)),
    "two xerial streams": (SNAPPY, lambda data: compress(SNAPPY, data[:100]) + compress(SNAPPY, data[100:])),
    "lz4 without content size": (LZ4, lambda data: lz4.frame.compress(data, store_size=False)),
    "lz4 with linked blocks": (LZ4, lambda data: lz4.frame.compress(data, block_linked=True)),
    "lz4 in large blocks with checksums": (
        LZ4,
        lambda data: lz4.frame.compress(data, block_size=7, content_checksum=True, block_checksum=True),
    ),
    "zstd without content size": (ZSTD, zstd_without_content_size),
    "zstd of two frames": (
        ZSTD,
        lambda data: zstd_without_content_size(data[:100]) + zstd_without_content_size(data[100:]),
    ),
}


@every_codec
@every_payload
def test_what_is_compressed_comes_back(codec: int, payload: bytes) -> None:
    assert decompress(codec, compress(codec, payload), MEBIBYTE) == payload


@every_codec
def test_a_view_is_as_good_as_bytes(codec: int) -> None:
    assert decompress(codec, memoryview(compress(codec, memoryview(TEXT))), MEBIBYTE) == TEXT


@every_payload
@pytest.mark.parametrize("variant", FOREIGN)
def test_what_clients_write_is_read(variant: str, payload: bytes) -> None:
    codec, write = FOREIGN[variant]
    assert decompress(codec, write(payload), MEBIBYTE) == payload


@every_payload
def test_gzip_is_read_by_the_standard_library(payload: bytes) -> None:
    assert gzip.decompress(compress(GZIP, payload)) == payload


@every_payload
def test_snappy_is_read_by_aiokafka(payload: bytes) -> None:
    assert aiokafka.codec.snappy_decode(compress(SNAPPY, payload)) == payload


def test_snappy_has_the_header_of_java() -> None:
    assert compress(SNAPPY, TEXT)[:16].hex() == "82534e415050590000000001" + "00000001"


@every_payload
def test_lz4_is_read_by_kafka_python(payload: bytes) -> None:
    assert kafka.codec.lz4_decode(compress(LZ4, payload)) == payload


@pytest.mark.parametrize("level", [None, 1, 9, 12, 17])
def test_lz4_blocks_do_not_refer_to_each_other(level: int | None) -> None:
    frame = lz4.frame.get_frame_info(compress(LZ4, TEXT, level))
    assert not frame["block_linked"]


def test_zstd_larger_than_a_mebibyte_is_read_by_kafka_python() -> None:
    payload = TEXT * 4
    assert len(payload) > MEBIBYTE
    assert kafka.codec.zstd_decode(compress(ZSTD, payload)) == payload


@pytest.mark.parametrize(("codec", "low", "high"), [(GZIP, 1, 9), (LZ4, 1, 12), (ZSTD, -5, 15)])
def test_the_level_reaches_the_codec(codec: int, low: int, high: int) -> None:
    assert compress(codec, TEXT, high) != compress(codec, TEXT, low)


def test_high_zstd_level_is_for_small_sections_only() -> None:
    small, large = TEXT[: 256 * 1024], TEXT[: 256 * 1024 + 1]
    assert compress(ZSTD, small, 19) != compress(ZSTD, small, 9)
    assert compress(ZSTD, large, 22) == compress(ZSTD, large, 9)


@pytest.mark.parametrize(("codec", "level"), [(GZIP, -1), (LZ4, 9), (ZSTD, 3)])
def test_no_level_means_kafkas_default(codec: int, level: int) -> None:
    assert compress(codec, TEXT, level) == compress(codec, TEXT, None)


@every_codec
def test_output_may_fill_the_allowance(codec: int) -> None:
    assert decompress(codec, compress(codec, TEXT), len(TEXT)) == TEXT


@every_codec
def test_one_byte_over_the_allowance_is_refused(codec: int) -> None:
    with pytest.raises(RecordsTooLarge, match=str(len(TEXT) - 1)):
        decompress(codec, compress(codec, TEXT), len(TEXT) - 1)


@every_real_codec
@pytest.mark.parametrize("missing", [1, 4, 9, 1000])
def test_a_truncated_section_is_refused(codec: int, missing: int) -> None:
    with pytest.raises(InvalidRecord):
        decompress(codec, compress(codec, TEXT)[:-missing], MEBIBYTE)


@every_real_codec
@pytest.mark.parametrize("data", [b"", b"\x82SNAPPY\0", b"not compressed at all"])
def test_bytes_of_no_codec_are_refused(codec: int, data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decompress(codec, data, MEBIBYTE)


@every_real_codec
def test_bytes_behind_the_end_are_refused(codec: int) -> None:
    with pytest.raises(InvalidRecord):
        decompress(codec, compress(codec, TEXT) + b"tail", MEBIBYTE)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_does_not_exist_is_refused(codec: int) -> None:
    with pytest.raises(InvalidRecord, match=f"codec {codec}"):
        decompress(codec, b"anything", MEBIBYTE)


def test_a_snappy_block_longer_than_the_rest_is_refused() -> None:
    section = bytearray(compress(SNAPPY, b"some data"))
    section[16:20] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(InvalidRecord, match="middle of a block"):
        decompress(SNAPPY, section, MEBIBYTE)


def test_a_snappy_block_of_negative_length_is_refused() -> None:
    section = bytearray(compress(SNAPPY, b"some data"))
    section[16:20] = (-1).to_bytes(4, "big", signed=True)
    with pytest.raises(InvalidRecord, match="middle of a block"):
        decompress(SNAPPY, section, MEBIBYTE)


def bomb(codec: int) -> bytes:
    """Some hundred kilobytes at most that open to 128 MiB of zeros."""
    zeros = bytes(MEBIBYTE)
    if codec == GZIP:
        stream = zlib.compressobj(wbits=31)
        return b"".join([stream.compress(zeros) for _ in range(128)] + [stream.flush()])
    if codec == SNAPPY:
        header, block = compress(SNAPPY, b"")[:16], bytes(cramjam.snappy.compress_raw(zeros))
        return header + (len(block).to_bytes(4, "big") + block) * 128
    if codec == LZ4:
        return lz4.frame.compress(zeros * 128, store_size=False)
    # The widest window that decoders accept by default, so that the decoder is invited to reserve 128 MiB.
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(zeros * 128)


OPEN_BOMB = """
import sys
from ottla.model.compression import InvalidRecord, decompress

def peak_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

data = sys.stdin.buffer.read()
before = peak_kib()
try:
    decompress(int(sys.argv[1]), data, 1024 * 1024)
except InvalidRecord:
    print(peak_kib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@every_real_codec
def test_a_decompression_bomb_takes_no_more_memory_than_allowed(codec: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPEN_BOMB, str(codec)], input=bomb(codec), capture_output=True, check=True
    )
    assert int(done.stdout) < 16 * 1024
