"""`kafka-configs`: settings of topics, brokers and groups; `quota_configs` has those of users and clients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ottla.cli import java_properties
from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import ClientTimeout, IllegalArgument, ToolError, UsageError, check
from ottla.cli.kafka.java import hash_order, joined, parse_int
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import Tool, print_line
from ottla.client.protocol.metadata import Node
from ottla.model.errors import ErrorCode
from ottla.wire import Message

TOPICS, CLIENTS, USERS, BROKERS, LOGGERS, IPS = "topics", "clients", "users", "brokers", "broker-loggers", "ips"
METRICS, GROUPS = "client-metrics", "groups"
#: Kafka's number of the resource, and of the source of settings that were changed for it alone; 0 for all sources
_RESOURCES = {TOPICS: (2, 1), BROKERS: (4, 2), LOGGERS: (8, 0), METRICS: (16, 7), GROUPS: (32, 8)}
_DEFAULT_BROKER_SOURCE = 3
_SOURCES = (
    "UNKNOWN", "DYNAMIC_TOPIC_CONFIG", "DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "STATIC_BROKER_CONFIG", "DEFAULT_CONFIG", "DYNAMIC_BROKER_LOGGER_CONFIG", "DYNAMIC_CLIENT_METRICS_CONFIG",
    "DYNAMIC_GROUP_CONFIG",
)  # fmt: skip
_TYPES = (TOPICS, CLIENTS, USERS, BROKERS, LOGGERS, IPS, METRICS, GROUPS)
_SET, _DELETE = 0, 1
_SYNONYMS_MIN = 1

_NAMES = {
    "topic": TOPICS, "client": CLIENTS, "user": USERS, "broker": BROKERS, "broker-logger": LOGGERS, "ip": IPS,
    "client-metrics": METRICS, "group": GROUPS,
}  # fmt: skip
_DEFAULTS = {"client-defaults": CLIENTS, "user-defaults": USERS, "broker-defaults": BROKERS, "ip-defaults": IPS}
_FLAGS = (
    flag("bootstrap-server", help="Brokers to connect to.", metavar="HOST:PORT,..."),
    flag("bootstrap-controller", help="Not supported: connect to brokers.", metavar="HOST:PORT,..."),
    flag("command-config", help="File with properties of the client.", metavar="FILE"),
    flag("alter", help="Change settings."),
    flag("describe", help="Show settings that were changed."),
    flag("all", help="Show all settings, with defaults."),
    flag("entity-type", help=f"Kind of object: {', '.join(_TYPES)}.", metavar="TYPE"),
    flag("entity-name", help="Name of the object.", metavar="NAME"),
    flag("entity-default", help="The default for all clients, users, brokers or addresses."),
    flag("add-config", help="Settings: k1=v1,k2=[v1,v2],k3=v3.", metavar="K=V,..."),
    flag("add-config-file", help="File with settings.", metavar="FILE"),
    flag("delete-config", help="Settings to remove.", metavar="K,...", separator=","),
    *(
        flag(name, help=f"Name of an object; same as --entity-type {kind}.", metavar="NAME")
        for name, kind in _NAMES.items()
    ),
    *(flag(name, help=f"The default for all {kind}.") for name, kind in _DEFAULTS.items()),
)
_DEFAULT_KINDS = (USERS, CLIENTS, BROKERS, IPS)


def _run(options: Options) -> None:
    _check(options)
    kinds, names = _kinds(options), _entity_names(options)
    if options.has("bootstrap-controller"):
        raise ToolError("--bootstrap-controller is not supported; use --bootstrap-server with the address of a broker")
    properties = properties_of(options.value("command-config"))
    if options.has("alter") and len(kinds) != len(names):
        raise IllegalArgument("An entity name must be specified for every entity type")
    with connect(options.value("bootstrap-server"), properties, call="describeConfigs") as admin:
        act = _alter if options.has("alter") else _describe
        act(admin, options, kinds, names)


def _kinds(options: Options) -> list[str]:
    return options.values("entity-type") + [kind for name, kind in {**_NAMES, **_DEFAULTS}.items() if options.has(name)]


def _entity_names(options: Options) -> list[str]:
    """Return the names of the objects; "" stands for a default."""
    given = iter(options.values("entity-name"))
    found = [
        next(given) if name == "entity-name" else ""
        for name in options.order
        if name.startswith("entity-") and name != "entity-type"
    ]
    found += [options.value(name) for name in _NAMES if options.has(name)]
    return found + ["" for name in _DEFAULTS if options.has(name)]


# Wrong usage


def _check(options: Options) -> None:
    if len(options.any_of("alter", "describe")) != 1:
        raise UsageError("Command must include exactly one action: --describe, --alter")
    options.refuse_with("describe", ("add-config", "delete-config"))
    kinds, names = _kinds(options), _entity_names(options)
    twice = [kind for at, kind in enumerate(kinds) if kind in kinds[:at]]
    if twice:
        raise IllegalArgument(f"Duplicate entity type(s) specified: {joined(twice)}")
    if not options.any_of("bootstrap-server", "bootstrap-controller"):
        raise IllegalArgument("Either --bootstrap-server or --bootstrap-controller must be specified.")
    for kind in kinds:
        if kind not in _TYPES:
            raise IllegalArgument(
                f"Invalid entity type {kind}, the entity type must be one of {', '.join(_TYPES)} with a "
                "--bootstrap-server or --bootstrap-controller argument"
            )
    if not kinds:
        raise IllegalArgument("At least one entity type must be specified")
    if len(kinds) > 1 and set(kinds) != {USERS, CLIENTS}:
        raise IllegalArgument("Only 'users' and 'clients' entity types may be specified together")
    if options.any_of("entity-name", "entity-type", "entity-default") and options.any_of(*_NAMES, *_DEFAULTS):
        raise IllegalArgument(
            "--entity-{type,name,default} should not be used in conjunction with specific entity flags"
        )
    if len(options.any_of("bootstrap-server", "bootstrap-controller")) > 1:
        raise IllegalArgument("Only one of --bootstrap-server or --bootstrap-controller can be specified")
    for name in filter(None, names):
        if {BROKERS, LOGGERS} & {*kinds}:
            _check_broker_id(
                name, f"The entity name for {kinds[0]} must be a valid integer broker id, but it is: {name}"
            )
    (_check_describe if options.has("describe") else _check_alter)(options, kinds, names)


def _check_broker_id(name: str, text: str) -> None:
    try:
        parse_int(name)
    except IllegalArgument:
        raise IllegalArgument(text) from None


def _check_describe(options: Options, kinds: Sequence[str], names: Sequence[str]) -> None:
    if options.has("entity-default") and not {*kinds} & {*_DEFAULT_KINDS}:
        raise IllegalArgument(f"--entity-default must not be specified with --describe of {joined(kinds)}")
    if LOGGERS in kinds and not any(names):
        raise IllegalArgument(f"An entity name must be specified with --describe of {joined(kinds)}")


def _check_alter(options: Options, kinds: Sequence[str], names: Sequence[str]) -> None:
    if {*kinds} & {*_DEFAULT_KINDS}:
        if not names:
            raise IllegalArgument(
                "An entity-name or default entity must be specified with --alter of users, clients, brokers or ips"
            )
    elif not any(names):
        raise IllegalArgument(f"An entity name must be specified with --alter of {joined(kinds)}")
    if len(options.any_of("add-config", "add-config-file")) > 1:
        raise IllegalArgument("Only one of --add-config or --add-config-file must be specified")
    if not options.any_of("add-config", "add-config-file", "delete-config"):
        raise IllegalArgument(
            "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter"
        )


# Changes


def _added(options: Options) -> dict[str, str]:
    """Return the settings of --add-config and --add-config-file."""
    found = java_properties.load(options.value("add-config-file")) if options.has("add-config-file") else {}
    if options.has("add-config"):
        outside = r"(?=[^\]]*(?:\[|$))"
        pairs = [re.split(rf"\s*=\s*{outside}", text) for text in re.split(f",{outside}", options.value("add-config"))]
        if any(len(pair) != 2 for pair in pairs):
            raise IllegalArgument(
                'requirement failed: Invalid entity config: all configs to be added must be in the format "key=val" or'
                "  "
                '"key=[val1,val2]" to group values which contain commas.'
            )
        found |= {key.strip(): re.sub(r"[\[\]]", "", value).strip() for key, value in pairs}
    for key in found:
        if not re.fullmatch(r"[$a-zA-Z0-9._-]*", key):
            raise IllegalArgument(f"Invalid character found for config key: {key}")
    return found


def _alter(admin: Admin, options: Options, kinds: list[str], names: list[str]) -> None:
    added, deleted = _added(options), [name.strip() for name in options.values("delete-config")]
    kind, name = kinds[0], names[0]
    if kind in (USERS, CLIENTS, IPS):
        from ottla.cli.kafka import quota_configs

        quota_configs.alter(admin, dict(zip(kinds, names, strict=True)), added, deleted)
    else:
        _alter_resource(admin, kind, name, added, deleted)
    if name:
        print_line(f"Completed updating config for {kind[:-1]} {name}.")
    else:
        print_line(f"Completed updating default config for {kind} in the cluster.")


def _alter_resource(admin: Admin, kind: str, name: str, added: dict[str, str], deleted: Sequence[str]) -> None:
    from ottla.wire.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    if kind == LOGGERS:
        known = {entry.name for entry in _entries(admin, kind, name, with_all=True)}
        unknown = [each for each in (*deleted, *added) if each not in known]
        if unknown:
            raise ToolError(f"Invalid broker logger(s): {joined(unknown)}")
    changes = [AlterableConfig(name=key, config_operation=_DELETE, value="") for key in deleted]
    changes += [AlterableConfig(name=key, config_operation=_SET, value=value) for key, value in added.items()]
    resource = AlterConfigsResource(resource_type=_RESOURCES[kind][0], resource_name=name, configs=changes)
    for row in _ask_owner(admin, kind, name, IncrementalAlterConfigsRequest(resources=[resource])).responses:
        check(row.error_code, row.error_message)


def _ask_owner(admin: Admin, kind: str, name: str, request: Message, version_min: int = 0) -> Any:
    """Ask the broker whose settings are meant, or any broker."""
    if kind not in (BROKERS, LOGGERS) or not name:
        return admin.ask_any(request, version_min)
    nodes: dict[int, Node] = {node.broker_id: node for node in admin.brokers()}
    if int(name) not in nodes:
        raise ClientTimeout(f"Timed out waiting for a node assignment. Call: {admin.call_name}")
    return admin.ask(nodes[int(name)], request, version_min)


# Descriptions


def _describe(admin: Admin, options: Options, kinds: list[str], names: list[str]) -> None:
    kind = kinds[0]
    if kind in (USERS, CLIENTS, IPS):
        from ottla.cli.kafka import quota_configs

        quota_configs.describe(admin, kinds, names)
        return
    with_all = options.has("all")
    if names and not with_all and not _exists(admin, kind, names[0]):
        print_line(f"The {kind[:-1]} '{names[0]}' doesn't exist and doesn't have dynamic config.")
        return
    for name in names[:1] or _all_names(admin, kind):
        if name:
            print_line(f"{'All' if with_all else 'Dynamic'} configs for {kind[:-1]} {name} are:")
        else:
            print_line(f"Default configs for {kind} in the cluster are:")
        for entry in _entries(admin, kind, name, with_all=with_all):
            print_line(_line(entry))


def _exists(admin: Admin, kind: str, name: str) -> bool:
    if kind == TOPICS:
        _check_topic(name)
        return name in {row.name for row in admin.metadata().topics}
    if kind in (BROKERS, LOGGERS):
        return not name or name in {str(node.broker_id) for node in admin.brokers()}
    return name in _all_names(admin, kind)


def _check_topic(name: str) -> None:
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) or name in (".", ".."):
        raise ToolError(f"Topic name is invalid: '{name}'")


def _all_names(admin: Admin, kind: str) -> list[str]:
    if kind == TOPICS:
        return hash_order(row.name or "" for row in admin.metadata().topics)
    if kind in (BROKERS, LOGGERS):
        return [*(str(node.broker_id) for node in admin.brokers()), ""]
    from ottla.cli.kafka.groups import listed
    from ottla.wire.messages.list_config_resources import ListConfigResourcesRequest

    groups = [row.group_id for row in listed(admin)] if kind == GROUPS else []
    try:
        reply = admin.ask_any(ListConfigResourcesRequest(resource_types=[_RESOURCES[kind][0]]), 1)
        if reply.error_code not in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            check(reply.error_code)
    except ToolError:
        # Brokers before Kafka 4.1 list no groups that have settings.
        return groups
    return list(dict.fromkeys([*groups, *(row.resource_name for row in reply.config_resources)]))


def _entries(admin: Admin, kind: str, name: str, *, with_all: bool) -> list[Any]:
    """Return the settings of an object in the order of their names."""
    from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

    number, source = _RESOURCES[kind]
    if kind == TOPICS and name:
        _check_topic(name)
    source = _DEFAULT_BROKER_SOURCE if kind == BROKERS and not name else source
    resource = DescribeConfigsResource(resource_type=number, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    row = _ask_owner(admin, kind, name, request, _SYNONYMS_MIN).results[0]
    check(row.error_code, row.error_message)
    chosen = [entry for entry in row.configs if with_all or not source or entry.config_source == source]
    return sorted(chosen, key=lambda entry: entry.name)


def _line(entry: Any) -> str:
    synonyms = ", ".join(f"{_source(each.source)}:{each.name}={_value(each.value)}" for each in entry.synonyms)
    return f"  {entry.name}={_value(entry.value)} sensitive={str(entry.is_sensitive).lower()} synonyms={{{synonyms}}}"


def _source(number: int) -> str:
    return _SOURCES[number] if 0 < number < len(_SOURCES) else _SOURCES[0]


def _value(value: str | None) -> str:
    return "null" if value is None else value


TOOL = Tool(
    name="kafka-configs",
    summary="This tool helps to manipulate and describe entity config for a topic, client, user, broker, ip, "
    "client-metrics or group",
    flags=_FLAGS,
    run=_run,
)
