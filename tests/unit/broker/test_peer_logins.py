"""How a broker logs in to others: settings that are refused at start, and tokens that are shared and renewed."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.broker.access.peer_logins import Peers, PeerTokens
from ottla.model.errors import StartError
from ottla.model.settings import BrokerSettings
from ottla.model.types import Endpoint
from ottla.security.bearer_tokens import TokenSource
from ottla.security.errors import AuthenticationFailed
from token_issuer import CLIENT_ID, CLIENT_SECRET, TokenIssuer

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
HANDLER = "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
PREFIX = "listener.name.sasl_plaintext.oauthbearer."
ENDPOINT = Endpoint("SASL_PLAINTEXT", "localhost", 9092)


def settings(mechanism: str = "OAUTHBEARER", **texts: str) -> BrokerSettings:
    return BrokerSettings.parse({
        "log.dirs": "/data", "listeners": "SASL_PLAINTEXT://127.0.0.1:0", "zookeeper.connect": "127.0.0.1:1",
        "security.inter.broker.protocol": "SASL_PLAINTEXT", "sasl.mechanism.inter.broker.protocol": mechanism, **texts,
    })  # fmt: skip


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenIssuer]:
    with TokenIssuer(tmp_path_factory.mktemp("issuer")) as issuer:
        yield issuer


# -- settings ---------------------------------------------------------------------------------------------------------

TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({}, "set sasl.jaas.config to the login module of OAUTHBEARER"),
        ({"sasl.jaas.config": f"{KERBEROS} required;"}, "which is not for OAUTHBEARER"),
        ({"sasl.jaas.config": f"{MODULE} required;"}, f"{TOKEN_URL} must be file:///PATH or https"),
        (
            {"sasl.jaas.config": f'{MODULE} required unsecuredLoginStringClaim_sub="canary";'},
            "unsecured tokens, which no broker accepts",
        ),
        (
            {"sasl.jaas.config": f'{MODULE} required clientSecret="canary";', TOKEN_URL: "https://a.example/token"},
            "needs an id and a secret",
        ),
        (
            {
                "sasl.jaas.config": f'{MODULE} required clientId="a" clientSecret="canary" '
                'ssl.truststore.location="/gone" ssl.truststore.password="canary";',
                TOKEN_URL: "https://a.example/token",
            },
            "/gone cannot be read",
        ),
        (
            {"sasl.jaas.config": f'{MODULE} required extension_auth="canary";', TOKEN_URL: "file:///token"},
            "extension_NAME",
        ),
    ],
)
def test_wrong_settings_of_oauthbearer_end_the_start(texts: dict[str, str], words: str) -> None:
    with pytest.raises(StartError) as refused:
        Peers(settings(**texts))
    assert words in str(refused.value) and "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "login",
    [
        f"{KERBEROS} required;",
        f'{KERBEROS} required keyTab="/keytab";',
        f'{KERBEROS} required principal="kafka/host@REALM";',
        f'{KERBEROS} required keyTab="/gone" principal="kafka/host@REALM" serviceName="kafka";',
    ],
)
def test_wrong_settings_of_kerberos_end_the_start(login: str) -> None:
    with pytest.raises(StartError) as refused:
        Peers(settings("GSSAPI", **{"sasl.jaas.config": login}))
    known = ("needs the options keyTab and principal", "/gone cannot be read", "apt-get install")
    assert any(words in str(refused.value) for words in known)


def oauth(issuer: TokenIssuer, **changes: str) -> BrokerSettings:
    texts = {
        f"{PREFIX}sasl.jaas.config": f'{MODULE} required clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}" '
        'scope="brokers" extension_traceId="7";',
        f"{PREFIX}sasl.login.callback.handler.class": HANDLER,
        f"{PREFIX}{TOKEN_URL}": issuer.url("/token"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(issuer.authority),
        **changes,
    }
    return settings(**{name: text for name, text in texts.items() if text})


@pytest.mark.parametrize("is_kafka_4", [False, True])
def test_login_has_a_token_of_the_issuer(issuer: TokenIssuer, is_kafka_4: bool) -> None:
    """Kafka 4 has settings for the client's id and secret; Kafka 3 has options of the login module."""
    credentials = "sasl.oauthbearer.client.credentials.client."
    newer = {
        f"{PREFIX}sasl.jaas.config": f'{MODULE} required extension_traceId="7";', f"{credentials}id": CLIENT_ID,
        f"{credentials}secret": CLIENT_SECRET, "sasl.oauthbearer.scope": "brokers",
        f"{PREFIX}sasl.login.callback.handler.class": "",
        "sasl.oauthbearer.jwt.retriever.class": f"{MODULE.rpartition('.')[0]}.ClientCredentialsJwtRetriever",
    }  # fmt: skip
    peers = Peers(oauth(issuer, **(newer if is_kafka_4 else {})))
    log_in = peers.security.log_in
    assert peers.security.mechanism == "OAUTHBEARER" and log_in is not None

    async def main() -> list[bytes]:
        return list(await asyncio.gather(*(log_in(ENDPOINT).first() for _ in range(10))))

    count = len(issuer.forms)
    messages = asyncio.run(main())
    assert len(set(messages)) == 1 and messages[0].endswith(b"\x01traceId=7\x01\x01")
    assert issuer.forms[count:] == [{"grant_type": ["client_credentials"], "scope": ["brokers"]}]


# -- tokens -----------------------------------------------------------------------------------------------------------


class SlowIssuer:
    """Answers when it is allowed to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.requests = 0
        self.allowed = threading.Event()
        self.failure: Exception | None = None

    def tokens(self) -> PeerTokens:
        return PeerTokens(TokenSource(self.fetch, wall=lambda: self.now))

    def fetch(self) -> str:
        self.requests += 1
        assert self.allowed.wait(60)
        if self.failure is not None:
            raise self.failure
        claims = json.dumps({"sub": "a", "exp": self.now + 1000, "number": self.requests}).encode()
        return f"a.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c"


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def test_event_loop_runs_while_the_issuer_does_not_answer() -> None:
    async def test() -> None:
        issuer = SlowIssuer()
        tokens = issuer.tokens()
        waiting = [asyncio.create_task(tokens.get()) for _ in range(3)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        waiting[0].cancel()  # the others still get the token
        issuer.allowed.set()
        first, second = await asyncio.gather(*waiting[1:])
        assert first == second and issuer.requests == 1
        assert await tokens.get() == first

    run(test())


def test_token_is_renewed_in_the_background_before_it_expires() -> None:
    async def test() -> None:
        issuer = SlowIssuer()
        issuer.allowed.set()
        tokens = issuer.tokens()
        first = await tokens.get()
        tokens.renew_if_due()
        assert issuer.requests == 1
        issuer.now += 750
        issuer.allowed.clear()
        tokens.renew_if_due()
        tokens.renew_if_due()
        assert await tokens.get() == first  # without waiting
        issuer.allowed.set()
        request = tokens._request
        assert request is not None
        await request
        assert await tokens.get() != first and issuer.requests == 2

    run(test())


def test_failure_of_the_issuer_reaches_all_logins(caplog: pytest.LogCaptureFixture) -> None:
    failure = AuthenticationFailed("the issuer is down")

    async def test() -> None:
        issuer = SlowIssuer()
        issuer.failure = failure
        issuer.allowed.set()
        tokens = issuer.tokens()
        found = await asyncio.gather(*(tokens.get() for _ in range(2)), return_exceptions=True)
        assert found == [failure, failure]

    run(test())
    assert "the issuer is down" in caplog.text
