"""Users, ACLs and quotas, with the question whether a principal may do something."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ottla.admin import acls, quotas, users
from ottla.admin.acls import Acl
from ottla.admin.client import AdminClient
from ottla.admin.failure import Failure
from ottla.edge.console.console import Console
from ottla.edge.console.pages import BadInput, Change, PageRequest, Plan, Route, Tab, View
from ottla.edge.console.rendering import url
from ottla.edge.console.roles import Role
from ottla.security.acls import (
    CLUSTER_NAME,
    Authorizer,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from ottla.security.salts import ITERATIONS_MIN
from ottla.security.scram import Mechanism

_AGE_S: Final = 1.0
_ROWS_MAX: Final = 2000
_EVERY: Final = Acl(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)
_TYPES: Final = [each.name for each in ResourceType if each is not ResourceType.ANY]
_OPERATIONS: Final = [each.name for each in Operation if each is not Operation.ANY]
_PATTERNS: Final = [PatternType.LITERAL.name, PatternType.PREFIXED.name]
_PERMISSIONS: Final = [each.name for each in Permission if each is not Permission.ANY]
_KINDS: Final = (quotas.USER, quotas.CLIENT_ID, quotas.IP)
_RATES: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
                 "connection_creation_rate")  # fmt: skip
_PASSWORD_CHARACTERS_MAX: Final = 1024


class Access:
    """The section of users, ACLs and quotas."""

    key, title, path, letter = "access", "Access", "access", "a"

    def is_available(self, console: Console) -> bool:
        return True

    def routes(self) -> Sequence[Route]:
        return [
            Route("access", self.show_acls, summary="List the ACLs; may a principal do something?"),
            Route("access/users", self.show_users, summary="List the users with SCRAM credentials."),
            Route("access/quotas", self.show_quotas, summary="List the quotas."),
            Route("access/acls/add", plan=self.add_acl, role=Role.ADMIN, summary="Add an ACL."),
            Route("access/acls/remove", plan=self.remove_acl, role=Role.ADMIN, summary="Remove an ACL."),
            Route("access/users/set", plan=self.set_user, role=Role.ADMIN, summary="Add a user, or set the password."),
            Route("access/users/remove", plan=self.remove_user, role=Role.ADMIN, summary="Remove a user."),
            Route("access/quotas/set", plan=self.set_quota, role=Role.ADMIN, summary="Set or remove a quota."),
        ]

    # -- ACLs ---------------------------------------------------------------------------------------------------------

    async def show_acls(self, page: PageRequest) -> View:
        found, problem = await _read_or_reason(page, "acls", lambda client: acls.describe(client, [_EVERY]))
        text = page.query.get("q", "").strip().lower()
        rows = sorted((each.row() for each in found or ()), key=lambda row: [str(value) for value in row.values()])
        shown = [row for row in rows if text in " ".join(map(str, row.values())).lower()]
        data = {
            "acls": shown[:_ROWS_MAX], "total": len(rows), "matched": len(shown), "problem": problem,
            "answer": await _answer(page, found or set()),
        }  # fmt: skip
        return View(
            "access/acls.html", "Access", data, tabs=_tabs(page, "acls"),
            commands=("ottla acl list", "kafka-acls --list"),
            extra={"types": _TYPES, "operations": _OPERATIONS, "patterns": _PATTERNS, "permissions": _PERMISSIONS},
        )  # fmt: skip

    async def add_acl(self, page: PageRequest) -> Plan:
        acl = _acl_of(page)
        return Plan(
            title=f"Add an ACL: {_words(acl)}", changes=[Change(_resource(acl), None, _words(acl))],
            warnings=_warnings(acl), apply=partial(_create_acl, acl=acl), then="access",
            commands=(_acl_command("add", acl),),
        )  # fmt: skip

    async def remove_acl(self, page: PageRequest) -> Plan:
        acl = _acl_of(page)
        return Plan(
            title=f"Remove an ACL: {_words(acl)}", changes=[Change(_resource(acl), _words(acl), None)],
            confirm=acl.principal or "", apply=partial(_delete_acl, acl=acl), then="access",
            commands=(_acl_command("remove", acl),),
        )  # fmt: skip

    # -- users --------------------------------------------------------------------------------------------------------

    async def show_users(self, page: PageRequest) -> View:
        found, problem = await _read_or_reason(page, "users", lambda client: users.describe(client, []))
        rows = [
            {
                "user": name,
                "credentials": [{"mechanism": each.title, "iterations": count} for each, count in its.items()],
            }
            for name, its in (found or {}).items()
        ]
        data = {"users": rows[:_ROWS_MAX], "total": len(rows), "problem": problem}
        return View(
            "access/users.html", "Users", data, tabs=_tabs(page, "users"),
            commands=("ottla user list", "kafka-configs --describe --entity-type users"),
        )  # fmt: skip

    async def set_user(self, page: PageRequest) -> Plan:
        name, password = page.form.get("user", ""), page.form.get("password", "")
        if not name or not name.isprintable():
            raise BadInput("user: give a name of printable characters")
        if not 1 <= len(password) <= _PASSWORD_CHARACTERS_MAX:
            raise BadInput(f"password: give one with 1 to {_PASSWORD_CHARACTERS_MAX} characters")
        titles = [each.title for each in Mechanism]
        chosen = page.choice("mechanism", ["both", *titles])
        mechanisms = [each for each in Mechanism if chosen in ("both", each.title)]
        words = " and ".join(each.title for each in mechanisms)
        return Plan(
            title=f"Set the password of {name}", changes=[Change(f"user {name}", None, f"a password for {words}")],
            warnings=["An earlier password of this user is replaced. Connections that are open stay open."],
            apply=partial(_set_user, name=name, password=password, mechanisms=mechanisms), then="access/users",
            commands=(f"ottla user add {name} --password-file FILE",),
        )  # fmt: skip

    async def remove_user(self, page: PageRequest) -> Plan:
        name = page.form.get("user") or page.query.get("user", "")
        found = await page.run(lambda client: users.describe(client, [name]))
        words = " and ".join(each.title for each in found[name])
        return Plan(
            title=f"Remove the user {name}", changes=[Change(f"user {name}", f"a password for {words}", None)],
            warnings=["Connections that are open stay open. ACLs and quotas of the user stay."], confirm=name,
            apply=partial(_remove_user, name=name, mechanisms=list(found[name])), then="access/users",
            commands=(f"ottla user remove {name}",),
        )  # fmt: skip

    # -- quotas -------------------------------------------------------------------------------------------------------

    async def show_quotas(self, page: PageRequest) -> View:
        found, problem = await _read_or_reason(page, "quotas", lambda client: quotas.describe(client, {}, strict=False))
        data = {"quotas": (found or [])[:_ROWS_MAX], "total": len(found or ()), "problem": problem}
        return View(
            "access/quotas.html", "Quotas", data, tabs=_tabs(page, "quotas"),
            commands=("ottla quota list", "kafka-configs --describe --entity-type users"),
            extra={"rates": _RATES, "kinds": _KINDS},
        )  # fmt: skip

    async def set_quota(self, page: PageRequest) -> Plan:
        names = _entity_of(page)
        key = page.choice("quota", _RATES)
        text = page.form.get("value", "").strip()
        rate = _rate(text) if text else None
        before = await page.run(lambda client: quotas.describe(client, names, strict=True))
        old = next((str(row["value"]) for row in before if row["quota"] == key), None)
        await page.run(lambda client: quotas.alter(client, names, {key: rate}, dry_run=True))
        what = f"{key} of {quotas.title(names)}"
        return Plan(
            title=f"{'Set' if text else 'Remove'} {what}", changes=[Change(what, old, text or None)],
            warnings=["A quota of 0 stops this client."] if rate == 0 else [],
            apply=partial(_set_quota, names=names, key=key, rate=rate), then="access/quotas",
            commands=("ottla quota set --help",),
        )  # fmt: skip


async def _read_or_reason(page: PageRequest, key: str, function: Any) -> tuple[Any, str]:
    """Return what a function returns, or None and why the cluster refuses it: the rest of the page stays."""
    try:
        return await page.read(key, function, age_s=_AGE_S), ""
    except Failure as failure:
        return None, failure.message


def _tabs(page: PageRequest, open_tab: str) -> list[Tab]:
    rows = (("ACLs", "acls", ()), ("Users", "users", ("users",)), ("Quotas", "quotas", ("quotas",)))
    return [
        Tab(title=title, href=url("c", page.cluster.name, "access", *parts), is_open=name == open_tab)
        for title, name, parts in rows
    ]


# -- may a principal do something? ------------------------------------------------------------------------------------


async def _answer(page: PageRequest, found: Iterable[Acl]) -> dict[str, Any] | None:
    """Return the answer to the question in the query; None if there is none."""
    principal = page.query.get("principal", "").strip()
    if not principal:
        return None
    operation = Operation[page.choice("operation", _OPERATIONS)]
    kind = ResourceType[page.choice("resource_type", _TYPES)]
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else page.query.get("resource_name", "")
    host = page.query.get("host", "").strip() or "127.0.0.1"
    settings = await _authorizer_settings(page)
    return may(found, settings, principal=principal, host=host, operation=operation, kind=kind, name=name)


async def _authorizer_settings(page: PageRequest) -> Mapping[str, str]:
    """Return the settings that decide without an ACL, of one broker; empty if they may not be read."""

    def read(client: AdminClient) -> dict[str, str]:
        broker = client.brokers()[0].broker_id
        return {each.name: each.value or "" for each in client.describe_config("broker", str(broker))}

    found, _ = await _read_or_reason(page, "authorizer settings", read)
    return found or {}


def may(
    found: Iterable[Acl],
    settings: Mapping[str, str],
    *,
    principal: str,
    host: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
) -> dict[str, Any]:
    """Return whether a principal may do this, and which rule decides it."""
    super_users = [each.strip() for each in settings.get("super.users", "").split(";") if each.strip()]
    default = settings.get("allow.everyone.if.no.acl.found", "false").lower() == "true"
    authorizer = Authorizer(super_users=super_users, allow_if_no_acl=default)
    by_pattern: dict[Pattern, list[Entry]] = {}
    for acl in found:
        pattern = Pattern(acl.resource_type, acl.resource_name or "", acl.pattern_type)
        by_pattern.setdefault(pattern, []).append(
            Entry(acl.principal or "", acl.host or "", acl.operation, acl.permission)
        )
    for pattern, entries in by_pattern.items():
        authorizer.put(pattern, entries)
    allowed = authorizer.may(principal, host, operation, kind, name)
    rules = [
        _words(Acl(pattern.resource_type, pattern.name, pattern.pattern_type, *entry))
        for pattern, entry in authorizer.deciding(principal, host, operation, kind, name)
    ]
    if not settings.get("authorizer.class.name", "unknown"):
        allowed, reason = True, "the cluster has no authorizer: everybody may do everything"
    elif principal in super_users:
        reason = "the principal is one of super.users"
    elif rules:
        reason = "; ".join(rules)
    elif any(pattern.resource_type is kind and pattern.covers(name) for pattern in by_pattern):
        reason = "the resource has ACLs, and none of them is about this principal, operation and host"
    else:
        reason = f"no ACL covers the resource, and allow.everyone.if.no.acl.found is {str(default).lower()}"
    question = f"may {principal} {operation.name} {kind.name.lower()} {name} from {host}"
    return {"question": question, "allowed": allowed, "reason": reason}


# -- forms ------------------------------------------------------------------------------------------------------------


def _acl_of(page: PageRequest) -> Acl:
    """Return the ACL of a form. Raise BadInput."""
    kind = ResourceType[page.choice("resource_type", _TYPES)]
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else page.form.get("resource_name", "")
    principal = page.form.get("principal", "").strip()
    if not name:
        raise BadInput("resource_name: give a name, a prefix, or * for all")
    if ":" not in principal:
        raise BadInput("principal: give it with its type, such as User:ana, or User:* for all users")
    return Acl(
        kind, name, PatternType[page.choice("pattern_type", _PATTERNS)], principal, page.form.get("host") or "*",
        Operation[page.choice("operation", _OPERATIONS)], Permission[page.choice("permission", _PERMISSIONS)],
    )  # fmt: skip


def _words(acl: Acl) -> str:
    return f"{acl.permission.name} {acl.principal} from {acl.host}: {acl.operation.name} on {_resource(acl)}"


def _resource(acl: Acl) -> str:
    prefix = "prefix " if acl.pattern_type is PatternType.PREFIXED else ""
    return f"{acl.resource_type.name.lower()} {prefix}{acl.resource_name}"


def _warnings(acl: Acl) -> list[str]:
    found = []
    if acl.permission is Permission.DENY and acl.principal == "User:*":
        found.append("This denies the operation to everybody but super users.")
    if acl.permission is Permission.ALLOW and acl.principal == "User:*":
        found.append("This allows the operation to everybody.")
    if acl.permission is Permission.ALLOW and acl.resource_type is ResourceType.CLUSTER:
        found.append("Rights on the cluster are those of an operator.")
    return found


def _acl_command(verb: str, acl: Acl) -> str:
    flag = {"CLUSTER": "--cluster"}.get(acl.resource_type.name, f"--{acl.resource_type.name.lower().replace('_', '-')}")
    name = "" if acl.resource_type is ResourceType.CLUSTER else f" {acl.resource_name}"
    side = "allow" if acl.permission is Permission.ALLOW else "deny"
    return (
        f"ottla acl {verb} --{side}-principal {acl.principal} --{side}-host '{acl.host}' --operation "
        f"{acl.operation.name.capitalize()} {flag}{name} --resource-pattern-type {acl.pattern_type.name.lower()}"
    )


def _entity_of(page: PageRequest) -> dict[str, str | None]:
    """Return the entity of a quota; an empty name with its box ticked is the default of its kind. Raise BadInput."""
    names: dict[str, str | None] = {}
    for kind in _KINDS:
        text = page.form.get(kind, "").strip()
        if text or page.form.get(f"{kind}-default"):
            names[kind] = text or None
    if not names:
        raise BadInput("give a user, a client id or an IP address, or tick a default")
    if quotas.IP in names and len(names) > 1:
        raise BadInput("ip: a quota of an address is about connections, and has neither user nor client id")
    return names


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        raise BadInput(f"value: {text!r} is not a number") from None
    if not 0 <= rate < 1e18:
        raise BadInput(f"value: {text} is not between 0 and 1e18")
    return rate


# -- changes, in threads ----------------------------------------------------------------------------------------------


def _create_acl(client: AdminClient, acl: Acl) -> Sequence[str]:
    acls.create(client, [acl])
    return [f"added: {_words(acl)}"]


def _delete_acl(client: AdminClient, acl: Acl) -> Sequence[str]:
    return [f"removed: {_words(each)}" for each in acls.delete(client, [acl])] or ["there was no such ACL"]


def _set_user(client: AdminClient, name: str, password: str, mechanisms: Sequence[Mechanism]) -> Sequence[str]:
    users.upsert(client, name, users.credentials_of(password.encode(), mechanisms, ITERATIONS_MIN))
    return [f"set the password of {name}"]


def _remove_user(client: AdminClient, name: str, mechanisms: Sequence[Mechanism]) -> Sequence[str]:
    users.delete(client, {name: mechanisms})
    return [f"removed {name}"]


def _set_quota(client: AdminClient, names: Mapping[str, str | None], key: str, rate: float | None) -> Sequence[str]:
    quotas.alter(client, names, {key: rate}, dry_run=False)
    return [f"{key} of {quotas.title(names)}: {'removed' if rate is None else rate}"]
