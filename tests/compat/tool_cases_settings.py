"""Scenarios of kafka-configs and kafka-acls."""

from __future__ import annotations

from tool_actions import committed
from tool_scenarios import SECURE, Scenario, Step, file


def _configs(arguments: str, **more: str) -> Step:
    return Step("kafka-configs", arguments, **more)  # type: ignore[arg-type]


_CONFIGS = Scenario(
    name="configs",
    is_alone=True,
    steps=[
        Step("kafka-topics", "{b} --create --topic cfg"),
        _configs(""),
        _configs("--version"),
        _configs("{b} --describe --entity-type topics --entity-name cfg"),
        _configs(
            "{b} --alter --entity-type topics --entity-name cfg "
            "--add-config retention.ms=9,cleanup.policy=[delete,compact]"
        ),
        _configs("{b} --describe --topic cfg"),
        _configs("{b} --describe --entity-type topics"),
        _configs("{b} --describe --topic cfg --all"),
        file("topic.properties", "retention.bytes=5\nsegment.ms=100000\n"),
        _configs("{b} --alter --topic cfg --add-config-file {dir}/topic.properties --delete-config cleanup.policy,x.y"),
        _configs("{b} --alter --topic cfg --add-config-file {dir}/topic.properties --delete-config cleanup.policy"),
        _configs("{b} --describe --topic cfg"),
        _configs("{b} --alter --topic cfg --add-config nonsense=1"),
        _configs("{b} --alter --topic cfg --add-config retention.ms"),
        _configs("{b} --alter --topic cfg --add-config 'a b=1'"),
        _configs("{b} --alter --topic cfg"),
        _configs("{b} --alter --topic cfg --add-config a=1 --add-config-file x"),
        _configs("{b} --alter --entity-type topics --add-config a=1"),
        _configs("{b} --describe --topic nothing"),
        _configs("{b} --describe --topic nothing --all"),
        _configs("{b} --describe --topic 'b d'"),
        _configs("{b} --alter --topic nothing --add-config retention.ms=1"),
        _configs("{b} --describe --entity-type nonsense"),
        _configs("{b} --describe"),
        _configs("{b} --describe --topic cfg --entity-type topics"),
        _configs("{b} --describe --entity-type topics --entity-type brokers"),
        _configs("{b} --describe --entity-type topics --entity-default"),
        _configs("{b} --describe --topic cfg --add-config a=1"),
        _configs("--describe --topic cfg"),
        _configs("--zookeeper {server} --describe --topic cfg"),
        _configs("{b} --describe --alter --topic cfg"),
        _configs("{b} --describe --broker 0"),
        _configs("{b} --alter --broker 0 --add-config log.cleaner.threads=2"),
        _configs("{b} --describe --entity-type brokers --entity-name 0"),
        _configs("{b} --alter --broker-defaults --add-config background.threads=9"),
        _configs("{b} --describe --broker-defaults"),
        _configs("{b} --describe --entity-type brokers"),
        _configs("{b} --describe --entity-type brokers --entity-default"),
        _configs("{b} --alter --entity-type brokers --entity-default --delete-config background.threads"),
        _configs("{b} --describe --broker 7"),
        _configs("{b} --describe --broker x"),
        _configs("{b} --alter --broker 0 --delete-config log.cleaner.threads"),
        committed("cfg-group", "cfg", {0: 0}),
        _configs("{b} --describe --group cfg-group"),
        _configs("{b} --alter --group cfg-group --add-config consumer.session.timeout.ms=50000"),
        _configs("{b} --describe --group cfg-group"),
        _configs("{b} --describe --entity-type groups"),
        _configs("{b} --describe --group nothing"),
        _configs("{b} --describe --entity-type client-metrics"),
        _configs("{b} --describe --client-metrics nothing"),
        _configs("{b} --describe --broker-logger 0"),
    ],
)

_QUOTAS = Scenario(
    name="quota-configs",
    steps=[
        _configs("{b} --describe --entity-type users"),
        _configs("{b} --describe --entity-type clients --entity-name nothing"),
        _configs(
            "{b} --alter --entity-type clients --entity-name app "
            "--add-config producer_byte_rate=1024,request_percentage=2.5"
        ),
        _configs("{b} --alter --entity-type clients --entity-default --add-config request_percentage=200"),
        _configs("{b} --alter --user alice --add-config producer_byte_rate=12345678"),
        _configs("{b} --alter --user alice --client app --add-config controller_mutation_rate=0.0005"),
        _configs(
            "{b} --alter --entity-type users --entity-name bob --entity-type clients --entity-default "
            "--add-config producer_byte_rate=1"
        ),
        _configs("{b} --alter --ip 127.0.0.1 --add-config connection_creation_rate=10"),
        _configs("{b} --alter --ip-defaults --add-config connection_creation_rate=100"),
        _configs("{b} --alter --user-defaults --add-config consumer_byte_rate=5000000"),
        _configs("{b} --describe --entity-type clients"),
        _configs("{b} --describe --entity-type users"),
        _configs("{b} --describe --entity-type users --entity-type clients"),
        _configs("{b} --describe --user alice --client app"),
        _configs("{b} --describe --client-defaults"),
        _configs("{b} --describe --user-defaults"),
        _configs("{b} --describe --entity-type ips"),
        _configs("{b} --describe --ip 127.0.0.1"),
        _configs("{b} --alter --user alice --delete-config producer_byte_rate"),
        _configs("{b} --alter --user alice --delete-config producer_byte_rate"),
        _configs("{b} --alter --user alice --add-config producer_byte_rate=x"),
        _configs("{b} --alter --user alice --add-config nonsense=1"),
        _configs("{b} --alter --client app --add-config SCRAM-SHA-256=[password=x]"),
        _configs("{b} --alter --ip 127.0.0.1 --add-config producer_byte_rate=1"),
        _configs("{b} --alter --user carol --add-config SCRAM-SHA-256=[iterations=8192,password=secret]"),
        _configs("{b} --alter --user carol --add-config SCRAM-SHA-512=[password=secret]"),
        _configs("{b} --alter --user carol --add-config SCRAM-SHA-512=[iterations=1,password=secret]"),
        _configs("{b} --alter --user carol --add-config SCRAM-SHA-512=[secret]"),
        _configs("{b} --alter --user carol --add-config SCRAM-SHA-512=[password=x],producer_byte_rate=1"),
        _configs("{b} --alter --user-defaults --add-config SCRAM-SHA-512=[password=x]"),
        _configs("{b} --describe --user carol"),
        _configs("{b} --describe --entity-type users"),
        _configs("{b} --alter --user carol --delete-config SCRAM-SHA-256"),
        _configs("{b} --alter --user carol --delete-config SCRAM-SHA-256"),
        _configs("{b} --describe --user carol"),
        _configs("{b} --alter --entity-type users --add-config producer_byte_rate=1"),
    ],
)

