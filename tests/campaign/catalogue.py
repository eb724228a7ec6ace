"""All campaigns: what each one does, its options, how long it takes with them, and what it needs.

A campaign is a function ``run(report, *, kills=…, seed=…)`` in a module of the tests. It adds what it measures, and
what must not have happened, to the report. A new campaign is a function and a row here.
"""

from __future__ import annotations

from dataclasses import dataclass

Value = int | float | str | bool | None

#: variables of the Makefile that are no options of campaigns
MAKE_VARIABLES = frozenset({"PYTHON", "VENV", "BIN", "WORKERS"})


@dataclass(frozen=True, slots=True)
class Option:
    """A variable of `make campaign`, such as KILLS, which is the argument ``kills`` of the campaign."""

    name: str
    #: its type is that of the option; None: a whole number that may be missing
    default: Value
    help: str
    choices: tuple[str, ...] = ()

    @property
    def keyword(self) -> str:
        return self.name.lower()

    def parse(self, text: str | None) -> Value:
        """Return the value that a text stands for, the default for no text. Raise ValueError if it is none."""
        if not text:
            return self.default
        if self.choices and text not in self.choices:
            raise ValueError(f"{self.name}={text}: expected one of {', '.join(self.choices)}")
        if isinstance(self.default, bool):
            return text != "0"
        kind = int if self.default is None else type(self.default)
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"{self.name}={text}: expected a number") from None

    def __str__(self) -> str:
        value = int(self.default) if isinstance(self.default, bool) else self.default
        return f"{self.name}={'' if value is None else f'{value:g}' if isinstance(value, float) else value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A row of the catalogue."""

    name: str
    description: str
    #: with the default options, on two cores
    takes: str
    #: besides the development environment; empty for nothing
    needs: str = ""
    options: tuple[Option, ...] = ()
    #: ``DIRECTORY/MODULE:FUNCTION`` below tests, ``run`` without a function
    function: str


def _kills(default: int) -> Option:
    return Option("KILLS", default, "how often a process is killed")


_SEED = Option("SEED", 1, "other random choices")
_DRAWN_SEED = Option("SEED", None, "the random choices of an earlier run")
_CLIENTS = Option("CLIENTS", "librdkafka,aiokafka,java", "the producers, separated by commas")
_BROKERS = Option("BROKERS", 1, "3 runs ZooKeeper and a cluster of three brokers")
_ROWS = Option("ROWS", 1_000_000, "rows that go through the pipeline")
_PYTEST_ARGS = Option("PYTEST_ARGS", "", "arguments of pytest, such as -k NAME")

