"""`kafka-acls`: list, add and remove ACLs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence

from ottla.admin.acls import Acl, acls_of, describe_request
from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import IllegalArgument, RequestError, ToolError, UsageError, check
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import FAILED, Tool, print_line
from ottla.security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType

_VERSION_MIN = 1


def _pattern_type(text: str) -> PatternType:
    try:
        return PatternType[text.upper()]
    except KeyError:
        raise ValueError(text) from None


_FLAGS = (
    flag("bootstrap-server", help="Brokers to connect to.", metavar="HOST:PORT,..."),
    flag("bootstrap-controller", help="Not supported: connect to brokers.", metavar="HOST:PORT,..."),
    flag("command-config", help="File with properties of the client.", metavar="FILE", is_value_optional=True),
    flag("topic", help="Topic of the ACLs; * for all. Repeatable.", metavar="TOPIC"),
    flag("cluster", help="ACLs of the cluster."),
    flag("group", help="Group of the ACLs; * for all. Repeatable.", metavar="GROUP"),
    flag("transactional-id", help="Transactional id of the ACLs; * for all. Repeatable.", metavar="ID"),
    flag("idempotent", help="With --producer: also allow idempotent writes."),
    flag("delegation-token", help="Delegation token of the ACLs; * for all. Repeatable.", metavar="TOKEN"),
    flag(
        "resource-pattern-type",
        help="literal or prefixed; to list and to remove also any, or match for all ACLs that affect the name.",
        metavar="TYPE",
        parse=_pattern_type,
        default=PatternType.LITERAL,
    ),
    flag("add", help="Add ACLs."),
    flag("remove", help="Remove ACLs."),
    flag("list", help="List ACLs."),
    flag("operation", help="Operation to allow or to deny. Repeatable.", metavar="OPERATION", default="All"),
    flag("allow-principal", help="Principal to allow, such as User:alice. Repeatable.", metavar="TYPE:NAME"),
    flag("deny-principal", help="Principal to deny, such as User:alice. Repeatable.", metavar="TYPE:NAME"),
    flag("principal", help="List the ACLs of this principal. Repeatable.", metavar="TYPE:NAME", is_value_optional=True),
    flag("allow-host", help="Address from which to allow; * for all, the default. Repeatable.", metavar="HOST"),
    flag("deny-host", help="Address from which to deny; * for all, the default. Repeatable.", metavar="HOST"),
    flag("producer", help="ACLs of a producer: write, describe and create on topics."),
    flag("consumer", help="ACLs of a consumer: read and describe on topics, read on groups."),
    flag("force", help="Do not ask for confirmation."),
    flag("user-principal", help="Principal that is the resource of the ACLs. Repeatable.", metavar="TYPE:NAME"),
)
_RESOURCES = {
    "topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "delegation-token": ResourceType.DELEGATION_TOKEN, "user-principal": ResourceType.USER,
}  # fmt: skip
_SUPPORTED = {
    ResourceType.TOPIC: "READ WRITE CREATE DESCRIBE DELETE ALTER DESCRIBE_CONFIGS ALTER_CONFIGS",
    ResourceType.GROUP: "READ DESCRIBE DELETE DESCRIBE_CONFIGS ALTER_CONFIGS",
    ResourceType.CLUSTER: "CREATE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE ALTER DESCRIBE",
    ResourceType.TRANSACTIONAL_ID: "DESCRIBE WRITE TWO_PHASE_COMMIT",
    ResourceType.DELEGATION_TOKEN: "DESCRIBE",
    ResourceType.USER: "CREATE_TOKENS DESCRIBE_TOKENS",
}
#: operations of --producer and --consumer by type of resource
_OF_PRODUCER = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_OF_CONSUMER = {ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE), ResourceType.GROUP: (Operation.READ,)}
_OPERATIONS = {each.name.replace("_", ""): each for each in Operation} | {each.name: each for each in Operation}

#: type, name and type of the pattern
_Resource = tuple[ResourceType, str, PatternType]
#: principal, host, operation and whether it allows
_Entry = tuple[str, str, Operation, Permission]
_CLUSTER: _Resource = (ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)


def _run(options: Options) -> int:
    _check(options)
    if options.has("bootstrap-controller"):
        raise ToolError("--bootstrap-controller is not supported; use --bootstrap-server with the address of a broker")
    try:
        properties = properties_of(options.value("command-config"))
        with connect(options.value("bootstrap-server"), properties, call="describeAcls") as admin:
            act = _add if options.has("add") else _remove if options.has("remove") else _list
            act(admin, options)
    except UsageError:
        raise
    except ToolError as error:
        text = f"{error.java_class}: {error}" if isinstance(error, RequestError) else str(error)
        print_line(f"Error while executing ACL command: {text}")
        return FAILED
    return 0


def _check(options: Options) -> None:
    connections = options.any_of("bootstrap-server", "bootstrap-controller")
    if len(connections) != 1:
        word = "Only one" if connections else "One"
        raise UsageError(f"{word} of --bootstrap-server or --bootstrap-controller must be specified")
    if len(options.any_of("add", "remove", "list")) != 1:
        raise UsageError("Command must include exactly one action: --list, --add, --remove. ")
    of_entries = ("allow-host", "allow-principal", "deny-host", "deny-principal")
    options.refuse_with("list", ("producer", "consumer", *of_entries))
    for name in ("producer", "consumer"):
        options.refuse_with(name, ("operation", "deny-principal", "deny-host"))
    if options.has("principal") and not options.has("list"):
        raise UsageError("The --principal option is only available if --list is set")
    if options.has("producer") and not options.has("topic"):
        raise UsageError("With --producer you must specify a --topic")
    if options.has("idempotent") and not options.has("producer"):
        raise UsageError("The --idempotent option is only available if --producer is set")
    is_alone = options.has("consumer") and not options.has("producer")
    is_incomplete = options.has("consumer") and len(options.any_of("topic", "group")) < 2
    if is_incomplete or (is_alone and options.any_of("cluster", "transactional-id")):
        raise UsageError(
            "With --consumer you must specify a --topic and a --group and no --cluster or --transactional-id option "
            "should be specified."
        )


# What the flags mean


def _resources(options: Options, *, required: bool) -> list[_Resource]:
    """Return the resources that the flags name."""
    kind = options.value("resource-pattern-type")
    found = [(each, text.strip(), kind) for name, each in _RESOURCES.items() for text in options.values(name)]
    if kind is PatternType.LITERAL and options.any_of("cluster", "idempotent"):
        found.append(_CLUSTER)
    if required and not found:
        raise UsageError(
            "You must provide at least one resource: --topic <topic> or --cluster or --group <group> or "
            "--delegation-token <Delegation Token ID>"
        )
    return list(dict.fromkeys(found))


def _chosen(options: Options) -> dict[_Resource, set[_Entry]]:
    """Return the entries of each resource."""
    found: dict[_Resource, set[_Entry]] = {}
    resources = _resources(options, required=True)
    if not options.any_of("producer", "consumer"):
        operations = [_operation(text.strip()) for text in options.values("operation")]
        found = {resource: _entries(options, operations) for resource in resources}
    for name, by_type in (("producer", _OF_PRODUCER), ("consumer", _OF_CONSUMER)):
        for resource in resources if options.has(name) else ():
            if resource[0] in by_type:
                found.setdefault(resource, set()).update(_entries(options, by_type[resource[0]]))
    if options.has("idempotent"):
        found[_CLUSTER] = _entries(options, (Operation.IDEMPOTENT_WRITE,))
    for (kind, _, _), entries in found.items():
        valid = ("ALL", *_SUPPORTED[kind].split())
        if any(entry[2].name not in valid for entry in entries):
            raise UsageError(f"ResourceType {kind.name} only supports operations [{', '.join(valid)}]")
    return found


def _operation(text: str) -> Operation:
    # An unknown operation is refused as one that no resource supports.
    return _OPERATIONS.get(text.upper(), Operation.ANY)


def _entries(options: Options, operations: Collection[Operation]) -> set[_Entry]:
    return {
        (principal, host, operation, permission)
        for word, permission in (("allow", Permission.ALLOW), ("deny", Permission.DENY))
        for principal in _principals(options, f"{word}-principal")
        for host in ([text.strip() for text in options.values(f"{word}-host")] or ["*"])
        for operation in operations
    }


def _principals(options: Options, name: str) -> list[str]:
    found = [text.strip() for text in options.values(name)]
    for text in found:
        if not all(text.partition(":")):
            raise IllegalArgument(f"expected a string in format principalType:principalName but got {text}")
    return found


# Requests


def _described(admin: Admin, resource: _Resource | None) -> set[Acl]:
    kind, name, pattern = resource or (ResourceType.ANY, None, PatternType.ANY)
    wanted = Acl(kind, name, pattern, None, None, Operation.ANY, Permission.ANY)
    answer = admin.ask_any(describe_request(wanted), _VERSION_MIN)
    check(answer.error_code, answer.error_message)
    return acls_of(answer)


def _add(admin: Admin, options: Options) -> None:
    from ottla.wire.messages.create_acls import AclCreation, CreateAclsRequest

    kind = options.value("resource-pattern-type")
    if kind not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise UsageError(f"A '--resource-pattern-type' value of '{kind.name}' is not valid when adding acls.")
    chosen = _chosen(options)
    if not all(chosen.values()):
        raise UsageError("You must specify one of: --allow-principal, --deny-principal when trying to add ACLs.")
    for resource, entries in chosen.items():
        existing = {_entry_of(acl) for acl in _described(admin, resource)}
        for entry in sorted(entries & existing):
            print_line(f"Acl (pattern={_resource_text(resource)}, entry={_entry_text(entry)}) already exists.")
        new = sorted(entries - existing)
        if not new:
            continue
        print_line(f"Adding ACLs for resource `{_resource_text(resource)}`: \n {_entry_lines(new)}\n")
        creations = [
            AclCreation(
                resource_type=resource[0], resource_name=resource[1], resource_pattern_type=resource[2],
                principal=principal, host=host, operation=operation, permission_type=permission,
            )
            for principal, host, operation, permission in new
        ]  # fmt: skip
        for row in admin.ask_any(CreateAclsRequest(creations=creations), _VERSION_MIN).results:
            check(row.error_code, row.error_message)


def _remove(admin: Admin, options: Options) -> None:
    from ottla.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest

    for resource, entries in _chosen(options).items():
        if not _is_confirmed(options, resource, sorted(entries)):
            continue
        kind, name, pattern = resource
        selected: list[tuple[str | None, str | None, Operation, Permission]] = [*entries]
        selected = selected or [(None, None, Operation.ANY, Permission.ANY)]
        filters = [
            DeleteAclsFilter(
                resource_type_filter=kind, resource_name_filter=name, pattern_type_filter=pattern,
                principal_filter=principal, host_filter=host, operation=operation, permission_type=permission,
            )
            for principal, host, operation, permission in selected
        ]  # fmt: skip
        for row in admin.ask_any(DeleteAclsRequest(filters=filters), _VERSION_MIN).filter_results:
            check(row.error_code, row.error_message)
            for each in row.matching_acls:
                check(each.error_code, each.error_message)


def _is_confirmed(options: Options, resource: _Resource, entries: Sequence[_Entry]) -> bool:
    if options.has("force"):
        return True
    if entries:
        print_line(
            f"Are you sure you want to remove ACLs: \n {_entry_lines(entries)}\n from resource filter "
            f"`{_resource_text(resource)}`? (y/n)"
        )
    else:
        print_line(f"Are you sure you want to delete all ACLs for resource filter `{_resource_text(resource)}`? (y/n)")
    sys.stdout.flush()
    if not sys.stdin.isatty():
        raise ToolError("standard input is not a terminal; pass --force to remove ACLs without a confirmation")
    return sys.stdin.readline().strip().lower() == "y"


def _list(admin: Admin, options: Options) -> None:
    resources: Iterable[_Resource | None] = _resources(options, required=False) or [None]
    acls = {acl for resource in resources for acl in _described(admin, resource)}
    principals = _principals(options, "principal")
    if not principals:
        _print(acls)
    for principal in dict.fromkeys(principals):
        print_line(f"ACLs for principal `{principal}`")
        _print({acl for acl in acls if acl.principal == principal})


def _print(acls: Collection[Acl]) -> None:
    by_resource: dict[_Resource, list[_Entry]] = {}
    for acl in acls:
        by_resource.setdefault((acl.resource_type, acl.resource_name or "", acl.pattern_type), []).append(
            _entry_of(acl)
        )
    for resource in sorted(by_resource):
        lines = "\n".join(f"\t{_entry_text(entry)}" for entry in sorted(by_resource[resource]))
        print_line(f"Current ACLs for resource `{_resource_text(resource)}`:\n{lines}\n")


def _entry_of(acl: Acl) -> _Entry:
    return acl.principal or "", acl.host or "", acl.operation, acl.permission


def _entry_lines(entries: Sequence[_Entry]) -> str:
    return "\n".join(f"\t{_entry_text(entry)}" for entry in entries)


def _entry_text(entry: _Entry) -> str:
    principal, host, operation, permission = entry
    return f"(principal={principal}, host={host}, operation={operation.name}, permissionType={permission.name})"


def _resource_text(resource: _Resource) -> str:
    kind, name, pattern = resource
    return f"ResourcePattern(resourceType={kind.name}, name={name}, patternType={pattern.name})"


TOOL = Tool(
    name="kafka-acls",
    summary="This tool helps to manage acls on kafka.",
    flags=_FLAGS,
    run=_run,
)
