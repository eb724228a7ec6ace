"""The start of a pipeline against a broker: missing topics; a dead owner is replaced, a live one is not."""

from __future__ import annotations

import itertools
import os
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.client.membership import members_of
from ottla.pipeline.load import parse
from ottla.pipeline.ownership import AlreadyRunning, Ownership, group_of
from ottla.pipeline.preflight import TopicsMissing, check_cluster
from ottla.testing import BrokerProcess

pytestmark = pytest.mark.broker

#: of an owner that is about to die; brokers take at least 6 s unless they are told otherwise
_SHORT_S = 0.5
#: of runs that must not lose their session on a busy machine
_LONG_S = 60.0
_WAIT_S_MAX = 120.0
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with BrokerProcess.start(settings={"group.min.session.timeout.ms": "100"}) as broker:
        yield broker.bootstrap


@pytest.fixture
def pipeline() -> str:
    return f"shop_{os.getpid()}_{next(_numbers)}"


class _Process(Cluster):
    """The connections of a process that can be frozen and killed."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.may_run = threading.Event()
        self.may_run.set()
        self.is_killed = False
        #: set when a request waits because the process is frozen
        self.is_waiting = threading.Event()

    def ask(self, *arguments: Any, **options: Any) -> Any:
        if not self.may_run.is_set():
            self.is_waiting.set()
            assert self.may_run.wait(_WAIT_S_MAX)
        if self.is_killed:
            raise ClientError("a process that was killed sends nothing, not even that it leaves")
        return super().ask(*arguments, **options)

    def freeze(self) -> None:
        self.may_run.clear()
        assert self.is_waiting.wait(_WAIT_S_MAX)


def ownership(pipeline: str, cluster: Cluster, run: str, session_timeout_s: float) -> Ownership:
    return Ownership(pipeline, run, lambda: cluster, session_timeout_s=session_timeout_s, heartbeat_s=0.05)


def refuse_lines(line: str) -> None:
    raise AssertionError(line)


def test_second_run_is_refused_while_the_first_is_alive_and_starts_after_it(bootstrap: str, pipeline: str) -> None:
    with ownership(pipeline, Cluster(bootstrap), "first", _LONG_S) as first:
        first.claim(refuse_lines)
        for _ in range(3):
            with (
                ownership(pipeline, Cluster(bootstrap), "second", _LONG_S) as second,
                pytest.raises(AlreadyRunning, match="run first, process"),
            ):
                second.claim(lambda line: None)
        assert not first.was_replaced
    # The first run has left, so that the second need not wait for a session.
    with ownership(pipeline, Cluster(bootstrap), "second", _LONG_S) as second:
        second.claim(refuse_lines)
        assert not second.was_replaced


def test_run_takes_over_from_one_that_was_killed(bootstrap: str, pipeline: str) -> None:
    process = _Process(bootstrap)
    with ownership(pipeline, process, "killed", _SHORT_S) as killed:
        killed.claim(refuse_lines)
        process.is_killed = True
    with ownership(pipeline, Cluster(bootstrap), "next", _LONG_S) as successor:
        successor.claim(lambda line: None)
        assert not successor.was_replaced


def test_frozen_run_learns_that_it_was_replaced(bootstrap: str, pipeline: str) -> None:
    process = _Process(bootstrap)
    with ownership(pipeline, process, "frozen", _SHORT_S) as frozen:
        frozen.claim(refuse_lines)
        process.freeze()
        with ownership(pipeline, Cluster(bootstrap), "next", _LONG_S) as successor:
            successor.claim(lambda line: None)
            assert not frozen.was_replaced
            process.may_run.set()
            shared = frozen._shared
            with shared.changed:
                assert shared.changed.wait_for(lambda: frozen.was_replaced, _WAIT_S_MAX)
            assert frozen.other is not None and frozen.other.run == "next"
            assert not successor.was_replaced


def test_frozen_run_goes_on_if_no_other_run_has_come(bootstrap: str, pipeline: str) -> None:
    process = _Process(bootstrap)
    with ownership(pipeline, process, "frozen", _SHORT_S) as frozen, Cluster(bootstrap) as cluster:
        frozen.claim(refuse_lines)
        process.freeze()
        while members_of(cluster, group_of(pipeline)):
            threading.Event().wait(0.02)
        process.may_run.set()
        while not members_of(cluster, group_of(pipeline)):
            threading.Event().wait(0.02)
        assert not frozen.was_replaced


def test_missing_topics_are_named_with_the_command_that_creates_them(bootstrap: str, pipeline: str) -> None:
    text = textwrap.dedent(f"""\
        name: {pipeline}
        brokers: {bootstrap}
        storage: lake
        sources:
          a: {{topic: {pipeline}-a, format: string}}
          b: {{topic: {pipeline}-b, format: string}}
          out: {{topic: {pipeline}-out, format: string}}
        flows:
          a_raw: {{zone: raw, from: a}}
          b_raw: {{zone: raw, from: b}}
          out_raw: {{zone: raw, from: out}}
          staged: {{zone: staging, from: a_raw, to: {{topic: {pipeline}-out}}}}
        """)
    declaration = parse(text.encode(), "p.yaml", lambda name: b"")
    with pytest.raises(TopicsMissing) as raised:
        check_cluster(declaration)
    assert str(raised.value) == (
        f"topics {pipeline}-a, {pipeline}-b do not exist; create with 'ottla topic create {pipeline}-a {pipeline}-b "
        f"-b {bootstrap}', or correct 'topic' in p.yaml, line 5"
    )
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(f"{pipeline}-a", 1)
        cluster.create_topic(f"{pipeline}-b", 1)
    check_cluster(declaration)