_ALL = (
    # -- a broker -------------------------------------------------------------------------------------------------
    Campaign(
        name="crash", takes="20 min", function="campaign.suites:crash",
        description="kill -9, power cuts and failing disks of one broker under load",
        needs="root for power cuts", options=(_kills(50),),
    ),
    Campaign(
        name="groups", takes="20 min", function="campaign.suites:groups",
        description="members join, leave, die and pause in consumer groups while the broker restarts",
        needs="Java for AGAINST=kafka",
        options=(
            Option("CHANGES", 100, "changes that a storm makes"), _DRAWN_SEED,
            Option("AGAINST", "ottla", "the broker", ("ottla", "kafka")),
        ),
    ),
    Campaign(
        name="transactions", takes="1 h", function="campaign.suites:transactions",
        description="exactly-once under kills and on a network that loses, repeats and delays requests",
        options=(
            _kills(100), Option("RECORDS", 1_000_000, "records that are copied"),
            Option("RUNS", 200, "runs of mixed clients"), _DRAWN_SEED,
        ),
    ),
    Campaign(
        name="hostile", takes="5 min", function="campaign.suites:hostile",
        description="hostile clients at full size, with limits on latency and memory",
        needs="a quiet machine", options=(Option("ATTACKS", "", "a part of the names of the attacks"),),
    ),
    Campaign(
        name="properties", takes="10 min", function="campaign.suites:properties",
        description="property tests with new random examples; `make test` always takes the same ones",
        options=(Option("ROUNDS", 10, "how often"), Option("WORKERS", 4, "processes")),
    ),
    Campaign(
        name="quotas", takes="2 min", function="compat/quota_rates",
        description="rates of clients compared with their quotas, within 10 %; quota requests as answered by Kafka",
        needs="Java",
        options=(
            Option("SECONDS", 60.0, "how long the clients run"), Option("RATE", 2_000_000, "quota in bytes per second"),
            Option("CLIENT", "", "only clients whose name begins like this, for example java"),
        ),
    ),
    Campaign(
        name="security", takes="3 min", function="security/security_campaign",
        description="random ACLs against a reference; ZooKeeper over TLS; server.properties written for Kafka",
        needs="Java",
        options=(
            Option("CASES", 1_000_000, "decisions about random ACLs"), _SEED,
            Option("KAFKA", False, "1: compare the access matrix with Apache Kafka, and use delegation tokens"),
        ),
    ),
    # -- a cluster ------------------------------------------------------------------------------------------------
    Campaign(
        name="sim", takes="2 min", function="sim/sim_campaign",
        description="the broker in a simulated world, see docs/internals/simulation.md",
        options=(
            Option("SEED", None, "replay this seed with its trace"), Option("SEEDS", 100, "how many seeds"),
            Option("FIRST", 1, "the first of them"), _BROKERS,
            Option("PROFILE", "", "of the faults; each seed draws one without it"),
        ),
    ),
    Campaign(
        name="sim-planted", takes="10 min", function="sim/sim_planted",
        description="bugs planted into the broker, and the first seed with which each check reports its bug",
        options=(Option("SEEDS", 100, "seeds for each bug"), Option("BUGS", "", "names of checks and bugs")),
    ),
    Campaign(
        name="cluster-kills", takes="4 min", function="cluster/cluster_kills",
        description="kill -9 of brokers of a cluster under load, chosen by their role",
        needs="Java for one client",
        options=(
            _kills(20), _SEED,
            Option("ROLE", "any", "of the victim", ("leader", "controller", "group", "transaction", "any")),
            Option("SECURE", False, "1: TLS and SCRAM; certificates are replaced meanwhile"), _CLIENTS,
        ),
    ),
    Campaign(
        name="cluster-faults", takes="10 min", function="cluster/cluster_faults",
        description="pauses, kills, power cuts, restarts and a missing ZooKeeper, each with its prediction",
        needs="a quiet machine; root for power cuts",
        options=(
            Option("CASE", "all", "names separated by commas"), _SEED,
            Option("SECONDS", 0.0, "length of a fault, instead of that of the case"), _CLIENTS,
        ),
    ),
    Campaign(
        name="partitions", takes="10 min", function="cluster/network_partitions",
        description="network partitions of a cluster under load, see docs/internals/network-partitions.md",
        needs="root, nftables",
        options=(
            Option("CASE", "", "P1 to P10, separated by commas; P7 for all one-way cuts"),
            Option("LOGS", "", "directory for the logs of the brokers of a failed case"),
        ),
    ),
    Campaign(
        name="streams-kills", takes="5 min", function="cluster/streams_kills",
        description="Kafka Streams with exactly_once_v2 on three brokers, of which some are killed",
        needs="Java, Maven, network (90 MB)",
        options=(
            _kills(20), _SEED,
            Option("ROLE", "mixed", "of the victim", ("transaction", "changelog", "group", "application", "mixed")),
            Option("BURST", 3000, "records that are written each half second"),
        ),
    ),
    Campaign(
        name="client-failover", takes="8 min", function="compat/client_failover",
        description="nine clients of other projects while the leader and the coordinator of their group are killed",
        needs="Java, Go, Node",
        options=(Option("SECONDS", 30.0, "for each client"), Option("CLIENT", "", "names separated by commas")),
    ),
    Campaign(
        name="transactions-divided", takes="4 min", function="campaign.suites:transactions_divided",
        description="the tests of transactions with coordinator, leaders and groups on different brokers",
        options=(_PYTEST_ARGS,),
    ),
    Campaign(
        name="kafka-commands", takes="8 min", function="compat/kafka_commands_campaign",
        description="Kafka's commands: output of Java's tools and of Ottla's, line by line, and how fast they start",
        needs="Java, Maven",
        options=(
            Option("ONLY", "", "scenarios whose names begin with this; flags, start: only these"),
            Option("WRITE", False, "1: record the output of Java's tools for `make test`"),
        ),
    ),
    Campaign(
        name="doctor", takes="4 min", function="cluster/doctor_campaign",
        description="faults of a live cluster, one after another: `ottla doctor` names each, and none on a healthy one",
        options=(Option("FAULTS", "", "names of checks, separated by commas"),),
    ),
    Campaign(
        name="kafka-courses", takes="1 min", function="compat/kafka_courses_campaign",
        description="ZooKeeper, brokers and commands of Kafka's quick start and of courses, by `ottla kafka install`",
        needs="the extra spark, for ZooKeeper",
        options=(Option("ONLY", "", "scripts whose names begin with this"),),
    ),
    # -- registry and REST proxy ----------------------------------------------------------------------------------
    Campaign(
        name="registry-kills", takes="3 min", function="edge/registry_kills",
        description="kill the leader of three registries while clients register schemas and an exporter copies them",
        options=(_kills(50), _SEED, Option("EXPORTER", True, "0: without the exporter")),
    ),
    Campaign(
        name="validation-kills", takes="1 min", function="edge/validation_kills",
        description="kill the broker and stop the registry while records are validated, with dead letters",
        options=(_kills(20), _SEED),
    ),
    Campaign(
        name="registry-hostile", takes="2 min", function="edge/registry_hostile",
        description="hostile schemas against a registry, with clients beside them; limits on times and memory",
        options=(Option("ROUNDS", 1, "how often"),),
    ),
    Campaign(
        name="registry-clients", takes="1 min", function="campaign.suites:registry_clients",
        description="registry clients for JavaScript, Java and Go, in all ways to reach a registry",
        needs="network (200 MB), Node, Java, Go", options=(_PYTEST_ARGS,),
    ),
    Campaign(
        name="edge-kafka", takes="5 min", function="campaign.suites:edge_kafka",
        description="the tests of the registry and the REST proxy with Apache Kafka instead of Ottla",
        needs="Java", options=(_PYTEST_ARGS,),
    ),
    Campaign(
        name="browser", takes="5 min", function="campaign.suites:browser",
        description="every page of the console in chromium: light, dark, desktop, phone, without scripts; axe-core",
        needs="chromium, Node, network", options=(Option("PICTURES", "", "directory for pictures of all pages"),),
    ),
    Campaign(
        name="console-scale", takes="5 min", function="edge/console_scale",
        description="times of the console's pages with many topics and groups, requests at the broker, memory",
        needs="a quiet machine; Java for BROKER=kafka",
        options=(
            Option("TOPICS", 10_000, "topics with one partition"), Option("GROUPS", 1000, "groups of five topics each"),
            Option("GIGABYTES", 5.0, "size of the topic that is searched"),
            Option("BROKER", "ottla", "one broker of Ottla, or of Apache Kafka", ("ottla", "kafka")),
        ),
    ),
    Campaign(
        name="alerts", takes="3 min", function="edge/alerts_outage",
        description="the alerts of a monitor while brokers of a cluster are killed and started: webhook, mail, Slack",
        needs="Java", options=(Option("SECONDS", 10.0, "how long the healthy cluster is watched"),),
    ),
    Campaign(
        name="prometheus", takes="1 min", function="edge/prometheus_rules",
        description="a real Prometheus evaluates the dashboards and rules of deploy/, and alerts fire after a kill",
        needs="prometheus", options=(Option("SECONDS", 20.0, "how long Prometheus reads before the first question"),),
    ),
    Campaign(
        name="lag", takes="4 min", function="edge/lag_campaign",
        description="lags in seconds of `ottla monitor` compared with known ones, also while brokers are killed",
        needs="Java",
        options=(
            Option("SECONDS", 60, "how long lags are compared before the kills"), _kills(6),
            Option("BROKER", "ottla", "three brokers of Ottla, or one of Apache Kafka", ("ottla", "kafka")),
            Option("SPARK", True, "1 compares also that of a streaming query"), _SEED,
        ),
    ),
    Campaign(
        name="monitor-scale", takes="15 min", function="edge/monitor_scale",
        description="requests, seconds and memory of `ottla monitor` with many topics and groups",
        options=(
            Option("TOPICS", 10_000, "topics with one partition"), Option("GROUPS", 1_000, "groups of ten topics each"),
            Option("ROUNDS", 5, "rounds that are measured"),
            Option("BROKER", "ottla", "one broker of Ottla, or of Apache Kafka", ("ottla", "kafka")),
        ),
    ),
    Campaign(
        name="openapi-fuzz", takes="5 min", function="edge/openapi_fuzz",
        description="random requests made from the OpenAPI documents of the registry and the REST proxy",
        options=(Option("EXAMPLES", 50, "random requests for each operation"), _SEED),
    ),
    Campaign(
        name="schemas", takes="5 min", function="schemas/schemas_campaign",
        description="random schemas of each format compared with the reference of the format: Java Avro, protoc",
        needs="Java",
        options=(
            Option("PAIRS", 10_000, "pairs of schemas for each format"), _SEED,
            Option("FORMAT", "", "one format", ("avro", "json", "protobuf")),
            Option("WRITE", "", "file for the answers of Java Avro, in short"),
        ),
    ),
    # -- Spark ----------------------------------------------------------------------------------------------------
    Campaign(
        name="spark-kills", takes="1 h", function="spark/kill_campaign",
        description="exactly once through Spark while drivers, executors and brokers are killed",
        options=(_kills(100), _ROWS, _DRAWN_SEED, _BROKERS),
    ),
    Campaign(
        name="pipeline-kills", takes="2 h", function="spark/pipeline_campaign",
        description="exactly once through `ottla pipeline run`: processes are killed or paused, disks lose power",
        needs="root for power cuts", options=(_kills(150), _ROWS, _DRAWN_SEED, _BROKERS),
    ),
    Campaign(
        name="spark-cluster", takes="4 min", function="campaign.suites:spark_cluster",
        description="the demonstration on a standalone cluster that loses a worker",
    ),
    Campaign(
        name="spark-previous", takes="10 min", function="campaign.suites:spark_previous",
        description="the Spark tests with the minor release before the newest, in a virtual environment of its own",
        needs="network", options=(_PYTEST_ARGS,),
    ),
    Campaign(
        name="sdp", takes="3 min", function="campaign.suites:sdp",
        description="Spark Declarative Pipelines: the example of the documentation, killed and continued",
    ),
    # -- packaging and docs ---------------------------------------------------------------------------------------
    Campaign(
        name="extras", takes="30 min", function="packaging/extras_check",
        description="each extra, installed by pip into an empty environment, with the newest and the minimum versions",
        needs="network",
        options=(
            Option("EXTRA", "", "one extra, for example edge"),
            Option("VERSIONS", "", "one of both", ("newest", "minimum")),
        ),
    ),
    Campaign(
        name="screens", takes="5 min", function="campaign.suites:screens",
        description="screens of the demonstration as text: writes docs/start/screens",
    ),
)  # fmt: skip

CAMPAIGNS = {campaign.name: campaign for campaign in _ALL}
