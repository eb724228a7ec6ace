"""What receivers get, over real connections to receivers of the test."""

from __future__ import annotations

import email
import email.policy
import hashlib
import hmac
import json
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from alert_fixtures import START
from alert_receivers import answer, mail_receiver, slow_server, web_receiver

from ottla.edge.monitor.alerts.bodies import Origin, plain
from ottla.edge.monitor.alerts.grouping import Message
from ottla.edge.monitor.alerts.rules import Level, Receiver
from ottla.edge.monitor.alerts.rules_file import BadRules, parse_rules
from ottla.edge.monitor.alerts.sending import DeliveryFailed, Times, send
from ottla.edge.monitor.alerts.states import Alert, State

ORIGIN = Origin(cluster="main", url="https://console.example")
#: the server has sent the head of its answer, or has not
ENDED = r"has not ended after 0\.3 seconds|closed before the end"
SHORT = Times(packet_s=5, total_s=0.3)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


def receiver(keys: str, directory: Path | None = None) -> Receiver:
    return parse_rules(f'[[receiver]]\nname = "r"\n{keys}\n', directory=directory).receivers[0]


def alert(text: str = "3 partitions without a leader", **changes: Any) -> Alert:
    settings: dict[str, Any] = {
        "rule": "offline-partitions", "labels": (("check", "offline-partitions"),), "state": State.OPEN,
        "level": Level.CRITICAL, "text": text, "advice": "start broker 2", "names": ("a-0", "b-1"), "count": 3,
        "since_ms": START, "opened_ms": START,
    }  # fmt: skip
    return Alert(**{**settings, **changes})


def message(to: Receiver, *opened: Alert, closed: tuple[Alert, ...] = ()) -> Message:
    return Message(receiver=to, group=(("rule", "offline-partitions"),), opened=opened, closed=closed)


def send_now(news: Message, times: Times = Times()) -> None:  # noqa: B008
    send(news, ORIGIN, START + 60_000, times)


def test_webhook_gets_the_body_of_alertmanager() -> None:
    ended = alert(labels=(("check", "under-min-isr"),), state=State.CLOSED, closed_ms=START + 30_000)
    with web_receiver() as hook:
        send_now(message(receiver(f'url = "{hook.url}?team=a"'), alert(), closed=(ended,)))
    ((path, headers, body),) = hook.requests
    assert (path, headers["Content-Type"]) == ("/hook?team=a", "application/json")
    document = json.loads(body)
    assert {key: document[key] for key in ("version", "status", "receiver", "groupLabels", "truncatedAlerts")} == {
        "version": "4", "status": "firing", "receiver": "r", "groupLabels": {"alertname": "offline-partitions"},
        "truncatedAlerts": 0,
    }  # fmt: skip
    assert document["commonLabels"] == {"alertname": "offline-partitions", "severity": "critical", "cluster": "main"}
    first, last = document["alerts"]
    assert first == {
        "status": "firing",
        "labels": {
            "alertname": "offline-partitions", "severity": "critical", "cluster": "main", "check": "offline-partitions"
        },
        "annotations": {
            "summary": "3 partitions without a leader", "description": "start broker 2", "names": "a-0, b-1 and 1 more"
        },
        "startsAt": "2023-11-14T22:13:20.000Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "https://console.example",
        "fingerprint": alert().fingerprint,
    }  # fmt: skip
    assert (last["status"], last["endsAt"]) == ("resolved", "2023-11-14T22:13:50.000Z")


def test_webhook_names_at_most_fifty_alerts() -> None:
    many = [alert(labels=(("name", str(number)),)) for number in range(60)]
    with web_receiver() as hook:
        send_now(message(receiver(f'url = "{hook.url}"'), *many))
    document = json.loads(hook.requests[0][2])
    assert (len(document["alerts"]), document["truncatedAlerts"]) == (50, 10)


def test_webhook_has_a_token_and_a_signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("t0ken\nsecond line")
    monkeypatch.setenv("HOOK_KEY", "k3y")
    with web_receiver() as hook:
        send_now(
            message(receiver(f'url = "{hook.url}"\nbearer_file = "token"\nhmac_env = "HOOK_KEY"', tmp_path), alert())
        )
    _, headers, body = hook.requests[0]
    assert headers["Authorization"] == "Bearer t0ken"
    assert headers["X-Ottla-Signature"] == f"sha256={hmac.new(b'k3y', body, hashlib.sha256).hexdigest()}"


