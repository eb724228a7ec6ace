"""`kafka-consumer-groups`: list, describe and delete groups; `group_offsets` resets and deletes their offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import IllegalArgument, OptionError, RequestError, ToolError, UsageError
from ottla.cli.kafka.group_descriptions import (
    Committed,
    Group,
    Member,
    committed,
    describe,
    leaders,
    offsets_at,
)
from ottla.cli.kafka.groups import listed
from ottla.cli.kafka.java import hash_order, joined, parse_long
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import Tool, print_error, print_line
from ottla.client.protocol.metadata import CoordinatorType
from ottla.model.types import TopicPartition
from ottla.wire.messages.list_groups import ListedGroup

_FLAGS = (
    flag("bootstrap-server", help="REQUIRED except with --validate-regex. Brokers to connect to.", metavar="HOST:PORT"),
    flag("group", help="Group to act on. Repeatable.", metavar="GROUP"),
    flag("topic", help="Topic, or topic:0,1 for partitions, whose offsets change. Repeatable.", metavar="TOPIC"),
    flag("all-topics", help="Reset the offsets of all topics of the group."),
    flag("list", help="List groups."),
    flag("describe", help="Show offsets and lag, members or the state of groups."),
    flag("all-groups", help="Act on all groups."),
    flag("delete", help="Delete groups without members."),
    flag("timeout", help="Milliseconds to wait for the cluster.", metavar="MS", parse=parse_long, default=30000),
    flag("command-config", help="File with properties of the client.", metavar="FILE"),
    flag("reset-offsets", help="Set the offsets of groups without members; prints them only, without --execute."),
    flag("delete-offsets", help="Delete offsets of a group."),
    flag("dry-run", help="Print the new offsets only."),
    flag("execute", help="Set the new offsets."),
    flag("export", help="Print the new offsets as CSV."),
    flag("to-offset", help="Reset to this offset.", metavar="OFFSET", parse=parse_long),
    flag("from-file", help="Reset to the offsets of a CSV file.", metavar="FILE"),
    flag("to-datetime", help="Reset to a time: YYYY-MM-DDTHH:mm:SS.sss.", metavar="TIME"),
    flag("by-duration", help="Reset to a duration before now: PnDTnHnMnS.", metavar="DURATION"),
    flag("to-earliest", help="Reset to the first offset."),
    flag("to-latest", help="Reset to the end."),
    flag("to-current", help="Reset to the committed offset."),
    flag("shift-by", help="Add a number to the offsets, which may be negative.", metavar="N", parse=parse_long),
    flag("members", help="Show the members of groups."),
    flag("verbose", help="Show more columns."),
    flag("offsets", help="Show offsets and lag. This is the default."),
    flag("state", help="Show states; with --list a state selects groups.", metavar="STATE,...", is_value_optional=True),
    flag("type", help="Show types; a type selects groups.", metavar="TYPE,...", is_value_optional=True),
    flag("validate-regex", help="Check a regular expression for subscriptions.", metavar="REGEX"),
)
_ACTIONS = ("list", "describe", "delete", "reset-offsets", "delete-offsets", "validate-regex")
SCENARIOS = (
    "to-offset", "shift-by", "to-datetime", "by-duration", "to-earliest", "to-latest", "to-current", "from-file",
)  # fmt: skip
_AVAILABLE_IF = {
    "members": ("describe",), "verbose": ("describe",), "offsets": ("describe",), "state": ("describe", "list"),
    "type": ("list",),
}  # fmt: skip
_STATES = {
    name.lower(): name
    for name in (
        "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling",
    )
}  # fmt: skip
_TYPES = {"classic": "Classic", "consumer": "Consumer"}
_REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
_MISSING = "-"
_LATEST = -1


def _run(options: Options) -> int:
    _check(options)
    if options.has("validate-regex"):
        _validate(options.value("validate-regex"))
        return 0
    timeout_ms = options.value("timeout")
    properties = {"default.api.timeout.ms": str(timeout_ms), **properties_of(options.value("command-config"))}
    try:
        with connect(options.value("bootstrap-server"), properties, call="listNodes") as admin:
            _act(admin, options)
    except UsageError:
        raise
    except IllegalArgument as error:
        raise UsageError(str(error)) from None
    except ToolError as error:
        text = f"{error.java_class}: {error}" if isinstance(error, RequestError) and error.is_wrapped else str(error)
        print_line(f"\nError: Executing consumer group command failed due to {text}")
    return 0


def _act(admin: Admin, options: Options) -> None:
    if options.has("list"):
        _list(admin, options)
    elif options.has("describe"):
        _describe(admin, options)
    elif options.has("delete"):
        _delete(admin, options)
    else:
        from ottla.cli.kafka import group_offsets

        if options.has("reset-offsets"):
            group_offsets.reset(admin, options)
        else:
            group_offsets.delete(admin, options)


def _check(options: Options) -> None:
    refused = [name for name, others in _AVAILABLE_IF.items() if options.has(name) and not options.any_of(*others)]
    if refused:
        raise OptionError(f"Option(s) [{', '.join(refused)}] are unavailable given other options on the command line")
    if not options.has("validate-regex"):
        options.require("bootstrap-server")
    scope = "[group], [all-groups]"
    if options.has("describe"):
        _require_scope(options, f"Option [describe] takes one of these options: {scope}")
        if len(options.any_of("members", "offsets", "state")) > 1:
            raise UsageError("Option [describe] takes at most one of these options: [members], [offsets], [state]")
        if options.has("state") and options.value("state") is not None:
            raise UsageError("Option [describe] does not take a value for [state]")
    if options.has("delete"):
        _require_scope(options, f"Option [delete] takes one of these options: {scope}")
        if options.has("topic"):
            raise UsageError("The consumer does not support topic-specific offset deletion from a consumer group.")
    if options.has("delete-offsets") and len(options.any_of("group", "topic")) < 2:
        raise UsageError("Option [delete-offsets] takes the following options: [group], [topic]")
    if options.has("reset-offsets"):
        _check_reset(options, scope)
    options.refuse_with("group", ("all-groups", "list"))
    options.refuse_with("topic", ("list", "describe"))
    if len(options.any_of(*_ACTIONS)) != 1:
        listed_actions = ", ".join(f"--{name}" for name in _ACTIONS)
        raise UsageError(f"Command must include exactly one action: {listed_actions}")


def _check_reset(options: Options, scope: str) -> None:
    if len(options.any_of("dry-run", "execute")) > 1:
        raise UsageError("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    if not options.any_of("dry-run", "execute"):
        print_error(
            "WARN: No action will be performed as the --execute option is missing. In version 5.0, this command will "
            "require either --dry-run or --execute to be specified. You should add the --dry-run option explicitly if "
            "you are scripting this command and want to keep the current default behavior without prompting."
        )
    _require_scope(options, f"Option [reset-offsets] takes one of these options: {scope}")
    for name in SCENARIOS:
        options.refuse_with(name, [each for each in SCENARIOS if each != name])


def _require_scope(options: Options, text: str) -> None:
    if not options.any_of("group", "all-groups"):
        raise UsageError(text)


def _validate(pattern: str) -> None:
    # Brokers of Ottla use RE2 as brokers of Kafka do, and not the expressions of Java or Python.
    import re2

    try:
        re2.compile(pattern)
        print_line(f"The regular expression `{pattern}` is valid.")
    except re2.error as error:
        print_line(f"The regular expression `{pattern}` is invalid: {error}.")


# Lists


def group_names(admin: Admin, options: Options) -> list[str]:
    """Return the groups that the flags name, or all of them."""
    return [row.group_id for row in _groups(admin)] if options.has("all-groups") else options.values("group")


def _groups(admin: Admin, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[ListedGroup]:
    rows = {
        row.group_id: row
        for row in listed(admin, states, types or tuple(_TYPES.values()))
        if row.protocol_type in ("", "consumer") and (row.group_type.lower() or "classic") in _TYPES
    }
    return [rows[name] for name in hash_order(rows)]


def _list(admin: Admin, options: Options) -> None:
    if not options.any_of("type", "state"):
        for row in _groups(admin):
            print_line(row.group_id)
        return
    states = _chosen(options, "state", _STATES, "Invalid state list '{}'. Valid states are: {}")
    types = _chosen(options, "type", _TYPES, "Invalid types list '{}'. Valid types are: {}")
    rows = _groups(admin, states, types)
    width = max([15, *(len(row.group_id) for row in rows)]) + 10
    line = f"{'GROUP':<{width}}"
    line += f" {'TYPE':<20}" if options.has("type") else ""
    print_line(line + (f" {'STATE':<20}" if options.has("state") else ""))
    for row in rows:
        line = f"{row.group_id:<{width}}"
        if options.has("type"):
            line += f" {_TYPES.get(row.group_type.lower(), 'Unknown'):<20}"
        print_line(line + (f" {row.group_state:<20}" if options.has("state") else ""))


def _chosen(options: Options, name: str, known: Mapping[str, str], text: str) -> tuple[str, ...]:
    """Return the states or types that a flag names."""
    given = options.value(name)
    if not given:
        return ()
    parts = [part.strip().lower() for part in given.split(",")]
    if any(part not in known for part in parts):
        raise IllegalArgument(text.format(given, ", ".join(known.values())))
    return tuple(known[part] for part in parts)


# Descriptions


def _describe(admin: Admin, options: Options) -> None:
    names = group_names(admin, options)
    groups = [described(admin, name) for name in sorted(set(names))]
    verbose = options.has("verbose")
    for group in groups:
        if options.has("members"):
            _print_members(group, verbose=verbose)
        elif options.has("state"):
            _print_state(group, verbose=verbose)
        else:
            _print_offsets(group, _offset_rows(admin, group), verbose=verbose)


def described(admin: Admin, name: str) -> Group:
    """Return a group. Raise RequestError, which names its class when it is printed, if it does not exist."""
    try:
        return describe(admin, name)
    except RequestError as error:
        error.is_wrapped = True
        raise


def _is_printed(group: Group, rows: int) -> bool:
    """Report a state that explains missing rows. Return whether there is something to print."""
    if group.state == "Dead":
        print_line(f"\nError: Consumer group '{group.name}' does not exist.")
    elif group.state == "Empty":
        print_error(f"\nConsumer group '{group.name}' has no active members.")
    elif group.state in _REBALANCING:
        print_error(f"\nWarning: Consumer group '{group.name}' is rebalancing.")
    return group.state != "Dead" and rows > 0


_Row = tuple[str, ...]


def _offset_rows(admin: Admin, group: Group) -> list[_Row]:
    """Return topic, partition, epoch, offset, end, lag and member of each partition, those with a member first."""
    offsets = committed(admin, group.name)
    assigned = {name for member in group.members for name in member.assignment}
    partitions = assigned | offsets.keys()
    known = leaders(admin, sorted({name.topic for name in partitions}))
    ends = offsets_at(admin, [name for name in partitions if known.get(name, -1) >= 0], _LATEST)
    rows = []
    for member in sorted(group.members, key=lambda each: -len(each.assignment)):
        who = (member.member_id, member.host, member.client_id)
        rows += [_offset_row(name, offsets.get(name), ends.get(name), who) for name in sorted(member.assignment)]
    rest = sorted(offsets.keys() - assigned)
    no_member = (_MISSING, _MISSING, _MISSING)
    return rows + [_offset_row(name, offsets[name], ends.get(name), no_member) for name in rest]


def _offset_row(name: TopicPartition, offset: Committed | None, end: int | None, who: Sequence[str]) -> _Row:
    lag = None if offset is None or end is None else end - offset.offset
    epoch = None if offset is None else offset.leader_epoch
    numbers = (epoch, None if offset is None else offset.offset, end, lag)
    return (name.topic, str(name.partition), *map(_or_missing, numbers), *who)


def _or_missing(value: int | None) -> str:
    return _MISSING if value is None else str(value)


def _print_offsets(group: Group, rows: Sequence[_Row], *, verbose: bool) -> None:
    if not _is_printed(group, len(rows)):
        return
    head = (
        "TOPIC", "PARTITION", "LEADER-EPOCH", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST",
        "CLIENT-ID",
    )  # fmt: skip
    topic, member, host = (max([15, *(len(row[column]) for row in rows)]) for column in (0, 6, 7))
    widths = (topic, 10, 15, 15, 15, 15, member, host, 0)
    group_width = max(15, len(group.name))
    for name, row in (("GROUP", head), *((group.name, row) for row in rows)):
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        if not verbose:
            del cells[2]
        print_line(" ".join([f"\n{name:<{group_width}}" if row is head else f"{name:<{group_width}}", *cells]))


def _print_members(group: Group, *, verbose: bool) -> None:
    members = group.members if _is_printed(group, len(group.members)) else ()
    has_instance = any(each.instance_id for each in members)
    migrating = {True, False} <= {each.upgraded for each in members}
    head = [
        "GROUP",
        "CONSUMER-ID",
        *(["GROUP-INSTANCE-ID"] if has_instance else []),
        "HOST",
        "CLIENT-ID",
        "#PARTITIONS",
    ]
    more = ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
    rows = [_member_cells(group, each, has_instance=has_instance, migrating=migrating) for each in group.members]
    head += [*more, *(["UPGRADED"] if migrating else [])]
    least = [15, 15, *([17] if has_instance else []), 15, 15]
    shown_rows = rows if members else []
    widths = [max([low, *(len(row[at]) for row in shown_rows)]) for at, low in enumerate(least)]
    first = len(widths) + 1
    current, target = (max([20, *(len(row[at]) for row in shown_rows)]) for at in (first + 1, first + 3))
    widths += [15, 15, current, 15, target, *([0] if migrating else [])]
    print_line()
    for row in (head, *rows):
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        print_line(" ".join(cells) if verbose else " ".join(cells[:first]) + " ")


def _member_cells(group: Group, member: Member, *, has_instance: bool, migrating: bool) -> list[str]:
    cells = [group.name, member.member_id, *([member.instance_id] if has_instance else []), member.host]
    cells += [member.client_id, str(len(member.assignment)), _or_missing(member.epoch)]
    cells += [_assignment(member.assignment), _or_missing(group.target_epoch), _assignment(member.target)]
    if migrating:
        cells.append(_MISSING if member.upgraded is None else str(member.upgraded).lower())
    return cells


def _assignment(partitions: Sequence[TopicPartition]) -> str:
    by_topic: dict[str, list[int]] = {}
    for name in sorted(partitions):
        by_topic.setdefault(name.topic, []).append(name.partition)
    return ";".join(sorted(f"{topic}:{joined(numbers)}" for topic, numbers in by_topic.items())) or _MISSING


def _print_state(group: Group, *, verbose: bool) -> None:
    if not _is_printed(group, 1):
        return
    node = group.coordinator
    coordinator = f"{node.host}:{node.port}  ({node.broker_id})"
    widths = [max(15, len(group.name)), max(25, len(coordinator)), 20, 20]
    head = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
    row = [group.name, coordinator, group.assignor or _MISSING, group.state]
    if verbose:
        widths += [15, 25]
        head += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        row += [_or_missing(group.epoch), _or_missing(group.target_epoch)]
    print_line()
    for cells in ([*head, "#MEMBERS"], [*row, str(len(group.members))]):
        print_line(" ".join(f"{cell:<{width}}" for cell, width in zip(cells, [*widths, 0], strict=True)))


# Deletion


def _delete(admin: Admin, options: Options) -> None:
    from ottla.wire.messages.delete_groups import DeleteGroupsRequest

    deleted: list[str] = []
    failed: dict[str, ToolError] = {}

    def delete_one(name: str) -> None:
        request = DeleteGroupsRequest(groups_names=[name])
        answer = admin.call(
            lambda cluster: cluster.retry_at_coordinator(
                CoordinatorType.GROUP, name, lambda node, deadline: cluster.ask(node, request, deadline=deadline)
            )
        )
        if code := answer.results[0].error_code:
            raise RequestError(code)

    for name in dict.fromkeys(group_names(admin, options)):
        try:
            delete_one(name)
            deleted.append(name)
        except ToolError as error:
            failed[name] = error
    names = ", ".join(f"'{name}'" for name in hash_order(deleted))
    if not failed:
        print_line(f"Deletion of requested consumer groups ({names}) was successful.")
        return
    print_line("\nError: Deletion of some consumer groups failed:")
    for name in hash_order(failed):
        print_line(f"* Group '{name}' could not be deleted due to: {failed[name].java_class}: {failed[name]}")
    if deleted:
        print_line(f"\nThese consumer groups were deleted successfully: {names}")


TOOL = Tool(
    name="kafka-consumer-groups",
    summary="This tool helps to list all consumer groups, describe a consumer group, delete consumer group info, or "
    "reset consumer group offsets.",
    flags=_FLAGS,
    run=_run,
)
