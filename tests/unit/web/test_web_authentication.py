"""Authentication of requests: basic, bearer, pass-through, certificates; failures and their cost."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.requests import Request

from ottla.edge.web import authentication
from ottla.edge.web.app import HttpError
from ottla.edge.web.authentication import Authenticator, CheckLogin, Identity
from ottla.edge.web.settings import WebSettings
from ottla.model.errors import StartError
from ottla.security import password_hashes
from ottla.security.password_hashes import PasswordHash, hash_password, user_line
from token_issuer import AUDIENCE, ISSUER, USER, TokenIssuer

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())


class Checked:
    """An authenticator with a clock of the test."""

    def __init__(self, texts: Mapping[str, str], check_login: CheckLogin | None = None) -> None:
        self.now = 1000.0
        self.made = Authenticator(WebSettings.parse(texts), check_login, now=lambda: self.now)

    async def ask(self, header: str | None = None, peer: str = "10.0.0.1", **scope: Any) -> Identity | None:
        headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
        return await self.made(Request({"type": "http", "headers": headers, "client": (peer, 1), **scope}))

    async def refused(self, header: str | None = None, peer: str = "10.0.0.1") -> HttpError:
        with pytest.raises(HttpError) as error:
            await self.ask(header, peer)
        return error.value


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.fixture
def users(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "users"
    write_users(path, ann="s3cret:1", bob="pässwörd")
    return {"authentication.method": "BASIC", "authentication.users.file": str(path)}


def write_users(path: Path, **passwords: str) -> None:
    hashes = {name: hash_password(each.encode(), b"salt" * 4, ln=10, r=8, p=1) for name, each in passwords.items()}
    path.write_text("\n".join(user_line(name, each) for name, each in hashes.items()))
    path.chmod(0o600)


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    row = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key()))
    (tmp_path / "jwks").write_text(json.dumps({"keys": [{**row, "kid": "k", "use": "sig"}]}))
    return {
        "authentication.method": "BEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{tmp_path}/jwks",
        "sasl.oauthbearer.expected.audience": "ottla",
        "sasl.oauthbearer.expected.issuer": "me",
    }


def token(key: Any = KEY, algorithm: str = "ES256", **claims: Any) -> str:
    body = {"sub": "ann", "aud": "ottla", "iss": "me", "exp": int(time.time()) + 600, **claims}
    made: str = jwt.encode(body, key, algorithm=algorithm, headers={"kid": "k"})
    return made


def test_users_of_the_file(users: dict[str, str]) -> None:
    async def check() -> None:
        checked = Checked(users)
        assert await checked.ask(basic("ann", "s3cret:1")) == Identity("ann")
        assert await checked.ask(basic("bob", "pässwörd")) == Identity("bob")
        for header in (
            None, basic("ann", "wrong"), basic("eve", "s3cret:1"), basic("ann", ""), basic("", "x"), "Basic !", "Basic",
            "Basic " + base64.b64encode(b"\xff:x").decode(), "Bearer x", basic("ann", "s3cret:1")[:-2],
            "Basic " + "A" * 100_000,
        ):  # fmt: skip
            error = await checked.refused(header)
            assert (error.status, error.error_code) == (401, 40101), header
            assert error.headers == {"www-authenticate": 'Basic realm="ottla", charset="UTF-8"'}
            assert "s3cret" not in repr(error) + str(error)

    asyncio.run(check())


def test_successful_check_holds_for_a_while_and_not_after_a_change_of_the_file(
    users: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    original = PasswordHash.is_password

    def count(self: PasswordHash, password: bytes) -> bool:
        computed.append(self)
        return original(self, password)

    monkeypatch.setattr(PasswordHash, "is_password", count)

    async def check() -> None:
        checked = Checked(users)
        for _ in range(3):
            await checked.ask(basic("ann", "s3cret:1"))
        assert len(computed) == 1
        await checked.refused(basic("ann", "s3cret:2"))
        assert len(computed) == 2
        checked.now += authentication.CACHE_S + 1
        await checked.ask(basic("ann", "s3cret:1"))
        assert len(computed) == 3
        write_users(Path(users["authentication.users.file"]), ann="changed")
        checked.now += 2
        assert (await checked.refused(basic("ann", "s3cret:1"))).status == 401
        assert await checked.ask(basic("ann", "changed")) == Identity("ann")
        assert not any(b"s3cret" in key for key in checked.made._known)

    asyncio.run(check())


def test_unknown_user_is_hashed_like_a_known_one(users: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    costs = []
    monkeypatch.setattr(PasswordHash, "is_password", lambda self, password: costs.append(self[:3]) or False)

    async def check() -> None:
        checked = Checked(users)
        await checked.refused(basic("ann", "x"))
        await checked.refused(basic("nobody", "x"))

    asyncio.run(check())
    assert costs == [(10, 8, 1)] * 2


def test_unusable_file_lets_no_user_in(
    users: dict[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(password_hashes, "FAKE", hash_password(b"", bytes(16), ln=10, r=8, p=1))

    async def check() -> None:
        checked = Checked(users)
        await checked.ask(basic("ann", "s3cret:1"))
        Path(users["authentication.users.file"]).chmod(0o644)
        checked.now += 2
        assert (await checked.refused(basic("ann", "s3cret:1"))).status == 401

    asyncio.run(check())
    assert "no user can authenticate" in caplog.text


def test_checks_of_the_same_credentials_are_done_once_and_their_number_is_limited(
    users: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, computed = threading.Event(), []
    monkeypatch.setattr(PasswordHash, "is_password", lambda self, password: computed.append(1) or gate.wait(60))

    async def check() -> None:
        checked = Checked(users)
        same = [asyncio.create_task(checked.ask(basic("ann", "s3cret:1"))) for _ in range(50)]
        others = [asyncio.create_task(checked.refused(basic("eve", f"{number}"))) for number in range(70)]
        done, _ = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result().status for task in done} == {503}
        same[0].cancel()
        gate.set()
        assert set(await asyncio.gather(*same[1:])) == {Identity("ann")}
        assert {each.status for each in await asyncio.gather(*others)} == {401, 503}
        # Two in threads, and 64 that waited.
        assert len(computed) == 66

    asyncio.run(check())


def test_wrong_logins_of_several_addresses_do_not_keep_valid_users_out(
    users: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, order = threading.Semaphore(0), []

    def is_password(self: PasswordHash, password: bytes) -> bool:
        assert gate.acquire(timeout=60)
        order.append(password)
        return password == b"s3cret:1"

    monkeypatch.setattr(PasswordHash, "is_password", is_password)

    async def check() -> None:
        checked = Checked(users)
        wrong = [
            asyncio.create_task(checked.refused(basic("eve", f"{number}"), peer=f"10.0.0.{number % 4}"))
            for number in range(80)
        ]
        await asyncio.sleep(0)
        valid = asyncio.create_task(checked.ask(basic("ann", "s3cret:1"), peer="10.0.1.1"))
        await asyncio.sleep(0)
        for _ in range(10):
            gate.release()
        # Two checks are in threads, and each of the four addresses has one turn before that of the valid user.
        assert await valid == Identity("ann")
        assert len(order) <= 10
        for _ in range(80):
            gate.release()
        assert {each.status for each in await asyncio.gather(*wrong)} == {401, 503}

    asyncio.run(check())


def test_user_who_has_logged_in_before_gets_in_from_the_address_of_an_attacker(users: dict[str, str]) -> None:
    """A proxy or a gateway gives all its clients one address."""

    async def check() -> None:
        checked = Checked({**users, "authentication.failures.per.minute": "5"})
        await checked.ask(basic("ann", "s3cret:1"))
        for number in range(5):
            assert (await checked.refused(basic("eve", f"{number}"))).status == 401
        assert (await checked.refused(basic("bob", "pässwörd"))).status == 429
        checked.now += 61  # the successful check of ann does not hold any more, and the address has its budget again
        for number in range(5):
            assert (await checked.refused(basic("eve", f"{number}"))).status == 401
        assert await checked.ask(basic("ann", "s3cret:1")) == Identity("ann")
        # Guesses of the password of ann have a budget too.
        for number in range(5):
            assert (await checked.refused(basic("ann", f"{number}"))).status == 401
        assert (await checked.refused(basic("ann", "x"))).status == 429

    asyncio.run(check())


def test_wrong_passwords_of_a_user_who_has_logged_in_before_do_not_keep_others_out(
    users: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Semaphore(1)

    def is_password(self: PasswordHash, password: bytes) -> bool:
        assert gate.acquire(timeout=60)
        return password in (b"s3cret:1", "pässwörd".encode())

    monkeypatch.setattr(PasswordHash, "is_password", is_password)

    async def check() -> None:
        checked = Checked(users)
        await checked.ask(basic("ann", "s3cret:1"))
        wrong = [asyncio.create_task(checked.refused(basic("ann", f"{number}"))) for number in range(80)]
        await asyncio.sleep(0)
        other = asyncio.create_task(checked.ask(basic("bob", "pässwörd"), peer="10.0.1.1"))
        await asyncio.sleep(0)
        for _ in range(10):
            gate.release()
        assert await other == Identity("bob")
        for _ in range(80):
            gate.release()
        assert {each.status for each in await asyncio.gather(*wrong)} == {401, 503}
        assert not checked.made._checks_of

    asyncio.run(check())


def test_failures_of_one_address_are_limited(users: dict[str, str]) -> None:
    async def check() -> None:
        checked = Checked({**users, "authentication.failures.per.minute": "5"})
        await checked.ask(basic("ann", "s3cret:1"))
        for number in range(5):
            assert (await checked.refused(basic("eve", f"{number}"))).status == 401
        error = await checked.refused(basic("bob", "pässwörd"))
        assert (error.status, error.error_code) == (429, 42901)
        assert int(error.headers["retry-after"]) > 0
        # Another address, and credentials that were right a moment ago, are not affected.
        assert await checked.ask(basic("bob", "pässwörd"), peer="10.0.0.2") == Identity("bob")
        assert await checked.ask(basic("ann", "s3cret:1")) == Identity("ann")
        checked.now += 13
        assert (await checked.refused(basic("eve", "x"))).status == 401
        assert (await checked.refused(basic("eve", "y"))).status == 429

    asyncio.run(check())


def test_addresses_of_one_network_share_a_budget_of_failures(users: dict[str, str]) -> None:
    async def check() -> None:
        checked = Checked({**users, "authentication.failures.per.minute": "5"})
        statuses = [(await checked.refused(basic("eve", "x"), peer=f"2001:db8::{each}")).status for each in range(1, 8)]
        assert statuses == [401] * 5 + [429] * 2
        # The addresses of IPv4 on a listener for both are not one network.
        assert (await checked.refused(basic("eve", "x"), peer="2001:db8:0:1::1")).status == 401
        for number in range(1, 8):
            assert (await checked.refused(basic("eve", "x"), peer=f"::ffff:10.0.0.{number}")).status == 401

    asyncio.run(check())


def test_tokens(tokens: dict[str, str]) -> None:
    async def check() -> None:
        checked = Checked(tokens)
        found = await checked.ask(f"Bearer {token()}")
        assert found is not None
        assert (found.name, found.token, found.properties) == ("ann", "", ())
        for wrong in (
            token(OTHER_KEY), token(aud="other"), token(iss="other"), token(exp=1), token(sub=""), "x.y.z", "",
            token("secret" * 10, "HS256"), jwt.encode({"sub": "ann"}, None, algorithm="none"),
        ):  # fmt: skip
            error = await checked.refused(f"Bearer {wrong}")
            assert (error.status, error.error_code) == (401, 40101)
            assert error.headers == {"www-authenticate": 'Bearer realm="ottla"'}
            assert not wrong or wrong not in str(error)

    asyncio.run(check())


def test_wrong_tokens_do_not_keep_users_of_the_same_address_out(tokens: dict[str, str]) -> None:
    async def check() -> None:
        checked = Checked({**tokens, "authentication.failures.per.minute": "5"})
        await checked.ask(f"Bearer {token()}")
        wrong = [token(OTHER_KEY, sub="eve", exp=int(time.time()) + number) for number in range(100, 108)]
        statuses = [(await checked.refused(f"Bearer {each}")).status for each in wrong]
        assert statuses == [401] * 5 + [429] * 3
        checked.now += authentication.CACHE_S
        assert (await checked.refused("Bearer x.y.z")).status == 401
        assert [(await checked.refused("Bearer x.y.z")).status for _ in range(5)][-1] == 429
        # The same user with the same token after the time of the cache, and with a new token.
        for lifetime_s in (600, 700):
            found = await checked.ask(f"Bearer {token(exp=int(time.time()) + lifetime_s)}")
            assert found is not None and found.name == "ann"

    asyncio.run(check())


def test_keys_of_the_issuer_are_read_over_https_with_an_authority_of_the_truststore(tmp_path: Path) -> None:
    async def check() -> None:
        with TokenIssuer(tmp_path) as issuer:
            settings = {
                "authentication.method": "BEARER", "sasl.oauthbearer.jwks.endpoint.url": issuer.url("/keys"),
                "sasl.oauthbearer.expected.audience": AUDIENCE, "sasl.oauthbearer.expected.issuer": ISSUER,
            }  # fmt: skip
            header = f"Bearer {issuer.token()}"
            assert (await Checked(settings).refused(header)).status == 401
            stores = {"ssl.truststore.location": str(issuer.authority), "ssl.truststore.type": "PEM"}
            found = await Checked(settings | stores).ask(header)
            assert found is not None
            assert found.name == USER
            with pytest.raises(StartError, match=r"cannot be read"):
                Checked(settings | stores | {"ssl.truststore.location": "/missing"})

    asyncio.run(check())


def test_expired_token_is_not_accepted_from_the_cache(tokens: dict[str, str]) -> None:
    async def check() -> None:
        checked = Checked({**tokens, "sasl.oauthbearer.clock.skew.seconds": "0"})
        header = f"Bearer {token(exp=int(time.time()) + 20)}"
        await checked.ask(header)
        [(expires, _)] = checked.made._known.values()
        assert expires <= checked.now + 20
        checked.now += 21
        assert checked.made._find(next(iter(checked.made._known))) is None

    asyncio.run(check())


def test_both_methods_and_the_users_token_for_the_cluster(tokens: dict[str, str], users: dict[str, str]) -> None:
    async def check() -> None:
        both = Checked({**tokens, **users, "authentication.method": "BASIC,BEARER"})
        assert await both.ask(basic("ann", "s3cret:1")) == Identity("ann")
        text = token()
        assert (await both.ask(f"bearer {text}")) is not None
        error = await both.refused()
        assert error.headers["www-authenticate"] == 'Basic realm="ottla", charset="UTF-8", Bearer realm="ottla"'
        through = Checked({**tokens, "authentication.pass.through": "true", "client.security.protocol": "SASL_SSL"})
        found = await through.ask(f"Bearer {text}")
        assert found is not None
        assert found.token == text
        assert text not in repr(found)

    asyncio.run(check())


PASS_THROUGH = {
    "authentication.method": "BASIC",
    "authentication.pass.through": "true",
    "bootstrap.servers": "b:1",
    "client.security.protocol": "SASL_SSL",
    "client.sasl.mechanism": "SCRAM-SHA-256",
    "client.sasl.username": "service",
    "client.sasl.password": "own",
    "client.ssl.ca.location": "ca",
}


def test_pass_through_logs_in_to_the_cluster_with_the_users_credentials() -> None:
    seen: list[Mapping[str, str]] = []

    def check_login(properties: Mapping[str, str]) -> bool:
        seen.append(properties)
        return properties["sasl.password"] == "s3cret"

    async def check() -> None:
        checked = Checked(PASS_THROUGH, check_login)
        found = await checked.ask(basic("ann", "s3cret"))
        assert found is not None
        own = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "ann", "sasl.password": "s3cret"}
        assert (found.name, dict(found.properties)) == ("ann", own)
        assert "s3cret" not in repr(found)
        assert seen == [{"security.protocol": "SASL_SSL", "ssl.ca.location": "ca", "bootstrap.servers": "b:1", **own}]
        assert await checked.ask(basic("ann", "s3cret")) == found
        assert len(seen) == 1
        assert (await checked.refused(basic("ann", "wrong"))).status == 401

    asyncio.run(check())


def test_cluster_that_does_not_answer_is_no_failure_of_the_client() -> None:
    def check_login(properties: Mapping[str, str]) -> bool:
        raise ConnectionError("no broker")

    async def check() -> None:
        checked = Checked({**PASS_THROUGH, "authentication.failures.per.minute": "1"}, check_login)
        for _ in range(3):
            with pytest.raises(ConnectionError):
                await checked.ask(basic("ann", "s3cret"))

    asyncio.run(check())


def accept(properties: Mapping[str, str]) -> bool:
    return True


@pytest.mark.parametrize(
    ("texts", "check_login", "text"),
    [
        ({"authentication.method": "BASIC"}, accept, "needs authentication.users.file"),
        ({"authentication.method": "BASIC", "authentication.users.file": "/none"}, accept, "cannot be read"),
        ({"authentication.method": "BEARER"}, accept, "sasl.oauthbearer.jwks.endpoint.url"),
        ({"authentication.pass.through": "true"}, accept, "needs BASIC or BEARER"),
        ({**PASS_THROUGH, "client.security.protocol": "SSL"}, accept, "client.security.protocol=SASL_SSL"),
        ({**PASS_THROUGH, "authentication.users.file": "f"}, accept, "remove authentication.users.file"),
        (PASS_THROUGH, None, "does not log in to the cluster"),
    ],
)
def test_settings_that_do_not_fit_together_stop_the_start(
    texts: dict[str, str], check_login: Callable[[Mapping[str, str]], bool] | None, text: str
) -> None:
    with pytest.raises(StartError, match=text):
        Checked(texts, check_login)


def test_without_a_method_the_certificate_names_the_user() -> None:
    async def check() -> None:
        assert await Checked({}).ask() is None
        assert await Checked({}).ask(basic("ann", "x")) is None

    asyncio.run(check())


def test_no_secret_is_logged(users: dict[str, str], tokens: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    text = token(OTHER_KEY)

    async def check() -> None:
        checked = Checked({**tokens, **users, "authentication.method": "BASIC,BEARER"})
        await checked.refused(f"Bearer {text}")
        await checked.refused(basic("ann", "h1dden"))

    asyncio.run(check())
    assert "the token is refused" in caplog.text
    assert "h1dden" not in caplog.text
    assert text.split(".")[2] not in caplog.text
