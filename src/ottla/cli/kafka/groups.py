"""`kafka-groups`: list groups of all types."""

from __future__ import annotations

from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import IllegalArgument, ToolError, UsageError, check
from ottla.cli.kafka.java import hash_order, table
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import FAILED, Tool, print_line
from ottla.model.errors import ErrorCode
from ottla.wire.messages.list_groups import ListedGroup, ListGroupsRequest

_FLAGS = (
    flag("bootstrap-server", help="REQUIRED. Brokers to connect to.", metavar="HOST:PORT,..."),
    flag("command-config", help="File with properties of the client.", metavar="FILE"),
    flag("list", help="List the groups."),
    flag("group-type", help="Only groups of this type: classic, consumer, share or streams.", metavar="TYPE"),
    flag("protocol", help="Only groups of this protocol.", metavar="PROTOCOL"),
    flag("consumer", help="Only groups of consumers, of all types."),
    flag("share", help="Only share groups."),
    flag("streams", help="Only streams groups."),
)
_TYPES = {"classic": "Classic", "consumer": "Consumer", "share": "Share", "streams": "Streams"}
_WIDTH_MIN = 20


def _run(options: Options) -> int:
    if not options.has("bootstrap-server"):
        raise UsageError("Missing required option(s) [bootstrap-server]")
    if not options.has("list"):
        raise UsageError("Command must include exactly one action: --list.")
    wanted = options.value("group-type")
    if wanted is not None and wanted.lower() not in _TYPES:
        raise IllegalArgument("--group-type must be a valid group type.")
    kinds = ("consumer", "share", "streams")
    for name in kinds:
        options.refuse_with(name, [*(each for each in kinds if each != name), "group-type", "protocol"])
    properties = properties_of(options.value("command-config"))
    try:
        with connect(options.value("bootstrap-server"), properties, call="listGroups") as admin:
            groups = [each for each in listed(admin) if _is_selected(options, each)]
    except ToolError as error:
        print_line(f"Error while executing groups command : {error}")
        return FAILED
    rows = [(each.group_id, _type_of(each), each.protocol_type) for each in groups]
    width = max([_WIDTH_MIN, *(len(cell) for row in rows for cell in row)])
    for line in table([("GROUP", "TYPE", "PROTOCOL")], [width] * 3):
        print_line(line)
    for line in table(rows, [width] * 3):
        print_line(f"{line} ")
    return 0


def listed(admin: Admin, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[ListedGroup]:
    """Return the groups that all brokers list."""
    found: dict[str, ListedGroup] = {}
    for node in admin.brokers():
        answer = admin.ask(node, ListGroupsRequest(states_filter=states, types_filter=types))
        if answer.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE:
            check(answer.error_code)
        found |= {row.group_id: row for row in answer.groups}
    return [found[name] for name in hash_order(found)]


def _is_selected(options: Options, group: ListedGroup) -> bool:
    kind = group.group_type.lower()
    protocol = options.value("protocol")
    if options.has("group-type"):
        return kind == options.value("group-type").lower() and protocol in (None, group.protocol_type)
    if protocol is not None:
        return bool(group.protocol_type == protocol)
    if options.has("consumer"):
        return group.protocol_type in ("consumer", "") or kind == "consumer"
    if options.any_of("share", "streams"):
        return options.has(kind)
    return True


def _type_of(group: ListedGroup) -> str:
    return _TYPES.get(group.group_type.lower(), "")


TOOL = Tool(
    name="kafka-groups",
    summary="This tool helps to list groups of all types.",
    flags=_FLAGS,
    run=_run,
)
