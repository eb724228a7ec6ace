"""The part of `ottla doctor` about the cluster: its address, then the checks of `ottla.health`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

import click

from ottla.admin.client import AdminClient
from ottla.cli.cluster import opened_client, refusal
from ottla.cli.connection import ClusterOptions, split_addresses
from ottla.cli.doctor import FAIL, INFO, OK, WARN, Check, Verdict
from ottla.cli.listeners import find_listener
from ottla.health.asker import without_doctor
from ottla.health.checks import CHECKS
from ottla.health.evaluation import evaluate
from ottla.health.findings import Finding, Severity
from ottla.health.picture import PictureOptions, read_picture
from ottla.health.types import ClusterPicture
from ottla.lag.reading import LagReader
from ottla.model.errors import OttlaError
from ottla.model.figures import format_count, format_duration_ms

_VERDICTS: Final[dict[Severity, Verdict]] = {Severity.INFO: INFO, Severity.WARNING: WARN, Severity.ERROR: FAIL}


def check_cluster(connection: ClusterOptions, compare_s: float | None = None) -> Iterator[Check]:
    """Yield whether the address accepts connections, whether a Kafka broker answers, and what the checks found."""
    refusals = {
        f"{host}:{port}": refusal(host, port, connection.timeout_s)
        for host, port in split_addresses(connection.bootstrap)
    }
    for address, reason in refusals.items():
        if reason is None:
            listener = find_listener(int(address.rpartition(":")[2]))
            yield Check("address", OK, f"{address} accepts connections{f' ({listener})' if listener else ''}")
        elif connection.bootstrap_named:
            # The other addresses are enough for a client, until one of them fails, too.
            verdict: Verdict = FAIL if all(refusals.values()) else WARN
            remedy = "start a broker there with 'ottla broker', or fix -b"
            yield Check("address", verdict, f"{address}: {reason}", remedy)
        else:
            yield Check("address", OK, f"{address} is free, 'ottla broker' can start there")
    if not all(refusals.values()):
        yield from _check_state(connection, compare_s)


def _check_state(connection: ClusterOptions, compare_s: float | None) -> Iterator[Check]:
    try:
        with opened_client(connection) as client:
            picture = read_state(client, connection.timeout_s)
            if compare_s is not None:
                time.sleep(compare_s)
                picture = read_state(client, connection.timeout_s, picture)
    except (OttlaError, click.UsageError) as error:
        text = error.message if isinstance(error, click.UsageError) else error
        remedy = "check which program listens there, the listener's protocol (-X security.protocol) and the login"
        yield Check("protocol", FAIL, f"no Kafka broker answers: {without_doctor(str(text))}", remedy)
        return
    yield from rows_of(picture, evaluate(picture))


def read_state(client: AdminClient, timeout_s: float, before: ClusterPicture | None = None) -> ClusterPicture:
    """Return the state of the cluster with the lag of its groups. Raise OttlaError if no broker answers."""
    # A broker without an answer must not use up the time of the command: it is asked once.
    options = PictureOptions(request_timeout_s=min(timeout_s, PictureOptions().request_timeout_s))
    try:
        lag = LagReader(client).read(all_topics=False).groups
    except OttlaError:
        # The picture says why, if the cluster does not answer at all; the checks of lag are then reported as not run.
        lag = None
    return read_picture(client, options=options, lag=lag, before=before)


def rows_of(picture: ClusterPicture, findings: Sequence[Finding]) -> Iterator[Check]:
    """Yield how the cluster answers, each finding, and how many checks did run."""
    yield Check("protocol", OK, f"{format_count(len(picture.brokers), 'broker')} in the metadata")
    for each in findings:
        yield Check(each.check, _VERDICTS[each.severity], each.text, each.advice, each.kind, each.names)
    table = [check for check in CHECKS if check.can_run(picture)]
    failed = {each.check for each in findings}
    passed = sum(check.name not in failed for check in table)
    topics, groups = format_count(len(picture.topics), "topic"), format_count(len(picture.groups), "group")
    since = f", compared with {format_duration_ms(picture.elapsed_ms)} before" if picture.before is not None else ""
    text = f"{passed} of {format_count(len(table), 'check')} found nothing ({topics}, {groups}{since})"
    yield Check("cluster", OK, text)
    waiting = [check.name for check in CHECKS if check.needs_before] if picture.before is None else []
    if waiting:
        text = f"{format_count(len(waiting), 'check')} compare two readings and did not run"
        yield Check("compare", OK, f"{text}: use --compare 60")
