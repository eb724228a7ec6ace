"""Campaigns that are tests of pytest with longer runs, more kills or other brokers than in `make test`."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from campaign.report import Report

_ROOT = Path(__file__).resolve().parents[2]
_PERCENT = re.compile(r"\[ *(\d+)%\]")
#: with -q it has no line around it
_SUMMARY = re.compile(r"(?:=+ )?(\d+ (?:passed|failed|skipped|deselected|error).*? in [\d.]+s.*?)(?: =+)?")
SPARK_PREVIOUS = "4.2"


def run_pytest(
    report: Report, *arguments: str, environment: Mapping[str, str] | None = None, python: str = sys.executable
) -> None:
    """Run pytest and pass on its lines. Its summary goes to the report; it prints the figures of the tests."""
    lines = _follow(report, [python, "-m", "pytest", *arguments], environment)
    summaries = [match[1] for line in lines if (match := _SUMMARY.fullmatch(line))]
    report.figure(summaries[-1] if summaries else "no test has run")


def run_command(report: Report, *command: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a command and pass on its lines."""
    _follow(report, command, environment)


def _follow(report: Report, command: Sequence[str], environment: Mapping[str, str] | None) -> list[str]:
    """Run a command in the checkout. Return its lines; an exit code besides 0 is a problem."""
    report.say(f"$ {shlex.join([Path(command[0]).name, *command[1:]])}")
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, **(environment or {})},
    ) as process:  # fmt: skip
        try:
            _pass_on(report, process, lines)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            raise
    if process.returncode != 0:
        report.problem(f"{Path(command[0]).name} {' '.join(command[1:])} ended with code {process.returncode}")
    return lines


def _pass_on(report: Report, process: subprocess.Popen[str], lines: list[str]) -> None:
    """Print the lines of a process and add them to ``lines``."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.rstrip())
        report.say(lines[-1])
        if percent := _PERCENT.search(line):
            report.progress(int(percent[1]), 100, "% of the tests")


def crash(report: Report, *, kills: int) -> None:
    run_pytest(report, "tests/crash", "-m", "crash", "--kills", str(kills), "-s")
    cuts = ("tests/model/test_transaction_cuts.py", "tests/model/test_compaction_cuts.py")
    run_pytest(report, *cuts, environment={"OTTLA_CUT_EVERY": "1"})


def groups(report: Report, *, changes: int, seed: int | None, against: str) -> None:
    drawn = [] if seed is None else ["--storm-seed", str(seed)]
    run_pytest(report, "tests/groups", "--changes", str(changes), "--against", against, *drawn, "-s")


def transactions(report: Report, *, kills: int, records: int, runs: int, seed: int | None) -> None:
    drawn = [] if seed is None else ["--txn-seed", str(seed)]
    sizes = ["--txn-kills", str(kills), "--txn-records", str(records), "--txn-runs", str(runs)]
    run_pytest(report, "tests/transactions", *sizes, *drawn, "-s")
    run_pytest(
        report, "tests/clauses/test_transaction_clauses.py", "tests/compat/test_client_transactions.py",
        "-k", "used_up or thousands or a_restart", environment={"OTTLA_LONG": "1"},
    )  # fmt: skip


def transactions_divided(report: Report, *, pytest_args: str) -> None:
    """Run the tests of transactions with a cluster in the place of each broker."""
    tests = shlex.split(pytest_args) or [
        "tests/clauses/test_transaction_clauses.py", "tests/compat/test_client_transactions.py",
        "tests/compat/test_foreign_transactions.py", "tests/broker/test_cli_txn.py",
        "tests/transactions/test_transactions_bank.py", "tests/transactions/test_transactions_copy.py",
        "tests/transactions/test_transactions_offsets.py",
    ]  # fmt: skip
    run_pytest(report, "-n", "2", *tests, environment={"OTTLA_DIVIDED": "1"})


def hostile(report: Report, *, attacks: str) -> None:
    run_pytest(report, "tests/hostile", "-s", *(["-k", attacks] if attacks else []), environment={"OTTLA_HOSTILE": "1"})


def properties(report: Report, *, rounds: int, workers: int) -> None:
    """Run the property tests with new random examples, until a round fails."""
    for number in range(rounds):
        report.progress(number, rounds, "rounds")
        tests = ("-m", "hypothesis", "tests/unit", "tests/model")
        run_pytest(report, "-n", str(workers), *tests, environment={"OTTLA_RANDOM_EXAMPLES": "1"})
        if report.problems:
            return


def registry_clients(report: Report, *, pytest_args: str) -> None:
    tests = ("tests/edge/test_registry_clients.py", "-v", *shlex.split(pytest_args))
    run_pytest(report, *tests, environment={"OTTLA_REGISTRY_CLIENTS": "all"})


def edge_kafka(report: Report, *, pytest_args: str) -> None:
    """Run the tests that use the broker only through the services."""
    through_services = re.compile("edge_broker|rest_broker|rest: RestClient")
    files = sorted((_ROOT / "tests" / "edge").glob("test_*.py"))
    tests = [str(file.relative_to(_ROOT)) for file in files if through_services.search(file.read_text())]
    run_pytest(report, *tests, *shlex.split(pytest_args), environment={"OTTLA_EDGE_KAFKA": "1"})


def browser(report: Report, *, pictures: str) -> None:
    """Open every page of the console in both colours and widths, with the rules of axe-core for accessibility."""
    directory = _ROOT / ".bench" / "axe"
    script = directory / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        options = ("--no-audit", "--no-fund", "--ignore-scripts")
        run_command(report, "npm", "install", "--prefix", str(directory), *options, "axe-core@4")
    shown = {"OTTLA_PICTURES": str(_ROOT / pictures)} if pictures else {}
    run_pytest(report, "tests/browser", "-v", environment={"OTTLA_AXE": str(script), "OTTLA_BROWSER": "all", **shown})


def spark_cluster(report: Report) -> None:
    run_pytest(report, "tests/spark/test_standalone_cluster.py", "-s", environment={"OTTLA_SPARK_CLUSTER": "1"})


def spark_previous(report: Report, *, pytest_args: str) -> None:
    """Run the Spark tests with the minor release before the newest that pyproject.toml allows."""
    environment = _ROOT / ".venv-spark-previous"
    if not (environment / "bin" / "pytest").exists():
        run_command(report, sys.executable, "-m", "venv", str(environment))
        pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        run_command(report, *pip, "-e", ".[dev]", f"pyspark=={SPARK_PREVIOUS}.*")
    tests = shlex.split(pytest_args) or ["tests/spark", "tests/unit/spark", "tests/unit/pipeline"]
    run_pytest(report, "--durations", "5", *tests, python=str(environment / "bin" / "python"))


def sdp(report: Report) -> None:
    run_pytest(report, "tests/sdp", "-s", environment={"OTTLA_SDP": "1"})


def screens(report: Report) -> None:
    sizes = ("--size", "80x24", "--size", "140x50")
    run_command(report, sys.executable, "tools/capture_screens.py", *sizes, "--out", "docs/start/screens")
