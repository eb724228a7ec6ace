"""Delegation tokens in a cluster of three brokers with TLS and SCRAM: what one broker does holds on the others.

``tests/sim/test_tokens_in_cluster.py`` has the same without processes, and runs with ``make test``.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers import java_process, secure
from drivers.java import LATENCY
from tests.cluster.secure_cluster import SecureClusterProcess

from campaign.processes import wait_until
from ottla.cli.zookeeper_server import ZooKeeperFailed
from ottla.model.errors import ErrorCode
from ottla.security.sasl_client import Sasl, ScramExchange
from ottla.testing.raw import RawClient
from ottla.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from ottla.wire.messages.describe_delegation_token import DescribeDelegationTokenOwner, DescribeDelegationTokenRequest
from ottla.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from ottla.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from secure_broker import log_in

pytestmark = [
    pytest.mark.foreign,
    pytest.mark.skipif(
        "OTTLA_SECURITY" not in os.environ, reason="takes half a minute: make campaign NAME=security KAFKA=1"
    ),
]

MECHANISM = "SCRAM-SHA-512"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
HOUR_MS = 3_600_000


class TokenCluster:
    """The cluster, and connections to one of its brokers."""

    def __init__(self, process: SecureClusterProcess) -> None:
        self.process = process
        settings = process.client_settings
        self.authority, self.user = settings["ssl.ca.location"], settings["sasl.username"]
        self.password = settings["sasl.password"]
        self._addresses = dict(zip(process.brokers, settings["bootstrap.servers"].split(","), strict=True))
        self._context = ssl.create_default_context(cafile=self.authority)
        #: connections of the user, who logged in with a password, by broker
        self._logged_in: dict[int, RawClient] = {}

    def address(self, broker: int) -> str:
        return self._addresses[broker]

    def connect(self, broker: int) -> RawClient:
        client = RawClient(self._addresses[broker])
        client.socket = self._context.wrap_socket(client.socket, server_hostname="127.0.0.1")
        return client

    def log_in(self, broker: int) -> bool:
        """Log in with a password. Return False if the broker does not know the user yet."""
        sasl = Sasl(mechanism=MECHANISM, username=self.user, password=self.password)
        if broker in self._logged_in:
            self._logged_in.pop(broker).close()
        client = self._logged_in[broker] = self.connect(broker)
        return not log_in(client, MECHANISM, sasl.start()).error_code

    def ask(self, broker: int, request: Any, version: int) -> Any:
        """Send a request as the user."""
        return self._logged_in[broker].ask(request, version)

    def java(self, user: str, password: str, option: str = "") -> str:
        """Return the settings of a Java client."""
        login = f'{SCRAM_MODULE} required username="{user}" password="{password}"{option};'
        return (
            f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={self.authority}\n"
            f"sasl.mechanism={MECHANISM}\nsasl.jaas.config={login}\n"
        )

    def close(self) -> None:
        for client in self._logged_in.values():
            client.close()

    def described(self, broker: int) -> dict[str, Any]:
        """Return the tokens of the user, by id."""
        owner = DescribeDelegationTokenOwner(principal_type="User", principal_name=self.user)
        reply = self.ask(broker, DescribeDelegationTokenRequest(owners=[owner]), 3)
        assert reply.error_code == 0, reply
        return {token.token_id: token for token in reply.tokens}

    def try_token(self, broker: int, token: Any) -> int:
        """Log in with a token and return the error code."""
        with self.connect(broker) as client:
            return int(log_in(client, MECHANISM, TokenLogin(token)).error_code)


class TokenLogin(ScramExchange):
    def __init__(self, token: Any) -> None:
        password = base64.b64encode(token.hmac).decode()
        super().__init__(Sasl(mechanism=MECHANISM, username=token.token_id, password=password), "nonce")
        self._first_bare += ",tokenauth=true"


@pytest.fixture(scope="module")
def cluster() -> Iterator[TokenCluster]:
    try:
        process = SecureClusterProcess.start(settings={"delegation.token.secret.key": "secret of the tokens"})
    except ZooKeeperFailed as missing:
        pytest.skip(str(missing))
    with process:
        process.create_users()
        cluster = TokenCluster(process)
        for broker in process.brokers:
            wait_until(lambda broker=broker: cluster.log_in(broker))  # type: ignore[misc]
        yield cluster
        cluster.close()


@pytest.fixture
def token(cluster: TokenCluster) -> Any:
    """A token that broker 1 has created, and that all brokers know."""
    renewers = [CreatableRenewers(principal_type="User", principal_name="renewer")]
    made = cluster.ask(1, CreateDelegationTokenRequest(renewers=renewers, max_lifetime=-1), 3)
    assert made.error_code == 0, made
    for broker in cluster.process.brokers:
        wait_until(lambda broker=broker: made.token_id in cluster.described(broker))  # type: ignore[misc]
    return made


def test_token_of_one_broker_is_valid_on_all_until_one_of_them_ends_it(cluster: TokenCluster, token: Any) -> None:
    assert [cluster.try_token(broker, token) for broker in cluster.process.brokers] == [0, 0, 0]
    renewed = cluster.ask(2, RenewDelegationTokenRequest(hmac=token.hmac, renew_period=HOUR_MS), 2)
    assert renewed.error_code == 0
    assert renewed.expiry_timestamp < token.expiry_timestamp
    wait_until(lambda: cluster.described(3)[token.token_id].expiry_timestamp == renewed.expiry_timestamp)
    row = cluster.described(3)[token.token_id]
    assert (row.hmac, row.max_timestamp) == (token.hmac, token.max_timestamp)
    assert [renewer.principal_name for renewer in row.renewers] == ["renewer"]

    assert cluster.ask(3, ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period=-1), 2).error_code == 0
    for broker in cluster.process.brokers:
        wait_until(lambda broker=broker: token.token_id not in cluster.described(broker))  # type: ignore[misc]
        assert cluster.try_token(broker, token) == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_token_survives_the_restart_of_the_broker_that_created_it(
    cluster: TokenCluster, token: Any, franz_program: Path
) -> None:
    with RawClient(cluster.process.brokers[2].bootstrap) as client:
        client.create_topic("of-token")
    cluster.process.brokers[1].kill()
    assert cluster.try_token(3, token) == 0
    cluster.process.brokers[1].launch()
    assert cluster.try_token(1, token) == 0, "a broker knows all tokens when it begins to serve"
    assert cluster.log_in(1)
    way = {
        "bootstrap": cluster.address(1), "protocol": "SASL_SSL", "ca": cluster.authority, "mechanism": MECHANISM,
        "user": token.token_id, "password": base64.b64encode(token.hmac).decode(), "is_token": True,
    }  # fmt: skip
    assert secure.golang(franz_program, "of-token", [way]) == ["record 0"]


def test_java_creates_a_token_on_one_broker_and_uses_renews_and_expires_it_on_others(
    cluster: TokenCluster, tmp_path: Path
) -> None:
    problem = java_process.missing()
    if problem is not None:
        pytest.skip(problem)
    password, by_token = tmp_path / "password", tmp_path / "token"
    password.write_text(cluster.java(cluster.user, cluster.password))
    with_password = ["--command-config", str(password)]
    java = java_process.JavaProcess(cluster.address(1))
    try:
        printed = java.run(TOKENS, "--create", "--max-life-time-period", "-1", *with_password)
        match = re.search(rf"^(\S+)\s+(\S+)\s+User:{cluster.user}\s", printed, re.MULTILINE)
        assert match is not None, printed
        token_id, code = match.groups()
        for broker in cluster.process.brokers:
            wait_until(lambda broker=broker: token_id in cluster.described(broker))  # type: ignore[misc]
        by_token.write_text(cluster.java(token_id, code, ' tokenauth="true"'))
        java.at(cluster.address(2))
        arguments = ["--topic", "java-token", "--num-records", "2", "--producer-acks", "all", "--record-size", "10"]
        assert "Percentiles" in java.run(LATENCY, *arguments, "--command-config", str(by_token))
        assert "expiry" in java.run(TOKENS, "--renew", "--renew-time-period", "3600000", "--hmac", code, *with_password)
        java.at(cluster.address(3))
        assert "expiry" in java.run(TOKENS, "--expire", "--expiry-time-period", "-1", "--hmac", code, *with_password)
    finally:
        java.close()
    wait_until(lambda: token_id not in cluster.described(2))
