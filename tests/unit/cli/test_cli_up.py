"""`ottla up` without processes: which arguments and data directories it refuses, and what it would run."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli import local_cluster, up
from ottla.cli.local_cluster import LocalClusterFailed, Plan, Process, restart_delay_s
from ottla.cli.main import main
from ottla.model import extras


def refusal(*words: str) -> str:
    result = CliRunner().invoke(main, ["up", *words])
    assert result.exit_code in (1, 2)
    return result.output


def test_data_of_a_single_broker_does_not_become_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("")
    text = refusal("--brokers", "3", "--data", str(tmp_path))
    assert f"{tmp_path} has the data of a single broker" in text


@pytest.mark.parametrize("brokers", [1, 2])
def test_brokers_of_an_earlier_start_are_not_left_out(tmp_path: Path, brokers: int) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"broker-{number}").mkdir()
    text = refusal("--brokers", str(brokers), "--data", str(tmp_path))
    assert f"{tmp_path} has the data of 3 brokers; start them with --brokers 3" in text


def test_settings_that_differ_between_brokers_are_refused(tmp_path: Path) -> None:
    text = refusal("--data", str(tmp_path), "-X", "broker.id=7")
    assert "-X broker.id cannot be the same for all brokers" in text


def test_ports_of_all_brokers_must_exist(tmp_path: Path) -> None:
    assert "leaves no ports for 3 brokers" in refusal("--brokers", "3", "--port", "65534", "--data", str(tmp_path))


def test_first_restart_is_immediate_and_later_waits_double() -> None:
    assert [restart_delay_s(failures) for failures in (1, 2, 3, 4, 20)] == [0.0, 0.5, 1.0, 2.0, 30.0]


def test_commands_of_the_processes(tmp_path: Path) -> None:
    plan = Plan(data=tmp_path, ports={1: 9092, 2: 9093}, zookeeper_port=2181, settings={"num.partitions": "3"})
    assert plan.bootstrap == "127.0.0.1:9092,127.0.0.1:9093"
    assert plan.zookeeper_words() == ["zookeeper", "--data", str(tmp_path / "zookeeper"), "--listen", "127.0.0.1:2181"]
    assert plan.broker_words(2) == [
        "broker", "--id", "2", "--data", str(tmp_path / "broker-2"), "--listener", "PLAINTEXT://127.0.0.1:9093",
        "-X", "num.partitions=3", "-X", "zookeeper.connect=127.0.0.1:2181/ottla",
    ]  # fmt: skip
    alone = Plan(data=tmp_path, ports={1: 9092})
    assert alone.broker_words(1)[3:5] == ["--data", str(tmp_path)]


def test_commands_of_the_services(tmp_path: Path) -> None:
    plan = Plan(data=tmp_path, ports={1: 9092, 2: 9093}, registry_port=8081, rest_port=8082)
    assert plan.service_urls == {"registry": "http://127.0.0.1:8081", "rest": "http://127.0.0.1:8082"}
    bootstrap = ["--bootstrap", "127.0.0.1:9092,127.0.0.1:9093"]
    assert plan.service_words("registry") == ["registry", *bootstrap, "--listen", "http://127.0.0.1:8081"]
    assert plan.service_words("rest") == [
        "rest", *bootstrap, "--listen", "http://127.0.0.1:8082", "--registry", "http://127.0.0.1:8081",
    ]  # fmt: skip
    assert plan.broker_words(1)[-2:] == ["-X", "schema.registry.url=http://127.0.0.1:8081"]
    other = Plan(data=tmp_path, ports={1: 9092}, registry_port=8081, settings={"schema.registry.url": "http://other:1"})
    assert other.broker_words(1)[-2:] == ["-X", "schema.registry.url=http://other:1"]
    shown = Plan(data=tmp_path, ports={1: 9092}, registry_port=8081, console_port=8080)
    assert shown.service_words("console") == [
        "console", "--bootstrap", "127.0.0.1:9092", "--listen", "http://127.0.0.1:8080", "--registry",
        "http://127.0.0.1:8081", "-X", f"data.dir={tmp_path / 'console'}", "-X", "cluster.name=local",
    ]  # fmt: skip
    watched = Plan(data=tmp_path, ports={1: 9092}, monitor_port=8000)
    assert watched.service_words("monitor") == [
        "monitor", "--bootstrap", "127.0.0.1:9092", "--listen", "http://127.0.0.1:8000",
        "-X", f"data.dir={tmp_path / 'monitor'}", "--alerts", "default", "-X", "cluster.name=local",
    ]  # fmt: skip
    both = Plan(data=tmp_path, ports={1: 9092}, console_port=8080, monitor_port=8000)
    assert "monitor.url=http://127.0.0.1:8000" in both.service_words("console")
    alone = Plan(data=tmp_path, ports={1: 9092}, rest_port=8082)
    assert list(alone.service_urls) == ["rest"]
    assert "--registry" not in alone.service_words("rest")
    assert "-X" not in alone.broker_words(1)


def test_log_format_is_that_of_all_processes(tmp_path: Path) -> None:
    plan = Plan(data=tmp_path, ports={1: 9092}, rest_port=8082, log_format="json")
    assert plan.broker_words(1)[-2:] == ["-X", "log.format=json"]
    assert plan.service_words("rest")[-2:] == ["--log-format", "json"]


def planned(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[Plan, str]:
    """Return what the command would run, and what it prints."""
    plans: list[Plan] = []
    monkeypatch.setattr(local_cluster, "run_until_signal", lambda plan, say: plans.append(plan))
    result = CliRunner().invoke(up.command, words)
    assert result.exit_code == 0, result.output
    (plan,) = plans
    return plan, result.output


def test_services_that_are_left_out_have_no_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--data", str(tmp_path), "--port", "0")
    both, _ = planned(monkeypatch, *words)
    assert list(both.service_urls) == ["registry", "rest", "console"]
    assert not planned(monkeypatch, *words, "--no-registry", "--no-rest", "--no-console")[0].service_urls
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    assert planned(monkeypatch, *words, "--rest-port", str(port))[0].rest_port == port
    assert "monitor" in planned(monkeypatch, *words, "--monitor-port", "0")[0].service_urls


@pytest.mark.parametrize(
    ("name", "title"), [("registry", "schema registry"), ("rest", "REST proxy"), ("console", "console")]
)
def test_port_of_a_service_that_is_in_use_is_named_with_its_options(tmp_path: Path, name: str, title: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text = refusal("--data", str(tmp_path), "--port", "0", f"--{name}-port", str(port))
    assert (
        f"cannot listen on 127.0.0.1:{port} (Address already in use); stop the program that uses the port, or choose "
        f"another for the {title} with --{name}-port, or leave it out with --no-{name}"
    ) in text


def test_services_whose_packages_are_missing_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "missing_package", lambda: "uvicorn")
    words = ("--data", str(tmp_path), "--port", "0")
    plan, output = planned(monkeypatch, *words)
    remedy = extras.missing("uvicorn", extras.EDGE)
    assert (plan.service_urls, output) == ({}, f"without schema registry, REST proxy and console: {remedy}\n")
    assert planned(monkeypatch, *words, "--no-registry", "--no-rest", "--no-console")[1] == ""
    assert remedy in refusal(*words, "--registry-port", "0")


def test_process_that_ends_before_it_is_ready_is_not_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        plan = Plan(data=tmp_path, ports={1: 9092})
        process = Process("broker 1", ["--version"], plan=plan, pid_name="broker-1", say=print)
        with pytest.raises(LocalClusterFailed, match="broker 1 did not start: ended with exit code 0"):
            await process.run()
        assert not list(tmp_path.iterdir())

    asyncio.run(scenario())
