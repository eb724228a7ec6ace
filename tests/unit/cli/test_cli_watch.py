"""`--watch`: rounds, what they print, and how they end."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import click
import pytest
import yaml

from ottla.admin.failure import NotHealthy
from ottla.cli import cluster as cluster_module
from ottla.cli import watch
from ottla.cli.connection import ClusterOptions
from ottla.cli.watch import Screen, frame, run_round


@pytest.fixture
def after_round(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Call these functions after the rounds, one after each, and then Ctrl-C instead of the next one."""

    def install(*functions: Callable[[], object]) -> list[float]:
        pauses: list[float] = []

        def pause(interval_s: float) -> None:
            pauses.append(interval_s)
            if len(pauses) > len(functions):
                raise KeyboardInterrupt
            functions[len(pauses) - 1]()

        monkeypatch.setattr(watch, "pause", pause)
        return pauses

    return install


def test_rounds_are_blocks_with_an_empty_line_between_them(cluster: Any, ottla: Any, after_round: Any) -> None:
    pauses = after_round(lambda: cluster.add_topic("later"))
    result = ottla("topic", "list", "--watch", "7")
    first, second = result.stdout.split("\n\n")
    assert ("later" in first, "later" in second, pauses) == (False, True, [7.0, 7.0])
    assert (result.exit_code, result.stderr) == (0, "")


def test_json_rounds_are_documents(cluster: Any, ottla: Any, after_round: Any) -> None:
    after_round(lambda: cluster.add_topic("a"))
    text = ottla("topic", "list", "-o", "json", "--watch").stdout
    first, end = json.JSONDecoder().raw_decode(text)
    assert (first, [row["topic_name"] for row in json.loads(text[end:])]) == ([], ["a"])


def test_yaml_rounds_are_documents(cluster: Any, ottla: Any, after_round: Any) -> None:
    after_round(lambda: cluster.add_topic("a"))
    first, second = yaml.safe_load_all(ottla("topic", "list", "-o", "yaml", "--watch").stdout)
    assert (first, second[0]["topic_name"]) == ([], "a")


def test_interval_is_optional_before_the_name_of_a_topic(cluster: Any, ottla: Any, after_round: Any) -> None:
    cluster.add_topic("orders")
    pauses = after_round()
    assert ottla("topic", "describe", "--watch", "orders").exit_code == 0
    assert ottla("topic", "describe", "orders", "--watch=0.5").exit_code == 0
    assert pauses == [2.0, 0.5]


@pytest.mark.parametrize("interval", ["0", "-1", "1e9", "nan", "soon"])
def test_interval_out_of_range_is_wrong_usage(ottla: Any, after_round: Any, interval: str) -> None:
    after_round()
    assert ottla("topic", "list", f"--watch={interval}").exit_code == 2


def test_failure_of_a_round_is_shown_and_the_next_round_runs(cluster: Any, ottla: Any, after_round: Any) -> None:
    cluster.add_topic("orders")
    after_round(cluster.known.clear, lambda: cluster.add_topic("orders"))
    result = ottla("topic", "describe", "orders", "--watch")
    assert (result.stdout.count("NAME"), result.stderr.count("error: topic orders does not exist")) == (2, 1)
    assert result.exit_code == 0


def test_exit_code_is_that_of_the_last_round(cluster: Any, ottla: Any, after_round: Any) -> None:
    cluster.add_topic("orders")
    after_round(cluster.known.clear)
    assert ottla("topic", "describe", "orders", "--watch").exit_code == 3


def test_ctrl_c_in_the_first_round_has_the_code_of_an_interruption(ottla: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(connection: ClusterOptions) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster_module, "connect", interrupted)
    assert ottla("topic", "list", "--watch").exit_code == 130


def test_wrong_usage_ends_the_command(cluster: Any, ottla: Any, after_round: Any) -> None:
    pauses = after_round()
    assert (ottla("topic", "list", "-r", "--watch").exit_code, pauses) == (2, [])


class _Client:
    """A client that counts how often it was opened and closed, and can fail."""

    opened = closed = 0
    is_down = False

    def __init__(self, connection: ClusterOptions) -> None:
        type(self).opened += 1

    def topics(self) -> dict[str, Any]:
        if self.is_down:
            raise NotHealthy("no answer")
        return {}

    def close(self) -> None:
        type(self).closed += 1


def test_client_stays_open_between_rounds_and_is_opened_again_after_a_failure(
    ottla: Any, after_round: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = type("Client", (_Client,), {})
    monkeypatch.setattr(cluster_module, "_open", client)
    counts = []

    def note(is_down: bool) -> None:
        counts.append((client.opened, client.closed))
        client.is_down = is_down

    after_round(lambda: note(False), lambda: note(True), lambda: note(False))
    result = ottla("topic", "list", "--watch")
    assert (result.exit_code, result.stderr) == (0, "error: no answer\n")
    assert counts == [(1, 0), (1, 0), (1, 1)]
    assert (client.opened, client.closed) == (2, 2)


def test_frame_replaces_the_screen_without_clearing_it_first() -> None:
    text = frame(["a", "long line"], 4, 10)
    assert text == "\x1b[?7l\x1b[Ha\x1b[K\nlong\x1b[K\x1b[J\x1b[?7h"


def test_frame_has_no_more_lines_than_the_screen() -> None:
    text = frame([str(number) for number in range(100)], 80, 5)
    assert (text.count("\n"), "3\x1b[K\nand 96 more lines" in text) == (4, True)


def test_screen_keeps_the_last_good_output_below_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("sys.stdout", shown)
    screen = Screen("title")
    screen.show("state\n", "")
    shown.truncate(0)
    screen.show("", "error: no answer\n")
    text = shown.getvalue()
    assert text.index("title") < text.index("error: no answer") < text.index("state")


def test_output_of_a_round_is_not_printed_before_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    failures: list[int] = []

    def run() -> None:
        click.echo("state")
        click.echo("warning", err=True)
        raise SystemExit(4)

    assert run_round(run, with_errors=False, on_failure=lambda: failures.append(1)) == ("state\n", "", 4)
    assert (capsys.readouterr(), failures) == (("", "warning\n"), []), "the state is bad, the connection is not"
