"""Delegation tokens with Java's tool and client, and with franz-go."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers import java_process, secure
from drivers.java import LATENCY

from ottla.model.errors import ErrorCode
from ottla.security.sasl_client import Sasl, ScramExchange
from ottla.testing.raw import RawClient
from ottla.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from ottla.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from secure_broker import PASSWORD, USER, SecureBroker, allow_only, log_in

pytestmark = pytest.mark.foreign

TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def broker(secure_broker: SecureBroker) -> SecureBroker:
    return secure_broker


@pytest.fixture
def alice(broker: SecureBroker) -> Iterator[RawClient]:
    """A connection of the user, who logged in with a password."""
    with RawClient(broker.addresses["SASL_PLAINTEXT"]) as client:
        sasl = Sasl(mechanism="SCRAM-SHA-256", username=USER, password=PASSWORD)
        assert log_in(client, "SCRAM-SHA-256", sasl.start()).error_code == 0
        yield client


def created(client: RawClient) -> Any:
    return client.ask(
        CreateDelegationTokenRequest(owner_principal_type=None, owner_principal_name=None, max_lifetime=-1), 3
    )


class TokenLogin(ScramExchange):
    def __init__(self, token: Any) -> None:
        password = base64.b64encode(token.hmac).decode()
        super().__init__(Sasl(mechanism="SCRAM-SHA-256", username=token.token_id, password=password), "nonce")
        self._first_bare += ",tokenauth=true"


def test_login_with_a_token_ends_with_the_token_and_creates_no_other(broker: SecureBroker, alice: RawClient) -> None:
    token = created(alice)
    assert token.error_code == 0
    with RawClient(broker.addresses["SASL_PLAINTEXT"]) as job:
        answer = log_in(job, "SCRAM-SHA-256", TokenLogin(token))
        assert answer.error_code == 0
        assert 0 < answer.session_lifetime <= token.expiry_timestamp - token.issue_timestamp
        assert created(job).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert alice.ask(ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period=-1), 2).error_code == 0
    with RawClient(broker.addresses["SASL_PLAINTEXT"]) as job:
        assert log_in(job, "SCRAM-SHA-256", TokenLogin(token)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_client_without_a_login_cannot_create_a_token(broker: SecureBroker) -> None:
    with RawClient(broker.addresses["PLAINTEXT"]) as client:
        assert created(client).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_franz_go_has_the_rights_of_the_owner(broker: SecureBroker, alice: RawClient, franz_program: Path) -> None:
    token = created(alice)
    allow_only(broker, "of-token", f"User:{USER}")
    login = {"user": token.token_id, "password": base64.b64encode(token.hmac).decode(), "is_token": True}
    ways = [broker.way("SASL_SSL", "SCRAM-SHA-512") | login]
    assert secure.golang(franz_program, "of-token", ways) == ["record 0"]


def test_java_creates_uses_renews_and_expires_a_token(broker: SecureBroker, tmp_path: Path) -> None:
    problem = java_process.missing()
    if problem is not None:
        pytest.skip(problem)
    password, by_token = tmp_path / "password", tmp_path / "token"
    password.write_text(broker.java("SASL_SSL", "SCRAM-SHA-256"))
    java = java_process.JavaProcess(broker.addresses["SASL_SSL"])
    try:
        with_password = ["--command-config", str(password)]
        renewer = ["--renewer-principal", "User:bob"]
        printed = java.run(TOKENS, "--create", "--max-life-time-period", "-1", *renewer, *with_password)
        match = re.search(rf"^(\S+)\s+(\S+)\s+User:{USER}\s+User:{USER}\s+\[?User:bob\]?", printed, re.MULTILINE)
        assert match is not None, printed
        token_id, code = match.groups()
        assert token_id in java.run(TOKENS, "--describe", "--owner-principal", f"User:{USER}", *with_password)
        login = f'{_SCRAM_MODULE} required username="{token_id}" password="{code}" tokenauth="true";'
        lines = broker.java("SASL_SSL", "SCRAM-SHA-256").splitlines()
        by_token.write_text("\n".join(line for line in lines if "jaas" not in line) + f"\nsasl.jaas.config={login}\n")
        arguments = ["--topic", "java-token", "--num-records", "2", "--producer-acks", "all", "--record-size", "10"]
        assert "Percentiles" in java.run(LATENCY, *arguments, "--command-config", str(by_token))
        assert "expiry" in java.run(TOKENS, "--renew", "--renew-time-period", "3600000", "--hmac", code, *with_password)
        assert "expiry" in java.run(TOKENS, "--expire", "--expiry-time-period", "-1", "--hmac", code, *with_password)
        assert token_id not in java.run(TOKENS, "--describe", *with_password)
    finally:
        java.close()
