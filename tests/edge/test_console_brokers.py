"""Brokers in the console, elections and moves, with a cluster of three brokers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from console_process import ConsoleClient, console_process, csrf_of

from ottla.admin.client import AdminClient
from ottla.admin.cluster import ClusterAdmin
from ottla.edge.console.broker_metrics import figures_of, parse_page, parse_urls
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.testing.cluster import ClusterProcess

MAIN = "/c/main"
_WAIT_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterProcess]:
    settings = {"auto.leader.rebalance.enable": "false"}
    with ClusterProcess.start(brokers=3, settings=settings) as running:
        with AdminClient(running.bootstrap, {}, timeout_s=30) as client:
            for name, replicas in (("wide", 3), ("single", 1)):
                (outcome,) = client.create_topics([name], 3, replicas, {}, dry_run=False)
                assert outcome.failure is None
            client.await_topics(["wide", "single"])
            for partition in range(3):
                batch = build_batch([Record(value=b"x" * 1000)] * 50)
                client.append_batch(TopicPartition("single", partition), batch)
        yield running


@pytest.fixture(scope="module")
def console(cluster: ClusterProcess) -> Iterator[ConsoleClient]:
    address = re.search(r"metrics=(\S+)", cluster.brokers[1].ready_line)
    assert address is not None, cluster.brokers[1].ready_line
    settings = {"broker.metrics.urls": f"1={address[1]}"}
    with console_process(cluster.bootstrap, settings) as running:
        yield running


@pytest.fixture
def admin(console: ConsoleClient) -> Iterator[httpx.Client]:
    with console.browser() as browser:
        yield console.log_in(browser)


def preview(browser: httpx.Client, path: str, **form: str) -> dict[str, Any]:
    """Return the plan of an action."""
    token = csrf_of(browser.get(f"{MAIN}/changes").text)
    answer = browser.post(f"{MAIN}/{path}", data={**form, "csrf": token}, headers={"accept": "application/json"})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def replicas(cluster: ClusterProcess) -> dict[TopicPartition, tuple[int, ...]]:
    with AdminClient(cluster.bootstrap, {}, timeout_s=30) as client:
        return {each.name: each.replicas for each in ClusterAdmin(client, 30).state().partitions}


def await_that(is_so: Callable[[], bool]) -> None:
    """Wait until something is so: a broker shows a change a moment after another one has made it."""
    deadline = time.monotonic() + _WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def await_no_moves(console: ConsoleClient) -> None:
    await_that(lambda: not console.json(f"{MAIN}/moves")["moves"])


def leaders(console: ConsoleClient) -> list[int]:
    rows: Any = console.json(f"{MAIN}/topics/wide/partitions")["partitions"]
    return [row["leader"] for row in rows]


def test_brokers_have_leaders_replicas_disks_and_what_their_metrics_say(console: ConsoleClient) -> None:
    found = console.json(f"{MAIN}/brokers?full=yes")
    rows = {row["id"]: row for row in found["brokers"]}  # type: ignore[attr-defined]
    assert set(rows) == {1, 2, 3} and all(row["state"] == "ok" for row in rows.values())
    assert sum(row["leaders"] for row in rows.values()) >= 6
    cells = console.json(f"{MAIN}/broker-cells")
    assert "%" in cells["cells"]["2"]["disk"] and "Kafka" in cells["cells"]["2"]["release"]  # type: ignore[index]
    assert cells["figures"]["1"]["connections"] >= 1  # type: ignore[index]
    assert cells["figures"]["2"]["connections"] is None  # type: ignore[index]
    page = console.http.get(f"{MAIN}/brokers").text
    assert "Request p99" in page and "controller" in page


@pytest.mark.parametrize("tab", ["partitions", "disks", "configs", "requests"])
def test_each_tab_of_a_broker_opens_and_has_a_json_form(console: ConsoleClient, tab: str) -> None:
    page = console.http.get(f"{MAIN}/brokers/2/{tab}")
    assert page.status_code == 200 and 'aria-current="page"' in page.text
    found = console.json(f"{MAIN}/brokers/2/{tab}")
    assert found["broker"] == 2
    if tab == "requests":
        assert "broker.metrics.urls=2=" in str(found["reason"])
        assert console.json(f"{MAIN}/brokers/1/requests")["reason"] == ""
    if tab == "disks":
        assert found["directories"][0]["logs"] >= 3  # type: ignore[index]


def test_unknown_broker_is_not_found(console: ConsoleClient) -> None:
    assert console.http.get(f"{MAIN}/brokers/9").status_code == 404
    assert console.http.get(f"{MAIN}/brokers/x").status_code == 400


def test_setting_of_a_broker_is_changed_and_reset(console: ConsoleClient, admin: httpx.Client) -> None:
    path = f"{MAIN}/brokers/2/edit-config"
    assert console.act(path, admin, name="log.retention.ms", value="7200000").status_code == 303
    rows = {row["name"]: row for row in console.json(f"{MAIN}/brokers/2/configs")["configs"]}  # type: ignore[attr-defined]
    assert rows["log.retention.ms"]["value"] == "7200000" and rows["log.retention.ms"]["is_own"]
    assert console.act(path, admin, name="log.retention.ms", then="reset").status_code == 303
    token = csrf_of(admin.get(f"{MAIN}/changes").text)
    refused = admin.post(path, data={"name": "log.dirs", "value": "/tmp/x", "csrf": token})
    assert refused.status_code == 400 and "file of the broker" in refused.text


def test_replicas_move_with_a_plan_a_throttle_and_preferred_leaders(
    cluster: ClusterProcess, console: ConsoleClient, admin: httpx.Client
) -> None:
    before = replicas(cluster)[TopicPartition("single", 0)]
    to = next(number for number in (1, 2, 3) if number not in before)
    form = {"kind": "list", "targets": f"single:0={to}", "throttle": "100000000"}
    plan = preview(admin, "moves/plan", **form)
    (row,) = plan["changes"]
    assert (row["what"], row["from"], row["to"]) == ("replicas of single-0", str(before[0]), str(to))
    assert any(f"to broker {to}" in text for text in plan["warnings"])
    assert replicas(cluster)[TopicPartition("single", 0)] == before
    assert console.act(f"{MAIN}/moves/plan", admin, **form).status_code == 303
    await_no_moves(console)
    await_that(lambda: replicas(cluster)[TopicPartition("single", 0)] == (to,))
    assert console.json(f"{MAIN}/moves")["throttled_topics"] == ["single"]
    assert console.act(f"{MAIN}/moves/throttle", admin).status_code == 303
    assert console.json(f"{MAIN}/moves")["throttled_topics"] == []


def test_leaders_are_balanced_by_order_and_broker_is_emptied(
    cluster: ClusterProcess, console: ConsoleClient, admin: httpx.Client
) -> None:
    targets = "\n".join(f"wide:{number}=3,2,1" for number in range(3))
    assert console.act(f"{MAIN}/moves/plan", admin, kind="list", targets=targets).status_code == 303
    await_no_moves(console)
    await_that(lambda: leaders(console) == [3, 3, 3])
    assert preview(admin, "moves/plan", kind="leaders")["changes"]
    assert console.act(f"{MAIN}/moves/plan", admin, kind="leaders").status_code == 303
    await_that(lambda: len(set(leaders(console))) > 1)
    await_that(lambda: preview(admin, "elect?topic=wide")["changes"] == [])
    assert preview(admin, "moves/cancel")["changes"] == []
    token = csrf_of(admin.get(f"{MAIN}/changes").text)
    refused = admin.post(f"{MAIN}/moves/plan", data={"kind": "leave", "leave": "3", "csrf": token})
    assert refused.status_code == 409 and "start more brokers" in refused.text


def test_preferred_leaders_are_elected(cluster: ClusterProcess, console: ConsoleClient, admin: httpx.Client) -> None:
    names = [TopicPartition("wide", number) for number in range(3)]
    with AdminClient(cluster.bootstrap, {}, timeout_s=30) as client:
        cluster_admin = ClusterAdmin(client, 30)
        now = {each.name: each for each in cluster_admin.state().partitions}
        # The present leader comes last.
        turned = {name: tuple(sorted(now[name].replicas, key=lambda each: each == now[name].leader)) for name in names}
        assert cluster_admin.reassign(turned) == {}
    await_that(lambda: len(preview(admin, "elect?topic=wide")["changes"]) == 3)
    assert console.act(f"{MAIN}/elect?topic=wide", admin).status_code == 303
    await_that(lambda: leaders(console) == [turned[name][0] for name in names])


def test_move_in_progress_shows_how_far_it_is_and_is_cancelled(
    cluster: ClusterProcess, console: ConsoleClient, admin: httpx.Client
) -> None:
    name = TopicPartition("single", 2)
    with AdminClient(cluster.bootstrap, {}, timeout_s=30) as client:
        for _ in range(40):
            client.append_batch(name, build_batch([Record(value=b"x" * 1000)] * 100))
    before = replicas(cluster)[name]
    to = next(number for number in (1, 2, 3) if number not in before)
    form = {"kind": "list", "targets": f"single:2={to}", "throttle": "1000"}
    assert console.act(f"{MAIN}/moves/plan", admin, **form).status_code == 303
    (row,) = console.json(f"{MAIN}/moves")["moves"]  # type: ignore[misc]
    assert (row["topic"], row["partition"], row["adding"]) == ("single", 2, [to]) and row["total_bytes"] > 4_000_000
    assert console.act(f"{MAIN}/moves/cancel?topic=single&partition=2", admin).status_code == 303
    await_no_moves(console)
    await_that(lambda: replicas(cluster)[name] == before)
    assert console.act(f"{MAIN}/moves/throttle", admin).status_code == 303


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"kind": "list", "targets": "single"}, "TOPIC:PARTITION"),
        ({"kind": "list", "targets": "single:0=9"}, "broker 9"),
        ({"kind": "list", "targets": "single:0=1,1"}, "twice"),
        ({"kind": "list", "targets": '{"partitions": 1}'}, "not of the form"),
        ({"kind": "list", "targets": "none:0=1"}, "does not exist"),
        ({"kind": "leave", "leave": "all"}, "ids of brokers"),
        ({"kind": "leave", "leave": "9"}, "broker 9"),
        ({"kind": "fly"}, "kind"),
        ({"kind": "balance", "throttle": "-1"}, "throttle"),
    ],
)
def test_wrong_plan_is_refused(console: ConsoleClient, admin: httpx.Client, form: dict[str, str], problem: str) -> None:
    token = csrf_of(admin.get(f"{MAIN}/changes").text)
    answer = admin.post(f"{MAIN}/moves/plan", data={**form, "csrf": token})
    assert answer.status_code in (400, 404, 409) and problem in answer.text


def test_unclean_election_needs_a_topic_and_an_admin(console: ConsoleClient, admin: httpx.Client) -> None:
    assert admin.get(f"{MAIN}/elect?kind=unclean").status_code == 400
    assert admin.get(f"{MAIN}/elect?kind=unclean&topic=wide").status_code == 200
    assert console.http.post(f"{MAIN}/elect").status_code == 401


# -- metrics pages -----------------------------------------------------------------------------------------------------

PAGE = """
# TYPE ottla_requests_total counter
ottla_requests_total{{api="Produce"}} {requests}
ottla_request_seconds_bucket{{api="Produce",le="0.001"}} {fast}
ottla_request_seconds_bucket{{api="Produce",le="+Inf"}} {requests}
ottla_bytes_in_total {bytes}
ottla_bytes_in_total nothing
other_total 1
"""


def test_rates_are_differences_of_two_readings() -> None:
    before = parse_page(PAGE.format(requests=100, fast=100, bytes=1000), 10.0)
    last = parse_page(PAGE.format(requests=300, fast=299, bytes=5000), 12.0)
    assert figures_of(None, before).bytes_in_per_s is None
    found = figures_of(before, last)
    assert found.bytes_in_per_s == 2000
    assert [(each.api, each.per_s, each.p99_ms) for each in found.apis] == [("Produce", 100, 1.0)]


def test_metrics_of_a_broker_that_was_started_again_are_not_negative() -> None:
    before = parse_page(PAGE.format(requests=300, fast=299, bytes=5000), 10.0)
    found = figures_of(before, parse_page(PAGE.format(requests=10, fast=10, bytes=100), 12.0))
    assert found.bytes_in_per_s == 0 and found.apis == []


@pytest.mark.parametrize("text", ["http://127.0.0.1:1/metrics", "1=file:///etc/passwd", "x=http://h", "1="])
def test_wrong_url_of_metrics_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ID=URL"):
        parse_urls([text])
