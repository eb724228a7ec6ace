"""Questions to the schema registry: each id once, limits, and a registry that does not answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.broker.validation import schema_lookup
from ottla.broker.validation.schema_lookup import RegistryUnavailable, SchemaLookups, connect
from ottla.client.errors import PropertyRefused
from ottla.client.registry import RegistryUnreachable
from ottla.model.schema_ids import SchemaRef
from ottla.model.settings import BrokerSettings, InvalidSettings

URL = "http://127.0.0.1:1"
WAIT_S = 30.0


class Registry:
    """In place of the client of a registry. Threads wait in ``knows`` while ``open`` is not set."""

    def __init__(self) -> None:
        self.ids: set[int | str] = {1, 2, 3}
        self.asked: list[int | str] = []
        self.failure: Exception | None = None
        self.open = threading.Event()
        self.open.set()
        self.concurrent = self.concurrent_max = 0
        self._lock = threading.Lock()

    def knows(self, schema_id: int | str, subject: str | None) -> bool:
        with self._lock:
            self.asked.append(schema_id)
            self.concurrent += 1
            self.concurrent_max = max(self.concurrent, self.concurrent_max)
        self.open.wait(WAIT_S)
        with self._lock:
            self.concurrent -= 1
        if self.failure is not None:
            raise self.failure
        return schema_id in self.ids

    def close(self) -> None:
        pass


class Fixture:
    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.now = 100.0
        self.registry = Registry()
        self.lookups = SchemaLookups(
            asyncio.get_running_loop(), lambda: self.now,
            settings or BrokerSettings.parse({"schema.registry.url": URL}), lambda _: self.registry,  # type: ignore[arg-type, return-value]
        )  # fmt: skip

    async def unknown(self, *ids: int | str) -> tuple[int | str, ...]:
        unknown = await self.lookups.unknown_of([SchemaRef(each) for each in ids], WAIT_S)
        return tuple(each.id for each in unknown)

    def knows(self, *ids: int | str) -> bool:
        return self.lookups.knows([SchemaRef(each) for each in ids])


def run(script: Callable[[Fixture], Awaitable[None]], **fields: Any) -> None:
    async def main() -> None:
        fixture = Fixture(**fields)
        try:
            await script(fixture)
        finally:
            fixture.registry.open.set()
            await fixture.lookups.stop()

    asyncio.run(main())


def test_known_ids_are_asked_about_once() -> None:
    async def script(fixture: Fixture) -> None:
        assert not fixture.knows(1)
        assert await fixture.unknown(1, 2, "guid") == ("guid",)
        assert fixture.knows(1, 2) and not fixture.knows(1, 4)
        fixture.now += 1_000_000
        assert await fixture.unknown(2, 1) == ()
        assert sorted(map(str, fixture.registry.asked)) == ["1", "2", "guid"]
        assert fixture.lookups.results == {"known": 2, "unknown": 1, "failed": 0}

    run(script)


def test_unknown_id_is_asked_about_again_after_a_second() -> None:
    async def script(fixture: Fixture) -> None:
        assert await fixture.unknown(9) == (9,)
        fixture.registry.ids.add(9)
        assert await fixture.unknown(9) == (9,)
        fixture.now += 1.1
        assert await fixture.unknown(9) == ()
        assert fixture.registry.asked == [9, 9]

    run(script)


def test_id_that_no_registry_can_have_is_not_asked_about() -> None:
    async def script(fixture: Fixture) -> None:
        assert await fixture.unknown(1 << 31, 0xFFFFFFFF) == (1 << 31, 0xFFFFFFFF)
        assert fixture.registry.asked == []

    run(script)


def test_batches_that_wait_for_the_same_id_share_one_request() -> None:
    async def script(fixture: Fixture) -> None:
        fixture.registry.open.clear()
        waiting = [asyncio.ensure_future(fixture.unknown(1)) for _ in range(20)]
        while not fixture.registry.asked:
            await asyncio.sleep(0.001)
        fixture.registry.open.set()
        assert await asyncio.gather(*waiting) == [()] * 20
        assert fixture.registry.asked == [1]

    run(script)


def test_concurrent_requests_and_waiting_ids_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_lookup, "_WAITING_MAX", 50)

    async def script(fixture: Fixture) -> None:
        fixture.registry.open.clear()
        waiting = asyncio.ensure_future(fixture.unknown(*range(1000, 1050)))
        while len(fixture.registry.asked) < 4:
            await asyncio.sleep(0.001)
        with pytest.raises(RegistryUnavailable, match="too many"):
            await fixture.unknown(2000)
        fixture.registry.open.set()
        assert len(await waiting) == 50
        assert fixture.registry.concurrent_max == 4

    run(script)


def test_requests_per_second_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_lookup, "_REQUESTS_PER_S", 5.0)

    async def script(fixture: Fixture) -> None:
        waiting = asyncio.ensure_future(fixture.unknown(*range(1000, 1008)))
        while len(fixture.registry.asked) < 5:
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert len(fixture.registry.asked) == 5  # the time of the fixture stands still
        fixture.now += 1
        assert len(await waiting) == 8

    run(script)


def test_failure_is_reported_at_once_and_for_a_second() -> None:
    async def script(fixture: Fixture) -> None:
        fixture.registry.failure = RegistryUnreachable("no registry")
        with pytest.raises(RegistryUnavailable, match="no registry"):
            await fixture.unknown(1)
        with pytest.raises(RegistryUnavailable, match="no registry"):
            await fixture.unknown(2)
        assert fixture.registry.asked == [1] and fixture.lookups.results["failed"] == 1
        fixture.registry.failure = None
        fixture.now += 1.1
        assert await fixture.unknown(1, 2) == ()
        fixture.registry.failure = RegistryUnreachable("no registry")
        assert await fixture.unknown(1, 2) == ()

    run(script)


def test_ids_that_wait_are_not_asked_about_after_a_failure() -> None:
    async def script(fixture: Fixture) -> None:
        fixture.registry.open.clear()
        waiting = [asyncio.ensure_future(fixture.unknown(number)) for number in range(1000, 1020)]
        while len(fixture.registry.asked) < 4:
            await asyncio.sleep(0.001)
        fixture.registry.failure = RegistryUnreachable("no registry")
        fixture.registry.open.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(each) for each in results} == {RegistryUnavailable}
        assert len(fixture.registry.asked) == 4

    run(script)


def test_malformed_answer_is_a_failure() -> None:
    async def script(fixture: Fixture) -> None:
        fixture.registry.failure = ValueError("x")
        with pytest.raises(RegistryUnavailable, match="malformed"):
            await fixture.unknown(1)

    run(script)


def test_wait_is_bounded() -> None:
    async def script(fixture: Fixture) -> None:
        fixture.registry.open.clear()
        with pytest.raises(RegistryUnavailable, match=r"not answered after 0\.01 seconds"):
            await fixture.lookups.unknown_of([SchemaRef(1)], 0.01)

    run(script)


def test_another_registry_knows_other_ids() -> None:
    async def script(fixture: Fixture) -> None:
        with pytest.raises(RegistryUnavailable, match=r"schema\.registry\.url is empty"):
            await fixture.unknown(1)
        fixture.lookups.configure(BrokerSettings.parse({"schema.registry.url": URL}))
        assert await fixture.unknown(1) == ()
        fixture.lookups.configure(BrokerSettings.parse({"schema.registry.url": "http://127.0.0.1:2"}))
        fixture.registry.ids.clear()
        assert not fixture.knows(1)
        assert await fixture.unknown(1) == (1,)

    run(script, settings=BrokerSettings())


def test_login_and_certificates_are_those_of_the_settings() -> None:
    texts = {"url": "https://registry:8081,http://127.0.0.1:2", "basic.auth.user.info": "alice:secret"}
    settings = BrokerSettings.parse({f"schema.registry.{name}": text for name, text in texts.items()})
    registry = connect(settings)
    assert registry._headers["authorization"] == "Basic YWxpY2U6c2VjcmV0"
    assert "secret" not in repr(settings)
    missing = settings.parse({**settings.explicit, "schema.registry.ssl.ca.location": "/missing.pem"})
    with pytest.raises(PropertyRefused, match=r"certificates for the schema registry: .* cannot be used"):
        connect(missing)


def test_password_of_the_file_is_not_sent_to_a_dynamic_address() -> None:
    """A broker without a password may have accepted the address as a default of the cluster."""
    file = BrokerSettings.parse({"schema.registry.url": URL, "schema.registry.bearer.auth.token": "secret"})
    for defaults, own in (({}, {"schema.registry.url": "http://b:1"}), ({"schema.registry.url": "http://b:1"}, {})):
        with pytest.raises(PropertyRefused, match=r"schema\.registry\.bearer\.auth\.token of that file is not sent"):
            connect(file.with_dynamic(defaults, own))
    assert connect(file.with_dynamic({}, {"schema.registry.url": f"{URL}/"}))._headers["authorization"]
    without = BrokerSettings.parse({"schema.registry.url": URL})
    assert "authorization" not in connect(without.with_dynamic({}, {"schema.registry.url": "http://b:1"}))._headers


def test_wrong_settings_are_a_failure_of_the_registry() -> None:
    async def script(fixture: Fixture) -> None:
        def refuse(_: BrokerSettings) -> Any:
            raise PropertyRefused("no certificate")

        fixture.lookups._connect = refuse
        with pytest.raises(RegistryUnavailable, match="no certificate"):
            await fixture.unknown(1)

    run(script)


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:b", "http://user@a", "http://a?x=1", "a:8081"])
def test_address_that_is_no_registry_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettings, match=r"schema\.registry\.url"):
        BrokerSettings.parse({"schema.registry.url": url})
