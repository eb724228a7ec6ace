"""Delegation tokens in a simulated cluster of three brokers, which log in to each other with PLAIN.

``tests/compat/test_cluster_tokens.py`` has the same with processes and clients of others.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from sim_host import PORT, BrokerHost
from sim_loop import ContextLoop, VirtualLoop
from sim_network import ClientStream, SimulatedNetwork
from sim_world import CLUSTER_SETTINGS

from ottla.model.errors import ErrorCode
from ottla.security.sasl_client import Sasl, SaslExchange, ScramExchange
from ottla.testing.metadata_store import SimulatedEnsemble
from ottla.testing.raw import read_answer, request_bytes
from ottla.wire import Message
from ottla.wire.messages.create_delegation_token import CreateDelegationTokenRequest
from ottla.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from ottla.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from ottla.wire.messages.renew_delegation_token import RenewDelegationTokenRequest
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest

SCRAM = "SCRAM-SHA-256"
HOUR_MS = 3_600_000
#: after this time a change is known to all brokers
_LIMIT_S = 1.0
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SETTINGS = {
    **CLUSTER_SETTINGS, "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT", "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
    "listener.name.plaintext.plain.sasl.jaas.config":
        f'{_MODULE} username="broker" password="b" user_broker="b" user_alice="a" user_bob="o";',
    "delegation.token.secret.key": "secret of the tokens",
}  # fmt: skip


class Cluster:
    def __init__(self, own_settings: dict[int, dict[str, str]]) -> None:
        self.loop = VirtualLoop()
        self._network = SimulatedNetwork(self.loop, Random(1), lambda line: None)
        ensemble = SimulatedEnsemble(ContextLoop(self.loop, None), Random(2))
        self.hosts = {
            number: BrokerHost(
                number, loop=self.loop, network=self._network, ensemble=ensemble, trace=lambda line: None,
                rng=Random(number), settings={**_SETTINGS, **own_settings.get(number, {})},
            )
            for number in (1, 2, 3)
        }  # fmt: skip

    async def until_ready(self) -> None:
        while not all(host.is_ready for host in self.hosts.values()):
            await asyncio.sleep(0.01)

    async def connect(self, broker: int) -> Client:
        return Client(await self._network.connect("client", f"broker-{broker}", PORT))

    async def ask(self, broker: int, request: Message, version: int, user: str = "alice", password: str = "a") -> Any:
        """Send a request of a user who logged in with a password."""
        client = await self.connect(broker)
        assert await client.log_in("PLAIN", Sasl(mechanism="PLAIN", username=user, password=password).start()) == 0
        return await client.ask(request, version)

    async def create(self, broker: int) -> Any:
        made = await self.ask(broker, CreateDelegationTokenRequest(max_lifetime=-1), 3)
        assert made.error_code == 0, made
        await asyncio.sleep(_LIMIT_S)
        return made

    async def expiry_times(self, token: Any) -> list[int | None]:
        """Return when the token expires, according to each broker; None if there is no such token."""
        found: list[int | None] = []
        for broker in self.hosts:
            rows = (await self.ask(broker, DescribeDelegationTokenRequest(owners=None), 3)).tokens
            times = {row.token_id: row.expiry_timestamp for row in rows}
            found.append(times.get(token.token_id))
        return found

    async def login_codes(self, token: Any) -> list[int]:
        """Return the error codes of logins with the token to each broker."""
        return [await (await self.connect(broker)).log_in(SCRAM, TokenLogin(token)) for broker in self.hosts]


class Client:
    """One connection."""

    def __init__(self, stream: ClientStream) -> None:
        self._stream = stream
        self._number = 0

    async def ask(self, request: Message, version: int) -> Any:
        self._number += 1
        frame = await self._stream.request(request_bytes(request, version, self._number))
        return read_answer(frame, request.API_KEY, version, self._number)

    async def log_in(self, mechanism: str, exchange: SaslExchange) -> int:
        assert (await self.ask(SaslHandshakeRequest(mechanism=mechanism), 1)).error_code == 0
        token: bytes | None = exchange.first()
        while token is not None:
            answer = await self.ask(SaslAuthenticateRequest(auth_bytes=token), 2)
            if answer.error_code:
                return int(answer.error_code)
            token = exchange.answer(answer.auth_bytes)
        return 0


class TokenLogin(ScramExchange):
    def __init__(self, token: Any) -> None:
        password = base64.b64encode(token.hmac).decode()
        super().__init__(Sasl(mechanism=SCRAM, username=token.token_id, password=password), "nonce")
        self._first_bare += ",tokenauth=true"


def play(script: Callable[[Cluster], Awaitable[None]], own_settings: dict[int, dict[str, str]] | None = None) -> None:
    cluster = Cluster(own_settings or {})
    failures: list[BaseException] = []
    cluster.loop.on_exception = lambda where, error: failures.append(error)

    async def main() -> None:
        for host in cluster.hosts.values():
            host.start()
        await cluster.until_ready()
        await script(cluster)

    try:
        cluster.loop.run_until_complete(main())
    finally:
        cluster.loop.close()
    assert failures == []


REFUSED = ErrorCode.SASL_AUTHENTICATION_FAILED


def test_token_of_one_broker_is_valid_on_all_until_another_ends_it() -> None:
    async def script(cluster: Cluster) -> None:
        token = await cluster.create(1)
        assert await cluster.login_codes(token) == [0, 0, 0]
        renewed = await cluster.ask(2, RenewDelegationTokenRequest(hmac=token.hmac, renew_period=HOUR_MS), 2)
        assert renewed.error_code == 0
        await asyncio.sleep(_LIMIT_S)
        assert await cluster.expiry_times(token) == [renewed.expiry_timestamp] * 3
        expire = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period=-1)
        stranger = await cluster.ask(3, expire, 2, "bob", "o")
        assert stranger.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert (await cluster.ask(3, expire, 2)).error_code == 0
        await asyncio.sleep(_LIMIT_S)
        assert await cluster.expiry_times(token) == [None] * 3
        assert await cluster.login_codes(token) == [REFUSED] * 3

    play(script)


def test_token_expires_on_all_brokers_at_its_time() -> None:
    async def script(cluster: Cluster) -> None:
        token = await cluster.create(3)
        assert (
            await cluster.ask(1, RenewDelegationTokenRequest(hmac=token.hmac, renew_period=5000), 2)
        ).error_code == 0
        await asyncio.sleep(2)
        assert await cluster.login_codes(token) == [0, 0, 0]
        await asyncio.sleep(5)
        assert await cluster.login_codes(token) == [REFUSED] * 3

    play(script)


def test_token_is_valid_while_its_broker_is_down_and_after_it_was_started_again() -> None:
    async def script(cluster: Cluster) -> None:
        token = await cluster.create(1)
        cluster.hosts[1].kill("power")
        client = await cluster.connect(2)
        assert await client.log_in(SCRAM, TokenLogin(token)) == 0
        cluster.hosts[1].start()
        await cluster.until_ready()
        assert await cluster.login_codes(token) == [0, 0, 0]

    play(script)


def test_token_changed_while_a_broker_was_down_is_known_to_it_when_it_serves() -> None:
    async def script(cluster: Cluster) -> None:
        token = await cluster.create(1)
        cluster.hosts[3].kill("process")
        expire = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period=-1)
        assert (await cluster.ask(2, expire, 2)).error_code == 0
        other = await cluster.create(2)
        cluster.hosts[3].start()
        await cluster.until_ready()
        client = await cluster.connect(3)
        assert await client.log_in(SCRAM, TokenLogin(token)) == REFUSED
        client = await cluster.connect(3)
        assert await client.log_in(SCRAM, TokenLogin(other)) == 0

    play(script)


def test_broker_with_another_secret_key_accepts_no_token_of_the_others() -> None:
    async def script(cluster: Cluster) -> None:
        token = await cluster.create(1)
        assert await cluster.login_codes(token) == [0, 0, REFUSED]

    play(script, {3: {"delegation.token.secret.key": "another"}})
