"""Errors of the REST proxy: Confluent's error codes, and which code of Kafka becomes which of them.

An error code is the HTTP status and two more digits, or the status itself for errors of HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.client.errors import (
    RETRIABLE_CODES,
    AuthenticationFailed,
    BrokerError,
    ClientError,
    ConnectionLost,
    TimedOut,
    Unreachable,
    UnsupportedByBroker,
    code_name,
)
from ottla.edge.web.app import HttpError
from ottla.model.errors import ErrorCode

BAD_REQUEST: Final = 40002
AUTHENTICATION_FAILED: Final = 40101
NOT_AUTHORIZED: Final = 40301
#: of `edge/web/hosts.py`
HOST_REFUSED: Final = 40302
TOPIC_NOT_FOUND: Final = 40401
PARTITION_NOT_FOUND: Final = 40402
#: Confluent has one code for a consumer instance and for a topic or partition that a broker does not know
CONSUMER_INSTANCE_NOT_FOUND: Final = 40403
UNKNOWN_TOPIC_OR_PARTITION: Final = 40403
LEADER_NOT_AVAILABLE: Final = 40404
GROUP_NOT_FOUND: Final = 40405
FORMAT_MISMATCH: Final = 40601
SCHEMA_TIMEOUT: Final = 40801
CONSUMER_EXISTS: Final = 40902
ILLEGAL_STATE: Final = 40903
KEY_SCHEMA_MISSING: Final = 42201
VALUE_SCHEMA_MISSING: Final = 42202
JSON_CONVERSION: Final = 42203
CONSUMER_CONFIG: Final = 42204
CONSUMER_CONFIG_VALUE: Final = 40001
INVALID_SCHEMA: Final = 42205
INVALID_PAYLOAD: Final = 42206
SERIALIZATION: Final = 42207
INVALID_BATCH: Final = 42208
KAFKA_ERROR: Final = 50002
KAFKA_RETRIABLE: Final = 50003
TLS_FAILED: Final = 50101
NO_CONSUMER_FREE: Final = 50301
BROKER_UNAVAILABLE: Final = 50302
#: limits of this instance for the rate of requests, the rate of bytes, and the number of consumers in a group
REQUESTS_EXCEEDED: Final = 42901
BYTES_EXCEEDED: Final = 42902
CONSUMERS_EXCEEDED: Final = 42903

#: what each error code means, for the documentation
MEANINGS: Final = {
    CONSUMER_CONFIG_VALUE: "a number in the settings of a new consumer instance is out of its range; the status is 422",
    BAD_REQUEST: "the cluster refuses the request: the topic exists, a config or a number is not valid, a policy",
    AUTHENTICATION_FAILED: "the proxy or the cluster does not accept the credentials, or the token has expired",
    NOT_AUTHORIZED: "the cluster or the registry does not authorize this, or the origin of the web page is not allowed",
    HOST_REFUSED: "the Host header has a name that is not one of this service (`allowed.hosts`)",
    TOPIC_NOT_FOUND: "no such topic (version 2)",
    PARTITION_NOT_FOUND: "no such partition",
    CONSUMER_INSTANCE_NOT_FOUND: "no such consumer instance in this process; no such topic or partition (version 3)",
    LEADER_NOT_AVAILABLE: "the partition has no leader",
    GROUP_NOT_FOUND: "no such consumer group",
    FORMAT_MISMATCH: "the Accept header names another format than the consumer instance has",
    SCHEMA_TIMEOUT: "the schema registry cannot be reached, or did not answer in time",
    CONSUMER_EXISTS: "a consumer instance with this name exists in the group",
    ILLEGAL_STATE: "subscription and assignment exclude each other, or the partition is not assigned",
    KEY_SCHEMA_MISSING: "a record has a key, and the request has no schema for it",
    VALUE_SCHEMA_MISSING: "a record has a value, and the request has no schema for it",
    JSON_CONVERSION: "the data do not fit the schema, or bytes are not JSON",
    CONSUMER_CONFIG: "a setting of a new consumer instance is not valid",
    INVALID_SCHEMA: "the schema is not valid, not known, or not one of the subject",
    INVALID_PAYLOAD: "the body is empty, or not what the operation needs; there is no schema registry",
    SERIALIZATION: "the schema registry refuses the schema",
    INVALID_BATCH: "a batch is empty, too long, or its ids are not distinct",
    REQUESTS_EXCEEDED: "more requests per second, or failed logins per minute, than allowed; a quota of the cluster",
    BYTES_EXCEEDED: "more bytes per second than allowed",
    CONSUMERS_EXCEEDED: "more consumer instances in the group than allowed",
    KAFKA_ERROR: "another error of Kafka",
    KAFKA_RETRIABLE: "an error of Kafka that may pass: repeat the request",
    TLS_FAILED: "TLS with the brokers failed",
    NO_CONSUMER_FREE: "more consumer instances, or streams of records, than this process allows",
    BROKER_UNAVAILABLE: "no broker can be reached",
}

_BAD: Final = (400, BAD_REQUEST)
_FORBIDDEN: Final = (403, NOT_AUTHORIZED)
_UNAUTHENTICATED: Final = (401, AUTHENTICATION_FAILED)
_UNKNOWN: Final = (404, UNKNOWN_TOPIC_OR_PARTITION)
_RETRIABLE: Final = (500, KAFKA_RETRIABLE)
_OTHER: Final = (500, KAFKA_ERROR)
_UNAVAILABLE: Final = (503, BROKER_UNAVAILABLE)

_BROKER_NOT_AVAILABLE: Final = 8

#: status and error code -> Kafka's codes; other codes are 50003 if they are retriable, else 50002
_OUTCOMES: Final[dict[tuple[int, int], tuple[int, ...]]] = {
    _UNKNOWN: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID),
    (404, LEADER_NOT_AVAILABLE): (ErrorCode.LEADER_NOT_AVAILABLE,),
    (404, GROUP_NOT_FOUND): (ErrorCode.GROUP_ID_NOT_FOUND,),
    (404, 404): (ErrorCode.BROKER_ID_NOT_REGISTERED,),
    (429, REQUESTS_EXCEEDED): (ErrorCode.THROTTLING_QUOTA_EXCEEDED,),
    _UNAVAILABLE: (_BROKER_NOT_AVAILABLE,),
    (413, 413): (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE),
    _BAD: (
        ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_GROUP_ID, ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_RECORD,
        ErrorCode.UNSUPPORTED_VERSION, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST, ErrorCode.POLICY_VIOLATION, ErrorCode.SECURITY_DISABLED,
        ErrorCode.TOPIC_DELETION_DISABLED, ErrorCode.REASSIGNMENT_IN_PROGRESS, ErrorCode.INVALID_REGULAR_EXPRESSION,
    ),
    _FORBIDDEN: (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ),
    _UNAUTHENTICATED: (
        ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.UNSUPPORTED_SASL_MECHANISM, ErrorCode.ILLEGAL_SASL_STATE,
    ),
}  # fmt: skip
_KAFKA_CODES: Final[dict[int, tuple[int, int]]] = {
    **{code: outcome for outcome, codes in _OUTCOMES.items() for code in codes},
    # librdkafka's own codes
    -197: _RETRIABLE,  # the client was closed
    -195: _UNAVAILABLE,  # transport
    -193: _UNAVAILABLE,  # resolve
    -192: _RETRIABLE,  # message timed out
    -190: _UNKNOWN,  # partition
    -188: _UNKNOWN,  # topic
    -187: _UNAVAILABLE,  # all brokers are down
    -186: _BAD,  # invalid argument
    -185: _RETRIABLE,  # timed out
    -184: _RETRIABLE,  # queue is full
    -181: (501, TLS_FAILED),
    -172: (409, ILLEGAL_STATE),
    -169: _UNAUTHENTICATED,
    -166: _RETRIABLE,  # timed out in the queue
}

#: error of the client -> status and error code; the first kind that fits counts
_CLIENT_ERRORS: Final[Sequence[tuple[type[ClientError], tuple[int, int]]]] = (
    (AuthenticationFailed, _UNAUTHENTICATED),
    (Unreachable, _UNAVAILABLE),
    (UnsupportedByBroker, _BAD),
    (ConnectionLost, _RETRIABLE),
    (TimedOut, _RETRIABLE),
    (ClientError, _OTHER),
)


class KafkaRefusal(Exception):
    """The cluster answered with one of Kafka's error codes, or librdkafka with one of its own."""

    def __init__(self, code: int, subject: str, text: str | None = None) -> None:
        super().__init__(text or f"{subject}: {code_name(code)}")
        self.code = code

    @property
    def http(self) -> HttpError:
        """Return what the client gets."""
        status, error_code = status_of(self.code)
        return HttpError(status, error_code, str(self))


