"""`ottla doctor`: checks of this machine and of a cluster.

Each check returns a verdict and, if it is not ok, the remedy. No check changes anything. Those of the cluster are in
`ottla.health`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import click

from ottla.admin.failure import FAILED
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.output import JSON, TABLE, YAML, Column, output_option, print_data, print_rows
from ottla.cli.service_options import missing_package
from ottla.model import extras
from ottla.model.printable import shown

Verdict = Literal["ok", "info", "warn", "fail"]

OK: Literal["ok"] = "ok"
INFO: Literal["info"] = "info"
WARN: Literal["warn"] = "warn"
FAIL: Literal["fail"] = "fail"

PYTHON_MIN = (3, 11)
#: a broker holds a descriptor per open segment and per connection
OPEN_FILES_MIN = 1024
OPEN_FILES_GOOD = 16384
FREE_BYTES_MIN = 1 << 30
#: 2026-01-01: a clock that shows an earlier time is wrong
CLOCK_FLOOR_S = 1_767_225_600
CLOCK_AHEAD_S_MAX = 60


@dataclass(frozen=True, slots=True)
class Check:
    """One verdict; `remedy` says what to do when it is not ok."""

    name: str
    verdict: Verdict
    detail: str
    remedy: str = ""
    #: the kind and the names of the objects that a check of the cluster is about, such as partitions
    kind: str = ""
    names: tuple[str, ...] = ()


_CHECK_COLUMNS = (
    Column("CHECK", "name"),
    Column("SEVERITY", "severity"),
    Column("PROBLEM", "problem"),
    Column("WHAT TO DO", "advice"),
)


@click.command("doctor")
@click.argument("area", metavar="[security|checks]", required=False, type=click.Choice(["security", "checks"]))
@click.option("--config", metavar="FILE", type=click.Path(), help="With security: check the settings in this file.")
@click.option("--data", metavar="DIR", type=click.Path(), help="Also check this data directory.")
@click.option(
    "--compare",
    "compare_s",
    metavar="SECONDS",
    type=click.FloatRange(2.0, 3600.0),
    help="Read the cluster again after SECONDS, for the checks that compare two readings: groups that stopped or fall "
    "behind, rebalances and moves without progress, disks that fill.",
)
@connection_options
@output_option(TABLE, JSON, YAML)
def command(
    area: str | None,
    config: str | None,
    data: str | None,
    compare_s: float | None,
    *,
    connection: ClusterOptions,
    output: str,
) -> None:
    """Check this machine and a cluster, or the security of a broker's settings, and say what to do.

    Checks Python, limits, the data directory, the clock and the address, then the state of the cluster: brokers,
    partitions, disks, groups, transactions, topics and security. The first page of the console uses the same checks.

    Each line has a verdict. fail: something does not work. warn: it will not, or not after the next failure. info: it
    may be intended. A line after it says what to do next. The exit code is 1 if a check fails, 0 otherwise.

    'ottla doctor checks' prints all checks of a cluster. 'ottla doctor security --config FILE' checks the security of a
    broker's settings: listeners, certificates and when they expire, files that other users can read, passwords, ACLs,
    super users and ZooKeeper. The broker need not run.
    """
    if (area == "security") != (config is not None):
        raise click.UsageError("'ottla doctor security' needs --config with the broker's server.properties")
    if area == "checks":
        _print_table_of_checks(output)
        return
    checks = list(run_checks(data, connection, compare_s) if config is None else _security_checks(config))
    if output == TABLE:
        _print_for_people(checks)
    else:
        print_data([asdict(check) for check in checks], output)
    if any(check.verdict == FAIL for check in checks):
        sys.exit(FAILED)


def _print_for_people(checks: Sequence[Check]) -> None:
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        click.echo(f"{check.verdict:<4}  {shown(check.name):<{width}}  {shown(check.detail)}")
        if check.remedy:
            click.echo(f"{'':<4}  {'':<{width}}  next: {shown(check.remedy)}")
    counts = Counter(check.verdict for check in checks)
    click.echo(", ".join(f"{counts[verdict]} {verdict}" for verdict in (FAIL, WARN, INFO, OK) if counts[verdict]))


def _print_table_of_checks(output: str) -> None:
    from ottla.health.checks import CHECKS

    rows = [
        {
            "name": check.name, "severity": check.severity.name.lower(), "kind": check.kind, "problem": check.problem,
            "advice": check.advice, "compares_readings": check.needs_before,
        }
        for check in CHECKS
    ]  # fmt: skip
    print_rows(rows, _CHECK_COLUMNS, output)


def _security_checks(config: str) -> Iterator[Check]:
    import datetime

    from ottla.cli.doctor_security import check_security

    return check_security(config, datetime.datetime.now(datetime.UTC))


def run_checks(data: str | None, connection: ClusterOptions, compare_s: float | None = None) -> Iterator[Check]:
    from ottla.cli import doctor_cluster

    yield check_python(sys.version_info[:3], sys.flags.optimize)
    yield check_event_loop()
    yield check_crc()
    yield check_open_files(_open_file_limit())
    if data is not None:
        yield from check_data(data)
    yield check_clock(time.time(), data)
    yield check_services(missing_package())
    yield check_java()
    yield check_kcat()
    yield from doctor_cluster.check_cluster(connection, compare_s)


# The machine


def check_python(version: tuple[int, ...], optimize: int) -> Check:
    text = ".".join(map(str, version))
    if version[:2] < PYTHON_MIN:
        return Check("python", FAIL, f"{text} is too old", "use Python 3.11 or newer")
    if optimize:
        return Check("python", FAIL, f"{text} runs with -O, without assertions", "drop -O and unset PYTHONOPTIMIZE")
    return Check("python", OK, text)


def check_event_loop() -> Check:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Check("uvloop", OK, version("uvloop"))
    except PackageNotFoundError:
        return Check("uvloop", WARN, "not installed, the broker runs slower", "pip install uvloop")


def check_crc() -> Check:
    try:
        import crc32c
    except ImportError:
        return Check("crc32c", FAIL, "not installed", "pip install crc32c")
    if not crc32c.hardware_based:
        return Check("crc32c", WARN, "in software, which costs throughput", "use a CPU with SSE 4.2 or ARMv8 CRC")
    return Check("crc32c", OK, "in hardware")


def check_open_files(limit: int) -> Check:
    """Check the hard limit, because the broker raises its soft limit to it."""
    detail = f"limit is {limit}"
    if limit < OPEN_FILES_MIN:
        return Check(
            "open files", FAIL, detail, f"raise it to {OPEN_FILES_GOOD}, for example with LimitNOFILE= in systemd"
        )
    if limit < OPEN_FILES_GOOD:
        return Check("open files", WARN, detail, f"for many partitions raise it to {OPEN_FILES_GOOD}")
    return Check("open files", OK, detail)


def check_clock(now_s: float, data: str | None) -> Check:
    shown = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s))
    if now_s < CLOCK_FLOOR_S:
        return Check("clock", FAIL, f"it shows {shown}", "set it, or start NTP: retention depends on this clock")
    newest_s = _newest_segment_time(data) if data is not None else None
    if newest_s is not None and newest_s > now_s + CLOCK_AHEAD_S_MAX:
        ahead_s = round(newest_s - now_s)
        return Check(
            "clock",
            WARN,
            f"segments were written {ahead_s} s ahead of {shown}",
            "check NTP: the clock was set back",
        )
    return Check("clock", OK, shown)


def check_services(missing: str | None) -> Check:
    """Check that the packages of the schema registry and the REST proxy are installed."""
    if missing is None:
        return Check("http services", OK, "'ottla registry' and 'ottla rest' can run")
    remedy = f"in a checkout: {extras.install_command(extras.EDGE)}"
    return Check("http services", OK, f"no {missing}; only 'ottla registry' and 'ottla rest' need it; {remedy}")


def check_java() -> Check:
    home = os.environ.get("JAVA_HOME", "")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else None
    java = java or shutil.which("java")
    return Check("java", OK, java or "none; only Spark and ZooKeeper need it")


def check_kcat() -> Check:
    return Check("kcat", OK, shutil.which("kcat") or "none; it is optional")


# The data directory


def check_data(path: str) -> Iterator[Check]:
    if not os.path.isdir(path):
        parent = _nearest_directory(path)
        if os.path.exists(path) or not os.access(parent, os.W_OK | os.X_OK):
            yield Check("data", FAIL, f"{path} cannot be created", f"create it, or allow writing in {parent}")
            return
        yield Check("data", OK, f"{path} does not exist yet; the broker will create it")
        yield _check_free_space(parent)
        return
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Check("data", FAIL, f"{path} is not writable", "change its owner or mode")
        return
    yield Check("data", OK, f"{path} is writable")
    yield _check_free_space(path)
    yield from _check_stop(path)


def _check_free_space(path: str) -> Check:
    free = shutil.disk_usage(path).free
    text = f"{free / (1 << 30):.1f} GiB free"
    if free < FREE_BYTES_MIN:
        return Check("disk", FAIL, text, "free some space, or lower retention.ms and retention.bytes")
    return Check("disk", OK, text)


def _check_stop(path: str) -> Iterator[Check]:
    from ottla.log.checkpoints import CLEAN_STOP
    from ottla.log.directories import META
    from ottla.log.store import LOCK

    if _is_locked(os.path.join(path, LOCK)):
        yield Check("lock", OK, "a running broker holds this directory")
    elif os.path.exists(os.path.join(path, CLEAN_STOP)):
        yield Check("last stop", OK, "clean")
    elif os.path.exists(os.path.join(path, META)):
        yield Check(
            "last stop", WARN, "not clean", "no action needed: the next start recovers the logs and takes longer"
        )
    else:
        yield Check("last stop", OK, "never used")


def _is_locked(path: str) -> bool:
    import fcntl

    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Ottla locks with flock, Apache Kafka with fcntl, and neither lock blocks the other.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _nearest_directory(path: str) -> str:
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _newest_segment_time(data: str) -> float | None:
    times = []
    for folder, _, names in os.walk(data):
        times += [os.stat(os.path.join(folder, name)).st_mtime for name in names if name.endswith(".log")]
    return max(times, default=None)


def _open_file_limit() -> int:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return hard if hard >= 0 else 1 << 62
