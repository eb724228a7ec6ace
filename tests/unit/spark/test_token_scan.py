"""The scan for tokens: which token of a name is the last committed one before a claim, in every codec."""

from __future__ import annotations

import pytest

from ottla.model.batch import CODECS
from ottla.model.compression import GZIP, NONE, ZSTD
from ottla.model.records import Record, build_batch
from ottla.spark.commit_errors import CommitError
from ottla.spark.tokens import TOKEN_PARTITIONS, Claim, Token, TokenScan, token_partition

NAME = "query-1"
OTHER = "query-2"
CLAIM_KEY = b"\xffclaim:query-1"


class Log:
    """A partition of the token topic; each method appends one batch."""

    def __init__(self, codec: int = NONE) -> None:
        self.codec = codec
        self.data = b""
        self.end = 0

    def append(self, *records: tuple[bytes, bytes], producer_id: int = -1, control: bool = False) -> int:
        first = self.end
        self.data += build_batch(
            [Record(timestamp=0, key=key, value=value) for key, value in records],
            base_offset=first,
            codec=NONE if control else self.codec,
            producer_id=producer_id,
            producer_epoch=0,
            transactional=producer_id >= 0,
            control=control,
        )
        self.end += len(records)
        return first

    def token(self, batch_id: int, *, name: str = NAME, producer_id: int = 7) -> None:
        self.append((name.encode(), Token(batch_id=batch_id, rows=1).to_json()), producer_id=producer_id)

    def marker(self, *, commit: bool, producer_id: int = 7) -> None:
        self.append((bytes((0, 0, 0, commit)), bytes(6)), producer_id=producer_id, control=True)

    def claim(self, claim_id: str = "mine") -> Claim:
        return Claim(claim_id, self.append((CLAIM_KEY, claim_id.encode())))

    def scan(self, claim: Claim) -> TokenScan:
        scan = TokenScan(NAME, claim)
        scan.feed(memoryview(self.data))
        return scan


def batch_id_of(scan: TokenScan) -> int | None:
    return None if scan.value is None else Token.from_json(scan.value).batch_id


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_last_committed_token_is_found_in_every_codec(codec: int) -> None:
    log = Log(codec)
    for batch_id in range(200):
        log.token(batch_id)
        log.token(1000 + batch_id, name=OTHER, producer_id=8)
        log.marker(commit=True, producer_id=8)
        log.marker(commit=batch_id <= 150)
    scan = log.scan(log.claim())
    assert (batch_id_of(scan), scan.found_claim, scan.undecided) == (150, True, {})


@pytest.mark.parametrize("codec", range(len(CODECS)), ids=CODECS)
def test_token_among_other_records_of_its_batch_is_found(codec: int) -> None:
    log = Log(codec)
    token = Token(batch_id=3, rows=1).to_json()
    # Codecs that copy what they have seen before leave no whole name in the compressed bytes.
    log.append((b"a", b"query-" * 20), (NAME.encode(), token), (NAME.encode() + b"0", b"1" * 100))
    assert batch_id_of(log.scan(log.claim())) == 3


def test_name_in_the_value_of_another_record_is_no_token() -> None:
    log = Log()
    log.append((b"a", NAME.encode()))
    assert batch_id_of(log.scan(log.claim())) is None


def test_token_of_an_open_transaction_is_undecided() -> None:
    log = Log(ZSTD)
    log.token(1)
    log.marker(commit=True)
    log.token(2)
    scan = log.scan(log.claim())
    assert (batch_id_of(scan), set(scan.undecided)) == (1, {7})


def test_tokens_after_the_claim_are_ignored() -> None:
    log = Log(GZIP)
    log.token(1)
    log.marker(commit=True)
    claim = log.claim()
    log.token(2)
    log.marker(commit=True)
    scan = log.scan(claim)
    assert (batch_id_of(scan), scan.found_claim, scan.undecided) == (1, True, {})


def test_claim_with_another_id_or_at_another_offset_is_not_the_claim() -> None:
    log = Log()
    first, second = log.claim("first"), log.claim("second")
    assert log.scan(first).found_claim
    assert log.scan(second).found_claim
    assert not log.scan(Claim("first", second.offset)).found_claim
    assert not log.scan(Claim("second", first.offset)).found_claim


def test_batch_that_cannot_be_decoded_is_reported_with_its_offset() -> None:
    log = Log(ZSTD)
    log.token(1)
    log.marker(commit=True)
    start = len(log.data)
    log.token(2)
    log.data = log.data[: start + 61] + b"\0" * (len(log.data) - start - 61)
    with pytest.raises(CommitError, match="batch at offset 2 of the token topic cannot be decoded"):
        log.scan(Claim("mine", 9))


def test_partition_of_a_name_never_changes() -> None:
    """Other values would lose the tokens that are in the topic already."""
    assert [token_partition(f"name-{number}") for number in range(6)] == [4, 7, 5, 2, 4, 5]
    assert TOKEN_PARTITIONS == 8