def test_https_needs_a_certificate_of_a_known_authority(server_tls: ssl.SSLContext, ca_file: Path) -> None:
    with web_receiver(tls=server_tls) as hook:
        with pytest.raises(DeliveryFailed, match="certificate of the web server is not trusted"):
            send_now(message(receiver(f'url = "{hook.url}"'), alert()))
        send_now(message(receiver(f'url = "{hook.url}"\nca_file = "{ca_file}"'), alert()))
    assert len(hook.requests) == 1


@pytest.mark.parametrize(
    ("way", "text", "is_final"),
    [
        (answer(500), "status 500", False),
        (answer(429), "status 429", False),
        (answer(404), "status 404", True),
        (answer(200, b"x" * 100_000), "more than 65536 bytes", False),
    ],
)
def test_answer_that_is_no_success_is_a_failure(way: Any, text: str, is_final: bool) -> None:
    with web_receiver(way) as hook, pytest.raises(DeliveryFailed, match=text) as caught:
        send_now(message(receiver(f'url = "{hook.url}"'), alert()))
    assert caught.value.is_final is is_final


def test_redirect_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "t0ken")
    with (
        web_receiver() as other,
        web_receiver(answer(307, Location=other.url)) as hook,
        pytest.raises(DeliveryFailed, match="status 307"),
    ):
        send_now(message(receiver(f'url = "{hook.url}"\nbearer_env = "TOKEN"'), alert()))
    assert other.requests == []


@pytest.mark.parametrize(
    ("first", "drip"), [(b"HTTP/1.1 200 OK\r\n", b"X"), (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"x")]
)
def test_web_server_that_sends_a_byte_now_and_then_does_not_block(first: bytes, drip: bytes) -> None:
    with slow_server(first, drip) as port, pytest.raises(DeliveryFailed, match=ENDED):
        send_now(message(receiver(f'url = "http://127.0.0.1:{port}/"'), alert()), SHORT)


def test_mail_server_that_sends_a_byte_now_and_then_does_not_block() -> None:
    keys = 'type = "email"\nsmtp = "127.0.0.1:{}"\nfrom = "a@b.c"\nto = "d@e.f"\ntls = "none"'
    with slow_server(b"220-", b"x") as port, pytest.raises(DeliveryFailed, match=r"within 0\.3 seconds"):
        send_now(message(receiver(keys.format(port)), alert()), SHORT)


