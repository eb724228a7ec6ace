"""kafka-cluster: the id of a cluster, its brokers, and the removal of one that has stopped for good."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cli.kafka.arguments import Argument, Given, Syntax, argument
from ottla.cli.kafka.arguments import main as run_main
from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import ToolError, check
from ottla.cli.kafka.tool import print_line
from ottla.model.errors import ErrorCode
from ottla.wire.messages.describe_cluster import DescribeClusterRequest
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest

_CONNECTION = (
    argument("--bootstrap-server", "-b", metavar="HOST:PORT,...", help="Brokers of the cluster."),
    argument("--bootstrap-controller", "-C", metavar="HOST:PORT,...", help="Controllers of a KRaft cluster."),
    argument("--config", metavar="FILE", help="The former name of --command-config."),
    argument("--command-config", "-c", metavar="FILE", help="Properties of the client."),
)


def _command(word: str, summary: str, *more: Argument) -> Syntax:
    return Syntax(
        name=f"kafka-cluster {word}",
        summary=summary,
        arguments=(*_CONNECTION, *more),
        one_of=(("bootstrap-server", "bootstrap-controller"),),
        exclusive=(("config", "command-config"),),
    )


SYNTAX = Syntax(
    name="kafka-cluster",
    summary="Print the id of a cluster and its brokers, and remove brokers that have stopped for good.",
    commands=(
        _command("cluster-id", "Print the id of the cluster."),
        _command(
            "unregister",
            "Remove a broker that has stopped for good.",
            argument("--id", "-i", metavar="ID", parse=int, is_required=True, help="The id of the broker."),
        ),
        _command(
            "list-endpoints",
            "Print the addresses of the brokers.",
            argument("--include-fenced-brokers", help="Print also brokers that are fenced."),
        ),
    ),
)
_CONTROLLERS_TEXT = (
    "--bootstrap-controller names controllers of a KRaft cluster; the controller of Ottla is one of the brokers, so "
    "name brokers with --bootstrap-server"
)
_TITLES = ("ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE")


def main(words: Sequence[str]) -> int:
    """Run the tool and return its exit code."""
    return run_main(SYNTAX, words, _run)


def _run(given: Given) -> None:
    if given.has("config"):
        print_line(
            "Option --config has been deprecated and will be removed in a future version. Use --command-config instead."
        )
    properties = properties_of(given["config"] or given["command-config"])
    if given.has("bootstrap-controller"):
        raise ToolError(_CONTROLLERS_TEXT)
    with connect(given["bootstrap-server"], properties, call="listNodes") as admin:
        if given.command == "cluster-id":
            _print_id(admin)
        elif given.command == "unregister":
            _unregister(admin, given["id"])
        else:
            _print_endpoints(admin, is_fenced_wanted=given.has("include-fenced-brokers"))


def _print_id(admin: Admin) -> None:
    found = admin.metadata([]).cluster_id
    print_line(f"Cluster ID: {found}" if found else "No cluster ID found. The Kafka version is probably too old.")


def _unregister(admin: Admin, broker_id: int) -> None:
    answer = admin.ask_any(UnregisterBrokerRequest(broker_id=broker_id))
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        print_line("The target cluster does not support the broker unregistration API.")
        return
    check(answer.error_code, answer.error_message)
    print_line(f"Broker {broker_id} is no longer registered.")


def _print_endpoints(admin: Admin, *, is_fenced_wanted: bool) -> None:
    answer = admin.ask_any(
        DescribeClusterRequest(include_fenced_brokers=is_fenced_wanted), 2 if is_fenced_wanted else 0
    )
    check(answer.error_code, answer.error_message)
    brokers = sorted(answer.brokers, key=lambda row: row.broker_id)
    width = max((len(row.host) for row in brokers), default=0)
    print_line(_row(width, *_TITLES))
    for row in brokers:
        state = "fenced" if row.is_fenced else "unfenced"
        print_line(_row(width, str(row.broker_id), row.host, str(row.port), row.rack or "null", state, "broker"))


def _row(width: int, *texts: str) -> str:
    number, host, port, rack, state, kind = texts
    return f"{number:<10} {host:<{width}} {port:<10} {rack:<10} {state:<10} {kind:<15}"
