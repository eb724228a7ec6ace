"""Attacks on the metrics port: connections that are held, requests that never end, pages of many groups."""

from __future__ import annotations

import re
import socket
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.clauses.group_requests import commit
from tests.hostile.harness import MIB, Attacked, scaled

from ottla.env.metrics_server import CONNECTIONS_MAX
from ottla.testing.raw import RawClient
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest

pytestmark = pytest.mark.broker

SETTINGS = {"metrics.listener": "HTTP://127.0.0.1:0"}


def url_of(target: Attacked) -> str:
    return target.process.ready_line.rpartition("metrics=")[2].strip()


def address_of(target: Attacked) -> tuple[str, int]:
    found = re.match(r"http://([^:]+):(\d+)/", url_of(target))
    assert found is not None
    return found[1], int(found[2])


def scrape(target: Attacked) -> str:
    with urllib.request.urlopen(url_of(target), timeout=60) as page:
        return str(page.read().decode())


def value_of(page: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def sockets_of(pid: int) -> int:
    return sum("socket:" in str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink())


def test_held_metrics_connections_use_few_descriptors() -> None:
    with Attacked(SETTINGS) as target, ExitStack() as stack:
        before = sockets_of(target.process.pid)
        for number in range(scaled(100, 2000)):
            held = stack.enter_context(socket.create_connection(address_of(target), timeout=10))
            held.sendall(b"GET /metrics HTTP/1.1\r\n" if number % 2 else b"")
        with RawClient(target.bootstrap) as client:
            client.create_topic("made-during-the-attack")
        assert sockets_of(target.process.pid) - before <= CONNECTIONS_MAX + 5
        target.report().check()


def test_pages_with_many_groups_are_bounded_and_hold_up_nobody() -> None:
    groups = scaled(1_000, 50_000)
    settings = SETTINGS | {"metrics.series.max": str(scaled(2_000, 100_000)), "group.max.groups.per.ip": str(groups)}
    with Attacked(settings) as target:
        with RawClient(target.bootstrap, timeout_s=60) as client:
            client.create_topic("one")
            client.ask(FindCoordinatorRequest(key="any"), 1)
            for start in range(0, groups, 50):
                sent = [client.send(commit(f"group-{n}", {("one", 0): 0}), 8) for n in range(start, start + 50)]
                for number in sent:
                    client.receive(8, 8, number)
        target.measure()
        for _ in range(3):
            page = scrape(target)
            assert value_of(page, r'ottla_groups\{state="Empty",type="classic"\}') == groups
            assert len(page) < scaled(2, 32) * MIB
            assert value_of(page, "ottla_metrics_series_left_out") > 0
        target.report().check()
