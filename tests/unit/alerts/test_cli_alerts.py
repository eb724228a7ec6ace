"""`ottla alerts`."""

from __future__ import annotations

import contextlib
import json
from base64 import b64decode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from alert_receivers import answer, running, web_receiver
from click.testing import CliRunner, Result

from ottla.cli.main import main


def ottla(*words: str) -> Result:
    return CliRunner().invoke(main, ["alerts", *words], prog_name="ottla")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "alerts.toml"


@contextlib.contextmanager
def monitor(status: int, body: Any) -> Iterator[tuple[str, list[dict[str, str]]]]:
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append({"path": self.path, **dict(self.headers)})
            answer(status, json.dumps(body).encode())(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with running(server):
        yield f"http://127.0.0.1:{server.server_address[1]}", seen


def test_check_lists_the_rules_of_a_valid_file() -> None:
    result = ottla("check", "default")
    assert result.exit_code == 0
    assert "offline-partitions   critical      30s  1m" in result.output
    assert "group_seconds above 900 seconds" in result.output
    rows = json.loads(ottla("check", "default", "-o", "json").output)
    assert rows["rules"][0]["rule"] == "cluster-not-read" and rows["receivers"] == []


def test_check_prints_a_line_for_each_problem(file: Path) -> None:
    file.write_text('[[rule]]\nname = "a"\ncheck = "x"\nfro = 1\n')
    result = ottla("check", str(file))
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 2)
    assert result.stderr.startswith(f"error: {file}: rule 'a': check 'x' is unknown")
    assert ottla("check", str(file) + "x").exit_code == 3


def test_default_prints_a_file_that_is_valid(file: Path) -> None:
    file.write_text(ottla("default").output)
    assert ottla("check", str(file)).exit_code == 0


def test_conditions_lists_checks_and_values() -> None:
    names = {(row["kind"], row["name"]) for row in json.loads(ottla("conditions", "-o", "json").output)}
    assert {("check", "offline-partitions"), ("check", "cluster-not-read"), ("value", "group_seconds")} <= names


def test_test_sends_an_alert_that_opens_and_closes(file: Path) -> None:
    with web_receiver() as good, web_receiver(answer(500)) as bad:
        file.write_text(
            f'[[receiver]]\nname = "good"\nurl = "{good.url}"\n[[receiver]]\nname = "bad"\nurl = "{bad.url}"\n'
        )
        result = ottla("test", str(file))
        assert (result.exit_code, result.output) == (
            1,
            "good: accepted\nerror: bad: the web server answers with status 500\n",
        )
        assert ottla("test", str(file), "--receiver", "good").exit_code == 0
        assert ottla("test", str(file), "--receiver", "other").exit_code == 3
    assert [json.loads(body)["status"] for _, _, body in good.requests] == ["firing", "resolved"] * 2


ROW = {
    "rule": "late", "state": "open", "severity": "warning", "since_ms": 1_700_000_000_000, "text": "g\x1b is late",
    "is_silenced": False, "is_flapping": True, "is_unknown": False,
}  # fmt: skip
VIEW = {
    "clusters": [{"cluster": "main", "alerts": [ROW, {**ROW, "state": "pending", "is_flapping": False}]}],
    "problems": ["the file is wrong"],
    "receivers": [{"name": "hook", "problem": "away"}],
}


def test_list_shows_the_open_alerts_of_a_monitor(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    with monitor(200, VIEW) as (url, seen):
        words = ("list", "--monitor", f"{url}/", "--user", "ana", "--password-file", str(tmp_path / "password"))
        result = ottla(*words)
        assert len(ottla(*words, "--all").stdout.splitlines()) == 3
        assert json.loads(ottla(*words, "-o", "json").stdout) == VIEW
    assert "open, flapping" in result.stdout and "g\\x1b is late" in result.stdout
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == "warning: the file is wrong\nwarning: receiver hook: away\n"
    assert seen[0]["path"] == "/alerts"
    assert b64decode(seen[0]["Authorization"].removeprefix("Basic ")) == b"ana:s3cret"


@pytest.mark.parametrize(
    ("status", "body", "code", "text"),
    [
        (404, {}, 1, "start it with 'ottla monitor --alerts default'"),
        (401, {}, 1, "give --user"),
        (200, [], 1, "is no monitor of Ottla"),
    ],
)
def test_list_says_what_to_do_when_there_are_no_alerts_to_get(status: int, body: Any, code: int, text: str) -> None:
    with monitor(status, body) as (url, _):
        result = ottla("list", "--monitor", url)
    assert result.exit_code == code and text in result.stderr


def test_list_without_a_monitor_says_how_to_start_one() -> None:
    result = ottla("list", "--monitor", "http://127.0.0.1:1")
    assert result.exit_code == 4 and "start one with 'ottla monitor'" in result.stderr
