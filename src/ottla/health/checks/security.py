"""Checks of security: listeners, ACLs, super users, quotas and certificates."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from ottla.health.checks.brokers import with_settings
from ottla.health.checks.definition import ERROR, INFO, WARNING, Check, Problem, check
from ottla.health.picture_brokers import listeners_of, protocol_of
from ottla.health.types import BrokerPicture, ClusterPicture, Part
from ottla.model.figures import format_count, format_first
from ottla.model.types import Endpoint, is_loopback, parse_endpoint
from ottla.security.acls import ANY_NAME, Operation, PatternType, Permission, ResourceType

_SOON = datetime.timedelta(days=30)
_VERY_SOON = datetime.timedelta(days=7)
#: bytes per second below which a client can hardly work
_RATE_MIN = 1024.0
_CHANGES = (
    Operation.ALL,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.ALTER_CONFIGS,
)
_EVERYONE = "User:*"


def _bound(broker: BrokerPicture) -> list[tuple[Endpoint, str]]:
    """Return the addresses that a broker binds to and that other machines can reach, with their protocols."""
    found = []
    for word in broker.settings.get("listeners", "").split(","):
        try:
            endpoint = parse_endpoint(word.strip())
        except ValueError:
            continue
        if not is_loopback(endpoint.host):
            found.append((endpoint, protocol_of(broker, endpoint.name)))
    return found


def _has_authorizer(broker: BrokerPicture) -> bool:
    return bool(broker.settings.get("authorizer.class.name"))


@check(
    severity=WARNING,
    kind="broker",
    problem="A listener without a login is reachable from other machines, and there are no ACLs: everyone in the "
    "network reads, writes and deletes topics.",
    advice="use SASL_SSL and authorizer.class.name: 'ottla security init' writes the settings and certificates",
    needs=[Part.BROKER_SETTINGS],
)
def open_listeners(picture: ClusterPicture) -> Iterator[Problem]:
    rows = [
        (broker, endpoint)
        for broker in with_settings(picture)
        for endpoint, protocol in _bound(broker)
        if protocol == "PLAINTEXT" and not _has_authorizer(broker)
    ]
    if rows:
        broker, endpoint = rows[0]
        text = f"{format_count(len(rows), 'open listener')} ({endpoint} of broker {broker.id})"
        yield Problem(text, dict.fromkeys(str(row[0].id) for row in rows))


@check(
    severity=WARNING,
    kind="broker",
    problem="Clients log in with SASL, and there is no authorizer: each user may do everything.",
    advice="set authorizer.class.name and super.users on all brokers, then 'ottla acl add'",
    needs=[Part.BROKER_SETTINGS],
)
def logins_without_acls(picture: ClusterPicture) -> Iterator[Problem]:
    names = [
        str(broker.id)
        for broker in with_settings(picture)
        if not _has_authorizer(broker) and any(protocol.startswith("SASL") for _, protocol in listeners_of(broker))
    ]
    if names:
        yield Problem(f"{format_count(len(names), 'broker')} with SASL and without ACLs", names)


@check(
    severity=ERROR,
    kind="broker",
    problem="SASL PLAIN without TLS is reachable from other machines: passwords are readable in the network.",
    advice="use SASL_SSL, or the mechanism SCRAM-SHA-512",
    needs=[Part.BROKER_SETTINGS],
)
def readable_passwords(picture: ClusterPicture) -> Iterator[Problem]:
    names = [
        str(broker.id)
        for broker in with_settings(picture)
        if "PLAIN" in broker.settings.get("sasl.enabled.mechanisms", "").replace(" ", "").split(",")
        and any(protocol == "SASL_PLAINTEXT" for _, protocol in _bound(broker))
    ]
    if names:
        yield Problem(f"{format_count(len(names), 'broker')} with PLAIN over SASL_PLAINTEXT", names)


@check(
    severity=ERROR,
    kind="cluster",
    problem="Clients without a login are super users (super.users has User:ANONYMOUS): ACLs have no effect.",
    advice="remove User:ANONYMOUS from super.users on all brokers",
    needs=[Part.BROKER_SETTINGS],
)
def anonymous_super_user(picture: ClusterPicture) -> Iterator[Problem]:
    brokers = [
        str(each.id)
        for each in with_settings(picture)
        if "User:ANONYMOUS" in each.settings.get("super.users", "").split(";")
    ]
    if brokers:
        yield Problem(f"User:ANONYMOUS is a super user on {format_count(len(brokers), 'broker')}", ["User:ANONYMOUS"])


@check(
    severity=WARNING,
    kind="broker",
    problem="Resources without an ACL are open to all users (allow.everyone.if.no.acl.found).",
    advice="add the ACLs that are missing, then set allow.everyone.if.no.acl.found=false",
    needs=[Part.BROKER_SETTINGS],
)
def everyone_allowed(picture: ClusterPicture) -> Iterator[Problem]:
    names = [
        str(each.id)
        for each in with_settings(picture)
        if _has_authorizer(each) and each.settings.get("allow.everyone.if.no.acl.found") == "true"
    ]
    if names:
        yield Problem("topics and groups without an ACL are open to all users", names)


@check(
    severity=WARNING,
    kind="cluster",
    problem="An ACL lets all users write to, change or delete all topics, groups or the cluster.",
    advice="'ottla acl remove' with the resource, then 'ottla acl add' for the users that need it",
    needs=[Part.ACLS],
)
def acls_for_everyone(picture: ClusterPicture) -> Iterator[Problem]:
    names = sorted(
        f"{each.operation.name} {each.resource_type.name.lower()} {each.resource_name}"
        for each in picture.acls or ()
        if each.permission is Permission.ALLOW
        and each.principal == _EVERYONE
        and each.operation in _CHANGES
        and (each.resource_name == ANY_NAME or each.resource_type is ResourceType.CLUSTER)
    )
    if names:
        yield Problem(f"{format_count(len(names), 'ACL')} for {_EVERYONE} ({format_first(names)})", names)


@check(
    severity=INFO,
    kind="topic",
    problem="An ACL names a topic that does not exist: the name is misspelt, or the topic was deleted.",
    advice="check the name; 'ottla acl remove --topic TOPIC' removes the ACLs of a topic",
    needs=[Part.ACLS],
)
def acls_without_topic(picture: ClusterPicture) -> Iterator[Problem]:
    names = sorted(
        {
            each.resource_name or ""
            for each in picture.acls or ()
            if each.resource_type is ResourceType.TOPIC
            and each.pattern_type is PatternType.LITERAL
            and each.resource_name != ANY_NAME
        }
        - picture.topics.keys()
    )
    if names:
        text = f"{format_count(len(names), 'topic')} with ACLs that do not exist ({format_first(names)})"
        yield Problem(text, names)


@check(
    severity=WARNING,
    kind="client",
    problem="A quota is so low that it blocks its clients: below 1 KiB/s, or zero.",
    advice="'ottla quota set' a rate that clients can work with, or 'ottla quota remove'",
    needs=[Part.QUOTAS],
)
def blocking_quotas(picture: ClusterPicture) -> Iterator[Problem]:
    names = [
        str(row["entity"])
        for row in picture.quotas
        if row["value"] <= 0 or (str(row["quota"]).endswith("byte_rate") and row["value"] < _RATE_MIN)
    ]
    if names:
        yield Problem(f"{format_count(len(names), 'quota')} that block clients ({format_first(names)})", names)


@check(
    severity=WARNING,
    kind="broker",
    problem="The certificate of a listener expires within 30 days. It is an error within 7 days, and afterwards.",
    advice="renew it, for example with 'ottla cert renew NAME --data DIR'; Ottla's brokers notice the new file",
    needs=[Part.CERTIFICATES],
)
def expiring_certificates(picture: ClusterPicture) -> Iterator[Problem]:
    now = datetime.datetime.fromtimestamp(picture.read_at_ms / 1000, datetime.UTC)
    soon = sorted(
        (each for each in picture.certificates if each.not_after - now < _SOON), key=lambda each: each.not_after
    )
    if soon:
        left = soon[0].not_after - now
        when = f"expires in {format_count(left.days, 'day')}" if left.days >= 0 else "has expired"
        text = f"certificate of {soon[0].listener} of broker {soon[0].broker_id} {when} ({soon[0].not_after:%Y-%m-%d})"
        names = dict.fromkeys(str(each.broker_id) for each in soon)
        yield Problem(text, names, severity=ERROR if left < _VERY_SOON else None)


@check(
    severity=ERROR,
    kind="broker",
    problem="The certificate of a listener is not valid yet, or is for other hosts than the advertised one: clients "
    "refuse it.",
    advice="issue one for the advertised host: 'ottla cert issue NAME --broker --host HOST --data DIR'",
    needs=[Part.CERTIFICATES],
)
def wrong_certificates(picture: ClusterPicture) -> Iterator[Problem]:
    now = datetime.datetime.fromtimestamp(picture.read_at_ms / 1000, datetime.UTC)
    for each in picture.certificates:
        names = {host.lower() for host in each.hosts}
        host = each.host.lower()
        where = f"certificate of {each.listener} of broker {each.broker_id}"
        if each.not_before > now:
            yield Problem(f"{where} is not valid before {each.not_before:%Y-%m-%d %H:%M} UTC", [str(each.broker_id)])
        elif host not in names and f"*.{host.partition('.')[2]}" not in names:
            text = f"{where} is for {format_first(each.hosts) or 'no host'}, clients use {each.host}"
            yield Problem(text, [str(each.broker_id)])


CHECKS: tuple[Check, ...] = (
    anonymous_super_user,
    readable_passwords,
    wrong_certificates,
    expiring_certificates,
    open_listeners,
    logins_without_acls,
    everyone_allowed,
    acls_for_everyone,
    blocking_quotas,
    acls_without_topic,
)
