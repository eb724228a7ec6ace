"""`ottla acl`: list, add and remove ACLs, with the flags of kafka-acls.sh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.names import GROUP_NAME, TOPIC_NAME
from ottla.cli.options import Decorator, gathered_options
from ottla.cli.output import JSON, TABLE, YAML, Column, output_option, print_rows
from ottla.security.acls import ANY_NAME, CLUSTER_NAME, Operation, PatternType, Permission, ResourceType

if TYPE_CHECKING:
    from ottla.admin.acls import Acl

_COLUMNS = (
    Column("RESOURCE", "resource_type"),
    Column("NAME", "resource_name"),
    Column("PATTERN", "pattern_type"),
    Column("PRINCIPAL", "principal"),
    Column("HOST", "host"),
    Column("OPERATION", "operation"),
    Column("PERMISSION", "permission"),
)
#: patterns of ACLs, and of filters
_STORED_PATTERNS = ("literal", "prefixed")
_PATTERNS = (*_STORED_PATTERNS, "match", "any")
_FORMATS = (TABLE, JSON, YAML)


def _title(member: Operation) -> str:
    """Return an operation as kafka-acls.sh writes it: DescribeConfigs."""
    return "".join(word.capitalize() for word in member.name.split("_"))


_OPERATIONS = {_title(each): each for each in Operation if each is not Operation.ANY}
_READ, _WRITE, _DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


class Resource(NamedTuple):
    """A resource, or a pattern of resources, from the options; None stands for all of the type."""

    resource_type: ResourceType
    name: str | None


class Resources(NamedTuple):
    """The resources from the options."""

    named: tuple[Resource, ...]
    pattern_type: PatternType

    def of(self, resource_type: ResourceType) -> list[Resource]:
        return [each for each in self.named if each.resource_type is resource_type]


@click.group("acl")
def command() -> None:
    """List, add and remove ACLs: which principals may do what."""


def _resources(
    *,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    cluster: bool,
    transactional_ids: tuple[str, ...],
    tokens: tuple[str, ...],
    users: tuple[str, ...],
    pattern: str,
    prefixed: bool,
) -> Resources:
    names = {
        ResourceType.TOPIC: topics, ResourceType.GROUP: groups, ResourceType.CLUSTER: (CLUSTER_NAME,) * cluster,
        ResourceType.TRANSACTIONAL_ID: transactional_ids, ResourceType.DELEGATION_TOKEN: tokens,
        ResourceType.USER: users,
    }  # fmt: skip
    named = tuple(Resource(resource_type, name) for resource_type, given in names.items() for name in given)
    return Resources(named, PatternType.PREFIXED if prefixed else PatternType[pattern.upper()])


def _resource_options(patterns: Sequence[str]) -> Decorator:
    """Add the options that name resources; the command gets ``resources``."""
    return gathered_options(
        "resources",
        _resources,
        click.option(
            "--topic", "topics", metavar="TOPIC", multiple=True, type=TOPIC_NAME,
            help="A topic, or * for all. Repeatable.",
        ),
        click.option(
            "--group", "groups", metavar="GROUP", multiple=True, type=GROUP_NAME,
            help="A consumer group, or * for all. Repeatable.",
        ),
        click.option("--cluster", is_flag=True, help="The cluster itself."),
        click.option(
            "--transactional-id", "transactional_ids", metavar="ID", multiple=True,
            help="A transactional id, or * for all. Repeatable.",
        ),
        click.option(
            "--delegation-token", "tokens", metavar="ID", multiple=True,
            help="A delegation token, or * for all. Repeatable.",
        ),
        click.option(
            "--user-principal", "users", metavar="PRINCIPAL", multiple=True,
            help="A user, for ACLs on the delegation tokens of this user, such as User:alice. Repeatable.",
        ),
        click.option(
            "--resource-pattern-type", "pattern", type=click.Choice(patterns, case_sensitive=False),
            default="literal", show_default=True, help="How names are compared with the names of resources.",
        ),
        click.option(
            "--prefixed", is_flag=True, help="The same as --resource-pattern-type prefixed: names are prefixes."
        ),
    )  # fmt: skip


class Rights(NamedTuple):
    """The options of add and remove: principals, hosts and operations."""

    allowed: tuple[str, ...]
    denied: tuple[str, ...]
    allowed_hosts: tuple[str, ...]
    denied_hosts: tuple[str, ...]
    operations: tuple[Operation, ...]
    producer: bool
    consumer: bool
    idempotent: bool

    @property
    def is_role(self) -> bool:
        return self.producer or self.consumer

    def subjects(self) -> Iterable[tuple[Permission, str, str]]:
        """Yield permission, principal and host of each ACL."""
        for permission, principals, hosts in (
            (Permission.ALLOW, self.allowed, self.allowed_hosts), (Permission.DENY, self.denied, self.denied_hosts),
        ):  # fmt: skip
            yield from ((permission, principal, host) for principal in principals for host in hosts or (ANY_NAME,))


def _principals(ctx: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        kind, colon, rest = name.partition(":")
        if not (kind and colon and rest):
            raise click.BadParameter(f"{name!r} is not of the form User:NAME", ctx, parameter)
    return names


#: the options that name principals, hosts and operations; the command gets `rights`
_rights_options = gathered_options(
    "rights",
    Rights,
    click.option(
        "--allow-principal", "allowed", metavar="PRINCIPAL", multiple=True, callback=_principals,
        help="Principal that is allowed, such as User:alice; User:* is every user. Repeatable.",
    ),
    click.option(
        "--deny-principal", "denied", metavar="PRINCIPAL", multiple=True, callback=_principals,
        help="Principal that is denied, also where another ACL allows it. Repeatable.",
    ),
    click.option(
        "--allow-host", "allowed_hosts", metavar="IP", multiple=True,
        help="Address from which the principals are allowed.  [default: *]",
    ),
    click.option(
        "--deny-host", "denied_hosts", metavar="IP", multiple=True,
        help="Address from which the principals are denied.  [default: *]",
    ),
    click.option(
        "--operation", "operations", type=click.Choice(list(_OPERATIONS), case_sensitive=False), multiple=True,
        callback=lambda ctx, parameter, titles: tuple(_OPERATIONS[title] for title in titles),
        help="Operation that is allowed or denied. Repeatable.  [default: All]",
    ),
    click.option(
        "--producer", is_flag=True,
        help="What a producer needs: Write, Describe and Create on --topic, Write and Describe on --transactional-id.",
    ),
    click.option(
        "--consumer", is_flag=True, help="What a consumer needs: Read and Describe on --topic, Read on --group."
    ),
    click.option("--idempotent", is_flag=True, help="With --producer: IdempotentWrite on the cluster."),
)  # fmt: skip


# -- commands ---------------------------------------------------------------------------------------------------------


@command.command("list")
@_resource_options(_PATTERNS)
@click.option(
    "--principal",
    "principals",
    metavar="PRINCIPAL",
    multiple=True,
    callback=_principals,
    help="List only ACLs of this principal. Repeatable.",
)
@connection_options
@output_option(*_FORMATS)
def list_acls(resources: Resources, principals: tuple[str, ...], connection: ClusterOptions, output: str) -> None:
    """List ACLs: all, or those of the given resources.

    --resource-pattern-type match lists all ACLs that apply to a resource: those of its name, of a prefix of its name,
    and of *.
    """
    from ottla.admin.acls import Acl, describe
    from ottla.cli.cluster import ClusterClient

    named = resources.named or (Resource(ResourceType.ANY, None),)
    pattern = resources.pattern_type if resources.named else PatternType.ANY
    filters = [
        Acl(each.resource_type, each.name, pattern, principal, None, Operation.ANY, Permission.ANY)
        for each in named
        for principal in principals or (None,)
    ]
    with ClusterClient(connection) as client:
        found = describe(client, filters)
    _print(found, output)


@command.command("add")
@_resource_options(_STORED_PATTERNS)
@_rights_options
@connection_options
@output_option(*_FORMATS)
def add(resources: Resources, rights: Rights, connection: ClusterOptions, output: str) -> None:
    """Add ACLs for the given resources. An ACL that exists already is not an error.

    \b
    ottla acl add --topic orders --allow-principal User:alice --operation Read
    ottla acl add --topic orders --group shop --consumer --allow-principal User:alice
    ottla acl add --topic shop. --prefixed --producer --allow-principal User:bob
    """
    from ottla.admin.acls import Acl, create
    from ottla.cli.cluster import ClusterClient

    if not rights.allowed and not rights.denied:
        raise click.UsageError("name a principal with --allow-principal or --deny-principal")
    acls = [
        Acl(kind, name, pattern, principal, host, operation, permission)
        for kind, name, pattern, operation in _targets(resources, rights)
        for permission, principal, host in rights.subjects()
    ]
    with ClusterClient(connection) as client:
        create(client, acls)
    _print(acls, output)


@command.command("remove")
@_resource_options(_PATTERNS)
@_rights_options
@click.option("--force", is_flag=True, help="Do not ask before ACLs of all principals are removed.")
@connection_options
@output_option(*_FORMATS)
def remove(resources: Resources, rights: Rights, force: bool, connection: ClusterOptions, output: str) -> None:
    """Remove ACLs of the given resources: those with the given principals and operations, or all."""
    from ottla.admin.acls import Acl, delete
    from ottla.cli.cluster import ClusterClient

    subjects: list[tuple[Permission, str | None, str | None]] = list(rights.subjects())
    if not subjects:
        subjects = [(Permission.ANY, None, None)]
        if not force and not rights.is_role:
            names = ", ".join(f"{each.resource_type.name.lower()} {each.name}" for each in resources.named)
            click.confirm(f"Remove the ACLs of all principals for {names}?", abort=True)
    default = Operation.ANY if not rights.allowed and not rights.denied else Operation.ALL
    filters = [
        Acl(kind, name, pattern, principal, host, operation, permission)
        for kind, name, pattern, operation in _targets(resources, rights, default)
        for permission, principal, host in subjects
    ]
    with ClusterClient(connection) as client:
        deleted = delete(client, filters)
    _print(deleted, output)


def _targets(
    resources: Resources, rights: Rights, default: Operation = Operation.ALL
) -> list[tuple[ResourceType, str | None, PatternType, Operation]]:
    """Return resources and operations. Raise UsageError for contradicting options."""
    if not resources.named:
        raise click.UsageError("name a resource: --topic, --group, --cluster, --transactional-id, ...")
    if rights.idempotent and not rights.producer:
        raise click.UsageError("--idempotent needs --producer")
    if not rights.is_role:
        wanted = [(each, operation) for each in resources.named for operation in rights.operations or (default,)]
    else:
        wanted = _role_targets(resources, rights)
    kinds = {ResourceType.CLUSTER: PatternType.LITERAL}
    return [
        (each.resource_type, each.name, kinds.get(each.resource_type, resources.pattern_type), operation)
        for each, operation in dict.fromkeys(wanted)
    ]


def _role_targets(resources: Resources, rights: Rights) -> list[tuple[Resource, Operation]]:
    """Return the operations that producers and consumers need. Raise UsageError for contradicting options."""
    if rights.operations or rights.denied:
        raise click.UsageError(
            "--producer and --consumer stand for operations to allow; leave out --operation and --deny-principal"
        )
    topics, groups = resources.of(ResourceType.TOPIC), resources.of(ResourceType.GROUP)
    if not topics or (rights.consumer and not groups):
        raise click.UsageError("--producer needs --topic, and --consumer needs --topic and --group")
    wanted: list[tuple[Resource, Operation]] = []
    if rights.producer:
        wanted += [(each, operation) for each in topics for operation in (_WRITE, _DESCRIBE, Operation.CREATE)]
        ids = resources.of(ResourceType.TRANSACTIONAL_ID)
        wanted += [(each, operation) for each in ids for operation in (_WRITE, _DESCRIBE)]
        if rights.idempotent:
            wanted.append((Resource(ResourceType.CLUSTER, CLUSTER_NAME), Operation.IDEMPOTENT_WRITE))
    if rights.consumer:
        wanted += [(each, operation) for each in topics for operation in (_READ, _DESCRIBE)]
        wanted += [(each, _READ) for each in groups]
    return wanted


def _print(acls: Iterable[Acl], output: str) -> None:
    print_rows([each.row() for each in sorted(acls)], _COLUMNS, output)
