"""Schemas of the registry: what is remembered, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.registry import RegisteredSchema, RegistryError, SchemaRegistry
from ottla.edge.rest import schema_data
from ottla.edge.rest.kafka import SERVICE, Identity
from ottla.edge.rest.records import AVRO, JSONSCHEMA
from ottla.edge.rest.registries import Registries
from ottla.edge.rest.schema_data import SchemaData, SchemaWanted
from ottla.edge.rest.settings import RestSettings
from ottla.edge.rest.writable_topics import WritableTopic
from ottla.edge.web.app import HttpError
from ottla.model.errors import StartError
from ottla.schemas.data.framing import frame


class Registry:
    """A registry whose schemas are set by the test."""

    def __init__(self) -> None:
        self.schemas: dict[int, RegisteredSchema] = {}
        self.requests: list[int] = []

    def by_id(self, schema_id: int) -> RegisteredSchema | None:
        self.requests.append(schema_id)
        return self.schemas.get(schema_id)

    def resolve(self, schema: RegisteredSchema) -> dict[str, str]:
        return {}

    def lookup(self, subject: str, text: str, schema_type: str) -> RegisteredSchema | None:
        found = [each for each in self.schemas.values() if (each.subject, each.text) == (subject, text)]
        return found[0] if found else None

    def register(self, subject: str, text: str, schema_type: str) -> int:
        number = len(self.schemas) + 1
        self.schemas[number] = RegisteredSchema(number, schema_type, text, (), subject, 1)
        return number


class OneRegistry:
    """In place of the clients of each user."""

    def __init__(self, registry: Registry, *, passes_users: bool = False) -> None:
        self._registry = registry
        self._passes_users = passes_users
        self.users: set[Identity] = set()

    def acts_as(self, identity: Identity) -> Identity:
        return identity if self._passes_users else SERVICE

    def checks(self, identity: Identity) -> bool:
        return self._passes_users

    def of(self, identity: Identity) -> Registry:
        self.users.add(identity)
        return self._registry


BOB = Identity("bob", (("sasl.username", "bob"), ("sasl.password", "s")))
TOPIC = WritableTopic("orders", 1, 1_000_000)


async def may_write(identity: Identity, topic: str) -> bool:
    return topic == "own"


def make(registry: Registry, *, passes_users: bool = False) -> SchemaData:
    return SchemaData(OneRegistry(registry, passes_users=passes_users), call, may_write)  # type: ignore[arg-type]


async def call(function: Callable[[], Any]) -> Any:
    return function()


def test_unknown_id_is_asked_for_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(schema_data.time, "monotonic", lambda: now[0])
    registry = Registry()
    data = make(registry)
    payload = frame(7, b"\x02a")

    def read() -> Any:
        asyncio.run(data.load(SERVICE, [payload, None, b"no frame"]))
        return data.decode("AVRO", payload)

    for _ in range(2):
        with pytest.raises(HttpError) as error:
            read()
        assert error.value.error_code == 42205
    assert registry.requests == [7]
    registry.schemas[7] = RegisteredSchema(7, "AVRO", '"string"')
    now[0] += 10
    assert read() == "a"
    now[0] += 10
    assert read() == "a"
    assert registry.requests == [7, 7]


def test_ids_that_are_remembered_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_data, "_KEPT_MAX", 10)
    data = make(Registry())
    for schema_id in range(100):
        asyncio.run(data.load(SERVICE, [frame(schema_id, b"")]))
    assert len(data._codecs) == len(data._unknown) == 10


TITLED = '{"title": "b-value", "type": "string"}'
NAMED = '{"type": "record", "name": "shop.Order", "fields": []}'


@pytest.mark.parametrize(
    ("wanted", "subject"),
    [
        (SchemaWanted(TOPIC, True, AVRO, text='"string"'), "orders-key"),
        (SchemaWanted(TOPIC, False, AVRO, text='"string"', subject="own-value"), "own-value"),
        (SchemaWanted(TOPIC, False, AVRO, text='"string"', subject="others-value"), None),
        (SchemaWanted(TOPIC, False, AVRO, text='"string"', subject=":.c:own-value"), None),
        (SchemaWanted(TOPIC, False, AVRO, text='"string"', subject="-value"), None),
        (SchemaWanted(TOPIC, False, AVRO, text=NAMED, strategy="RECORD_NAME"), None),
        # The subject is that of the values of a topic with the name orders-b.
        (SchemaWanted(TOPIC, False, JSONSCHEMA, text=TITLED, strategy="TOPIC_RECORD_NAME"), None),
    ],
)
def test_proxy_registers_with_its_own_rights_only_under_subjects_of_topics_that_the_user_may_write_to(
    wanted: SchemaWanted, subject: str | None
) -> None:
    registry = Registry()
    if subject is None:
        with pytest.raises(HttpError, match="only register schemas under subjects of topics") as error:
            asyncio.run(make(registry).find(BOB, wanted))
        assert (error.value.status, error.value.error_code, registry.schemas) == (403, 40301, {})
    else:
        assert asyncio.run(make(registry).find(BOB, wanted)).subject == subject
    # The registry decides if it knows the user, or if all requests are those of the proxy.
    for identity, data in ((BOB, make(Registry(), passes_users=True)), (SERVICE, make(Registry()))):
        assert asyncio.run(data.find(identity, wanted)).schema_id == 1


def test_schema_that_one_user_has_found_is_looked_up_again_for_another() -> None:
    registries = OneRegistry(Registry(), passes_users=True)
    data = SchemaData(registries, call, may_write)  # type: ignore[arg-type]
    for identity in (BOB, Identity("ann", token="t")):
        asyncio.run(data.find(identity, SchemaWanted(TOPIC, False, AVRO, text='"string"')))
        assert identity in registries.users


PASSING = {
    "authentication.method": "BASIC", "authentication.pass.through": "true", "client.security.protocol": "SASL_SSL",
    "schema.registry.url": "https://registry:8081",
}  # fmt: skip


def test_registry_gets_the_login_of_the_user() -> None:
    registries = Registries(RestSettings.parse({**PASSING, "identities.max": "2"}))
    assert registries.of(BOB)._headers["authorization"] == "Basic Ym9iOnM="
    assert registries.of(BOB) is registries.of(Identity("bob", BOB.properties))
    assert registries.of(Identity("ann", token="t"))._headers["authorization"] == "Bearer t"
    assert "authorization" not in registries.of(SERVICE)._headers
    registries.of(Identity("eve", token="u"))
    assert [each.name for each in registries._users] == ["ann", "eve"]
    registries.close()


@pytest.mark.parametrize("status", [200, 401, 403, 404])
def test_registry_that_accepts_the_proxy_without_a_login_does_not_decide_for_users(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    def ask(registry: SchemaRegistry, method: str, path: str) -> dict[str, str]:
        assert "authorization" not in registry._headers
        if status == 200:
            return {"mode": "READWRITE"}
        raise RegistryError(status, status, "refused")

    monkeypatch.setattr(SchemaRegistry, "ask", ask)
    registries = Registries(RestSettings.parse(PASSING))
    assert (registries.checks(BOB), registries.checks(SERVICE)) == (status in (401, 403), False)
    data = SchemaData(registries, call, may_write)
    refusal = None
    try:
        asyncio.run(data._authorize(BOB, TOPIC, "others-value"))
    except HttpError as error:
        refusal = error.status
    assert refusal == (None if status in (401, 403) else 403)
    asyncio.run(data._authorize(BOB, TOPIC, "orders-value"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema.registry.bearer.auth.token": "t"}, "schema.registry.bearer.auth.token is the login of the proxy"),
        (
            {"schema.registry.url": "https://a:1,http://registry:8081"},
            "sent to http://registry:8081 without encryption",
        ),
    ],
)
def test_logins_of_users_are_not_sent_in_clear_or_beside_that_of_the_proxy(
    change: dict[str, str], problem: str
) -> None:
    with pytest.raises(StartError, match=problem):
        Registries(RestSettings.parse({**PASSING, **change}))
    own = Registries(RestSettings.parse({**PASSING, **change, "schema.registry.pass.through": "false"}))
    assert own.of(BOB) is own.of(SERVICE)
    Registries(RestSettings.parse({**PASSING, "schema.registry.url": "http://127.0.0.1:8081"}))
