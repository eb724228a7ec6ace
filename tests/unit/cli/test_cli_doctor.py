"""`ottla doctor`: each check on its own."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.admin.failure import NotHealthy
from ottla.cli import doctor, doctor_cluster
from ottla.cli.connection import make_connection
from ottla.cli.listeners import find_listener
from ottla.client.protocol.metadata import Node
from ottla.health.checks import CHECKS
from ottla.health.types import BrokerPicture, ClusterPicture

NOW_S = 1_800_000_000.0


@pytest.mark.parametrize(
    ("version", "optimize", "verdict"),
    [((3, 10, 9), 0, "fail"), ((3, 11, 0), 0, "ok"), ((3, 13, 1), 1, "fail")],
)
def test_python_must_be_new_and_have_assertions(version: tuple[int, ...], optimize: int, verdict: str) -> None:
    assert doctor.check_python(version, optimize).verdict == verdict


@pytest.mark.parametrize(("limit", "verdict"), [(512, "fail"), (4096, "warn"), (1 << 20, "ok")])
def test_open_files_are_judged_by_the_limit_that_can_be_reached(limit: int, verdict: str) -> None:
    assert doctor.check_open_files(limit).verdict == verdict


def test_missing_packages_of_the_services_are_named_with_the_remedy() -> None:
    assert doctor.check_services(None).verdict == "ok"
    assert "no httpx; only 'ottla registry'" in doctor.check_services("httpx").detail


def test_a_clock_before_the_first_release_fails() -> None:
    assert doctor.check_clock(1_000_000_000.0, None).verdict == "fail"


def test_segments_from_the_future_say_that_the_clock_went_back(tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000000.log"
    segment.touch()
    os.utime(segment, (NOW_S + 3600, NOW_S + 3600))
    assert doctor.check_clock(NOW_S, str(tmp_path)).verdict == "warn"
    assert doctor.check_clock(NOW_S + 3600, str(tmp_path)).verdict == "ok"


def verdicts(path: Path) -> dict[str, str]:
    return {check.name: check.verdict for check in doctor.check_data(str(path))}


def test_a_directory_that_does_not_exist_yet_is_fine_where_it_can_be_made(tmp_path: Path) -> None:
    assert verdicts(tmp_path / "a" / "b")["data"] == "ok"


def test_a_file_in_the_place_of_the_directory_fails(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    assert verdicts(tmp_path / "data") == {"data": "fail"}


def test_a_directory_in_use_is_told_from_one_at_rest(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\n")
    assert verdicts(tmp_path)["last stop"] == "warn"
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert verdicts(tmp_path)["lock"] == "ok"


def test_a_clean_stop_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\n")
    (tmp_path / ".kafka_cleanshutdown").touch()
    assert verdicts(tmp_path)["last stop"] == "ok"


def test_looking_for_a_lock_takes_none(tmp_path: Path) -> None:
    verdicts(tmp_path)
    assert not (tmp_path / ".lock").exists()


def cluster_verdicts(bootstrap: str | None) -> list[tuple[str, str]]:
    checks = doctor_cluster.check_cluster(make_connection(bootstrap, {}, {}, 1))
    return [(check.name, check.verdict) for check in checks]


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Addresses that refuse; every other one accepts, and a healthy cluster answers."""
    refused: dict[str, str] = {}
    monkeypatch.delenv("OTTLA_BOOTSTRAP_SERVER", raising=False)
    monkeypatch.setattr(doctor_cluster, "refusal", lambda host, port, timeout_s: refused.get(f"{host}:{port}"))
    nodes = {1: BrokerPicture(node=Node(1, "db", 9092))}
    healthy = ClusterPicture(read_at_ms=1000, cluster_id="c", controller_id=1, brokers=nodes, topics={})
    monkeypatch.setattr(
        doctor_cluster, "read_state", lambda client, timeout_s, before=None: replace(healthy, before=before)
    )
    return refused