def test_secret_that_is_missing_is_reported_without_a_request(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    with web_receiver() as hook:
        for key in ('bearer_file = "no"', 'bearer_file = "empty"', 'hmac_env = "NOT_SET_ANYWHERE"'):
            with pytest.raises(DeliveryFailed) as caught:
                send_now(message(receiver(f'url = "{hook.url}"\n{key}', tmp_path), alert()))
            assert caught.value.is_final
    assert hook.requests == []


def test_url_that_is_a_secret_is_checked_and_in_no_message(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("ftp://host/s3cret")
    with pytest.raises(DeliveryFailed) as caught:
        send_now(message(receiver('type = "slack"\nurl_file = "url"', tmp_path), alert()))
    assert "s3cret" not in str(caught.value) and "must begin with http" in str(caught.value)


HOSTILE = "<!channel> *x* <https://evil|click> :bomb: @here &amp; \x1b[2J\u202e\n{value} ```"


def test_slack_gets_names_as_text_without_markup_links_or_mentions() -> None:
    with web_receiver() as hook:
        send_now(message(receiver(f'type = "slack"\nurl = "{hook.url}"'), alert(HOSTILE, names=(HOSTILE,))))
    document = json.loads(hook.requests[0][2])
    assert document["mrkdwn"] is False and "<" not in document["text"] and "&lt;!channel&gt;" in document["text"]
    for block in document["blocks"]:
        assert (block["text"]["type"], block["text"]["emoji"]) == ("plain_text", False)
        assert not {"\x1b", "\u202e"} & set(block["text"]["text"])
    assert document["blocks"][0]["type"] == "header" and len(document["blocks"][0]["text"]["text"]) <= 150


def test_slack_message_is_bounded() -> None:
    many = [alert("x" * 5000, labels=(("name", str(number)),)) for number in range(100)]
    with web_receiver() as hook:
        send_now(message(receiver(f'type = "slack"\nurl = "{hook.url}"'), *many))
    blocks = json.loads(hook.requests[0][2])["blocks"]
    assert len(blocks) < 50 and all(len(block["text"]["text"]) <= 3000 for block in blocks)
    assert "and 80 more" in [block["text"]["text"] for block in blocks]


def mail_keys(port: int, more: str = "") -> str:
    return (
        f'type = "email"\nsmtp = "127.0.0.1:{port}"\nfrom = "alerts@shop.example"\n'
        f'to = ["ana@shop.example", "bob@shop.example"]\n{more}'
    )


def test_mail_is_sent_with_starttls_and_login(
    server_tls: ssl.SSLContext, ca_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "s3cret")
    more = f'user = "ottla"\npassword_env = "MAIL_PASSWORD"\nca_file = "{ca_file}"'
    with mail_receiver(server_tls) as server:
        send_now(message(receiver(mail_keys(server.port, more)), alert()))
    assert server.logins == [("ottla", "s3cret")]
    mail = email.message_from_bytes(server.mails[0], policy=email.policy.default)
    assert mail["Subject"] == "[CRITICAL] main: open: 3 partitions without a leader"
    assert (mail["To"], mail["Auto-Submitted"]) == ("ana@shop.example, bob@shop.example", "auto-generated")
    assert mail.get_content_type() == "text/plain"
    assert mail.get_content().splitlines() == [
        "Cluster main", "", "CRITICAL  offline-partitions: 3 partitions without a leader",
        "  What to do: start broker 2", "  a-0, b-1 and 1 more", "  since 2023-11-14T22:13:20.000Z, for 1m00s", "", "https://console.example",
    ]  # fmt: skip


def test_mail_is_sent_with_implicit_tls(server_tls: ssl.SSLContext, ca_file: Path) -> None:
    with mail_receiver(server_tls, is_implicit=True) as server:
        send_now(message(receiver(mail_keys(server.port, f'tls = "implicit"\nca_file = "{ca_file}"')), alert()))
    assert len(server.mails) == 1


def test_mail_is_not_sent_when_the_server_has_no_starttls(server_tls: ssl.SSLContext) -> None:
    with mail_receiver(server_tls, offers_starttls=False) as server, pytest.raises(DeliveryFailed, match="no STARTTLS"):
        send_now(message(receiver(mail_keys(server.port)), alert()))
    assert server.mails == []


def test_mail_is_not_sent_to_a_server_with_an_unknown_certificate(server_tls: ssl.SSLContext) -> None:
    with (
        mail_receiver(server_tls) as server,
        pytest.raises(DeliveryFailed, match="certificate of the mail server is not trusted"),
    ):
        send_now(message(receiver(mail_keys(server.port)), alert()))
    assert server.mails == []


def test_name_with_line_breaks_adds_no_header_to_a_mail() -> None:
    with mail_receiver() as server:
        news = message(
            receiver(mail_keys(server.port, 'tls = "none"')), alert("x\r\nBcc: evil@x.y\r\n\r\n.\r\nMAIL FROM:<a>")
        )
        send_now(news)
    (mail,) = server.mails
    assert not any(line.lower().startswith(b"bcc:") for line in mail.splitlines())
    recipients = [line for line in server.said if line.upper().startswith("RCPT")]
    assert recipients == ["rcpt TO:<ana@shop.example>", "rcpt TO:<bob@shop.example>"]


@pytest.mark.parametrize(("word", "text"), [("RCPT", "refuses the recipients: status 550"), ("MAIL", "status 550")])
def test_mail_server_that_refuses_is_a_failure_without_its_text(word: str, text: str) -> None:
    with mail_receiver(refuses=word) as server, pytest.raises(DeliveryFailed, match=text) as caught:
        send_now(message(receiver(mail_keys(server.port, 'tls = "none"')), alert()))
    assert caught.value.is_final and "secret-answer" not in str(caught.value)


def test_secrets_are_in_no_message_and_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, server_tls: ssl.SSLContext
) -> None:
    (tmp_path / "secret").write_text("s3cret-text")
    caplog.set_level(logging.DEBUG)
    texts = []
    with web_receiver(answer(400, b"s3cret-text")) as hook:
        keys = f'url = "{hook.url}"\nbearer_file = "secret"\nhmac_file = "secret"'
        news = message(receiver(keys, tmp_path), alert())
        with pytest.raises(DeliveryFailed) as caught:
            send_now(news)
        texts += [str(caught.value), repr(news)]
    assert not any("s3cret" in each for each in [*texts, caplog.text])


def test_text_is_one_line_of_visible_characters() -> None:
    assert plain("a\u2066b\u200bc\ud800\u2028\n\x9b") == "a\\u2066b\\u200bc\\ud800\\u2028\\x0a\\x9b"
    assert len(plain("x" * 5000)) == 1000


def test_receiver_of_another_scheme_is_refused_when_the_file_is_read() -> None:
    for url in ("ftp://h/", "file:///x", "gopher://h", "unix:///x", "http://", "javascript:alert(1)"):
        with pytest.raises(BadRules):
            receiver(f'url = "{url}"')
