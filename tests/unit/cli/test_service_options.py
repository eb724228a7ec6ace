"""The options of commands that run an HTTP service: which of them wins."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ottla.cli.service_options import service_options

DEFAULTS = {"listeners": "http://127.0.0.1:8081", "bootstrap.servers": "127.0.0.1:9092"}


@click.command()
@service_options("http://127.0.0.1:8081")
@click.option("--own")
def shop(texts: dict[str, str], own: str | None) -> None:
    click.echo(json.dumps(texts))


def texts_of(*args: str) -> dict[str, str]:
    result = CliRunner().invoke(shop, args)
    assert result.exit_code == 0, result.output
    texts: dict[str, str] = json.loads(result.output)
    return texts


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_BOOTSTRAP_SERVER", raising=False)


def test_defaults() -> None:
    assert texts_of() == DEFAULTS


def test_options_are_settings() -> None:
    assert texts_of("--listen", "http://a:1", "--listen", "http://b:2", "--bootstrap", "c:3", "--insecure") == {
        "listeners": "http://a:1,http://b:2",
        "bootstrap.servers": "c:3",
        "allow.insecure.listeners": "true",
    }


def test_x_wins_over_options_and_options_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "service.properties"
    file.write_text("listeners=http://file:1\nlog.level=DEBUG\nkafkastore.bootstrap.servers=file:2\n")
    assert texts_of("--config", str(file)) == {
        "listeners": "http://file:1",
        "log.level": "DEBUG",
        "kafkastore.bootstrap.servers": "file:2",
    }
    more = ("--log-format", "json", "-X", "log.level=ERROR")
    texts = texts_of("--config", str(file), "--listen", "http://option:1", *more)
    assert (texts["listeners"], texts["log.level"], texts["log.format"]) == ("http://option:1", "ERROR", "json")


def test_environment_names_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", "e:1")
    assert texts_of()["bootstrap.servers"] == "e:1"
    assert texts_of("-b", "o:2")["bootstrap.servers"] == "o:2"


def test_missing_file_is_wrong_usage() -> None:
    result = CliRunner().invoke(shop, ["--config", "/does/not/exist"])
    assert result.exit_code == 2
    assert "does not exist" in result.output