def test_a_free_default_port_is_no_failure(refusals: dict[str, str]) -> None:
    refusals["127.0.0.1:9092"] = "connection refused"
    assert cluster_verdicts(None) == [("address", "ok")]


def test_a_named_address_that_refuses_fails(refusals: dict[str, str]) -> None:
    refusals["db:9092"] = "connection refused"
    assert cluster_verdicts("db:9092") == [("address", "fail")]


def test_one_of_two_addresses_that_refuses_is_a_warning(refusals: dict[str, str]) -> None:
    refusals["old:9092"] = "connection refused"
    assert cluster_verdicts("old:9092,db:9092")[:3] == [("address", "warn"), ("address", "ok"), ("protocol", "ok")]


@pytest.mark.usefixtures("refusals")
def test_a_healthy_cluster_is_ok_throughout() -> None:
    assert cluster_verdicts("db:9092") == [("address", "ok"), ("protocol", "ok"), ("cluster", "ok"), ("compare", "ok")]


@pytest.mark.usefixtures("refusals")
def test_with_compare_the_cluster_is_read_twice(monkeypatch: pytest.MonkeyPatch, ottla: Any) -> None:
    slept: list[float] = []
    monkeypatch.setattr(doctor_cluster.time, "sleep", slept.append)
    result = ottla("doctor", "-b", "db:9092", "--compare", "30", "-o", "json")
    checks = {check["name"]: check["detail"] for check in json.loads(result.stdout)}
    assert slept == [30.0]
    assert "compare" not in checks and ", compared with 0 before" in checks["cluster"]


def test_something_that_is_no_broker_fails(refusals: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> None:
        raise NotHealthy("db:80 cannot be reached (reset); see 'ottla doctor'")

    monkeypatch.setattr(doctor_cluster, "read_state", silent)
    (_, check) = doctor_cluster.check_cluster(make_connection("db:80", {}, {}, 1))
    assert (check.name, check.verdict) == ("protocol", "fail")
    assert check.detail == "no Kafka broker answers: db:80 cannot be reached (reset)"


def test_the_exit_code_is_1_when_anything_fails(refusals: dict[str, str], ottla: Any) -> None:
    assert ottla("doctor").exit_code == 0
    refusals["db:9092"] = "connection refused"
    result = ottla("doctor", "-b", "db:9092")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("fail  address  "))
    # Both texts begin in the same column.
    assert lines[at].index("db:9092: connection refused") == lines[at + 1].index("next: start a broker there")
    assert lines[-1].startswith("1 fail, ")


@pytest.mark.usefixtures("refusals")
def test_json_has_a_verdict_per_check(ottla: Any, tmp_path: Path) -> None:
    checks = json.loads(ottla("doctor", "--data", str(tmp_path), "-o", "json").stdout)
    names = [check["name"] for check in checks]
    assert {"python", "uvloop", "crc32c", "open files", "data", "disk", "clock", "address", "java", "kcat"} <= set(
        names
    )
    assert {check["verdict"] for check in checks} <= {"ok", "warn", "fail"}


def test_table_of_checks_is_printed_without_a_cluster(ottla: Any) -> None:
    rows = json.loads(ottla("doctor", "checks", "-o", "json").stdout)
    assert len(rows) == len(CHECKS)
    assert {row["severity"] for row in rows} == {"info", "warning", "error"}
    assert "offline-partitions" in ottla("doctor", "checks").stdout
    assert ottla("doctor", "checks", "--config", "x").exit_code == 2


def test_the_listener_of_a_port_is_found_in_proc(tmp_path: Path) -> None:
    line = "0: 0100007F:2384 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 4711 1"
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text("heading\n" + line + "\n")
    (tmp_path / "42" / "fd").mkdir(parents=True)
    (tmp_path / "42" / "fd" / "9").symlink_to("socket:[4711]")
    (tmp_path / "42" / "cmdline").write_bytes(b"/usr/bin/java\0-jar\0kafka.jar\0")
    assert find_listener(0x2384, str(tmp_path)) == "pid 42, java -jar kafka.jar"
    assert find_listener(80, str(tmp_path)) is None
