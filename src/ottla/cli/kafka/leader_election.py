"""`kafka-leader-election`: elect the leaders of partitions."""

from __future__ import annotations

from pathlib import Path

from ottla.admin.cluster import Election
from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import ClientTimeout, CommandFailed, RequestError, check, fail
from ottla.cli.kafka.java import hash_order, parse_int
from ottla.cli.kafka.json_files import InvalidData, parse, partition_of, partition_rows
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import Tool, print_line
from ottla.client.protocol.metadata import by_topic
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition


def _election(text: str) -> Election:
    try:
        return Election[text.upper()]
    except KeyError:
        raise ValueError(text) from None


_FLAGS = (
    flag("bootstrap-server", help="REQUIRED. Brokers to connect to.", metavar="HOST:PORT,..."),
    flag("admin.config", help="Deprecated: --command-config.", metavar="FILE"),
    flag("command-config", help="File with properties of the client.", metavar="FILE"),
    flag("path-to-json-file", help='File with {"partitions": [{"topic": "a", "partition": 1}]}.', metavar="FILE"),
    flag("topic", help="Topic of the partition.", metavar="TOPIC"),
    flag("partition", help="Number of the partition; needs --topic.", metavar="N", parse=parse_int),
    flag("all-topic-partitions", help="Elect the leaders of all partitions that need it."),
    flag("election-type", help="REQUIRED. preferred or unclean.", metavar="TYPE", parse=_election),
)
_SCOPES = ("topic", "all-topic-partitions", "path-to-json-file")
_TIMEOUT_MS = 30_000


def _run(options: Options) -> None:
    _check(options)
    kind = options.value("election-type")
    partitions = _partitions(options)
    path = options.value("command-config")
    if options.has("admin.config"):
        print_line(
            "Option --admin.config has been deprecated and will be removed in a future version. Use --command-config "
            "instead."
        )
        path = options.value("admin.config")
    properties = {"default.api.timeout.ms": str(_TIMEOUT_MS), **properties_of(path)}
    try:
        with connect(options.value("bootstrap-server"), properties, call="electLeaders") as admin:
            outcomes = _elect(admin, kind, partitions)
    except ClientTimeout:
        _fail_aloud("Timeout waiting for election results")
    except RequestError as error:
        if error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            _fail_aloud("Not authorized to perform leader election")
        raise
    _print(kind, outcomes)


def _fail_aloud(text: str) -> None:
    print_line(text)
    fail(text)


def _check(options: Options) -> None:
    missing = [name for name in ("bootstrap-server", "election-type") if not options.has(name)]
    if missing:
        fail(f"Missing required option(s): {', '.join(missing)}")
    options.refuse_with("admin.config", ("command-config",))
    if len(options.any_of(*_SCOPES)) != 1:
        fail(f"One and only one of the following options is required: {', '.join(_SCOPES)}")
    if options.has("topic") and not options.has("partition"):
        fail("Missing required option(s): partition")
    if options.has("partition") and not options.has("topic"):
        fail("Option partition is only allowed if topic is used")


def _partitions(options: Options) -> set[TopicPartition] | None:
    """Return the partitions that the flags name; None for all."""
    if options.has("topic"):
        return {TopicPartition(options.value("topic"), options.value("partition"))}
    if options.has("all-topic-partitions"):
        return None
    data = parse(Path(options.value("path-to-json-file")).read_text())
    if data is None:
        raise InvalidData("Replica election data is empty")
    rows = partition_rows(data, 'Replica election data is missing "partitions" field')
    listed = [partition_of(row) for row in rows]
    twice = hash_order({each for each in listed if listed.count(each) > 1})
    if twice:
        names = ", ".join(f"{name.topic}-{name.partition}" for name in twice)
        raise InvalidData(f"Replica election data contains duplicate partitions: [{names}]")
    return set(listed)


def _elect(
    admin: Admin, kind: Election, partitions: set[TopicPartition] | None
) -> dict[TopicPartition, RequestError | None]:
    from ottla.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

    topics = None
    if partitions is not None:
        topics = [
            TopicPartitions(topic=topic, partitions=[name.partition for name in names])
            for topic, names in by_topic(sorted(partitions)).items()
        ]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=topics, timeout=_TIMEOUT_MS // 2)
    reply = admin.ask_owner_of_metadata(request)
    check(reply.error_code)
    return {
        TopicPartition(topic.topic, row.partition_id): RequestError(row.error_code, row.error_message)
        if row.error_code
        else None
        for topic in reply.replica_election_results
        for row in topic.partition_result
    }


def _print(kind: Election, outcomes: dict[TopicPartition, RequestError | None]) -> None:
    succeeded = [name for name, error in outcomes.items() if error is None]
    unneeded = [name for name, error in outcomes.items() if error and error.code == ErrorCode.ELECTION_NOT_NEEDED]
    if succeeded:
        names = ", ".join(map(_text, hash_order(succeeded)))
        print_line(f"Successfully completed leader election ({kind.name}) for partitions {names}")
    if unneeded:
        print_line(f"Valid replica already elected for partitions {', '.join(map(_text, hash_order(unneeded)))}")
    failed = {name: error for name, error in outcomes.items() if error and name not in unneeded}
    for name in hash_order(failed):
        error = failed[name]
        print_line(
            f"Error completing leader election ({kind.name}) for partition: {_text(name)}: {error.java_class}: {error}"
        )
    if failed:
        raise CommandFailed(f"{len(failed)} replica(s) could not be elected")


def _text(name: TopicPartition) -> str:
    return f"{name.topic}-{name.partition}"


TOOL = Tool(
    name="kafka-leader-election",
    summary="This tool attempts to elect a new leader for a set of topic partitions. The type of elections "
    "supported are preferred replicas and unclean replicas.",
    flags=_FLAGS,
    run=_run,
)
