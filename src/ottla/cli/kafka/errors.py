"""How a tool of Kafka ends early: wrong usage, an error of a request, an exit code.

ToolError             each of these; the text is the message of Java's exception
├── OptionError       a flag is unknown, has no value, or its value cannot be read
├── UsageError        the flags do not fit together; the help follows the message
├── RequestError      a broker refused a request: a code of Kafka, and the text
└── ClientTimeout     no broker answered in time
"""

from __future__ import annotations

from typing import NoReturn

from ottla.model.errors import ErrorCode, OttlaError

#: what Kafka's clients say about a code when a broker sends no text; only codes that tools print
_TEXTS = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "The server experienced an unexpected error when processing the request.",
    ErrorCode.OFFSET_OUT_OF_RANGE: "The requested offset is not within the range of offsets maintained by the server.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.LEADER_NOT_AVAILABLE: "There is no leader for this topic-partition as we are in the middle of a "
    "leadership election.",
    ErrorCode.REQUEST_TIMED_OUT: "The request timed out.",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.NOT_COORDINATOR: "This is not the correct coordinator.",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "The request attempted to perform an operation on an invalid topic.",
    ErrorCode.INVALID_GROUP_ID: "The group id is invalid.",
    ErrorCode.UNKNOWN_MEMBER_ID: "The coordinator is not aware of this member.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.UNSUPPORTED_VERSION: "The version of API is not supported.",
    ErrorCode.TOPIC_ALREADY_EXISTS: "Topic with this name already exists.",
    ErrorCode.INVALID_REQUEST: "This most likely occurs because of a request being malformed by the client library or "
    "the message was sent to an incompatible broker. See the broker logs for more details.",
    ErrorCode.SECURITY_DISABLED: "Security features are disabled.",
    ErrorCode.NON_EMPTY_GROUP: "The group is not empty.",
    ErrorCode.GROUP_ID_NOT_FOUND: "The group id does not exist.",
    ErrorCode.TOPIC_DELETION_DISABLED: "Topic deletion is disabled.",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "The preferred leader was not available.",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "Eligible topic partition leaders are not available.",
    ErrorCode.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "No partition reassignment is in progress.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Deleting offsets of a topic is forbidden while the consumer group is "
    "actively subscribed to it.",
    ErrorCode.UNKNOWN_TOPIC_ID: "This server does not host this topic ID.",
}
#: Java's exceptions that are not named after their code
_CLASSES = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "UnknownServerException",
    ErrorCode.REQUEST_TIMED_OUT: "TimeoutException",
    ErrorCode.MESSAGE_TOO_LARGE: "RecordTooLargeException",
    ErrorCode.RECORD_LIST_TOO_LARGE: "RecordBatchTooLargeException",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "InvalidTopicException",
    ErrorCode.TOPIC_ALREADY_EXISTS: "TopicExistsException",
    ErrorCode.INVALID_CONFIG: "InvalidConfigurationException",
    ErrorCode.KAFKA_STORAGE_ERROR: "KafkaStorageException",
    ErrorCode.NON_EMPTY_GROUP: "GroupNotEmptyException",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "TopicAuthorizationException",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "GroupAuthorizationException",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "ClusterAuthorizationException",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "TransactionalIdAuthorizationException",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "SaslAuthenticationException",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "GroupSubscribedToTopicException",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "DelegationTokenDisabledException",
}
_PACKAGE = "org.apache.kafka.common.errors."


class ToolError(OttlaError):
    """The tool ends. The text is what Java's tool prints, where the tool prints the text of an exception."""

    #: the class of Java's exception, for tools that print it
    java_class = "java.lang.RuntimeException"


class IllegalArgument(ToolError):
    java_class = "java.lang.IllegalArgumentException"


class CommandFailed(ToolError):
    """The tool found a reason to stop that is not an error of a request."""

    java_class = "org.apache.kafka.server.common.AdminCommandFailedException"


class OptionError(ToolError):
    java_class = "joptsimple.OptionException"


class UsageError(ToolError):
    """Flags that do not fit together. The help follows the message on standard error."""


class RequestError(ToolError):
    """A broker refused a request with a code of Kafka."""

    def __init__(self, code: int, text: str | None = None) -> None:
        super().__init__(text or default_text(code))
        self.code = code
        #: whether the tool prints the class of the exception in front of the text
        self.is_wrapped = False

    @property
    def java_class(self) -> str:  # type: ignore[override]
        return _PACKAGE + class_name(self.code)


class ClientTimeout(ToolError):
    """No broker answered in time."""

    java_class = _PACKAGE + "TimeoutException"


def check(code: int, text: str | None = None) -> None:
    """Raise the error that a code means; 0 is no error. `text` is that of the broker."""
    if code:
        raise RequestError(code, text)


def default_text(code: int) -> str:
    """Return what Kafka's clients say about a code for which the broker sent no text."""
    known = _TEXTS.get(code)  # type: ignore[call-overload]
    return known or f"The broker refused the request with the error {_code_name(code)}."


def class_name(code: int) -> str:
    """Return the name of Java's exception for a code, without its package."""
    known = _CLASSES.get(code)  # type: ignore[call-overload]
    return known or "".join(part.capitalize() for part in _code_name(code).split("_")) + "Exception"


def fail(text: str) -> NoReturn:
    """Raise a `CommandFailed`."""
    raise CommandFailed(text)


def _code_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"ERROR_{code}"
