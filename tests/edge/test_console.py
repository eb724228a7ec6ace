"""`ottla console` as a browser and as a script see it: logins, roles, forms, forms of pages, headers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from console_process import ConsoleClient, console_process, csrf_of
from edge_broker import Broker, edge_broker

HTML = {"accept": "text/html"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with edge_broker({}) as running:
        yield running


@pytest.fixture(scope="module")
def console(broker: Broker) -> Iterator[ConsoleClient]:
    with console_process(broker.bootstrap) as running:
        yield running


def test_first_start_makes_a_user_and_people_without_a_login_read_only(console: ConsoleClient) -> None:
    assert console.name == "admin" and len(console.password) >= 12
    with console.browser() as browser:
        page = browser.get("/c/main")
        assert page.status_code == 200 and "log in" in page.text
        assert csrf_of(page.text) == ""
        console.log_in(browser)
        page = browser.get("/c/main")
        assert "admin (admin)" in page.text and csrf_of(page.text)
        assert browser.cookies["ottla_session"]
        assert browser.post("/logout", data={"csrf": csrf_of(page.text)}).status_code == 303
        assert "admin (admin)" not in browser.get("/c/main").text


def test_session_cookie_is_hidden_from_scripts_and_other_sites(console: ConsoleClient) -> None:
    with console.browser() as browser:
        answer = browser.post("/login", data={"name": console.name, "password": console.password})
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert console.password not in answer.text


def test_wrong_password_is_refused_and_gives_no_session(console: ConsoleClient) -> None:
    with console.browser() as browser:
        answer = browser.post("/login", data={"name": console.name, "password": "wrong"})
        assert answer.status_code == 401 and "wrong" in answer.text
        assert "set-cookie" not in answer.headers and "www-authenticate" not in answer.headers


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_login_and_theme_redirect_only_to_the_console(console: ConsoleClient, target: str) -> None:
    with console.browser() as browser:
        form = {"name": console.name, "password": console.password, "next": target}
        assert browser.post("/login", data=form).headers["location"] == "/"
        assert browser.get("/theme", params={"to": "dark", "next": target}).headers["location"] == "/"


def test_form_without_the_token_of_the_session_does_nothing(console: ConsoleClient) -> None:
    with console.browser() as browser:
        console.log_in(browser)
        assert browser.post("/logout", data={"csrf": "x"}).status_code == 403
        assert "admin (admin)" in browser.get("/c/main").text


def test_page_of_another_site_can_send_no_form(console: ConsoleClient) -> None:
    with console.browser() as browser:
        form = {"name": console.name, "password": console.password}
        assert browser.post("/login", data=form, headers={"origin": "https://evil.example"}).status_code == 403
        assert browser.get("/c/main", headers={"host": "evil.example"}).status_code == 403


def test_every_answer_forbids_scripts_of_pages_frames_and_other_hosts(console: ConsoleClient) -> None:
    for path in ("/", "/login", "/c/main", "/c/main.json", "/c/none", "/nothing", "/c/main/changes"):
        headers = console.http.get(path).headers
        policy = headers["content-security-policy"]
        assert "script-src 'self'" in policy and "frame-ancestors 'none'" in policy, path
        assert "unsafe" not in policy and headers["x-content-type-options"] == "nosniff"


def test_first_page_is_sent_again_after_each_reading_while_it_is_open(console: ConsoleClient) -> None:
    with console.http.stream("GET", "/c/main/live") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = ""
        for part in answer.iter_text():
            text += part
            if text.count("event: weather") == 2:
                break
    assert "data: " in text and "topics" in text


@pytest.mark.parametrize("path", ["/c/main.json", "/c/main?format=json", "/c/main/changes.json"])
def test_every_page_has_a_json_form(console: ConsoleClient, path: str) -> None:
    answer = console.http.get(path)
    assert answer.headers["content-type"] == "application/json" and isinstance(answer.json(), dict)


def test_script_authenticates_each_request_and_wrong_credentials_are_refused(console: ConsoleClient) -> None:
    auth = (console.name, console.password)
    assert console.http.get("/c/main.json", auth=auth).status_code == 200
    assert console.http.get("/c/main.json", auth=(console.name, "no")).status_code == 401


def test_unknown_cluster_and_path_are_pages_that_say_so(console: ConsoleClient) -> None:
    answer = console.http.get("/c/<b>x<%2Fb>", headers=HTML)
    assert answer.status_code == 404 and "the console has main" in answer.text and "<b>" not in answer.text
    assert console.http.get("/c/main/nothing", headers=HTML).status_code == 404


def test_static_files_may_be_kept_and_are_small(console: ConsoleClient) -> None:
    page = console.http.get("/c/main", headers=HTML).text
    paths = [part.split('"')[0] for part in page.split('"/static/')[1:]]
    answers = [console.http.get(f"/static/{path}") for path in paths]
    assert paths and all(answer.status_code == 200 for answer in answers)
    assert all("immutable" in answer.headers["cache-control"] for answer in answers)
    assert sum(len(answer.content) for answer in answers) < 150_000


def test_cluster_that_does_not_answer_is_named_on_the_page() -> None:
    with console_process("127.0.0.1:1", {"client.timeout.ms": "300"}) as console:
        answer = console.http.get("/c/main", headers=HTML)
        assert "The cluster was not read" in answer.text and "127.0.0.1:1" in answer.text
        answer = console.http.get("/c/main/changes", headers=HTML)
        assert answer.status_code == 503 and "127.0.0.1:1" in answer.text


def test_anonymous_people_are_sent_to_the_login_when_they_may_not_read(broker: Broker) -> None:
    with console_process(broker.bootstrap, {"role.anonymous": "none"}) as console:
        answer = console.http.get("/c/main/changes?x=1", headers=HTML)
        assert answer.status_code == 303
        assert answer.headers["location"] == "/login?next=%2Fc%2Fmain%2Fchanges%3Fx%3D1"
        assert console.http.get("/c/main/changes.json").status_code == 401
        console.log_in()
        assert console.http.get("/c/main/changes.json").status_code == 200
