"""Every method of confluent-kafka's registry clients, blocking and async, against `ottla registry`."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterator
from typing import Any

import pytest
from edge_broker import edge_broker
from registry_process import RegistryProcess

pytest.importorskip("authlib", reason="confluent-kafka[schemaregistry] is not installed")

from confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Rule,
    RuleKind,
    RuleMode,
    RuleParams,
    RuleSet,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.error import SchemaRegistryError

FIRST = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]})
SECOND = json.dumps({
    "type": "record", "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "currency", "type": "string", "default": "EUR"}],
})  # fmt: skip
BROKEN = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "other", "type": "string"}]})


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryProcess]:
    with edge_broker() as broker, RegistryProcess(broker.bootstrap) as running:
        yield running


class Caller:
    """Calls methods of a client, and waits for those that are coroutines."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def __call__(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Return the result of the method, or the code if the registry answers with an error."""
        try:
            result = getattr(self._client, method)(*arguments, **options)
            return await result if inspect.isawaitable(result) else result
        except SchemaRegistryError as error:
            return error.error_code

    async def close(self) -> None:
        if isinstance(self._client, AsyncSchemaRegistryClient):
            await self._client.__aexit__()
        else:
            self._client.close()

    async def fresh(self) -> None:
        """Let the next answers come from the registry: the client keeps what it has seen."""
        await self("clear_caches")


@pytest.mark.parametrize("kind", [SchemaRegistryClient, AsyncSchemaRegistryClient])
def test_every_method_of_the_client(registry: RegistryProcess, kind: Any) -> None:
    async def run() -> None:
        call = Caller(kind({"url": registry.url}))
        name = f"of-{kind.__name__}"
        try:
            await use_schemas(call, name)
            await use_lists(call, name)
            await use_settings(call, name)
            await use_deletions(call, name)
        finally:
            await call.close()

    asyncio.run(run())


async def use_schemas(call: Caller, name: str) -> None:
    rule = Rule(
        "positive", "doc", RuleKind.CONDITION, RuleMode.WRITE, "CEL", None, RuleParams({"a": "b"}), "message.id > 0",
        "NONE", "ERROR", False,
    )  # fmt: skip
    metadata = Metadata(None, MetadataProperties({"owner": name}), None)
    first = Schema(FIRST, "AVRO", [], metadata, RuleSet(None, [rule]))
    schema_id = await call("register_schema", name, first)
    await call.fresh()
    made = await call("register_schema_full_response", name, first)
    assert (made.schema_id, made.version) == (schema_id, 1)
    await call.fresh()
    found = await call("get_schema", schema_id)
    assert (found.schema_str, found.metadata.properties.properties) == (json_text(FIRST), {"owner": name})
    assert found.rule_set.domain_rules[0].expr == "message.id > 0"
    assert (await call("get_schema_by_guid", made.guid)).schema_str == json_text(FIRST)
    assert sorted(await call("get_schema_types")) == ["AVRO", "JSON", "PROTOBUF"]
    assert (await call("lookup_schema", name, first)).schema_id == schema_id
    assert await call("lookup_schema", name, Schema('"bytes"', "AVRO")) == 40403
    assert await call("get_schema", 2_000_000_000) == 40403
    assert await call("get_schema_by_guid", "00000000-0000-0000-0000-000000000000") == 40403
    second_id = await call("register_schema", name, Schema(SECOND, "AVRO"), normalize_schemas=True)
    assert second_id > schema_id
    assert await call("register_schema", name, Schema(BROKEN, "AVRO")) == 40901
    assert await call("register_schema", name, Schema("{", "AVRO")) == 42201
    assert (await call("get_latest_version", name)).version == 2
    assert (await call("get_latest_with_metadata", name, {"owner": name})).version == 2
    assert (await call("get_version", name, 1)).schema_id == schema_id
    assert await call("get_version", name, 7) == 40402
    outer = json.dumps({"type": "record", "name": "Cart", "fields": [{"name": "order", "type": "Order"}]})
    cart = Schema(outer, "AVRO", [SchemaReference("Order", name, 1)])
    cart_id = await call("register_schema", f"{name}-cart", cart)
    assert await call("get_referenced_by", name, 1) == [cart_id]
    await call.fresh()
    resolved = await call("get_schema", cart_id, subject_name=f"{name}-cart", fmt="resolved")
    assert json.loads(resolved.schema_str)["fields"][0]["type"]["name"] == "Order"


async def use_lists(call: Caller, name: str) -> None:
    latest = await call("get_latest_version", name)
    assert name in await call("get_subjects")
    assert await call("get_subjects", subject_prefix=name, offset=1, limit=1) == [f"{name}-cart"]
    assert await call("get_versions", name) == [1, 2]
    assert name in await call("get_subjects_by_schema_id", latest.schema_id)
    uses = await call("get_schema_versions", latest.schema_id)
    assert (name, 2) in [(use.subject, use.version) for use in uses]
    assert "." in await call("get_contexts")


async def use_settings(call: Caller, name: str) -> None:
    assert await call("test_compatibility", name, Schema(BROKEN, "AVRO")) is False
    assert await call("test_compatibility_all_versions", name, Schema(SECOND, "AVRO")) is True
    assert await call("get_compatibility", name) == 40408
    assert (await call("set_compatibility", name, "FULL"))["compatibility"] == "FULL"
    assert await call("get_compatibility", name) == "FULL"
    assert await call("get_compatibility") == "BACKWARD"
    config = ServerConfig(compatibility=ConfigCompatibilityLevel.NONE, compatibility_group="major")
    await call("set_config", name, config)
    found = await call("get_config", name)
    assert (found.compatibility_level, found.compatibility_group) == ("NONE", "major")
    assert (await call("delete_config", name)).compatibility_level == "NONE"
    assert await call("get_config", name) == 40408
    assert await call("get_global_mode") == "READWRITE"
    assert await call("get_mode", name) == 40409
    assert await call("update_mode", name, "READONLY") == "READONLY"
    assert await call("get_mode", name) == "READONLY"
    assert await call("register_schema", name, Schema('"int"', "AVRO")) == 42205
    assert await call("delete_mode", name) == "READONLY"
    assert await call("update_global_mode", "READWRITE") == "READWRITE"


async def use_deletions(call: Caller, name: str) -> None:
    assert await call("delete_subject", name) == 42206
    assert await call("delete_version", f"{name}-cart", 1, permanent=True) == 40407
    assert await call("delete_version", f"{name}-cart", 1) == 1
    assert await call("delete_version", f"{name}-cart", 1, permanent=True) == 1
    assert await call("delete_subject", name) == [1, 2]
    assert await call("get_subjects", subject_prefix=name, deleted_only=True) == [name]
    assert await call("get_versions", name, deleted=True) == [1, 2]
    # The client soft deletes first, if it is asked to delete permanently.
    await call("delete_subject", name, permanent=True)
    assert await call("get_versions", name, deleted=True) == 40401


def json_text(text: str) -> str:
    """Return JSON as the registry stores it: without spaces."""
    return json.dumps(json.loads(text), separators=(",", ":"))
