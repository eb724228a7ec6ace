"""`ottla acl`: list, add and remove ACLs, with the flags of kafka-acls.sh."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import click

from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.names import GROUP_NAME, TOPIC_NAME
from ottla.cli.output import JSON, TABLE, YAML, Column, output_option, print_rows
from ottla.security.acls import ANY_NAME, CLUSTER_NAME, Operation, PatternType, Permission, ResourceType

_Function = TypeVar("_Function", bound=Callable[..., Any])

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
    """A resource, or the pattern of resources, that the flags name; None stands for all of the type."""

    resource_type: ResourceType
    name: str | None


class Resources(NamedTuple):
    """The resources that the flags name."""

    named: tuple[Resource, ...]
    pattern_type: PatternType

    def of(self, resource_type: ResourceType) -> list[Resource]:
        return [each for each in self.named if each.resource_type is resource_type]


class Acl(NamedTuple):
    """One ACL, or a filter that selects ACLs; None and ANY select all."""

    resource_type: ResourceType
    resource_name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def row(self) -> dict[str, Any]:
        """Return the ACL as REST v3 shows it."""
        return {
            "resource_type": self.resource_type.name, "resource_name": self.resource_name,
            "pattern_type": self.pattern_type.name, "principal": self.principal, "host": self.host,
            "operation": self.operation.name, "permission": self.permission.name,
        }  # fmt: skip


@click.group("acl")
def command() -> None:
    """Manage who may do what: the ACLs of the cluster."""


def _resource_options(patterns: Sequence[str]) -> Callable[[_Function], _Function]:
    """Add the flags that name resources; the function gets ``resources``."""

    def decorate(function: _Function) -> _Function:
        @click.option(
            "--topic",
            "topics",
            metavar="TOPIC",
            multiple=True,
            type=TOPIC_NAME,
            help="A topic, or * for all. Repeatable.",
        )
        @click.option(
            "--group",
            "groups",
            metavar="GROUP",
            multiple=True,
            type=GROUP_NAME,
            help="A consumer group, or * for all. Repeatable.",
        )
        @click.option("--cluster", is_flag=True, help="The cluster itself.")
        @click.option(
            "--transactional-id",
            "transactional_ids",
            metavar="ID",
            multiple=True,
            help="A transactional id, or * for all. Repeatable.",
        )
        @click.option(
            "--delegation-token",
            "tokens",
            metavar="ID",
            multiple=True,
            help="A delegation token, or * for all. Repeatable.",
        )
        @click.option(
            "--user-principal",
            "users",
            metavar="PRINCIPAL",
            multiple=True,
            help="A user whose delegation tokens are meant, such as User:alice. Repeatable.",
        )
        @click.option(
            "--resource-pattern-type",
            "pattern",
            type=click.Choice(patterns, case_sensitive=False),
            default="literal",
            show_default=True,
            help="How names are meant.",
        )
        @click.option(
            "--prefixed", is_flag=True, help="The same as --resource-pattern-type prefixed: names are prefixes."
        )
        @functools.wraps(function)
        def with_resources(*args: Any, **options: Any) -> Any:
            return function(*args, resources=_take_resources(options), **options)

        return with_resources  # type: ignore[return-value]

    return decorate


def _take_resources(options: dict[str, Any]) -> Resources:
    """Return the resources that the options name, and remove these options."""
    named = (
        *(Resource(ResourceType.TOPIC, each) for each in options.pop("topics")),
        *(Resource(ResourceType.GROUP, each) for each in options.pop("groups")),
        *([Resource(ResourceType.CLUSTER, CLUSTER_NAME)] if options.pop("cluster") else []),
        *(Resource(ResourceType.TRANSACTIONAL_ID, each) for each in options.pop("transactional_ids")),
        *(Resource(ResourceType.DELEGATION_TOKEN, each) for each in options.pop("tokens")),
        *(Resource(ResourceType.USER, each) for each in options.pop("users")),
    )
    pattern, is_prefixed = options.pop("pattern"), options.pop("prefixed")
    return Resources(named, PatternType.PREFIXED if is_prefixed else PatternType[pattern.upper()])


class Rights(NamedTuple):
    """Who gets which rights, as the flags of add and remove say it."""

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


def _rights_options(function: _Function) -> _Function:
    """Add the flags that name principals, hosts and operations; the function gets ``rights``."""

    @click.option(
        "--allow-principal",
        "allowed",
        metavar="PRINCIPAL",
        multiple=True,
        callback=_principals,
        help="Who may, such as User:alice; User:* is everybody. Repeatable.",
    )
    @click.option(
        "--deny-principal",
        "denied",
        metavar="PRINCIPAL",
        multiple=True,
        callback=_principals,
        help="Who may not. Denials win. Repeatable.",
    )
    @click.option(
        "--allow-host", "allowed_hosts", metavar="IP", multiple=True, help="From which address they may.  [default: *]"
    )
    @click.option(
        "--deny-host",
        "denied_hosts",
        metavar="IP",
        multiple=True,
        help="From which address they may not.  [default: *]",
    )
    @click.option(
        "--operation",
        "operations",
        type=click.Choice(list(_OPERATIONS), case_sensitive=False),
        multiple=True,
        help="What they may or may not do. Repeatable.  [default: All]",
    )
    @click.option(
        "--producer",
        is_flag=True,
        help="What a producer needs: Write, Describe and Create on --topic, Write and Describe on --transactional-id.",
    )
    @click.option(
        "--consumer", is_flag=True, help="What a consumer needs: Read and Describe on --topic, Read on --group."
    )
    @click.option("--idempotent", is_flag=True, help="With --producer: IdempotentWrite on the cluster.")
    @functools.wraps(function)
    def with_rights(
        *args: Any,
        allowed: tuple[str, ...],
        denied: tuple[str, ...],
        allowed_hosts: tuple[str, ...],
        denied_hosts: tuple[str, ...],
        operations: tuple[str, ...],
        producer: bool,
        consumer: bool,
        idempotent: bool,
        **kwargs: Any,
    ) -> Any:
        wanted = tuple(_OPERATIONS[each] for each in operations)
        rights = Rights(allowed, denied, allowed_hosts, denied_hosts, wanted, producer, consumer, idempotent)
        return function(*args, rights=rights, **kwargs)

    return with_rights  # type: ignore[return-value]


def _principals(ctx: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        kind, colon, rest = name.partition(":")
        if not (kind and colon and rest):
            raise click.BadParameter(f"{name!r} is not of the form User:NAME", ctx, parameter)
    return names


# -- verbs ------------------------------------------------------------------------------------------------------------


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
    """List ACLs: all, or those of the resources that are named.

    With --resource-pattern-type match, the ACLs that decide about a resource: those of its name, of * and of prefixes.
    """
    from ottla.cli.acl_requests import describe

    named = resources.named or (Resource(ResourceType.ANY, None),)
    pattern = resources.pattern_type if resources.named else PatternType.ANY
    filters = [
        Acl(each.resource_type, each.name, pattern, principal, None, Operation.ANY, Permission.ANY)
        for each in named
        for principal in principals or (None,)
    ]
    _print(describe(connection, filters), output)


@command.command("add")
@_resource_options(_STORED_PATTERNS)
@_rights_options
@connection_options
@output_option(*_FORMATS)
def add(resources: Resources, rights: Rights, connection: ClusterOptions, output: str) -> None:
    """Add ACLs for the resources that are named. ACLs that exist already are no error.

    \b
    ottla acl add --topic orders --allow-principal User:alice --operation Read
    ottla acl add --topic orders --group shop --consumer --allow-principal User:alice
    ottla acl add --topic shop. --prefixed --producer --allow-principal User:bob
    """
    from ottla.cli.acl_requests import create

    if not rights.allowed and not rights.denied:
        raise click.UsageError("name a principal with --allow-principal or --deny-principal")
    acls = [
        Acl(kind, name, pattern, principal, host, operation, permission)
        for kind, name, pattern, operation in _targets(resources, rights)
        for permission, principal, host in rights.subjects()
    ]
    create(connection, acls)
    _print(acls, output)


@command.command("remove")
@_resource_options(_PATTERNS)
@_rights_options
@click.option("--force", is_flag=True, help="Do not ask before ACLs of all principals are removed.")
@connection_options
@output_option(*_FORMATS)
def remove(resources: Resources, rights: Rights, force: bool, connection: ClusterOptions, output: str) -> None:
    """Remove ACLs of the resources that are named: those that the flags describe, or all of them."""
    from ottla.cli.acl_requests import delete

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
    _print(delete(connection, filters), output)


def _targets(
    resources: Resources, rights: Rights, default: Operation = Operation.ALL
) -> list[tuple[ResourceType, str | None, PatternType, Operation]]:
    """Return resources and operations. Raise UsageError if the flags contradict each other."""
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
    """Return what producers and consumers need. Raise UsageError."""
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