#: Java's tool prints the stack trace of an error on standard output
_TRACE = ((r"(?m)^\n", ""), (r"(?m)^ \t", "\t"), (r"(?m)^(\tat |\t\.\.\. |Caused by: |org\.apache\.|java\.).*\n", ""))


def _acls(arguments: str, **more: str) -> Step:
    # Java's order of resources, operations and hosts differs from run to run.
    return Step("kafka-acls", arguments, unordered=True, replace=_TRACE, **more)  # type: ignore[arg-type]


_ACLS = Scenario(
    name="acls",
    stage=SECURE,
    steps=[
        _acls(""),
        _acls("--version"),
        _acls("{b} --list"),
        _acls("{b} --add --allow-principal User:alice --operation Read --operation Describe --topic t1"),
        _acls("{b} --add --allow-principal User:alice --operation read --topic t1"),
        _acls("{b} --add --deny-principal User:bob --deny-host 10.0.0.1 --operation DescribeConfigs --topic '*'"),
        _acls(
            "{b} --add --allow-principal User:alice --allow-host h1 --allow-host h2 --operation All --group g --cluster"
        ),
        _acls("{b} --add --allow-principal User:p --producer --topic pre --resource-pattern-type prefixed"),
        _acls("{b} --add --allow-principal User:p --producer --idempotent --topic t2 --transactional-id x"),
        _acls("{b} --add --allow-principal User:c --consumer --topic t2 --group g2"),
        _acls("{b} --add --allow-principal User:b --producer --consumer --topic t3 --group g3"),
        _acls("{b} --add --allow-principal User:u --operation CreateTokens --user-principal User:v"),
        _acls("{b} --add --allow-principal User:d --operation Describe --delegation-token tok"),
        _acls("{b} --list"),
        _acls("{b} --list --topic t1"),
        _acls("{b} --list --topic t1 --resource-pattern-type any"),
        _acls("{b} --list --topic prefixed-name --resource-pattern-type match"),
        _acls("{b} --list --principal User:alice"),
        _acls("{b} --list --principal User:alice --principal User:nothing --topic t1"),
        _acls("{b} --list --cluster"),
        _acls("{b} --add --allow-principal alice --operation Read --topic t1"),
        _acls("{b} --add --allow-principal User:alice --operation Nonsense --topic t1"),
        _acls("{b} --add --allow-principal User:alice --operation ClusterAction --topic t1"),
        _acls("{b} --add --allow-principal User:alice --operation Read --topic t1 --resource-pattern-type match"),
        _acls("{b} --add --allow-principal User:alice --operation Read"),
        _acls("{b} --add --operation Read --topic t1"),
        _acls("{b} --add --producer --allow-principal User:a"),
        _acls("{b} --add --consumer --allow-principal User:a --topic t1"),
        _acls("{b} --add --producer --allow-principal User:a --topic t1 --operation Read"),
        _acls("{b} --add --idempotent --allow-principal User:a --topic t1"),
        _acls("{b} --list --allow-principal User:alice"),
        _acls("{b} --list --add"),
        _acls("--list"),
        _acls("{b} --remove --force --allow-principal User:alice --operation Read --topic t1"),
        _acls("{b} --list --topic t1"),
        _acls("{b} --remove --force --topic t1"),
        _acls("{b} --remove --force --topic pre --resource-pattern-type prefixed"),
        _acls("{b} --remove --topic t2", differs="Java's tool ends with a stack trace if there is no terminal"),
        _acls("{b} --remove --force"),
        _acls("{b} --list"),
        _acls("{b} --principal User:alice --remove --topic t1"),
        _acls("--authorizer-properties zookeeper.connect={server} --list"),
    ],
)

_NO_ACLS = Scenario(name="acls-disabled", steps=[_acls("{b} --list")])

SCENARIOS = (_CONFIGS, _QUOTAS, _ACLS, _NO_ACLS)
