"""Checks of security."""

from __future__ import annotations

import datetime

import pytest
from pictures import NOW, broker_settings, certificate, found, healthy, only, quota

from ottla.admin.acls import Acl
from ottla.health.findings import Severity
from ottla.security.acls import Operation, PatternType, Permission, ResourceType


def acl(name: str, operation: Operation = Operation.WRITE, principal: str = "User:*") -> Acl:
    return Acl(ResourceType.TOPIC, name, PatternType.LITERAL, principal, "*", operation, Permission.ALLOW)


def test_open_listener_is_reported_unless_only_this_machine_reaches_it() -> None:
    opened = {"listeners": "PLAINTEXT://0.0.0.0:9092", "authorizer.class.name": ""}
    finding = only("open-listeners", healthy(brokers=broker_settings(opened)))
    assert finding.text == "3 open listeners (PLAINTEXT://0.0.0.0:9092 of broker 1)"
    assert found(healthy(brokers=broker_settings({**opened, "listeners": "PLAINTEXT://127.0.0.1:9092"}))) == {}
    named = {**opened, "listeners": "INTERNAL://10.0.0.1:9092", "listener.security.protocol.map": "INTERNAL:PLAINTEXT"}
    assert "open-listeners" in found(healthy(brokers=broker_settings(named)))


def test_logins_without_an_authorizer_are_reported() -> None:
    assert only("logins-without-acls", healthy(brokers=broker_settings({}, {"authorizer.class.name": ""})))


def test_passwords_without_encryption_are_an_error() -> None:
    plain = {"listeners": "SASL_PLAINTEXT://:9092", "sasl.enabled.mechanisms": "PLAIN, SCRAM-SHA-256"}
    assert only("readable-passwords", healthy(brokers=broker_settings(plain))).severity is Severity.ERROR
    plain["sasl.enabled.mechanisms"] = "SCRAM-SHA-256"
    assert "readable-passwords" not in found(healthy(brokers=broker_settings(plain)))


def test_anonymous_super_user_is_an_error() -> None:
    super_users = {"super.users": "User:admin;User:ANONYMOUS"}
    finding = only("anonymous-super-user", healthy(brokers=broker_settings(super_users)))
    assert (finding.severity, finding.text) == (Severity.ERROR, "User:ANONYMOUS is a super user on 3 brokers")


def test_resources_open_without_an_acl_are_reported() -> None:
    allowed = broker_settings({"allow.everyone.if.no.acl.found": "true"})
    assert only("everyone-allowed", healthy(brokers=allowed)).names == ("1", "2", "3")


def test_acl_that_lets_all_users_change_all_topics_is_reported() -> None:
    finding = only("acls-for-everyone", healthy(acls=frozenset({acl("*"), acl("*", Operation.READ)})))
    assert finding.names == ("WRITE topic *",)
    assert "acls-for-everyone" not in found(healthy(acls=frozenset({acl("orders"), acl("*", principal="User:a")})))


def test_acl_for_a_topic_that_does_not_exist_is_information() -> None:
    finding = only("acls-without-topic", healthy(acls=frozenset({acl("orders"), acl("oders")})))
    assert (finding.severity, finding.names) == (Severity.INFO, ("oders",))
    assert "acls-without-topic" not in found(healthy(acls=None))


@pytest.mark.parametrize("rate", [0.0, 100.0])
def test_quota_that_blocks_a_client_is_reported(rate: float) -> None:
    assert only("blocking-quotas", healthy(quotas=(quota(rate),))).names == ("user=ana",)


@pytest.mark.parametrize(
    ("days", "severity", "words"),
    [(20, Severity.WARNING, "expires in 20 days"), (3, Severity.ERROR, "expires in 3 days"),
     (-1, Severity.ERROR, "has expired")],
)  # fmt: skip
def test_certificate_that_expires_soon_is_reported(days: int, severity: Severity, words: str) -> None:
    soon = certificate(not_after=NOW + datetime.timedelta(days=days, hours=1))
    finding = only("expiring-certificates", healthy(certificates=(soon,)))
    assert finding.severity is severity and words in finding.text


def test_certificate_that_clients_refuse_is_reported() -> None:
    assert (
        "is for other, clients use kafka-1.example"
        in only("wrong-certificates", healthy(certificates=(certificate(hosts=("other",)),))).text
    )
    early = certificate(not_before=NOW + datetime.timedelta(hours=1))
    assert "is not valid before" in only("wrong-certificates", healthy(certificates=(early,))).text
    assert found(healthy(certificates=(certificate(hosts=("*.example",)),))) == {}
