"""kafka-client-metrics: which metrics clients send to brokers (KIP-714).

Ottla's brokers collect no metrics of clients and refuse the settings; Apache Kafka stores them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import IllegalArgument, ToolError, UsageError, check
from ottla.cli.kafka.java import parse_int
from ottla.cli.kafka.metadata_quorum import random_id
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import FAILED, OK, Tool, print_line
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.wire.messages.list_config_resources import ListConfigResourcesRequest

#: the type of these resources, and the operations on their settings
_CLIENT_METRICS: Final = 16
_SET, _DELETE = 0, 1
_ACTIONS: Final = ("alter", "delete", "describe", "list")
_SETTINGS: Final = {"interval": "interval.ms", "metrics": "metrics", "match": "match"}
_FLAGS = (
    flag("bootstrap-server", metavar="HOST:PORT,...", help="Brokers of the cluster. Required."),
    flag("command-config", metavar="FILE", help="Properties of the client."),
    flag("alter", help="Change settings."),
    flag("delete", help="Delete settings."),
    flag("describe", help="Print settings."),
    flag("list", help="List names."),
    flag("name", metavar="NAME", help="The name of the settings."),
    flag("generate-name", help="Make a random name."),
    flag("interval", metavar="MS", help="How often clients send."),
    flag("match", metavar="K=V,...", help="Which clients send, as client_id=x."),
    flag("metrics", metavar="PREFIX,...", help="Which metrics they send."),
)


def _run(options: Options) -> int:
    if len(options.any_of(*_ACTIONS)) != 1:
        raise UsageError("Command must include exactly one action: --alter, --delete, --describe or --list.")
    _check(options)
    properties = properties_of(options.value("command-config"))
    action = options.any_of(*_ACTIONS)[0]
    try:
        with connect(options.value("bootstrap-server"), properties, call="listConfigResources") as admin:
            if action == "alter":
                _alter(admin, options)
            elif action == "delete":
                _delete(admin, options.value("name"))
            elif action == "describe":
                _describe(admin, options.value("name"))
            else:
                print_line("\n".join(_names(admin)))
    except ToolError as error:
        print_line(f"Error while executing client metrics command : {error}")
        return FAILED
    return OK


def _check(options: Options) -> None:
    options.require("bootstrap-server")
    if options.has("alter") and options.has("name") == options.has("generate-name"):
        raise IllegalArgument("One of --name or --generate-name must be specified with --alter.")
    if options.has("delete") and not options.has("name"):
        raise IllegalArgument("A client metrics resource name must be specified with --delete.")
    interval = options.value("interval")
    if interval:
        parse_int(interval)


def _alter(admin: Admin, options: Options) -> None:
    name = options.value("name") or random_id()
    changes = {
        setting: str(options.value(given)) for given, setting in _SETTINGS.items() if options.value(given) is not None
    }
    configs = [
        AlterableConfig(name=key, config_operation=_SET if value else _DELETE, value=value or None)
        for key, value in changes.items()
    ]
    _change(admin, name, configs)
    print_line(f"Altered client metrics config for {name}.")


def _delete(admin: Admin, name: str) -> None:
    configs = [AlterableConfig(name=key, config_operation=_DELETE, value=None) for key, _ in _configs(admin, name)]
    _change(admin, name, configs)
    print_line(f"Deleted client metrics config for {name}.")


def _describe(admin: Admin, name: str | None) -> None:
    known = _names(admin)
    if name is not None and name not in known:
        print_line(f"The client metric resource {name} doesn't exist and doesn't have dynamic config.")
        return
    for each in known if name is None else [name]:
        print_line(f"Client metrics configs for {each} are:")
        for key, value in _configs(admin, each):
            print_line(f"  {key}={value}")


def _names(admin: Admin) -> list[str]:
    answer = admin.ask_any(ListConfigResourcesRequest(resource_types=[_CLIENT_METRICS]))
    check(answer.error_code)
    return [row.resource_name for row in answer.config_resources if row.resource_type == _CLIENT_METRICS]


def _configs(admin: Admin, name: str) -> list[tuple[str, str]]:
    resource = DescribeConfigsResource(resource_type=_CLIENT_METRICS, resource_name=name, configuration_keys=None)
    row = admin.ask_any(DescribeConfigsRequest(resources=[resource])).results[0]
    check(row.error_code, row.error_message)
    return sorted((each.name, each.value or "") for each in row.configs)


def _change(admin: Admin, name: str, configs: Sequence[AlterableConfig]) -> None:
    resource = AlterConfigsResource(resource_type=_CLIENT_METRICS, resource_name=name, configs=configs)
    row = admin.ask_any(IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
    check(row.error_code, row.error_message)


TOOL = Tool(
    name="kafka-client-metrics",
    summary="Manage which metrics clients send to brokers.",
    flags=_FLAGS,
    run=_run,
)
