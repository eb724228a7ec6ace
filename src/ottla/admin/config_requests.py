"""The requests about settings of topics and brokers, and what their replies say. `cli/cluster.py` sends them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from ottla.admin.error_codes import check
from ottla.admin.topic_state import ConfigValue
from ottla.model.printable import shown
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

#: the first version of DescribeConfigs with the sources of settings
SOURCES_MIN = 1
#: resources in one request
_RESOURCES_MAX = 500
_SET, _DELETE = 0, 1
#: Kafka's numbers of the resources that have settings
_RESOURCE_TYPES = {"topic": 2, "broker": 4}
_SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    8: "GROUP_CONFIG",
}
_DEFAULT_SOURCE = 5

Scope = Literal["topic", "broker"]
#: the name of a setting, and its new value; None removes the setting
Change = tuple[str, str | None]


def describe_request(
    scope: Scope, names: Iterable[str], keys: Sequence[str] | None = None, *, with_sources: bool = False
) -> DescribeConfigsRequest:
    """Return a request for these settings of topics or brokers; without `keys` for all."""
    resources = [
        DescribeConfigsResource(resource_type=_RESOURCE_TYPES[scope], resource_name=name, configuration_keys=keys)
        for name in names
    ]
    return DescribeConfigsRequest(resources=resources, include_synonyms=with_sources)


def alter_request(
    scope: Scope, changes: Mapping[str, Iterable[Change]], *, dry_run: bool
) -> IncrementalAlterConfigsRequest:
    """Return a request that changes settings of these topics or brokers, or checks the changes only."""
    resources = [
        AlterConfigsResource(
            resource_type=_RESOURCE_TYPES[scope],
            resource_name=name,
            configs=[
                AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
                for key, value in of_resource
            ],
        )
        for name, of_resource in changes.items()
    ]
    return IncrementalAlterConfigsRequest(resources=resources, validate_only=dry_run)


def parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the names in parts that fit into one request."""
    for start in range(0, len(names), _RESOURCES_MAX):
        yield names[start : start + _RESOURCES_MAX]


def check_row(scope: Scope, row: Any, about: str = "") -> None:
    """Raise the `Failure` of a topic or broker in a reply. Its message begins with `about`."""
    name = row.resource_name
    subject = f"{about}{scope} {shown(name)}" if name else "broker defaults"
    check(row.error_code, subject, row.error_message, topic=name if scope == "topic" else None)


def values_of(row: Any) -> list[ConfigValue]:
    """Return the settings of a topic or broker in a reply, by name."""
    return [_config_value(entry) for entry in sorted(row.configs, key=lambda entry: entry.name)]


def _config_value(entry: Any) -> ConfigValue:
    def value(given: Any, source: int, synonyms: tuple[ConfigValue, ...] = ()) -> ConfigValue:
        return ConfigValue(
            name=given.name,
            value=given.value,
            source=_SOURCES.get(source, "UNKNOWN_CONFIG"),
            is_default=source == _DEFAULT_SOURCE,
            is_read_only=entry.read_only,
            is_sensitive=entry.is_sensitive,
            synonyms=synonyms,
        )

    return value(entry, entry.config_source, tuple(value(each, each.source) for each in entry.synonyms))
