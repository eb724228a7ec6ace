"""Users, ACLs and quotas in the console, with a broker that has an authorizer."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from console_process import ConsoleClient, console_process, csrf_of
from edge_broker import Broker, edge_broker

ACCESS = "/c/main/access"
HOSTILE = "User:<script>alert('x')</script>\"&"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }  # fmt: skip
    with edge_broker(settings) as running:
        yield running


@pytest.fixture(scope="module")
def console(broker: Broker) -> Iterator[ConsoleClient]:
    with console_process(broker.bootstrap) as running:
        yield running


@pytest.fixture
def admin(console: ConsoleClient) -> Iterator[httpx.Client]:
    with console.browser() as browser:
        yield console.log_in(browser)


def acl(**fields: str) -> dict[str, str]:
    row = {
        "permission": "ALLOW", "principal": "User:ana", "operation": "WRITE", "resource_type": "TOPIC",
        "resource_name": "orders", "pattern_type": "PREFIXED", "host": "*",
    }  # fmt: skip
    return row | fields


def asked(console: ConsoleClient, **question: str) -> dict[str, object]:
    query = httpx.QueryParams(question)
    answer = console.json(f"{ACCESS}?{query}")["answer"]
    assert isinstance(answer, dict)
    return answer


def test_acl_is_added_answers_the_question_and_is_removed(console: ConsoleClient, admin: httpx.Client) -> None:
    question = {"principal": "User:ana", "operation": "WRITE", "resource_type": "TOPIC", "resource_name": "orders-eu"}
    assert asked(console, **question)["allowed"] is False
    assert console.act(f"{ACCESS}/acls/add", admin, **acl()).status_code == 303
    answer = asked(console, **question)
    assert answer["allowed"] is True and "prefix orders" in str(answer["reason"])
    assert console.act(f"{ACCESS}/acls/add", admin, **acl(permission="DENY", host="10.0.0.7")).status_code == 303
    assert asked(console, **question, host="10.0.0.7")["allowed"] is False
    assert "User:ana" in console.http.get(ACCESS).text
    for row in (acl(), acl(permission="DENY", host="10.0.0.7")):
        assert console.act(f"{ACCESS}/acls/remove", admin, **row).status_code == 303
    assert console.json(ACCESS)["acls"] == []


def test_each_change_is_a_record_with_who_when_and_what(console: ConsoleClient, admin: httpx.Client) -> None:
    assert console.act(f"{ACCESS}/acls/add", admin, **acl(principal="User:audited")).status_code == 303
    rows = console.json("/c/main/changes")["changes"]
    assert isinstance(rows, list)
    row = next(each for each in rows if "User:audited" in each["title"])
    assert (row["user"], row["outcome"], row["address"]) == ("admin", "done", "127.0.0.1")
    assert row["changes"][0]["from"] is None and "User:audited" in row["changes"][0]["to"]
    console.act(f"{ACCESS}/acls/remove", admin, **acl(principal="User:audited"))


def test_change_without_a_login_without_the_name_or_the_token_does_nothing(
    console: ConsoleClient, admin: httpx.Client
) -> None:
    path = f"{ACCESS}/acls/add"
    with console.browser() as visitor:
        assert visitor.post(path, data={**acl(), "confirm": "yes"}).status_code == 401
    assert admin.post(path, data={**acl(), "confirm": "yes"}).status_code == 403
    assert console.act(path, admin, **acl()).status_code == 303
    token = csrf_of(admin.get(ACCESS).text)
    wrong = admin.post(f"{ACCESS}/acls/remove", data={**acl(), "csrf": token, "confirm": "User:bob"})
    assert wrong.status_code == 400 and "Nothing was changed" in wrong.text
    assert len(console.json(ACCESS)["acls"]) == 1  # type: ignore[arg-type]
    console.act(f"{ACCESS}/acls/remove", admin, **acl())


def test_user_gets_a_password_that_is_shown_nowhere(console: ConsoleClient, admin: httpx.Client) -> None:
    form = {"user": "bob", "password": "secret-of-bob", "mechanism": "SCRAM-SHA-256"}
    assert console.act(f"{ACCESS}/users/set", admin, **form).status_code == 303
    rows = console.json(f"{ACCESS}/users")["users"]
    assert [row["user"] for row in rows] == ["bob"]  # type: ignore[attr-defined]
    for path in (f"{ACCESS}/users", "/c/main/changes"):
        assert "secret-of-bob" not in admin.get(path).text
    assert console.act(f"{ACCESS}/users/remove", admin, user="bob").status_code == 303
    assert console.json(f"{ACCESS}/users")["users"] == []


def test_quota_is_set_shown_with_its_earlier_value_and_removed(console: ConsoleClient, admin: httpx.Client) -> None:
    path = f"{ACCESS}/quotas/set"
    form = {"user": "ana", "quota": "producer_byte_rate"}
    assert console.act(path, admin, **form, value="1048576").status_code == 303
    preview = admin.post(path, data={**form, "value": "2097152", "csrf": csrf_of(admin.get(ACCESS).text)})
    assert "1048576" in preview.text and "2097152" in preview.text
    (row,) = console.json(f"{ACCESS}/quotas")["quotas"]  # type: ignore[misc]
    assert (row["user"], row["value"]) == ("ana", 1048576)
    assert console.act(path, admin, **form).status_code == 303
    assert console.json(f"{ACCESS}/quotas")["quotas"] == []


@pytest.mark.parametrize(
    ("path", "form", "problem"),
    [
        ("acls/add", acl(principal="ana"), "User:ana"),
        ("acls/add", acl(resource_name=""), "resource_name"),
        ("acls/add", acl(operation="FLY"), "operation"),
        ("users/set", {"user": "", "password": "x"}, "user"),
        ("users/set", {"user": "bob", "password": ""}, "password"),
        ("quotas/set", {"quota": "producer_byte_rate", "value": "1"}, "give a user"),
        ("quotas/set", {"user": "ana", "quota": "producer_byte_rate", "value": "nan"}, "value"),
        ("quotas/set", {"ip": "10.0.0.1", "user": "a", "quota": "producer_byte_rate", "value": "1"}, "ip"),
    ],
)
def test_wrong_form_is_refused_with_its_field(
    console: ConsoleClient, admin: httpx.Client, path: str, form: dict[str, str], problem: str
) -> None:
    token = csrf_of(admin.get(ACCESS).text)
    answer = admin.post(f"{ACCESS}/{path}", data={**form, "csrf": token})
    assert answer.status_code == 400 and problem in answer.text


def test_hostile_principal_is_text_on_every_page(console: ConsoleClient, admin: httpx.Client) -> None:
    assert console.act(f"{ACCESS}/acls/add", admin, **acl(principal=HOSTILE)).status_code == 303
    for path in (ACCESS, "/c/main/changes", f"{ACCESS}?principal={httpx.QueryParams({'': HOSTILE})!s}"):
        text = admin.get(path).text
        assert "<script>alert" not in text
    assert "&lt;script&gt;" in admin.get(ACCESS).text


def test_cluster_without_an_authorizer_shows_why_there_are_no_acls() -> None:
    with edge_broker({}) as plain, console_process(plain.bootstrap) as console:
        page = console.http.get(ACCESS)
        assert page.status_code == 200 and "ACLs are not shown" in page.text
        answer = asked(console, principal="User:x", operation="READ", resource_type="TOPIC", resource_name="t")
        assert answer["allowed"] is True and "no authorizer" in str(answer["reason"])
