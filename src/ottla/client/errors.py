"""The errors of a client.

ClientError                every error of this package; `retriable` says whether a retry may help
├── Unreachable            no connection to an address can be opened
├── ConnectionLost         the connection was closed or timed out, or the bytes received are no valid reply
├── TimedOut               no attempt succeeded in time; its cause is the last failure
├── UnsupportedByBroker    the broker is too old for a request
├── PropertyRefused        a client property is unknown, missing or contradicts another
├── AuthenticationFailed   TLS or the login failed
├── TopicReplaced          the topic was deleted and created again: its offsets belong to other records now
├── OutcomeUnknown         no reply to the request that ends a transaction: it may be committed or not
└── BrokerError            the broker refused a request with one of Kafka's error codes
    ├── OffsetOutOfRange   the offset is before the start or after the end of the log
    ├── RemovedFromGroup   the group has removed this member
    └── Fenced             another producer has taken over the transactional id
"""

from __future__ import annotations

from typing import Final

from ottla.model.errors import ErrorCode, OttlaError
from ottla.model.types import TopicPartition

_NETWORK_EXCEPTION: Final = 13
_ELIGIBLE_LEADERS_NOT_AVAILABLE: Final = 83
_THROTTLING_QUOTA_EXCEEDED: Final = 89

#: transient errors, and errors that newer metadata resolve
RETRIABLE_CODES: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        _NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        _ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        _THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)
#: a new topic may be unknown to this broker for a moment; these errors are retried for a shorter time than others
UNKNOWN_TOPIC_CODES: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
FENCING_CODES: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)

_GROUP_AUTHORIZATION_FAILED: Final = 30
_CLUSTER_AUTHORIZATION_FAILED: Final = 31
#: what the user can do about an error
_ADVICE: Final[dict[int, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "check the topic's name and its number of partitions",
    ErrorCode.UNKNOWN_TOPIC_ID: "the topic was deleted, or created again",
    ErrorCode.MESSAGE_TOO_LARGE: "make batches smaller or raise the topic's max.message.bytes",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "choose another name for the topic",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "shorten the metadata of the commit",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "the cluster does not let this client use the topic",
    _GROUP_AUTHORIZATION_FAILED: "the cluster does not let this client use the group",
    _CLUSTER_AUTHORIZATION_FAILED: "the cluster does not let this client do that",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the cluster does not let this client use the transactional id",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "the timeout is above the brokers' transaction.max.timeout.ms",
    ErrorCode.TRANSACTION_ABORTABLE: "abort the transaction, then do its work again",
    ErrorCode.INVALID_TXN_STATE: "the transaction has ended by other means; do its work again in a new one",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the coordinator has forgotten the producer; call init() again",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "records before these are missing; abort and start the producer anew",
}


class ClientError(OttlaError):
    """An error of the client or the cluster. The text says what to do."""

    retriable: bool = False


class Unreachable(ClientError):
    """No connection to `where` can be opened."""

    retriable = True

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} cannot be reached ({reason}); check that it runs, its address and its port")
        self.where = where
        self.reason = reason


class ClusterUnreachable(Unreachable):
    """No known address of the cluster can be reached."""

    def __init__(self, bootstrap: str, reason: str) -> None:
        super().__init__(f"the cluster at {bootstrap}", reason)


class ConnectionLost(ClientError):
    """The broker accepted a connection and sent no valid reply."""

    retriable = True

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"{where} accepts connections but gives no Kafka answer ({reason}); check the port and that "
            "security.protocol is that of its listener"
        )
        self.where = where
        self.reason = reason


class TimedOut(ClientError):
    """No attempt succeeded in time; `__cause__` is the last failure."""


class UnsupportedByBroker(ClientError):
    """The broker has no suitable version of an API."""

    def __init__(self, where: str, api: str, needed: int, served: tuple[int, int] | None) -> None:
        has = f"has versions {served[0]} to {served[1]}" if served is not None else "does not have it"
        super().__init__(
            f"the broker cannot do this: it takes {api} in version {needed} or newer, and {where} {has}; "
            "use a newer broker"
        )
        self.where = where
        self.api = api
        self.needed = needed
        self.served = served


class PropertyRefused(ClientError):
    """A client property is not valid. The text names it."""


class AuthenticationFailed(ClientError):
    """TLS or the login failed."""


class TopicReplaced(ClientError):
    """The topic was deleted, and another one with its name was created."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic} was deleted and made again while it was read; start over from its first offset"
        )
        self.topic = topic


class OutcomeUnknown(ClientError):
    """The transaction may be committed or not; only the records in its partitions show it."""


class BrokerError(ClientError):
    """The broker refused, with one of Kafka's error codes."""

    def __init__(self, code: int, subject: str, text: str | None = None) -> None:
        self.code: ErrorCode | int = ErrorCode(code) if code in _KNOWN_CODES else code
        self.subject = subject
        self.text = text or ""
        name = code_name(code)
        advice = _ADVICE.get(code, "try again in a moment" if code in RETRIABLE_CODES else "")
        super().__init__(f"{subject}: {', '.join(filter(None, (name, self.text)))}{advice and '; '}{advice}")

    @property
    def retriable(self) -> bool:  # type: ignore[override]
        return self.code in RETRIABLE_CODES


class OffsetOutOfRange(BrokerError):
    """`position` is outside of the log, whose offsets are `log_start` to `log_end`."""

    def __init__(self, tp: TopicPartition, position: int, log_start: int, log_end: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            str(tp),
            f"offset {position} is outside of the log, which has offsets {log_start} to {log_end}",
        )
        self.tp = tp
        self.position = position
        self.log_start = log_start
        self.log_end = log_end


class RemovedFromGroup(BrokerError):
    """The session of this member has expired, or an administrator removed it."""


class Fenced(BrokerError):
    """Another producer has taken over the transactional id, or the transaction timed out; call init() to go on."""

    def __init__(self, code: int, subject: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(code, subject, "another producer has the transactional id, or the transaction timed out")
        #: a request to end the transaction was sent before; it may have succeeded
        self.outcome_unknown = outcome_unknown


def code_name(code: int) -> str:
    return ErrorCode(code).name if code in _KNOWN_CODES else f"Kafka's error {code}"


_KNOWN_CODES: Final = frozenset(int(code) for code in ErrorCode)
