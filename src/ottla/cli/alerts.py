"""`ottla alerts`: rules of alerts and the alerts of a monitor."""

from __future__ import annotations

import getpass
import json
import os
import time
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import Failure, NotFound, NotHealthy
from ottla.cli.duration import format_local_time
from ottla.cli.failure import exit_if_failed
from ottla.cli.output import JSON, TABLE, YAML, Column, format_count, output_option, print_data, print_rows
from ottla.model.printable import shown

if TYPE_CHECKING:
    from ottla.edge.monitor.alerts.rules import Receiver, Rules

MONITOR_DEFAULT = "http://127.0.0.1:8000"
MONITOR_ENVIRONMENT = "OTTLA_MONITOR"
_ANSWER_BYTES_MAX = 64 << 20
_SECRET_BYTES_MAX = 1024

_RULES = (
    Column("RULE", "rule"), Column("SEVERITY", "severity"), Column("FOR", "for"), Column("KEEP", "keep"),
    Column("CONDITION", "condition"),
)  # fmt: skip
_CONDITIONS = (Column("KIND", "kind"), Column("NAME", "name"), Column("OF", "of"), Column("MEANING", "meaning"))
_ALERTS = (
    Column("CLUSTER", "cluster"), Column("SEVERITY", "severity"), Column("STATE", "state"), Column("SINCE", "since"),
    Column("RULE", "rule"), Column("TEXT", "text"),
)  # fmt: skip

_file_argument = click.argument("file", metavar="FILE", type=click.Path())


@click.group("alerts")
def command() -> None:
    """Check rules of alerts, send test messages, and list the alerts of a monitor.

    'ottla monitor --alerts FILE' opens alerts by the rules of a file. The file 'default' is part of Ottla.
    """


@command.command("check")
@_file_argument
@output_option(TABLE, JSON, YAML)
def check(file: str, output: str) -> None:
    """Check a file of rules and list its rules. Each problem is a line, and the exit code is then 1."""
    from ottla.edge.monitor.alerts.description import describe_rules

    rules = _load(file)
    rows = describe_rules(rules)
    if output != TABLE:
        receivers = [{"name": each.name, "type": each.kind.value} for each in rules.receivers]
        print_data({"rules": rows, "receivers": receivers, "silences": len(rules.silences)}, output)
        return
    print_rows(rows, _RULES, output, empty="no rules")
    names = ", ".join(f"{each.name} ({each.kind})" for each in rules.receivers)
    click.echo(f"\n{shown(file)} is valid: {format_count(len(rows), 'rule')}, receivers: {names or 'none'}")


@command.command("default")
def default() -> None:
    """Print the default rules, as a start for a file of your own."""
    from ottla.edge.monitor.alerts.rules_file import default_text

    click.echo(default_text(), nl=False)


@command.command("conditions")
@output_option(TABLE, JSON, YAML)
def conditions(output: str) -> None:
    """List the checks and values that a rule can name."""
    from ottla.edge.monitor.alerts.description import describe_conditions

    print_rows(list(describe_conditions()), _CONDITIONS, output)


@command.command("test")
@_file_argument
@click.option("--receiver", "names", metavar="NAME", multiple=True, help="A receiver; without it all. Repeatable.")
def test(file: str, names: tuple[str, ...]) -> None:
    """Send a test message to the receivers of a file: an alert that opens, and then that it has closed."""
    rules = _load(file)
    known = {each.name: each for each in rules.receivers}
    if not known:
        raise Failure(f"{shown(file)} has no receivers; add one with [[receiver]], see 'docs/operate/alerts.md'")
    for name in names:
        if name not in known:
            raise NotFound(f"{shown(file)} has no receiver {shown(name)!r}; it has {', '.join(known)}")
    failures = []
    for name in names or tuple(known):
        problem = _send_test(known[name], rules)
        if problem:
            failures.append(Failure(f"{name}: {problem}"))
        else:
            click.echo(f"{name}: accepted")
    exit_if_failed(failures)


