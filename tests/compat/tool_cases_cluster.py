"""Scenarios of the commands about brokers, features, logs, transactions, and of the load tests."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Producer
from tool_actions import records
from tool_scenarios import CLUSTER, Do, Place, Scenario, Step, file

from ottla.admin.transactions import Transactions
from ottla.cli.kafka.connection import connect
from ottla.wire.messages.describe_log_dirs import DescribeLogDirsRequest

_WAIT_S = 60.0
_OWN_HELP = "help and usage are shorter"


def _names(*commands: str) -> list[Step]:
    """Return calls: the first word of each is the name of the command without kafka-."""
    return [Step(f"kafka-{name}", rest) for name, _, rest in (each.partition(" ") for each in commands)]


def _transactions(topic: str) -> Do:
    """Return a step that commits one transaction and aborts another one."""

    def write(place: Place) -> None:
        producer = Producer({"bootstrap.servers": place.server, "transactional.id": f"{topic}-id"})
        producer.init_transactions(_WAIT_S)
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.produce(topic, b"v\xc3\xa4", b"k\xff", partition=0, headers=[("h1", b"a"), ("h2", None)])
            producer.produce(topic, None, b"k", partition=0)
            producer.flush(_WAIT_S)
            end(_WAIT_S)
        # The answer to the producer comes before the markers are written.
        deadline = time.monotonic() + _WAIT_S
        with connect(place.server, {}, call="test") as admin:
            while True:
                found = Transactions(admin).describe([f"{topic}-id"])[f"{topic}-id"]
                if found is not None and found.state == "CompleteAbort":
                    return
                assert time.monotonic() < deadline, f"the transaction is {found}"

    return Do(write)


def _link_log(topic: str, name: str) -> Do:
    """Return a step that makes the directory of a partition known as {dir}/name."""

    def link(place: Place) -> None:
        with connect(place.server, {}, call="test") as admin:
            row = admin.ask(admin.brokers()[0], DescribeLogDirsRequest(topics=None)).results[0]
        (place.directory / name).symlink_to(Path(row.log_dir) / topic)

    return Do(link)


_CLUSTER_TOOLS = Scenario(
    name="cluster-tools",
    steps=[
        *_names(
            "cluster cluster-id {b}",
            "cluster list-endpoints {b}",
            "cluster list-endpoints {b} --include-fenced-brokers",
            "cluster unregister {b} --id 77",
            "cluster cluster-id {b} --config {dir}/missing",
            "cluster",
            "cluster bogus",
            "cluster cluster-id",
            "cluster unregister {b}",
            "cluster unregister {b} --id x",
            "broker-api-versions {b}",
            "broker-api-versions",
            "broker-api-versions --version",
            "metadata-quorum {b} describe",
            "metadata-quorum {b} describe --status --replication",
            "metadata-quorum {b} describe --status --human-readable",
            "metadata-quorum {b} add-controller",
            "metadata-quorum {b} remove-controller -i 1 -d foo",
            "metadata-quorum {b}",
        ),
        Step("kafka-metadata-quorum", "{b} describe --status", replace=((r"(Epoch|Watermark): +\d+", r"\1: {n}"),)),
        Step("kafka-metadata-quorum", "{b} describe --replication", replace=((r"\t\d+ +\t0  \t", "\t{n}\t0  \t"),)),
        Step("kafka-cluster", "--help", differs=_OWN_HELP),
    ],
)

_FEATURES = Scenario(
    name="features",
    is_alone=True,
    steps=_names(
        "features {b} describe",
        "features {b} upgrade --feature group.version=1",
        "features {b} downgrade --feature group.version=0 --dry-run",
        "features {b} disable --feature foo",
        "features {b} upgrade",
        "features {b} upgrade --feature a",
        "features {b} upgrade --feature a=x",
        "features {b} upgrade --feature a=1 --feature a=2",
        "features {b} upgrade --release-version 4.3 --metadata 4.3",
        "features {b} upgrade --metadata 4.2",
        "features {b} upgrade --release-version 1.2",
        "features {b} upgrade --metadata nonsense",
        "features describe",
        "features",
        "features bogus",
        "features version-mapping",
        *(
            f"features version-mapping --release-version {version}"
            for version in (
                "2.2", "3.3-IV3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9", "4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3",
                "4.0", "4.1-IV0", "4.1", "4.2-IV0", "4.2", "4.3", "4.4-IV0",
            )
        ),
        *(
            f"features feature-dependencies --feature {each}"
            for each in (
                "metadata.version=7", "metadata.version=70", "kraft.version=1", "transaction.version=1",
                "transaction.version=2", "group.version=1", "group.version=0", "eligible.leader.replicas.version=1",
                "share.version=1", "streams.version=1", "foo=1", "foo", "group.version=7",
            )
        ),
        "features feature-dependencies --feature group.version=1 --feature share.version=1",
        "storage version-mapping",
        "storage feature-dependencies --feature group.version=1",
    ),
)  # fmt: skip

_DIRECTORY = ((r'"logDir":"[^"]+"', '"logDir":"{data}"'),)
_QUORUM = ((r"(Epoch|Watermark): +\d+", r"\1: {n}"), (r"127\.0\.0\.1:\d+", "{address}"))
_LOG_DIRS = Scenario(
    name="log-dirs",
    steps=[
        *_names("topics {b} --create --topic sizes --partitions 3"),
        Step("kafka-log-dirs", "{b} --describe --topic-list sizes", replace=_DIRECTORY),
        *_names("topics {b} --create --topic size"),
        Step("kafka-log-dirs", "{b} --describe --topic-list size", replace=_DIRECTORY),
        Step("kafka-log-dirs", "{b} --describe --topic-list nothing --broker-list 0", replace=_DIRECTORY),
        *_names(
            "log-dirs {b} --describe --broker-list 0,9",
            "log-dirs {b} --describe --broker-list x",
            "log-dirs {b}",
            "log-dirs --describe",
            "log-dirs --bogus",
            "log-dirs",
            "log-dirs --version",
        ),
    ],
)  # fmt: skip

_TRANSACTIONS = Scenario(
    name="transactions",
    is_alone=True,
    steps=[
        *_names("topics {b} --create --topic tx", "transactions {b} list"),
        _transactions("tx"),
        *_names(
            "transactions {b} list",
            "transactions {b} list --duration-filter 100000",
            "transactions {b} list --transactional-id-pattern tx.*",
            "transactions {b} list --transactional-id-pattern no.*",
            "transactions {b} describe --transactional-id nope",
            "transactions {b} describe",
        ),
        Step(
            "kafka-transactions", "{b} describe --transactional-id tx-id",
            replace=((r"\d+ +\t +\t$|\d+ +\t +\t\n", "{n}\n"),),
        ),
        *_names(
            "transactions {b} describe-producers --topic tx --partition 0",
            "transactions {b} describe-producers --topic tx --partition 0 --broker-id 0",
            "transactions {b} find-hanging",
            "transactions {b} find-hanging --partition 0",
            "transactions {b} find-hanging --topic tx",
            "transactions {b} find-hanging --topic tx --partition 0",
            "transactions {b} find-hanging --broker-id 0 --max-transaction-timeout 1",
            "transactions {b} abort --topic tx --partition 0 --start-offset 3",
            "transactions {b} abort --topic tx --partition 0",
            "transactions {b} abort --topic tx --partition 0 --producer-id 5",
            "transactions {b} abort --topic tx --partition 0 --producer-id 5 --producer-epoch 1",
            "transactions {b} abort --topic tx",
            "transactions {b} forceTerminateTransaction --transactionalId nope",
            "transactions {b} list",
            "transactions list",
            "transactions {b}",
            "transactions {b} bogus",
            "transactions --bogus",
        ),
        Step("kafka-transactions", "--version", differs="Java's tool prints the commit of its source, too"),
    ],
)  # fmt: skip

_DUMP_LOG = Scenario(
    name="dump-log",
    steps=[
        *_names("topics {b} --create --topic dumped"),
        records("dumped", 3),
        _transactions("dumped"),
        _link_log("dumped-0", "log"),
        *(
            Step(
                "kafka-dump-log",
                flags,
                replace=((r"producerId: \d+", "producerId: {n}"), (r"crc: \d+", "crc: {n}")),
            )
            for flags in (
                "--files {dir}/log/00000000000000000000.log",
                "--files {dir}/log/00000000000000000000.log --print-data-log",
                "--files {dir}/log/00000000000000000000.log --deep-iteration",
                "--files {dir}/log/00000000000000000000.log --print-data-log --skip-record-metadata",
                "--files {dir}/log/00000000000000000000.log --max-bytes 200",
                "--files {dir}/log/partition.metadata",
                "--files {dir}/missing/00000000000000000000.log",
                "--files {dir}/log/leader-epoch-checkpoint,{dir}/log/partition.metadata",
                "--deep-iteration",
                "--bogus",
                "",
            )
        ),
    ],
)

_STORAGE = Scenario(
    name="storage",
    steps=[
        file(
            "server.properties",
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
            "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\ncontroller.listener.names=CONTROLLER\n"
            "log.dirs={dir}/kraft\n",
        ),
        *_names(
            "storage info -c {dir}/server.properties",
            "storage info -c {dir}/missing",
            "storage info",
            "storage random-uuid",
            "storage format -t x",
            "storage",
            "storage bogus",
            "storage format -t T3R0bGFCZW5jaG1hcmtzMQ -c {dir}/server.properties -r 1.0",
        ),
    ],
    is_slow=True,
)

_TOKENS = Scenario(
    name="delegation-tokens",
    steps=[
        file("client.properties", "client.id=x\n"),
        *_names(
            "delegation-tokens {b} --describe --command-config {dir}/client.properties",
            "delegation-tokens {b} --create --max-life-time-period -1 --command-config {dir}/client.properties",
            "delegation-tokens {b} --create --command-config {dir}/client.properties",
            "delegation-tokens {b} --create --renew --command-config {dir}/client.properties",
            "delegation-tokens {b} --expire --hmac YQ== --command-config {dir}/client.properties",
            "delegation-tokens {b} --describe --hmac YQ== --command-config {dir}/client.properties",
            "delegation-tokens {b} --describe",
            "delegation-tokens {b}",
            "client-metrics {b} --list",
            "client-metrics {b} --describe",
            "client-metrics {b} --describe --name x",
            "client-metrics {b} --alter",
            "client-metrics {b} --delete",
            "client-metrics {b} --alter --name x --interval 1000",
            "client-metrics {b} --delete --name x",
            "client-metrics {b}",
        ),
    ],
)

#: figures, which differ from run to run
_FIGURES = (
    (r"\d+\.\d+ records/sec", "{n} records/sec"),
    (r"\(\d+\.\d\d MB/sec\)", "({n} MB/sec)"),
    (r"\d+\.\d+ ms (avg|max) latency", r"{n} ms \1 latency"),
    (r"\d+ ms (50|95|99|99\.9)th", r"{n} ms \1th"),
)
_RATES = ((r"(?<=, )\d+\.\d{4}|(?<=, )\d+(?=, \d+, \d+\.\d{4}, \d)|(?<=, )\d+(?=, \d+\.\d{4}, \d+\.\d{4}$)", "{n}"),)
_THROUGHPUT = ((r'"avg_throughput":[\d.]+', '"avg_throughput":{n}'),)

_PRODUCER_PERF = Scenario(
    name="producer-perf-test",
    is_slow=True,
    steps=[
        *_names("topics {b} --create --topic load --partitions 2"),
        file("payloads.txt", "one\ntwo\nthree\n"),
        file("client.properties", "acks=1\n"),
        *(
            Step("kafka-producer-perf-test", f"--topic load {flags}", replace=_FIGURES)
            for flags in (
                "{b} --num-records 500 --throughput -1 --record-size 100",
                "--num-records 50 --throughput -1 --record-size 9 --producer-props bootstrap.servers={server} acks=1",
                "{b} --num-records 50 --throughput 1000 --record-size 10 --warmup-records 20",
                "{b} --num-records 50 --throughput -1 --payload-monotonic --transactional-id perf",
                "{b} --num-records 50 --throughput -1 --payload-monotonic --transaction-duration-ms 20",
                "{b} --num-records 50 --throughput -1 --payload-file {dir}/payloads.txt",
                "{b} --num-records 5 --throughput -1 --payload-file {dir}/missing",
                "{b} --num-records 5 --throughput -1 --record-size 5 --producer.config {dir}/client.properties",
                "{b} --num-records 5 --throughput -1 --record-size 5 --command-config {dir}/client.properties",
                "{b} --num-records 5 --throughput -1 --record-size 5 --command-property acks",
                "{b} --num-records 0 --throughput -1 --record-size 5",
                "{b} --num-records 5 --throughput -1 --record-size 0",
                "{b} --num-records 5 --throughput -1 --record-size 5 --warmup-records 5",
                "{b} --num-records 5 --throughput -1 --record-size 5 --transaction-duration-ms 0",
                "{b} --num-records 5 --throughput -1",
                "{b} --num-records 5 --throughput -1 --record-size 5 --payload-monotonic",
                "{b} --num-records x --throughput -1 --record-size 5",
                "--num-records 5 --throughput -1 --record-size 5",
                "{b} --throughput -1 --record-size 5",
                "{b} --num-records 2 --throughput -1 --record-size 2000000",
            )
        ),
        *_names("get-offsets {b} --topic load --time earliest"),
    ],
)

_CONSUMER_PERF = Scenario(
    name="consumer-perf-test",
    is_slow=True,
    steps=[
        *_names("topics {b} --create --topic read"),
        records("read", 1000),
        file("client.properties", "check.crcs=true\n"),
        *(
            Step("kafka-consumer-perf-test", f"{{b}} {flags}", replace=_RATES)
            for flags in (
                "--topic read --num-records 1000",
                "--topic read --messages 1000 --hide-header",
                "--include re.* --num-records 1000 --group perf-group",
                "--topic read --num-records 5000 --timeout 1000",
                "--topic read --num-records 1000 --date-format yyyy --consumer.config {dir}/client.properties",
                "--topic read",
                "--topic read --messages 5 --num-records 5",
                "--topic read --include x --num-records 5",
                "--num-records 5",
                "--topic read --num-records x",
            )
        ),
        *_names("consumer-perf-test", "consumer-perf-test --topic read --num-records 1"),
    ],
)

_VERIFIABLE = Scenario(
    name="verifiable",
    is_slow=True,
    steps=[
        *_names("topics {b} --create --topic verified"),
        file("client.properties", "client.id=x\n"),
        *(
            Step(f"kafka-verifiable-{flags.split()[0]}", flags.partition(" ")[2], replace=_THROUGHPUT)
            for flags in (
                "producer {b} --topic verified --max-messages 5 --value-prefix 7 --repeating-keys 3",
                "producer {b} --topic verified --max-messages 3 --acks 1 --throughput 100",
                "producer {b} --topic verified --max-messages 0",
                "producer {b} --topic verified --max-messages 1 --producer.config {dir}/client.properties",
                "producer {b} --topic verified --max-messages 1 --acks 5",
                "producer {b} --max-messages 1",
                "consumer {b} --topic verified",
                "consumer {b} --topic verified --group-id a --max-messages 1 --group-protocol x",
            )
        ),
        Step(
            "kafka-verifiable-consumer", "{b} --topic verified --group-id a --max-messages 9 --verbose",
            differs="the number of records of a poll depends on the client",
        ),
    ],
)  # fmt: skip

_LATENCY = Scenario(
    name="e2e-latency",
    is_slow=True,
    steps=[
        *(
            Step(
                "kafka-e2e-latency",
                flags,
                replace=((r"\d+\.\d+", "{n}"), (r"= \d+", "= {n}")),
            )
            for flags in (
                "{b} --topic lat --num-records 20 --producer-acks all --record-size 20 --record-key-size 4 "
                "--num-headers 2 --record-header-key-size 3 --record-header-size 4",
                "{b} --topic lat --num-records 20 --producer-acks 1 --record-size 20",
                "{server} lat 20 1 20",
                "{server} lat 20 2 20",
                "{server} lat 20",
                "{b} --topic lat",
                "",
            )
        ),
    ],
)

_THREE = Scenario(
    name="cluster-tools-three",
    stage=CLUSTER,
    is_slow=True,
    steps=[
        *_names("cluster list-endpoints {b}", "features {b} describe"),
        Step("kafka-log-dirs", "{b} --describe --topic-list nothing", replace=_DIRECTORY),
        Step("kafka-log-dirs", "{b} --describe --broker-list 2,9 --topic-list nothing"),
        Step("kafka-metadata-quorum", "{b} describe --status", replace=_QUORUM),
    ],
)

_STREAMS = Scenario(
    name="streams-application-reset",
    is_alone=True,
    is_slow=True,
    steps=[
        *_names(
            "topics {b} --create --topic input --partitions 3",
            "topics {b} --create --topic other",
            "topics {b} --create --topic app-store-changelog",
            "topics {b} --create --topic app-by-key-repartition",
            "topics {b} --create --topic app-output",
        ),
        records("input", 10),
        records("other", 4),
        *(
            Step("kafka-streams-application-reset", flags)
            for flags in (
                "{b} --application-id app --input-topics input --dry-run",
                "{b} --application-id app --input-topics input --to-offset 4",
                "{b} --application-id app --input-topics input --shift-by 2",
                "{b} --application-id app --input-topics input,other --to-latest",
                "{b} --application-id app --input-topics input --to-datetime 2000-01-01T00:00:00.000 --dry-run",
                "{b} --application-id app --input-topics nothing",
                "{b} --application-id app --intermediate-topics other --dry-run",
                "{b} --application-id app --internal-topics nothing",
                "{b} --application-id app --internal-topics app-output",
                "{b} --application-id app --to-latest --to-earliest --input-topics input",
                "{b} --input-topics input",
                "{b} --application-id app --dry-run",
                "{b} --application-id other-app --input-topics input",
            )
        ),
        *_names("topics {b} --list", "consumer-groups {b} --describe --group app --offsets"),
    ],
)

SCENARIOS = [
    _CLUSTER_TOOLS, _FEATURES, _LOG_DIRS, _TRANSACTIONS, _DUMP_LOG, _STORAGE, _TOKENS, _PRODUCER_PERF, _CONSUMER_PERF,
    _VERIFIABLE, _LATENCY, _THREE, _STREAMS,
]  # fmt: skip
