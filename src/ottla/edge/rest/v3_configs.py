"""Version 3: configs of topics, of brokers, and of all brokers together (`broker-configs`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.rest import admin, resources
from ottla.edge.rest.admin import ConfigChange, ConfigTarget
from ottla.edge.rest.bodies import Fields, path_integer, read_required
from ottla.edge.rest.errors import not_found
from ottla.edge.rest.proxy import (
    BOOLEAN,
    CONFIG_VALUE,
    INTEGER,
    KAFKA_ERRORS,
    NULLABLE_TEXT,
    TEXT,
    Proxy,
    answer,
    body_schema,
    list_schema,
    no_content,
    request_schema,
    resource_schema,
)
from ottla.edge.rest.resources import Json, Links, listing
from ottla.edge.rest.v3_topics import CLUSTER
from ottla.edge.web.app import Operation

_SYNONYM: Final = body_schema({"name": TEXT, "source": TEXT}, {"value": NULLABLE_TEXT})
_CONFIG_FIELDS: Final = {
    "name": TEXT, "value": NULLABLE_TEXT, "is_default": BOOLEAN, "is_read_only": BOOLEAN, "is_sensitive": BOOLEAN,
    "source": TEXT, "synonyms": {"type": "array", "items": _SYNONYM},
}  # fmt: skip
_CHANGES: Final = {
    "type": "array",
    "items": request_schema(
        {"name": TEXT}, {"value": CONFIG_VALUE, "operation": {"type": "string", "enum": ["SET", "DELETE"]}}
    ),
}
_ALTERATION: Final = request_schema({"data": _CHANGES}, {"validate_only": BOOLEAN})
_UPDATE: Final = request_schema({}, {"value": CONFIG_VALUE})
_ERRORS: Final = {**KAFKA_ERRORS, 422: "The body is empty (42206), or a field is missing."}


@dataclass(frozen=True, slots=True)
class _Owner:
    """What has configs: its path, its kind, and how a request names it."""

    kind: str
    #: path below the cluster
    path: str
    noun: str
    #: returns the resource of a request, its path segments, its names, and the fields that name it in the answer
    locate: Callable[[Request], tuple[ConfigTarget, Sequence[str | int], list[tuple[str, str | int]], Json]]
    fields: dict[str, Any]


def _locate_topic(request: Request) -> tuple[ConfigTarget, Sequence[str | int], list[tuple[str, str | int]], Json]:
    return _topic(request.path_params["topic_name"])


def _topic(name: str) -> tuple[ConfigTarget, Sequence[str | int], list[tuple[str, str | int]], Json]:
    return ConfigTarget(admin.TOPIC, name), ("topics", name, "configs"), [("topic", name)], {"topic_name": name}


def _locate_broker(request: Request) -> tuple[ConfigTarget, Sequence[str | int], list[tuple[str, str | int]], Json]:
    return _broker(path_integer(request, "broker_id"))


def _broker(number: int) -> tuple[ConfigTarget, Sequence[str | int], list[tuple[str, str | int]], Json]:
    target = ConfigTarget(admin.BROKER, str(number))
    return target, ("brokers", number, "configs"), [("broker", number)], {"broker_id": number}


def _locate_cluster(request: Request) -> tuple[ConfigTarget, Sequence[str | int], list[tuple[str, str | int]], Json]:
    return ConfigTarget(admin.BROKER, ""), ("broker-configs",), [], {"config_type": "BROKER"}


_TOPIC_OWNER: Final = _Owner(
    "KafkaTopicConfig", "topics/{topic_name}/configs", "a topic", _locate_topic, {"topic_name": TEXT}
)
_BROKER_OWNER: Final = _Owner(
    "KafkaBrokerConfig", "brokers/{broker_id}/configs", "a broker", _locate_broker, {"broker_id": INTEGER}
)
_CLUSTER_OWNER: Final = _Owner(
    "KafkaClusterConfig", "broker-configs", "all brokers", _locate_cluster, {"config_type": {"const": "BROKER"}}
)


class ConfigRoutes:
    """Handlers of configs."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def operations(self) -> list[Operation]:
        """Return the rows of the table of operations."""
        rows = [row for owner in (_TOPIC_OWNER, _BROKER_OWNER, _CLUSTER_OWNER) for row in self._owner_operations(owner)]

        def row(method: str, path: str, handler: Any, summary: str, **more: Any) -> Operation:
            return Operation(method=method, path=f"{CLUSTER}/{path}", handler=handler, summary=summary,
                             tag="Configs (v3)", errors=_ERRORS, **more)  # fmt: skip

        topics = request_schema(
            {"data": {"type": "array", "items": request_schema({"topic_name": TEXT, "configs": _CHANGES})}},
            {"validate_only": BOOLEAN},
        )
        failures = {"type": "object", "properties": {"failures": {"type": "array", "items": body_schema(
            {"topic_name": TEXT, "error_code": INTEGER}, {"message": TEXT})}}}  # fmt: skip
        return [
            *rows,
            row("GET", "topics/-/configs", self.list_all_topics, "List the configs of all topics",
                answers={200: list_schema(_schema(_TOPIC_OWNER))}),
            row("POST", "topics/-/configs:alter", self.alter_topics, "Change configs of several topics",
                body=topics, answers={204: None, 207: failures}),
            row("GET", "brokers/-/configs", self.list_all_brokers, "List the configs of all brokers",
                answers={200: list_schema(_schema(_BROKER_OWNER))}),
        ]  # fmt: skip

    def _owner_operations(self, owner: _Owner) -> list[Operation]:
        def row(method: str, suffix: str, handler: Any, summary: str, **more: Any) -> Operation:
            async def handle(request: Request) -> Response:
                found: Response = await handler(request, owner)
                return found

            path = f"{CLUSTER}/{owner.path}{suffix}"
            return Operation(method=method, path=path, handler=handle, summary=f"{summary} of {owner.noun}",
                             tag="Configs (v3)", errors=_ERRORS, **more)  # fmt: skip

        return [
            row("GET", "", self.list_configs, "List the configs", answers={200: list_schema(_schema(owner))}),
            row("POST", ":alter", self.alter_configs, "Change several configs", body=_ALTERATION, answers={204: None}),
            row("GET", "/{name}", self.get_config, "Get a config", answers={200: _schema(owner)}),
            row("PUT", "/{name}", self.put_config, "Set a config", body=_UPDATE, answers={204: None}),
            row("DELETE", "/{name}", self.delete_config, "Reset a config", answers={204: None}),
        ]

    # One resource

    async def list_configs(self, request: Request, owner: _Owner) -> Response:
        links = await self._proxy.links(request)
        target, path, name, fields = owner.locate(request)
        result = (await self._describe(request, [target]))[target]
        rows = _configs(links, owner, result, path=path, name=name, fields=fields)
        return answer(listing(owner.kind, links.url(*path), rows))

    async def get_config(self, request: Request, owner: _Owner) -> Response:
        links = await self._proxy.links(request)
        target, path, name, fields = owner.locate(request)
        result = (await self._describe(request, [target]))[target]
        for row in _configs(links, owner, result, path=path, name=name, fields=fields):
            if row["name"] == request.path_params["name"]:
                return answer(row)
        raise _config_not_found(request.path_params["name"], target)

    async def put_config(self, request: Request, owner: _Owner) -> Response:
        await self._proxy.links(request)
        value = (await read_required(request)).scalar_text("value")
        return await self._change(request, owner, ConfigChange(request.path_params["name"], admin.SET, value))

    async def delete_config(self, request: Request, owner: _Owner) -> Response:
        await self._proxy.links(request)
        return await self._change(request, owner, ConfigChange(request.path_params["name"], admin.DELETE, None))

    async def alter_configs(self, request: Request, owner: _Owner) -> Response:
        await self._proxy.links(request)
        fields = await read_required(request)
        changes = _changes(fields.objects("data"))
        return await self._change(request, owner, *changes, validate_only=fields.boolean("validate_only"))

    async def _change(
        self, request: Request, owner: _Owner, *changes: ConfigChange, validate_only: bool = False
    ) -> Response:
        target = owner.locate(request)[0]
        await self._require_known(request, {target: changes})
        refusals = await self._proxy.call(request, admin.alter_configs, {target: changes}, validate_only=validate_only)
        for refusal in refusals.values():
            raise refusal
        return no_content()

    # Several resources

    async def list_all_topics(self, request: Request) -> Response:
        links = await self._proxy.links(request)
        metadata = await self._proxy.call(request, admin.list_topics)
        names = sorted(row.name or "" for row in metadata.topics if row.partitions)
        return await self._list_all(request, links, _TOPIC_OWNER, "topics", [_topic(name) for name in names])

    async def list_all_brokers(self, request: Request) -> Response:
        links = await self._proxy.links(request)
        metadata = await self._proxy.call(request, admin.describe_cluster)
        numbers = sorted(row.node_id for row in metadata.brokers)
        return await self._list_all(request, links, _BROKER_OWNER, "brokers", [_broker(number) for number in numbers])

    async def _list_all(self, request: Request, links: Links, owner: _Owner, noun: str, located: list[Any]) -> Response:
        results = await self._describe(request, [each[0] for each in located])
        rows = [
            row
            for target, path, name, fields in located
            for row in _configs(links, owner, results[target], path=path, name=name, fields=fields)
        ]
        return answer(listing(owner.kind, links.url(noun, "-", "configs"), rows))

    async def alter_topics(self, request: Request) -> Response:
        await self._proxy.links(request)
        fields = await read_required(request)
        changes = {
            ConfigTarget(admin.TOPIC, each.text("topic_name")): _changes(each.objects("configs"))
            for each in fields.objects("data")
        }
        validate_only = fields.boolean("validate_only")
        await self._require_known(request, changes)
        refusals = await self._proxy.call(request, admin.alter_configs, changes, validate_only=validate_only)
        if not refusals:
            return no_content()
        failures = [
            {"topic_name": target.name, "error_code": refusal.http.error_code, "message": refusal.http.message}
            for target, refusal in refusals.items()
        ]
        return answer({"failures": failures}, 207)

    async def _describe(self, request: Request, targets: list[ConfigTarget]) -> dict[ConfigTarget, Any]:
        return await self._proxy.call(request, admin.describe_configs, targets)

    async def _require_known(self, request: Request, changes: dict[ConfigTarget, Any]) -> None:
        """Raise HttpError 404 if a config does not exist: Kafka would store a name that it does not know."""
        # The defaults of all brokers list only what was set, so that one broker's list of names is used.
        metadata = await self._proxy.call(request, admin.describe_cluster)
        first = ConfigTarget(admin.BROKER, str(min(row.node_id for row in metadata.brokers)))
        results = await self._describe(request, [first if not each.name else each for each in changes])
        for target, rows in changes.items():
            known = {row.name for row in results[first if not target.name else target].configs}
            for change in rows:
                if change.name not in known:
                    raise _config_not_found(change.name, target)


def _schema(owner: _Owner) -> dict[str, Any]:
    return resource_schema(owner.kind, {**owner.fields, **_CONFIG_FIELDS})


def _configs(
    links: Links,
    owner: _Owner,
    result: Any,
    *,
    path: Sequence[str | int],
    name: list[tuple[str, str | int]],
    fields: Json,
) -> list[Json]:
    word = "broker-config" if owner is _CLUSTER_OWNER else "config"
    return [
        resources.config(links.resource(owner.kind, (*path, row.name), [*name, (word, row.name)]), row, fields)
        for row in sorted(result.configs, key=lambda each: each.name)
    ]


def _changes(entries: list[Fields]) -> list[ConfigChange]:
    changes = []
    for entry in entries:
        is_set = entry.choice("operation", ("SET", "DELETE"), "SET") == "SET"
        value = entry.scalar_text("value") if is_set else None
        changes.append(ConfigChange(entry.text("name"), admin.SET if is_set else admin.DELETE, value))
    return changes


def _config_not_found(name: str, target: ConfigTarget) -> Exception:
    noun = "topic" if target.resource_type == admin.TOPIC else "broker"
    return not_found(f"Config {name} cannot be found for {noun} {target.name or '(all)'}.")
