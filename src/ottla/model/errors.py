"""Exceptions, with Kafka's error codes.

    OttlaError                     base class of all exceptions of this package
    ├── KafkaError                 has a Kafka error code, which is sent to the client
    │   └── (one class per code that is raised, below)
    ├── StartError                 the broker cannot start; the text says what to do, and no file was changed
    └── UnexpectedAppendOffset     a batch from the leader does not continue the follower's log

Only ``broker/dispatch.py`` turns exceptions into codes. A failure of one partition among many is a value, not an
exception.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class ErrorCode(IntEnum):
    """The error codes of Kafka that this broker sends."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


#: a text may quote what a client sent, and strings in a reply are limited to 32767 bytes
_TEXT_MAX = 2000
_NAME_MAX = 200


def shortened(text: str) -> str:
    """Return the start of a name that a client chose, for the text of an error."""
    return text if len(text) <= _NAME_MAX else f"{text[:_NAME_MAX]}…"


class OttlaError(Exception):
    """Base class of all exceptions of this package."""


class AuthenticationFailed(OttlaError):
    """A login is refused. The text is for logs; clients of a broker get one and the same text for all reasons."""


class StartError(OttlaError):
    """The broker cannot start. The text tells the operator what to do."""


class UnexpectedAppendOffset(OttlaError):
    """A batch from the leader begins before the end of the follower's log, or before the end of the batch before it."""

    def __init__(self, base_offset: int, last_offset: int, end_offset: int) -> None:
        super().__init__(f"the batch has the offsets {base_offset} to {last_offset}, the log ends at {end_offset}")
        self.base_offset = base_offset
        self.last_offset = last_offset


class RecordError(NamedTuple):
    """One invalid record of a batch (KIP-467)."""

    #: position of the record in its batch, from 0
    batch_index: int
    text: str


class KafkaError(OttlaError):
    """An error that is sent to the client as a code, with a text if the response has a field for it."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    #: the invalid records when the others of their batch are valid; empty when the batch as a whole is at fault
    record_errors: tuple[RecordError, ...] = ()

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


class OffsetOutOfRange(KafkaError):
    code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptMessage(KafkaError):
    code = ErrorCode.CORRUPT_MESSAGE


class UnknownTopicOrPartition(KafkaError):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class MessageTooLarge(KafkaError):
    code = ErrorCode.MESSAGE_TOO_LARGE


class InvalidTopic(KafkaError):
    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class RecordListTooLarge(KafkaError):
    code = ErrorCode.RECORD_LIST_TOO_LARGE


class NotLeaderOrFollower(KafkaError):
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class NotEnoughReplicas(KafkaError):
    code = ErrorCode.NOT_ENOUGH_REPLICAS


class InvalidTimestamp(KafkaError):
    code = ErrorCode.INVALID_TIMESTAMP

    def __init__(self, text: str, record_errors: tuple[RecordError, ...] = ()) -> None:
        super().__init__(text)
        self.record_errors = record_errors


class TopicAlreadyExists(KafkaError):
    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitions(KafkaError):
    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactor(KafkaError):
    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(KafkaError):
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class InvalidConfig(KafkaError):
    code = ErrorCode.INVALID_CONFIG


class InvalidRequest(KafkaError):
    code = ErrorCode.INVALID_REQUEST


class PolicyViolation(KafkaError):
    code = ErrorCode.POLICY_VIOLATION


class OutOfOrderSequence(KafkaError):
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class UnknownProducerId(KafkaError):
    code = ErrorCode.UNKNOWN_PRODUCER_ID


class InvalidProducerEpoch(KafkaError):
    code = ErrorCode.INVALID_PRODUCER_EPOCH


class StorageError(KafkaError):
    code = ErrorCode.KAFKA_STORAGE_ERROR


class TopicDeletionDisabled(KafkaError):
    code = ErrorCode.TOPIC_DELETION_DISABLED


class FencedLeaderEpoch(KafkaError):
    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpoch(KafkaError):
    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class UnsupportedCompression(KafkaError):
    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class InvalidRecord(KafkaError):
    """``record_index`` is the position of the record at which parsing of a damaged batch stopped, where it is known."""

    code = ErrorCode.INVALID_RECORD

    def __init__(
        self, text: str, record_index: int | None = None, *, record_errors: tuple[RecordError, ...] = ()
    ) -> None:
        super().__init__(text)
        self.record_index = record_index
        self.record_errors = record_errors


class RecordsTooLarge(InvalidRecord):
    """A batch has more bytes or records than the broker opens. Java's producer splits such a batch and retries."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class UnknownTopicId(KafkaError):
    """No topic has an id, or the client may not know the topic: the text does not tell which."""

    code = ErrorCode.UNKNOWN_TOPIC_ID

    def __init__(self) -> None:
        super().__init__("no topic has this id")


class Refused(KafkaError):
    """An error with any code; for codes that have no class of their own."""

    def __init__(self, code: ErrorCode, text: str = "") -> None:
        super().__init__(text)
        self.code = code
