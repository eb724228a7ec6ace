"""Failures for Kafka's error codes, each with the next step and an exit code."""

from __future__ import annotations

from ottla.admin.failure import Failure, NotFound, NotHealthy
from ottla.client.errors import code_name
from ottla.model.errors import ErrorCode
from ottla.model.printable import shown

COORDINATOR_UNAVAILABLE = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
#: transient errors: a leader or a coordinator is being elected, or is not ready yet
_TRANSIENT = COORDINATOR_UNAVAILABLE | {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
}
GROUP_ACTIVE = frozenset({ErrorCode.NON_EMPTY_GROUP, ErrorCode.UNKNOWN_MEMBER_ID})
#: the resource that the user needs an ACL for
_FORBIDDEN = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "cluster, or to write to the topic",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
}
#: the command that lists the objects that exist
_LISTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "ottla topic list",
    ErrorCode.GROUP_ID_NOT_FOUND: "ottla group list",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "ottla txn list",
}


class TryAgain(NotHealthy):
    """The request failed with a transient error. A retry may succeed."""


def check(code: int, subject: str, text: str | None = None, *, topic: str | None = None) -> None:
    """Raise the failure that an error code means for `subject`; 0 is not an error."""
    if code:
        raise failure_of(code, subject, text, topic=topic)


def failure_of(code: int, subject: str, text: str | None = None, *, topic: str | None = None) -> Failure:
    """Return the failure that an error code means. `text` is that of the broker, `topic` the topic of the request."""
    reason = f"{code_name(code)}, {shown(text)}" if text else code_name(code)
    if code in _FORBIDDEN and not text:
        reason = "the cluster does not allow this client to do that"
    return explain(code, subject, reason, topic=topic)


def explain(code: int, subject: str, reason: str, *, topic: str | None = None) -> Failure:
    """Return the failure that an error code means. `reason` is the text for codes without a message of their own."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and topic is not None:
        return no_such_topic(topic)
    if code in _LISTS:
        return NotFound(f"{subject} does not exist; see '{_LISTS[ErrorCode(code)]}'")
    if code in _TRANSIENT:
        return TryAgain(f"{subject}: {reason}; try again in a moment, or see 'ottla doctor'")
    if code == ErrorCode.REQUEST_TIMED_OUT:
        return NotHealthy(f"{subject}: {reason}; see 'ottla doctor'")
    if code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return Failure(f"{subject} already exists; pass --if-not-exists if that is fine")
    if code in GROUP_ACTIVE:
        return Failure(f"{subject} has active members; stop its consumers, then try again")
    if code == ErrorCode.SASL_AUTHENTICATION_FAILED:
        return Failure(f"the broker refused this client: {reason}; set security.* and sasl.* with -X")
    if code in _FORBIDDEN:
        what = _FORBIDDEN[ErrorCode(code)]
        return Failure(f"{subject}: {reason}; the user needs an ACL for the {what}: 'ottla acl add --help' shows how")
    if code == ErrorCode.UNSUPPORTED_VERSION:
        return Failure(f"the broker does not support this request: {reason}; use a newer broker")
    return Failure(f"{subject}: {reason}")


def no_such_topic(name: str) -> NotFound:
    return NotFound(f"topic {name} does not exist; see 'ottla topic list', or 'ottla topic create {name}'")


def unreachable(bootstrap: str, reason: str) -> NotHealthy:
    return NotHealthy(
        f"no broker reachable at {bootstrap} ({reason}); start one with 'ottla broker', "
        "or name another with -b HOST:PORT"
    )
