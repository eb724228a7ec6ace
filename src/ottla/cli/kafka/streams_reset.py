"""kafka-streams-application-reset: let an application of Kafka Streams read its input topics again.

Resets the offsets of its group, and deletes the topics that Kafka Streams has created for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from ottla.admin.failure import Failure
from ottla.cli.duration import current_time_ms
from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import IllegalArgument, OptionError, ToolError
from ottla.cli.kafka.group_offsets import Offsets, parse_datetime, parse_duration, read_plan
from ottla.cli.kafka.java import as_list, hash_order, parse_long
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import FAILED, OK, Tool, print_error, print_line
from ottla.model.types import TopicPartition

_SERVER = "localhost:9092"
_TO_EARLIEST = "to-earliest"
_SCENARIOS = ("to-offset", _TO_EARLIEST, "to-latest", "shift-by", "to-datetime", "by-duration", "from-file")
#: how the names of the topics end that Kafka Streams creates
_INTERNAL = ("-changelog", "-repartition")
_INTERNAL_PARTS = ("-subscription-registration-topic", "-subscription-response-topic")
_FLAGS = (
    flag("application-id", metavar="ID", is_required=True, help="The application.id. Required."),
    flag("bootstrap-server", metavar="HOST:PORT,...", help="Brokers of the cluster.", default=_SERVER),
    flag("input-topics", metavar="TOPIC,...", separator=",", help="Topics whose offsets are reset."),
    flag("intermediate-topics", metavar="TOPIC,...", separator=",", help="Topics whose offsets are set to the end."),
    flag("internal-topics", metavar="TOPIC,...", separator=",", help="Delete only these of the internal topics."),
    flag("to-offset", metavar="N", parse=parse_long, help="Reset to this offset."),
    flag(_TO_EARLIEST, help="Reset to the first offset; this is the default."),
    flag("to-latest", help="Reset to the end."),
    flag("shift-by", metavar="N", parse=parse_long, help="Add this number, which may be negative, to the offset."),
    flag("to-datetime", metavar="TIME", help="Reset to a time, such as 2026-01-31T12:00:00.000."),
    flag("by-duration", metavar="DURATION", help="Reset to a time ago, such as P1DT2H."),
    flag("from-file", metavar="FILE", help="Reset to the offsets of a CSV file: topic,partition,offset."),
    flag("config-file", metavar="FILE", help="The former name of --command-config."),
    flag("command-config", metavar="FILE", help="Properties of the client."),
    flag("force", help="Remove members of the group."),
    flag("dry-run", help="Print what would be done."),
)


def _run(options: Options) -> int:
    chosen = [name for name in _SCENARIOS if options.has(name)]
    if len(chosen) > 1:
        raise IllegalArgument(f"use only one of {', '.join(f'--{name}' for name in chosen)}")
    if options.has("config-file"):
        if options.has("command-config"):
            raise IllegalArgument("use only one of --config-file and --command-config")
        print_line(
            "Option --config-file has been deprecated and will be removed in a future version. Use --command-config "
            "instead."
        )
    properties = properties_of(options.value("command-config") or options.value("config-file"))
    group, is_dry = str(options.value("application-id")), options.has("dry-run")
    with connect(options.value("bootstrap-server"), properties, call="listTopics") as admin:
        _check_members(admin, group, is_forced=options.has("force"))
        topics = list(admin.topics())
        if is_dry:
            print_line("----Dry run displays the actions which will be performed when running Streams Reset Tool----")
        return _reset(admin, options, group, topics) | _delete_internal(admin, options, group, topics)


def _check_members(admin: Admin, group: str, *, is_forced: bool) -> None:
    members = admin.describe_groups([group])[0].members
    if not members:
        return
    if not is_forced:
        names = as_list(each.member_id for each in members)
        raise ToolError(
            f"Consumer group '{group}' is still active and has following members: {names}. Make sure to stop all "
            "running application instances before running the reset tool. You can use option '--force' to remove "
            "active members from the group."
        )
    print_line(f"Force deleting all active members in the group: {group}")
    for failure in admin.remove_members(group, members).values():
        raise ToolError(str(failure))


def _reset(admin: Admin, options: Options, group: str, topics: Sequence[str]) -> int:
    inputs, intermediate = options.values("input-topics"), options.values("intermediate-topics")
    if not inputs and not intermediate:
        print_line("No input or intermediate topics specified. Skipping seek.")
        return OK
    if intermediate:
        print_line("WARN: `--intermediate-topics` is deprecated and will be removed in a future release")
    code = OK
    for what, named in (
        ("Reset-offsets for input topics", inputs),
        ("Seek-to-end for intermediate topics", intermediate),
    ):
        if named:
            print_line(f"{what} {as_list(named)}")
    for what, named, title in (("input", inputs, "Topic: "), ("intermediate", intermediate, "Topic:")):
        missing = [each for each in named if each not in topics]
        if missing:
            print_line(f"Following {what} topics are not found, skipping them")
            for each in missing:
                print_line(f"{title}{each}")
            code = FAILED
    offsets: dict[TopicPartition, int] = {}
    found = _partitions(admin, [each for each in inputs if each in topics])
    if found:
        print_line(f"Following input topics offsets will be reset to (for consumer group {group})")
        offsets |= _new_offsets(admin, options, group, found)
        for name in hash_order(found):
            print_line(f"Topic: {name.topic} Partition: {name.partition} Offset: {offsets[name]}")
    ends = _partitions(admin, [each for each in intermediate if each in topics])
    if ends:
        print_line(f"Following intermediate topics offsets will be reset to end (for consumer group {group})")
        for name in hash_order(ends):
            print_line(f"Topic: {name.topic}")
        rows = admin.find_offsets(ends, "latest")
        offsets |= {name: row.offset or 0 for name, row in rows.items()}
    if not offsets:
        return code
    if not options.has("dry-run"):
        for failure in admin.commit_offsets(group, offsets).values():
            raise ToolError(str(failure))
    print_line("Done.")
    return code


def _new_offsets(admin: Admin, options: Options, group: str, partitions: list[TopicPartition]) -> Offsets:
    """Return the new offset of each partition."""
    if options.has("to-offset"):
        return _in_range(admin, dict.fromkeys(partitions, options.value("to-offset")))
    if options.has("to-latest"):
        return _offsets_at(admin, partitions, "latest")
    if options.has("shift-by"):
        committed, ends = admin.committed_offsets(group), _offsets_at(admin, partitions, "latest")
        return _in_range(
            admin, {name: committed.get(name, ends[name]) + options.value("shift-by") for name in partitions}
        )
    if options.has("to-datetime"):
        return _since(admin, partitions, parse_datetime(options.value("to-datetime")))
    if options.has("by-duration"):
        return _since(admin, partitions, current_time_ms() - parse_duration(options.value("by-duration")))
    if options.has("from-file"):
        plan = read_plan(Path(options.value("from-file")).read_text("utf-8"), [group]).get(group, {})
        missing = [name for name in partitions if name not in plan]
        if missing:
            raise ToolError(f"{options.value('from-file')} has no offset for {missing[0]}")
        return _in_range(admin, {name: plan[name] for name in partitions})
    return _offsets_at(admin, partitions, "earliest")


def _offsets_at(admin: Admin, partitions: Iterable[TopicPartition], at: Literal["earliest", "latest"] | int) -> Offsets:
    rows = admin.find_offsets(partitions, at)
    return {name: -1 if row.offset is None else row.offset for name, row in rows.items()}


def _in_range(admin: Admin, wanted: Offsets) -> Offsets:
    """Return the offsets, each at least the first and at most the end of its partition."""
    firsts, ends = _offsets_at(admin, wanted, "earliest"), _offsets_at(admin, wanted, "latest")
    found = {}
    for name in hash_order(wanted):
        offset = wanted[name]
        found[name] = min(max(offset, firsts[name]), ends[name])
        if found[name] != offset:
            which = "higher than latest" if offset > ends[name] else "lower than earliest"
            print_line(f"New offset ({offset}) is {which} offset. Value will be set to {found[name]}")
    return found


def _since(admin: Admin, partitions: Sequence[TopicPartition], time_ms: int) -> Offsets:
    """Return the offset of the first record since a time; the end of a partition that has none."""
    found = _offsets_at(admin, partitions, time_ms)
    ends = _offsets_at(admin, partitions, "latest")
    for name in hash_order(partitions):
        if found[name] < 0:
            found[name] = ends[name]
            print_line(
                f"Partition {name.partition} from topic {name.topic} is empty, without a committed record. Falling "
                "back to latest known offset."
            )
    return found


def _partitions(admin: Admin, topics: Sequence[str]) -> list[TopicPartition]:
    if not topics:
        return []
    return [partition.name for each in admin.describe_topics(topics) for partition in each.partitions]


def _delete_internal(admin: Admin, options: Options, group: str, topics: Sequence[str]) -> int:
    internal = [each for each in topics if _is_internal(each, group)]
    wanted = options.values("internal-topics")
    if wanted:
        unknown = [each for each in wanted if each not in internal]
        if unknown:
            raise OptionError(
                f"Invalid topic specified for the internal topics option. Ensure that the topics specified are all "
                "internal topics. Do a dry run without the internal topics option to see the list of all internal "
                f"topics that can be deleted: {as_list(unknown)}"
            )
        internal = list(wanted)
        print_line(f"Deleting specified internal topics {as_list(internal)}")
    else:
        print_line(f"Deleting inferred internal topics {as_list(internal)}")
    code = OK
    if internal and not options.has("dry-run"):
        try:
            for outcome in admin.delete_topics(internal):
                if outcome.failure is not None:
                    print_error(f"ERROR: Deleting topic {outcome.name} failed: {outcome.failure}")
                    code = FAILED
        except Failure as error:
            raise ToolError(str(error)) from None
    print_line("Done.")
    return code


def _is_internal(topic: str, application_id: str) -> bool:
    """Return whether Kafka Streams has created a topic for the application."""
    if not topic.startswith(f"{application_id}-"):
        return False
    return topic.endswith(_INTERNAL) or any(part in topic for part in _INTERNAL_PARTS)


TOOL = Tool(
    name="kafka-streams-application-reset",
    summary="Let an application of Kafka Streams read its input topics again: reset offsets, delete internal topics.",
    flags=_FLAGS,
    run=_run,
    is_helped_without_arguments=False,
)
