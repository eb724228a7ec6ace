"""`ottla quota` against a broker."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from ottla.cli.main import main

pytestmark = [pytest.mark.broker, pytest.mark.client]

_numbers = itertools.count()
Run = Callable[..., str]


@pytest.fixture
def run(ottla_broker: Any) -> Run:
    """Run a verb of `ottla quota` to its end; return what it printed."""

    def call(*words: str, code: int = 0) -> str:
        environment = {"OTTLA_BOOTSTRAP_SERVER": ottla_broker.bootstrap}
        done = CliRunner().invoke(main, ["quota", *words], env=environment)
        assert done.exit_code == code, done.output
        return done.output

    return call


@pytest.fixture
def name() -> str:
    return f"quota-{os.getpid()}-{next(_numbers)}"


def test_set_list_and_remove(run: Run, name: str) -> None:
    run("set", "--user", name, "producer_byte_rate=1000000", "request_percentage=12.5")
    run("set", "--user", name, "--client-id", "app", "consumer_byte_rate=5")
    assert run("list", "--user", name) == (
        f"{'USER':{len(name)}}  CLIENT ID  IP  QUOTA                 VALUE\n"
        f"{name}  -           -  producer_byte_rate  1000000\n"
        f"{name}  -           -  request_percentage    12.50\n"
        f"{name}  app         -  consumer_byte_rate        5\n"
    )
    run("remove", "--user", name, "request_percentage")
    rows = json.loads(run("list", "--user", name, "-o", "json"))
    assert rows == [
        {
            "entity": f"user={name}", "user": name, "client_id": None, "ip": None, "quota": "producer_byte_rate",
            "value": 1_000_000,
        },
        {
            "entity": f"user={name},client-id=app", "user": name, "client_id": "app", "ip": None,
            "quota": "consumer_byte_rate", "value": 5,
        },
    ]  # fmt: skip
    run("remove", "--user", name)
    run("remove", "--user", name, "--client-id", "app")
    assert json.loads(run("list", "--user", name, "-o", "json")) == []


def test_default_entities_are_shown_as_such(run: Run, name: str) -> None:
    run("set", "--user", name, "--default-client-id", "controller_mutation_rate=0.5")
    assert run("list", "--user", name, "-o", "name") == f"user={name},client-id=<default>\n"
    run("remove", "--user", name, "--default-client-id")
    run("set", "--ip", "192.0.2.1", "connection_creation_rate=10")
    assert [row["ip"] for row in json.loads(run("list", "--ip", "192.0.2.1", "-o", "json"))] == ["192.0.2.1"]
    run("remove", "--ip", "192.0.2.1", "connection_creation_rate")


def test_dry_run_changes_nothing(run: Run, name: str) -> None:
    assert "would set" in run("set", "--user", name, "producer_byte_rate=1", "--dry-run")
    assert json.loads(run("list", "--user", name, "-o", "json")) == []


def test_unknown_quota_is_reported(run: Run, name: str) -> None:
    assert "'bandwidth' is no quota of this entity" in run("set", "--user", name, "bandwidth=1", code=1)
    assert "has no quotas" in run("remove", "--user", name, code=3)
    assert "has no quota bandwidth" in run("remove", "--user", name, "bandwidth", code=3)


@pytest.mark.parametrize(
    "words",
    [
        ("set", "producer_byte_rate=1"), ("set", "--user", "a"), ("set", "--user", "a", "producer_byte_rate"),
        ("set", "--user", "a", "producer_byte_rate=0"), ("set", "--user", "a", "producer_byte_rate=nan"),
        ("set", "--user", "a", "producer_byte_rate=x"),
        ("set", "--user", "a", "--default-user", "producer_byte_rate=1"),
        ("set", "--user", "a", "--ip", "::1", "producer_byte_rate=1"), ("remove",),
    ],
)  # fmt: skip
def test_wrong_usage_is_refused_before_the_cluster_is_asked(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, ["quota", *words, "-b", "127.0.0.1:1"])
    assert done.exit_code == 2, done.output
