"""`kafka-consumer-groups --reset-offsets` and `--delete-offsets`."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ottla.cli.duration import current_time_ms
from ottla.cli.kafka.connection import Admin
from ottla.cli.kafka.consumer_groups import SCENARIOS, group_names
from ottla.cli.kafka.errors import IllegalArgument, RequestError, ToolError, UsageError, default_text
from ottla.cli.kafka.group_descriptions import committed, describe, leaders, offsets_at
from ottla.cli.kafka.java import hash_order, joined, parse_int, parse_long
from ottla.cli.kafka.options import Options
from ottla.cli.kafka.tool import print_error, print_line
from ottla.client.protocol.metadata import CoordinatorType, by_topic
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition

_EARLIEST, _LATEST = -2, -1
_INACTIVE = ("Empty", "Dead")
#: Jackson quotes longer texts without looking at them
_UNQUOTED_MAX = 24
_SAFE_FROM = "-"
_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(T(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+)(?:[.,](\d{0,9}))?S)?)?", re.IGNORECASE
)
#: the errors of a group as a whole
_OF_GROUP = (
    ErrorCode.INVALID_GROUP_ID, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.NON_EMPTY_GROUP,
)  # fmt: skip
_OF_PARTITIONS = (
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)  # fmt: skip

Offsets = dict[TopicPartition, int]


def reset(admin: Admin, options: Options) -> None:
    """Print the new offsets of groups, and commit them with --execute."""
    plan: dict[str, Offsets] = {}
    for group in hash_order(group_names(admin, options)):
        state = _state(admin, group)
        if state in _INACTIVE:
            plan[group] = _reset(admin, options, group)
        else:
            print_line(
                f"\nError: Assignments can only be reset if the group '{group}' is inactive, but the current state is "
                f"{state}."
            )
            plan[group] = {}
    groups = hash_order(plan)
    if options.has("export"):
        is_single = len(options.values("group")) == 1
        lines = [
            joined(_quoted(each) for each in ([] if is_single else [group]) + [name.topic])
            + f",{name.partition},{plan[group][name]}\n"
            for group in groups
            for name in hash_order(plan[group])
        ]
        print_line("".join(lines))
        return
    topics = [name.topic for offsets in plan.values() for name in offsets]
    widths = [max([15, *map(len, groups)]), max([15, *map(len, topics)]), 10]
    rows = [
        (group, name.topic, name.partition, plan[group][name]) for group in groups for name in hash_order(plan[group])
    ]
    if groups:
        rows.insert(0, ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"))  # type: ignore[arg-type]
    text = "".join(
        f"\n{one:<{widths[0]}} {two:<{widths[1]}} {three!s:<{widths[2]}} {four}" for one, two, three, four in rows
    )
    print_line(text)


def _state(admin: Admin, group: str) -> str:
    try:
        return describe(admin, group).state
    except RequestError as error:
        if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
            return "Dead"
        raise


def _reset(admin: Admin, options: Options, group: str) -> Offsets:
    partitions = _scope(admin, options, group)
    _check_partitions(admin, partitions)
    offsets = _new_offsets(admin, options, group, partitions)
    if options.has("execute"):
        _commit(admin, group, offsets)
    return offsets


def _scope(admin: Admin, options: Options, group: str) -> list[TopicPartition]:
    """Return the partitions whose offsets are reset."""
    if options.has("all-topics"):
        return list(committed(admin, group))
    if options.has("topic"):
        texts = options.values("topic")
        named = [name for text in texts if ":" in text for name in _with_partitions(text)]
        return named + list(leaders(admin, sorted({text for text in texts if ":" not in text})))
    if not options.has("from-file"):
        raise UsageError("One of the reset scopes should be defined: --all-topics, --topic.")
    return []


def _with_partitions(text: str) -> list[TopicPartition]:
    """Return the partitions of ``topic:0,1``. Raise IllegalArgument."""
    parts = text.split(":")
    if len(parts) != 2 or not parts[1]:
        raise IllegalArgument(f"Invalid topic arg '{text}', expected topic name and partitions")
    found = []
    for number in parts[1].split(","):
        try:
            found.append(TopicPartition(parts[0], parse_int(number)))
        except IllegalArgument:
            raise IllegalArgument(f"Invalid partition '{number}' specified in topic arg '{text}''") from None
    return found


def _check_partitions(admin: Admin, partitions: Sequence[TopicPartition]) -> None:
    """Raise ToolError if one of the partitions does not exist or has no leader."""
    try:
        known = leaders(admin, sorted({name.topic for name in partitions}))
    except RequestError as error:
        raise ToolError(f"java.util.concurrent.ExecutionException: {error.java_class}: {error}") from None
    for fault, names in (
        ("do not exist", [name for name in partitions if name not in known]),
        ("have no leader", [name for name in partitions if known.get(name, 0) < 0]),
    ):
        if names:
            raise ToolError(f'The partitions "{joined(map(_text, names))}" {fault}')


def _new_offsets(admin: Admin, options: Options, group: str, partitions: list[TopicPartition]) -> Offsets:
    """Return the new offset of each partition."""
    scenario = next((name for name in SCENARIOS if options.has(name)), "")
    value: Any = options.value(scenario) if scenario else None
    by_scenario: dict[str, Callable[[], Offsets]] = {
        "to-offset": lambda: _in_range(admin, dict.fromkeys(partitions, value)),
        "to-earliest": lambda: offsets_at(admin, partitions, _EARLIEST),
        "to-latest": lambda: offsets_at(admin, partitions, _LATEST),
        "shift-by": lambda: _in_range(admin, _shifted(admin, group, partitions, value)),
        "to-datetime": lambda: _since(admin, partitions, parse_datetime(value)),
        "by-duration": lambda: _since(admin, partitions, current_time_ms() - parse_duration(value)),
        "from-file": lambda: _from_file(admin, options, group),
        "to-current": lambda: _current(admin, group, partitions),
    }
    if scenario not in by_scenario:
        listed = ", ".join(f"[{name}]" for name in SCENARIOS)
        raise UsageError(f"Option '[reset-offsets]' requires one of the following scenarios: [{listed}]")
    return by_scenario[scenario]()


def _shifted(admin: Admin, group: str, partitions: Iterable[TopicPartition], count: int) -> Offsets:
    current = committed(admin, group)
    for name in partitions:
        if name not in current:
            raise IllegalArgument(
                f"Cannot shift offset for partition {_text(name)} since there is no current committed offset"
            )
    return {name: current[name].offset + count for name in partitions}


def _current(admin: Admin, group: str, partitions: Iterable[TopicPartition]) -> Offsets:
    current = committed(admin, group)
    ends = offsets_at(admin, [name for name in partitions if name not in current], _LATEST)
    return {name: current[name].offset if name in current else ends[name] for name in partitions}


def _in_range(admin: Admin, wanted: Mapping[TopicPartition, int]) -> Offsets:
    """Return the offsets, each at least the first and at most the end of its partition."""
    firsts, ends = (offsets_at(admin, wanted, moment) for moment in (_EARLIEST, _LATEST))
    found = {}
    for name, offset in wanted.items():
        found[name] = min(max(offset, firsts[name]), ends[name])
        if found[name] != offset:
            which = "higher than latest" if offset > ends[name] else "lower than earliest"
            print_error(
                f"WARN New offset ({offset}) is {which} offset for topic partition {_text(name)}. Value will be set to "
                f"{found[name]}"
            )
    return found


def _since(admin: Admin, partitions: Sequence[TopicPartition], time_ms: int) -> Offsets:
    """Return the offset of the first record since a time; the end of a partition that has none."""
    found = offsets_at(admin, partitions, time_ms)
    late = [name for name, offset in found.items() if offset < 0]
    for name in hash_order(late):
        print_line(
            f"\nWarn: Partition {name.partition} from topic {name.topic} is empty. Falling back to latest known offset."
        )
    return found | offsets_at(admin, late, _LATEST)


def parse_datetime(text: str) -> int:
    """Return the milliseconds of ``2026-01-31T12:00:00.000+01:00``; UTC without a zone."""
    date, _, clock = text.partition("T")
    if not clock:
        raise ToolError(
            "java.text.ParseException: Error parsing timestamp. It does not contain a 'T' according to ISO8601 format"
        )
    zoned = text if re.search("[-+Z]", clock) else f"{text}Z"
    if re.fullmatch(r"\d{1,4}-\d{1,2}-\d{1,2}T\d{1,2}:\d{1,2}:\d{1,2}\.\d{1,3}(Z|[-+]\d\d(:?\d\d)?)", zoned):
        day = "-".join(part.zfill(width) for part, width in zip(date.split("-"), (4, 2, 2), strict=True))
        hours, minutes, rest = zoned.partition("T")[2].split(":", 2)
        seconds, _, tail = rest.partition(".")
        millis = re.match(r"\d+", tail)
        assert millis is not None
        zone = tail[millis.end() :]
        try:
            at = datetime.fromisoformat(f"{day}T{hours:0>2}:{minutes:0>2}:{seconds:0>2}{zone}")
            return round(at.timestamp()) * 1000 + int(millis[0])
        except ValueError:
            pass
    raise ToolError(f'java.text.ParseException: Unparseable date: "{zoned}"')


def parse_duration(text: str) -> int:
    """Return the milliseconds of a duration such as P1DT2H. Raise ToolError."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.group(2, 4, 5, 6)) or found[3] in ("T", "t"):
        raise ToolError("Text cannot be parsed to a Duration")
    days, hours, minutes, seconds = (int(part or 0) for part in found.group(2, 4, 5, 6))
    total = ((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000 + int((found[7] or "0").ljust(3, "0")[:3])
    return -total if found[1] == "-" else total


def _from_file(admin: Admin, options: Options, group: str) -> Offsets:
    plan = read_plan(Path(options.values("from-file")[0]).read_text(), options.values("group"))
    if group not in plan:
        print_line(f"\nError: No reset plan for group {group} found")
        return {}
    return _in_range(admin, plan[group])


def read_plan(text: str, groups: Sequence[str]) -> dict[str, Offsets]:
    """Return the offsets of a CSV file: ``topic,partition,offset`` for a single group, else with the group in front."""
    plan: dict[str, Offsets] = {}
    for row in csv.reader(io.StringIO(text)):
        cells = row if len(row) != 3 or len(groups) != 1 else [groups[0], *row]
        if not row:
            continue
        if len(cells) != 4:
            raise ToolError(f"the line {','.join(row)!r} of the file is not of the form group,topic,partition,offset")
        group, topic, number, offset = cells
        plan.setdefault(group, {})[TopicPartition(topic, parse_int(number))] = parse_long(offset)
    return plan


def _commit(admin: Admin, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    from ottla.admin import group_requests

    codes = admin.call(lambda cluster: group_requests.commit(cluster, group, offsets))
    for code in codes.values():
        raise RequestError(code)


def _quoted(text: str) -> str:
    if text and len(text) <= _UNQUOTED_MAX and min(text) >= _SAFE_FROM:
        return text
    return '"' + text.replace('"', '""') + '"'


def _text(name: TopicPartition) -> str:
    return f"{name.topic}-{name.partition}"


# --delete-offsets


def delete(admin: Admin, options: Options) -> None:
    """Delete offsets of a group, and print what happened to each partition."""
    group = options.value("group")
    texts = options.values("topic")
    results: dict[TopicPartition, RequestError | None] = {}
    partitions = {name for text in texts if ":" in text for name in _with_partitions(text)}
    for topic in sorted({text for text in texts if ":" not in text}):
        try:
            partitions |= leaders(admin, [topic]).keys()
        except RequestError as error:
            results[TopicPartition(topic, -1)] = error
    failure, codes = _ask_delete(admin, group, partitions)
    for name in partitions:
        code = failure or codes.get(name, 0)
        results[name] = RequestError(code) if code else None
    code = failure or next((code for code in codes.values() if code), 0)
    if not code:
        print_line(f"Request succeeded for deleting offsets from group {group}.")
    elif code in _OF_GROUP:
        print_line(f"\nError: {default_text(code)}")
    elif code in _OF_PARTITIONS:
        print_line("\nError: Encountered some partition-level error, see the follow-up details.")
    else:
        print_line(f"\nError: Encountered some unknown error: {ErrorCode(code).name}")
    width = max([15, *(len(name.topic) for name in results)])
    print_line(f"\n{'TOPIC':<{width}} {'PARTITION':<10} {'STATUS':<15}")
    for name in sorted(results, key=lambda each: f"{each.topic}{each.partition}"):
        refused = results[name]
        status = "Successful" if refused is None else f"Error: {refused.java_class}: {refused}"
        number = "-" if name.partition < 0 else str(name.partition)
        print_line(f"{name.topic:<{width}} {number:<10} {status:<15}")


def _ask_delete(
    admin: Admin, group: str, partitions: Iterable[TopicPartition]
) -> tuple[int, dict[TopicPartition, int]]:
    """Return the error of the group, and that of each partition."""
    from ottla.wire.messages.offset_delete import (
        OffsetDeleteRequest,
        OffsetDeleteRequestPartition,
        OffsetDeleteRequestTopic,
    )

    topics = [
        OffsetDeleteRequestTopic(
            name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=name.partition) for name in names]
        )
        for topic, names in by_topic(partitions).items()
    ]
    request = OffsetDeleteRequest(group_id=group, topics=topics)
    answer = admin.call(
        lambda cluster: cluster.retry_at_coordinator(
            CoordinatorType.GROUP, group, lambda node, deadline: cluster.ask(node, request, deadline=deadline)
        )
    )
    codes = {
        TopicPartition(topic.name, row.partition_index): row.error_code
        for topic in answer.topics
        for row in topic.partitions
    }
    return answer.error_code, codes
