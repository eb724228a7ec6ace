"""Version 3: configs of topics, of brokers, and of all brokers together (`broker-configs`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.rest import admin, resources
from ottla.edge.rest.admin import ConfigChange, ConfigTarget
from ottla.edge.rest.bodies import Fields, path_integer, read_required
from ottla.edge.rest.errors import not_found
from ottla.edge.rest.proxy import (
    CONFIG_VALUE,
    KAFKA_ERRORS,
    Proxy,
    answer,
    list_schema,
    no_content,
    request_schema,
    resource_schema,
)
from ottla.edge.rest.resources import Json, Links, listing
from ottla.edge.web.app import Operation
from ottla.edge.web.json_schemas import BOOLEAN, INTEGER, NULLABLE_TEXT, TEXT, enum_of, list_of, object_of

_SYNONYM: Final = object_of({"name": TEXT, "source": TEXT}, {"value": NULLABLE_TEXT})
_CONFIG_FIELDS: Final = {
    "name": TEXT, "value": NULLABLE_TEXT, "is_default": BOOLEAN, "is_read_only": BOOLEAN, "is_sensitive": BOOLEAN,
    "source": TEXT, "synonyms": list_of(_SYNONYM),
}  # fmt: skip
_CHANGES: Final = {
    "type": "array",
    "items": request_schema({"name": TEXT}, {"value": CONFIG_VALUE, "operation": enum_of("SET", "DELETE")}),
}
_ALTERATION: Final = request_schema({"data": _CHANGES}, {"validate_only": BOOLEAN})
_UPDATE: Final = request_schema({}, {"value": CONFIG_VALUE})
_ERRORS: Final = {**KAFKA_ERRORS, 422: "The body is empty (42206), or a field is missing."}


class _Place(NamedTuple):
    """A resource that has configs, and how an answer names it."""

    target: ConfigTarget
    #: segments of its URL below the cluster
    path: Sequence[str | int]
    #: pairs of its resource name
    names: Sequence[tuple[str, str | int]]
    fields: Json


@dataclass(frozen=True, slots=True)
class _Owner:
    """A kind of resources that have configs."""

    #: begins the names of its operations
    name: str
    kind: str
    #: path below the cluster
    path: str
    noun: str
    #: returns the resource in the path of a request
    locate: Callable[[Request], _Place]
    fields: dict[str, Any]


def _topic(name: str) -> _Place:
    return _Place(ConfigTarget(admin.TOPIC, name), ("topics", name, "configs"), [("topic", name)], {"topic_name": name})


def _broker(number: int) -> _Place:
    target = ConfigTarget(admin.BROKER, str(number))
    return _Place(target, ("brokers", number, "configs"), [("broker", number)], {"broker_id": number})


_ALL_BROKERS: Final = _Place(ConfigTarget(admin.BROKER, ""), ("broker-configs",), [], {"config_type": "BROKER"})
_TOPIC_OWNER: Final = _Owner(
    "topic-configs", "KafkaTopicConfig", "topics/{topic_name}/configs", "a topic",
    lambda request: _topic(request.path_params["topic_name"]), {"topic_name": TEXT},
)  # fmt: skip
_BROKER_OWNER: Final = _Owner(
    "broker-configs", "KafkaBrokerConfig", "brokers/{broker_id}/configs", "a broker",
    lambda request: _broker(path_integer(request, "broker_id")), {"broker_id": INTEGER},
)  # fmt: skip
_CLUSTER_OWNER: Final = _Owner(
    "cluster-configs", "KafkaClusterConfig", "broker-configs", "all brokers",
    lambda request: _ALL_BROKERS, {"config_type": {"const": "BROKER"}},
)  # fmt: skip


class ConfigRoutes:
    """Handlers of configs."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def operations(self) -> list[Operation]:
        """Return the rows of the table of operations."""
        row = partial(self._proxy.operation, tag="Configs (v3)", errors=_ERRORS)
        topics = request_schema(
            {"data": list_of(request_schema({"topic_name": TEXT, "configs": _CHANGES}))},
            {"validate_only": BOOLEAN},
        )
        failures = {"type": "object", "properties": {"failures": list_of(object_of(
            {"topic_name": TEXT, "error_code": INTEGER}, {"message": TEXT}))}}  # fmt: skip
        owners = (_TOPIC_OWNER, _BROKER_OWNER, _CLUSTER_OWNER)
        return [
            *(each for owner in owners for each in self._owner_operations(owner)),
            row("topic-configs.list-all", "GET topics/-/configs", self.list_all_topics,
                "List the configs of all topics", list_schema(_schema(_TOPIC_OWNER))),
            row("topic-configs.alter-multi", "POST topics/-/configs:alter", self.alter_topics,
                "Change configs of several topics", body=topics, answers={204: None, 207: failures}),
            row("brokers-configs.list", "GET brokers/-/configs", self.list_all_brokers,
                "List the configs of all brokers", list_schema(_schema(_BROKER_OWNER))),
        ]  # fmt: skip

    def _owner_operations(self, owner: _Owner) -> list[Operation]:
        def row(name: str, method: str, suffix: str, handler: Any, summary: str, **more: Any) -> Operation:
            return self._proxy.operation(
                f"{owner.name}.{name}", f"{method} {owner.path}{suffix}", partial(handler, owner=owner),
                f"{summary} of {owner.noun}", tag="Configs (v3)", errors=_ERRORS, **more,
            )  # fmt: skip

        one = _schema(owner)
        return [
            row("list", "GET", "", self.list_configs, "List the configs", answer=list_schema(one)),
            row("alter", "POST", ":alter", self.alter_configs, "Change several configs", body=_ALTERATION),
            row("get", "GET", "/{name}", self.get_config, "Get a config", answer=one),
            row("update", "PUT", "/{name}", self.put_config, "Set a config", body=_UPDATE),
            row("delete", "DELETE", "/{name}", self.delete_config, "Reset a config"),
        ]

    # One resource

    async def list_configs(self, request: Request, links: Links, owner: _Owner) -> Response:
        place = owner.locate(request)
        rows = await self._configs(request, links, owner, [place])
        return answer(listing(owner.kind, links.url(*place.path), rows))

    async def get_config(self, request: Request, links: Links, owner: _Owner) -> Response:
        place, name = owner.locate(request), request.path_params["name"]
        for row in await self._configs(request, links, owner, [place]):
            if row["name"] == name:
                return answer(row)
        raise _config_not_found(name, place.target)

    async def put_config(self, request: Request, links: Links, owner: _Owner) -> Response:
        value = (await read_required(request)).scalar_text("value")
        return await self._change(request, owner, ConfigChange(request.path_params["name"], admin.SET, value))

    async def delete_config(self, request: Request, links: Links, owner: _Owner) -> Response:
        return await self._change(request, owner, ConfigChange(request.path_params["name"], admin.DELETE, None))

    async def alter_configs(self, request: Request, links: Links, owner: _Owner) -> Response:
        fields = await read_required(request)
        changes = _changes(fields.objects("data"))
        return await self._change(request, owner, *changes, validate_only=fields.boolean("validate_only"))

    async def _change(
        self, request: Request, owner: _Owner, *changes: ConfigChange, validate_only: bool = False
    ) -> Response:
        target = owner.locate(request).target
        await self._require_known(request, {target: changes})
        refusals = await self._proxy.call(request, admin.alter_configs, {target: changes}, validate_only=validate_only)
        for refusal in refusals.values():
            raise refusal
        return no_content()

    # Several resources

    async def list_all_topics(self, request: Request, links: Links) -> Response:
        metadata = await self._proxy.call(request, admin.list_topics)
        names = sorted(row.name or "" for row in metadata.topics if row.partitions)
        rows = await self._configs(request, links, _TOPIC_OWNER, list(map(_topic, names)))
        return answer(listing(_TOPIC_OWNER.kind, links.url("topics", "-", "configs"), rows))

    async def list_all_brokers(self, request: Request, links: Links) -> Response:
        metadata = await self._proxy.call(request, admin.describe_cluster)
        numbers = sorted(row.node_id for row in metadata.brokers)
        rows = await self._configs(request, links, _BROKER_OWNER, list(map(_broker, numbers)))
        return answer(listing(_BROKER_OWNER.kind, links.url("brokers", "-", "configs"), rows))

    async def alter_topics(self, request: Request, links: Links) -> Response:
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

    async def _configs(self, request: Request, links: Links, owner: _Owner, places: Sequence[_Place]) -> list[Json]:
        """Return the configs of resources, sorted by name for each resource."""
        results = await self._proxy.call(request, admin.describe_configs, [place.target for place in places])
        word = "broker-config" if owner is _CLUSTER_OWNER else "config"
        return [
            resources.config(links.resource(owner.kind, (*path, row.name), [*names, (word, row.name)]), row, fields)
            for target, path, names, fields in places
            for row in sorted(results[target].configs, key=lambda each: each.name)
        ]

    async def _require_known(self, request: Request, changes: dict[ConfigTarget, Any]) -> None:
        """Raise HttpError 404 if a config does not exist: Kafka would store a name that it does not know."""
        # The defaults of all brokers list only what was set, so that one broker's list of names is used.
        metadata = await self._proxy.call(request, admin.describe_cluster)
        first = ConfigTarget(admin.BROKER, str(min(row.node_id for row in metadata.brokers)))
        targets = [first if not each.name else each for each in changes]
        results = await self._proxy.call(request, admin.describe_configs, targets)
        for target, rows in changes.items():
            known = {row.name for row in results[first if not target.name else target].configs}
            for change in rows:
                if change.name not in known:
                    raise _config_not_found(change.name, target)


def _schema(owner: _Owner) -> dict[str, Any]:
    return resource_schema(owner.kind, {**owner.fields, **_CONFIG_FIELDS})


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