def status_of(code: int) -> tuple[int, int]:
    """Return the HTTP status and the error code for a code of Kafka or librdkafka.

    >>> status_of(36), status_of(7), status_of(-1)
    ((400, 40002), (500, 50003), (500, 50002))
    """
    known = _KAFKA_CODES.get(code)
    if known is not None:
        return known
    return _RETRIABLE if code in RETRIABLE_CODES else _OTHER


#: what can go wrong with one record of many
RecordErrors: Final = (HttpError, KafkaRefusal, ClientError)


def to_http(error: HttpError | KafkaRefusal | ClientError) -> HttpError:
    """Return what the client gets for one of these errors."""
    if isinstance(error, HttpError):
        return error
    return describe_error(error) or HttpError(500, KAFKA_ERROR, str(error))


def describe_error(error: Exception) -> HttpError | None:
    """Return what the client gets for an exception of the Kafka side; None if the exception is not one of those."""
    if isinstance(error, KafkaRefusal):
        return error.http
    if isinstance(error, TimedOut) and isinstance(error.__cause__, Exception):
        known = describe_error(error.__cause__)
        return None if known is None else HttpError(known.status, known.error_code, str(error))
    if isinstance(error, BrokerError):
        status, error_code = status_of(error.code)
        return HttpError(status, error_code, error.text or str(error))
    for kind, (status, error_code) in _CLIENT_ERRORS:
        if isinstance(error, kind):
            return HttpError(status, error_code, str(error))
    return None


def not_found(message: str) -> HttpError:
    """Return the error for a resource of version 3 that does not exist."""
    return HttpError(404, 404, message)


def topic_not_found(topic: str) -> HttpError:
    return HttpError(404, TOPIC_NOT_FOUND, f"Topic {topic} not found.")


def partition_not_found(topic: str, partition: int) -> HttpError:
    return HttpError(404, PARTITION_NOT_FOUND, f"Partition not found. Topic {topic} has no partition {partition}.")


def no_registry() -> HttpError:
    """Return the error for data with a schema when the proxy has no schema registry."""
    text = "Payload error. Schema Registry must be configured when using schemas: start the proxy with --registry."
    return unprocessable(text, INVALID_PAYLOAD)


def bad_request(message: str) -> HttpError:
    """Return the error for a value that has the wrong type or form."""
    return HttpError(400, 400, f"Bad Request: {message}")


def unprocessable(message: str, error_code: int = 422) -> HttpError:
    """Return the error for a value that is missing or breaks a rule."""
    return HttpError(422, error_code, message)
