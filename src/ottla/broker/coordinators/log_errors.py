"""Errors of the log in which a coordinator keeps its state, and what its clients get for them."""

from __future__ import annotations

from ottla.model.errors import ErrorCode

#: error of the log -> error in the reply. Clients rediscover the coordinator and retry after either reply code
RETRIABLE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
}
#: errors after which the log has the records nevertheless, and they may still become durable
IN_LOG = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


def reply_code(error: ErrorCode) -> ErrorCode:
    """Return the error code of the reply to a request whose records could not be stored."""
    return RETRIABLE.get(error, ErrorCode.NOT_COORDINATOR)
