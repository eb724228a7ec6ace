"""Tokens: which batch of a query was committed last. Written and read by the driver (``commit``).

Tokens are records of a compacted topic. The key is the name of the query and sink; the partition depends on the name
only. A token is part of the transaction that writes its batch.

**Reading.** The partitions are shared with other queries, whose open transactions hold back the last stable offset, so
read_committed would hide a committed token behind an open transaction of another query. The scan therefore reads up to
the high watermark and applies the transaction markers itself. It decodes records, because the topic may store batches
in any codec.

**Claims.** A broker that is no longer the leader, or a new leader whose high watermark lags, shows an older end of the
log, and there an older token. So a driver first fences its predecessors, which writes the markers of their
transactions, and then appends a claim: a record with a unique id, acknowledged by all in-sync replicas. A reader that
finds this claim at its offset has read everything before it. The tokens before the claim are therefore all tokens that
can ever be committed before a batch of this driver. All claims of a name have the same key, so compaction keeps one.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import uuid4

from ottla.client.cluster import EARLIEST, LATEST, Cluster, Isolation
from ottla.client.errors import BrokerError, ClientError, OffsetOutOfRange, TimedOut
from ottla.client.fetching import PartitionReader
from ottla.model.batch import CODEC_MASK, CONTROL, HEADER_BYTES, TRANSACTIONAL, read_header
from ottla.model.errors import ErrorCode, InvalidRecord
from ottla.model.records import Record, build_batch, iterate_records
from ottla.model.types import TopicPartition
from ottla.spark.commit_errors import CommitError

TOKEN_TOPIC: Final = "__spark_commits"
#: the partition of a name must never change, so it depends on this number and not on the partition count of the topic
TOKEN_PARTITIONS: Final = 8
#: independent of the defaults of the brokers; without compression the scan need not decode the tokens of other names
TOKEN_CONFIG: Final = {
    "cleanup.policy": "compact", "compression.type": "uncompressed", "segment.bytes": str(16 << 20),
}  # fmt: skip
REPLICATION_FACTOR_MAX: Final = 3

_SCHEMA_VERSION: Final = 1
_COMMIT_MARKER: Final = 1
_READ_WAIT_MS: Final = 100
#: no name has a key that begins like this, because this byte does not occur in UTF-8
_CLAIM_PREFIX: Final = b"\xffclaim:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The last committed batch of a name, and the digests of a few batches before it."""

    batch_id: int
    rows: int
    run_id: str = ""
    #: digest of the source offsets of the batch; None if they were not known
    offsets: str | None = None
    earlier: tuple[tuple[int, str | None], ...] = ()

    def digest_of(self, batch_id: int) -> tuple[bool, str | None]:
        """Return whether the token contains this batch, and the digest of the batch."""
        for known_id, digest in ((self.batch_id, self.offsets), *self.earlier):
            if known_id == batch_id:
                return True, digest
        return False, None

    def to_json(self) -> bytes:
        fields = {
            "schemaVer": _SCHEMA_VERSION, "batch": self.batch_id, "rows": self.rows, "runId": self.run_id,
            "offsets": self.offsets, "earlier": self.earlier,
        }  # fmt: skip
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Token:
        fields = json.loads(data)
        if fields["schemaVer"] > _SCHEMA_VERSION:
            raise CommitError(
                f"the token of this query has schema version {fields['schemaVer']}, this release of ottla knows "
                f"{_SCHEMA_VERSION}: run the query with the release that wrote it, or a newer one"
            )
        return cls(
            batch_id=fields["batch"],
            rows=fields["rows"],
            run_id=fields["runId"],
            offsets=fields["offsets"],
            earlier=tuple((batch_id, digest) for batch_id, digest in fields["earlier"]),
        )


class Claim(NamedTuple):
    """A claim that all in-sync replicas have acknowledged."""

    claim_id: str
    offset: int