def _send_test(receiver: Receiver, rules: Rules) -> str:
    """Return why a receiver does not accept test messages; empty if it does."""
    from ottla.edge.monitor.alerts.bodies import Origin
    from ottla.edge.monitor.alerts.grouping import Message
    from ottla.edge.monitor.alerts.rules import Level
    from ottla.edge.monitor.alerts.sending import DeliveryFailed, send
    from ottla.edge.monitor.alerts.states import Alert, State

    now_ms = time.time_ns() // 1_000_000
    alert = Alert(
        rule="test", labels=(("test", "true"),), state=State.OPEN, level=Level.INFO, since_ms=now_ms, opened_ms=now_ms,
        text="a test message of 'ottla alerts test'", advice="nothing is to be done",
    )  # fmt: skip
    group = (("rule", "test"),)
    origin = Origin(cluster="test", url=rules.external_url)
    try:
        send(Message(receiver=receiver, group=group, opened=(alert,), closed=()), origin, now_ms)
        alert.state, alert.closed_ms = State.CLOSED, now_ms
        send(Message(receiver=receiver, group=group, opened=(), closed=(alert,)), origin, now_ms)
    except DeliveryFailed as error:
        return str(error)
    return ""


@command.command("list")
@click.option(
    "--monitor",
    "url",
    metavar="URL",
    default=None,
    help=f"The monitor.  [env: {MONITOR_ENVIRONMENT}; default: {MONITOR_DEFAULT}]",
)
@click.option("--user", metavar="NAME", help="User of a monitor with logins; the password is asked for.")
@click.option(
    "--password-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Read the password from the first line of a file.",
)
@click.option("--all", "with_pending", is_flag=True, help="Also alerts that are not open yet.")
@output_option(TABLE, JSON, YAML)
def list_alerts(
    url: str | None, *, user: str | None, password_file: str | None, with_pending: bool, output: str
) -> None:
    """List the open alerts of a monitor, the worst first."""
    found = _ask_monitor(url or os.environ.get(MONITOR_ENVIRONMENT) or MONITOR_DEFAULT, user, password_file)
    if output != TABLE:
        print_data(found, output)
        return
    rows = [
        {**row, "cluster": cluster["cluster"], "since": format_local_time(row["since_ms"]), "state": _state(row)}
        for cluster in found["clusters"]
        for row in cluster["alerts"]
        if with_pending or row["state"] == "open"
    ]
    print_rows(rows, _ALERTS, output, empty="no open alerts")
    for problem in found["problems"]:
        click.echo(f"warning: {shown(problem)}", err=True)
    for receiver in found["receivers"]:
        if receiver["problem"]:
            click.echo(f"warning: receiver {receiver['name']}: {shown(receiver['problem'])}", err=True)


def _state(row: dict[str, Any]) -> str:
    words = [str(row["state"])]
    words += [word for word in ("silenced", "flapping", "unknown") if row[f"is_{word}"]]
    return ", ".join(words)


def _ask_monitor(url: str, user: str | None, password_file: str | None) -> dict[str, Any]:
    """Return what the monitor answers at /alerts."""
    import ssl
    from urllib.parse import urlsplit

    from ottla.security.web_documents import DocumentError, Limits, request_document

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise click.UsageError(f"--monitor {shown(url)!r} must begin with http://HOST or https://HOST")
    headers = {"Accept": "application/json"}
    if user is not None:
        login = f"{user}:{_password(password_file)}"
        headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    path = parts._replace(path=f"{parts.path.rstrip('/')}/alerts", query="", fragment="")
    try:
        body = request_document(path, Limits(_ANSWER_BYTES_MAX), tls=tls, headers=headers)
        found = json.loads(body)
        if not isinstance(found, dict) or not isinstance(found.get("clusters"), list):
            raise ValueError
    except DocumentError as error:
        hints = {
            404: "start it with 'ottla monitor --alerts default'",
            401: "give --user",
            403: "give a user who may read it",
        }
        hint = hints.get(error.status, "start one with 'ottla monitor', or name another with --monitor")
        raise (Failure if error.status else NotHealthy)(f"monitor {shown(url)}: {shown(str(error))}; {hint}") from None
    except ValueError:
        raise Failure(f"{shown(url)} is no monitor of Ottla: its answer has no alerts") from None
    return found


def _password(file: str | None) -> str:
    if file is None:
        return getpass.getpass()
    with Path(file).open("rb") as opened:
        return opened.read(_SECRET_BYTES_MAX).decode(errors="replace").partition("\n")[0].rstrip("\r")


def _load(file: str) -> Rules:
    """Return the rules of a file. Print each problem and end the command with exit code 1 if there is one."""
    from ottla.edge.monitor.alerts.rules_file import DEFAULT, BadRules, load

    if file != DEFAULT and not os.path.exists(file):
        raise NotFound(f"{shown(file)} does not exist; '{DEFAULT}' is the file of Ottla")
    try:
        return load(file)
    except BadRules as error:
        exit_if_failed([Failure(f"{shown(file)}: {each}") for each in error.problems])
        raise
