"""Which error code a client of the REST proxy gets for each error of Kafka."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ottla
from ottla.client.errors import (
    RETRIABLE_CODES,
    AuthenticationFailed,
    BrokerError,
    ClusterUnreachable,
    ConnectionLost,
    PropertyRefused,
    TimedOut,
    UnsupportedByBroker,
)
from ottla.edge.rest import errors
from ottla.edge.rest.errors import MEANINGS, KafkaRefusal, describe_error, status_of
from ottla.model.errors import ErrorCode

#: what the proxy consists of; `web` has the errors that it shares with the registry
PACKAGES = ("edge/rest", "edge/web")
ERROR_CODES = range(40000, 60000)


def trees() -> Iterator[ast.Module]:
    for package in PACKAGES:
        for path in sorted((Path(ottla.__file__).parent / package).glob("*.py")):
            yield ast.parse(path.read_text())


def test_documentation_has_each_error_code_of_the_source() -> None:
    found = {
        node.value
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in ERROR_CODES
    }
    assert found == MEANINGS.keys()


def test_each_documented_error_code_is_used() -> None:
    """A code that no statement uses would document an error that does not occur."""
    nodes = [node for tree in trees() for statement in tree.body if not defines_codes(statement)
             for node in ast.walk(statement)]  # fmt: skip
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    numbers = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert {code for code in MEANINGS if not names & names_of(code) and code not in numbers} == set()


def defines_codes(statement: ast.stmt) -> bool:
    """Return whether a statement is the definition of a constant of `errors`, or the table of meanings."""
    return isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) in {"MEANINGS", *names_of(*MEANINGS)}


def names_of(*codes: int) -> set[str]:
    return {name for name, value in vars(errors).items() if isinstance(value, int) and value in codes}


@pytest.mark.parametrize("code", [code for code in ErrorCode if code != ErrorCode.NONE])
def test_every_code_of_kafka_has_a_status_and_an_error_code(code: ErrorCode) -> None:
    status, error_code = status_of(code)
    assert str(error_code).startswith(str(status))
    assert error_code in MEANINGS or error_code == status
    if status == 500:
        assert error_code == (50003 if code in RETRIABLE_CODES else 50002)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.TOPIC_ALREADY_EXISTS, (400, 40002)),
        (ErrorCode.INVALID_PARTITIONS, (400, 40002)),
        (ErrorCode.INVALID_CONFIG, (400, 40002)),
        (ErrorCode.POLICY_VIOLATION, (400, 40002)),
        (ErrorCode.SASL_AUTHENTICATION_FAILED, (401, 40101)),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, (403, 40301)),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, (404, 40403)),
        (ErrorCode.LEADER_NOT_AVAILABLE, (404, 40404)),
        (ErrorCode.GROUP_ID_NOT_FOUND, (404, 40405)),
        (ErrorCode.MESSAGE_TOO_LARGE, (413, 413)),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, (429, 42901)),
        (ErrorCode.NOT_ENOUGH_REPLICAS, (500, 50003)),
        (ErrorCode.UNKNOWN_SERVER_ERROR, (500, 50002)),
        (-181, (501, 50101)),
        (-187, (503, 50302)),
        (-192, (500, 50003)),
    ],
)
def test_codes_have_confluents_error_codes(code: int, expected: tuple[int, int]) -> None:
    assert status_of(code) == expected


def test_exceptions_of_the_client_have_error_codes() -> None:
    timeout = TimedOut("no success")
    timeout.__cause__ = BrokerError(ErrorCode.NOT_CONTROLLER, "x")
    cases: list[tuple[Exception, tuple[int, int]]] = [
        (KafkaRefusal(ErrorCode.INVALID_CONFIG, "topic t", "retention.ms is not valid"), (400, 40002)),
        (BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topic t"), (403, 40301)),
        (AuthenticationFailed("wrong password"), (401, 40101)),
        (ClusterUnreachable("h:1", "refused"), (503, 50302)),
        (ConnectionLost("h:1", "closed"), (500, 50003)),
        (UnsupportedByBroker("h:1", "X", 3, None), (400, 40002)),
        (timeout, (500, 50003)),
        (TimedOut("no success"), (500, 50003)),
        (PropertyRefused("sasl.username"), (500, 50002)),
    ]
    for error, expected in cases:
        found = describe_error(error)
        assert found is not None
        assert (found.status, found.error_code) == expected, error
        assert found.message
    assert describe_error(KeyError("a bug")) is None