def token_partition(name: str) -> int:
    """Return the partition of a name's tokens and claims."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % TOKEN_PARTITIONS


def token_batch(name: str, token: Token) -> bytearray:
    """Return a batch that contains the token of a name."""
    return bytearray(build_batch([Record(timestamp=_now_ms(), key=name.encode(), value=token.to_json())]))


def require_token_topic(cluster: Cluster, topic: str) -> None:
    """Create the token topic if it does not exist. Raise CommitError if it exists and would lose tokens."""
    found = cluster.topics([topic]).get(topic)
    if found is None:
        replication_factor = min(REPLICATION_FACTOR_MAX, len(cluster.brokers()))
        in_sync_min = 2 if replication_factor == REPLICATION_FACTOR_MAX else 1
        config = TOKEN_CONFIG | {"min.insync.replicas": str(in_sync_min)}
        if cluster.create_topic(topic, TOKEN_PARTITIONS, config, replication_factor=replication_factor):
            return
        # Another driver has created the topic in the meantime.
        found = cluster.topics([topic]).get(topic)
    if found is None:
        raise CommitError(f"topic {topic} was deleted while the query started: start again")
    if found.partitions < TOKEN_PARTITIONS:
        raise CommitError(
            f"topic {topic} has {found.partitions} partitions, tokens need {TOKEN_PARTITIONS}: add partitions, with "
            f"`ottla topic alter {topic} --partitions {TOKEN_PARTITIONS}` for example"
        )
    policy = _cleanup_policy(cluster, topic)
    if {part.strip() for part in policy.split(",")} != {"compact"}:
        raise CommitError(
            f"topic {topic} has cleanup.policy={policy}. It must be compact: deletion by age or size removes the "
            "tokens of a stream that pauses, and a batch without its token is written again. Nothing was written. "
            f"Set it with `ottla topic alter {topic} --config cleanup.policy=compact`, and start again"
        )


def _cleanup_policy(cluster: Cluster, topic: str) -> str:
    try:
        return cluster.topic_config(topic, ["cleanup.policy"])["cleanup.policy"] or ""
    except BrokerError as error:
        if error.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise
        raise CommitError(
            f"the cluster does not let this client read the settings of topic {topic}, which must be checked because "
            f"another cleanup.policy than compact loses tokens: allow DescribeConfigs on {topic}, and start again"
        ) from error


def write_claim(cluster: Cluster, partition: TopicPartition, name: str) -> Claim:
    """Append a claim of this name. Return when all in-sync replicas have it.

    The claim is not part of a transaction: a second copy after a retry does no harm, and a driver that was fenced in
    the meantime finds the tokens of its successor.
    """
    claim_id = uuid4().hex
    batch = build_batch([Record(timestamp=_now_ms(), key=_claim_key(name), value=claim_id.encode())])
    return Claim(claim_id, cluster.produce(partition, batch, acks=-1))


def read_token(
    cluster: Cluster, partition: TopicPartition, name: str, claim: Claim, *, start: int = 0, known: Token | None = None
) -> tuple[Token | None, int]:
    """Return the last token before the claim, and the offset after the claim.

    ``known`` was the last token before the offset ``start``. A leader that does not show the claim is not believed: ask
    again who leads, and retry. Raise CommitError if no leader shows the claim within the timeout of the client.
    """

    def attempt(_: float) -> tuple[Token | None, int]:
        try:
            return _read_to_claim(cluster, partition, name, claim, start=start, known=known)
        except (_ClaimNotFound, TimedOut, OffsetOutOfRange) as error:
            cluster.distrust_leader(partition)
            raise _ClaimNotFound(str(error)) from error

    try:
        return cluster.retry(f"claim of {name}", attempt)
    except TimedOut as error:
        raise CommitError(
            f"{partition} does not show the claim of {name}, which it had acknowledged at offset {claim.offset} "
            f"({error}). Nothing was written. The leader is not in contact with the cluster, or records were lost: "
            f"look at the leader and the in-sync replicas with `ottla topic describe {partition.topic}`, and start "
            "again when they are healthy"
        ) from error


class _ClaimNotFound(ClientError):
    """The broker shows a log without the claim: it is behind, or it is not the leader any more."""

    retriable = True


def _read_to_claim(
    cluster: Cluster, partition: TopicPartition, name: str, claim: Claim, *, start: int, known: Token | None
) -> tuple[Token | None, int]:
    def offset_at(place: int) -> int:
        return cluster.list_offsets({partition: place}, isolation=Isolation.READ_UNCOMMITTED)[partition].offset

    first, end = offset_at(EARLIEST), offset_at(LATEST)
    if end <= claim.offset:
        raise _ClaimNotFound(f"the log ends at {end}")
    if not first <= start <= claim.offset:
        start, known = first, None
    scan = TokenScan(name, claim)
    with PartitionReader(
        cluster, partition, start, claim.offset + 1, isolation=Isolation.READ_UNCOMMITTED, wait_ms=_READ_WAIT_MS
    ) as reader:
        for fetched in reader:
            scan.feed(fetched.data)
    if not scan.found_claim:
        raise _ClaimNotFound(f"another record, or none, is at offset {claim.offset}")
    if scan.undecided:
        raise CommitError(
            f"{partition} has a token of {name} in a transaction without an end, although its producer was fenced: "
            "look at it with `ottla txn list`, and start again when it has ended"
        )
    return (Token.from_json(scan.value) if scan.value is not None else known), claim.offset + 1


class TokenScan:
    """Finds the last committed token of one name before a claim. Takes the batches in the order of the log."""

    def __init__(self, name: str, claim: Claim) -> None:
        #: the last committed token
        self.value: bytes | None = None
        #: the last token of each open transaction, by producer id; the marker of the transaction decides
        self.undecided: dict[int, bytes | None] = {}
        self.found_claim = False
        self._claim = claim
        self._key = name.encode()
        self._claim_key = _claim_key(name)
        assert self._key in self._claim_key, "one search finds both keys"

    def feed(self, data: memoryview) -> None:
        """Apply whole batches; ignore those after the claim. Raise CommitError if a batch cannot be decoded."""
        position = 0
        while position + HEADER_BYTES <= len(data):
            header = read_header(data, position)
            next_position = position + header.size_bytes
            if next_position > len(data) or header.base_offset > self._claim.offset:
                return
            batch = bytes(data[position:next_position])
            position = next_position
            try:
                if header.attributes & CONTROL:
                    self._decide(header.producer_id, batch)
                elif header.attributes & CODEC_MASK or self._key in batch:
                    # Compressed bytes do not contain the key as it is, so only decoding can tell.
                    self._apply_records(header.producer_id, bool(header.attributes & TRANSACTIONAL), batch)
            except InvalidRecord as error:
                raise CommitError(
                    f"the batch at offset {header.base_offset} of the token topic cannot be decoded ({error}), so it "
                    "is not known whether it contains a token of this query. Nothing was written"
                ) from error

    def _apply_records(self, producer_id: int, transactional: bool, batch: bytes) -> None:
        for record in iterate_records(batch):
            if record.offset > self._claim.offset:
                return
            if record.key == self._key:
                if transactional:
                    self.undecided[producer_id] = record.value
                else:
                    self.value = record.value
            elif record.key == self._claim_key and record.offset == self._claim.offset:
                self.found_claim = record.value == self._claim.claim_id.encode()

    def _decide(self, producer_id: int, marker: bytes) -> None:
        if producer_id not in self.undecided:
            return
        value = self.undecided.pop(producer_id)
        for record in iterate_records(marker):
            assert record.key is not None
            # The key of a marker: version, then 0 for abort and 1 for commit, each in two bytes.
            if int.from_bytes(record.key[2:4]) == _COMMIT_MARKER:
                self.value = value


def _claim_key(name: str) -> bytes:
    return _CLAIM_PREFIX + name.encode()


def _now_ms() -> int:
    return int(time.time() * 1000)
