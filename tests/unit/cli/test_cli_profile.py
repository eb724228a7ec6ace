"""`ottla profile`, and which connection a command uses."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from ottla.admin.failure import Failure
from ottla.cli import profiles
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.main import CommandLine
from ottla.cli.profiles import Profile, Profiles
from ottla.cli.registry_options import RegistryAddress, registry_address_options
from ottla.cli.service_options import service_options

SECRET = "canary-7f3a"


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty configuration directory, and an environment that names nothing."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("OTTLA_PROFILE", "OTTLA_BOOTSTRAP_SERVER", "OTTLA_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config" / "ottla" / "profiles.json"


@click.group(cls=CommandLine)
def commands() -> None:
    """Commands that print what they would connect to."""


@commands.command()
@registry_address_options
@connection_options
def both(connection: ClusterOptions, registry_address: RegistryAddress) -> None:
    found = [
        connection.bootstrap,
        dict(connection.properties),
        registry_address.urls,
        dict(registry_address.properties),
    ]
    click.echo(json.dumps(found))


@commands.command()
@registry_address_options
def only_registry(registry_address: RegistryAddress) -> None:
    click.echo(json.dumps([registry_address.urls, dict(registry_address.properties)]))


@commands.command()
@service_options("http://127.0.0.1:1")
def service(texts: dict[str, str]) -> None:
    click.echo(json.dumps(texts))


def run(*words: str) -> Any:
    result = CliRunner().invoke(commands, words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def prod(ottla: Callable[..., Result]) -> None:
    """A profile that is not in use."""
    words = ["-b", "prod:9092", "-X", "sasl.username=ann", "--registry", "http://prod:8081", "-R", "client.id=x"]
    assert ottla("profile", "set", "prod", *words).exit_code == 0


PROD = ["prod:9092", {"sasl.username": "ann"}, "http://prod:8081", {"client.id": "x"}]
DEFAULT = ["127.0.0.1:9092", {}, "http://127.0.0.1:8081", {}]


@pytest.mark.usefixtures("prod")
class TestPrecedence:
    def test_profile_that_is_not_in_use_has_no_effect(self) -> None:
        assert run("both") == DEFAULT

    def test_option_names_the_profile_of_cluster_and_registry(self) -> None:
        assert run("both", "--profile", "prod") == PROD
        assert run("only-registry", "--profile", "prod") == PROD[2:]

    def test_environment_names_the_profile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTTLA_PROFILE", "prod")
        assert run("both") == PROD

    def test_used_profile_is_the_default_until_the_environment_turns_it_off(
        self, ottla: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ottla("profile", "use", "prod")
        assert run("both") == PROD
        monkeypatch.setenv("OTTLA_PROFILE", "")
        assert run("both") == DEFAULT

    def test_named_profile_wins_over_environment_and_used_profile(
        self, ottla: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ottla("profile", "set", "other", "-b", "other:1", "--use")
        monkeypatch.setenv("OTTLA_PROFILE", "other")
        monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", "env:1")
        monkeypatch.setenv("OTTLA_REGISTRY", "http://env:1")
        assert run("both", "--profile", "prod") == PROD

    def test_address_of_the_environment_wins_over_the_used_profile_and_gets_no_login(
        self, ottla: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ottla("profile", "use", "prod")
        monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", "env:1")
        monkeypatch.setenv("OTTLA_REGISTRY", "http://env:1")
        assert run("both") == ["env:1", {}, "http://env:1", {}]

    def test_login_of_the_used_profile_is_not_sent_to_another_address(self, ottla: Any) -> None:
        ottla("profile", "use", "prod")
        assert run("both", "-b", "else:1") == ["else:1", {}, *PROD[2:]]
        assert run("both", "--registry", "http://else:1") == [*PROD[:2], "http://else:1", {}]
        assert run("both", "-X", "bootstrap.servers=else:1")[:2] == ["else:1", {}]

    def test_login_of_a_named_profile_is_used_with_another_address(self) -> None:
        assert run("both", "--profile", "prod", "-b", "tunnel:1")[:2] == ["tunnel:1", {"sasl.username": "ann"}]

    def test_properties_of_the_command_line_win(self) -> None:
        found = run("both", "--profile", "prod", "-X", "sasl.username=bob", "-R", "client.id=y")
        assert (found[1], found[3]) == ({"sasl.username": "bob"}, {"client.id": "y"})

    def test_service_gets_the_address_and_the_properties_of_its_client(self) -> None:
        texts = run("service", "--profile", "prod")
        assert (texts["bootstrap.servers"], texts["client.sasl.username"]) == ("prod:9092", "ann")
        assert run("service")["bootstrap.servers"] == "127.0.0.1:9092"

    def test_service_with_an_address_of_its_own_gets_no_login_of_the_used_profile(self, ottla: Any) -> None:
        ottla("profile", "use", "prod")
        texts = run("service", "-b", "else:1")
        assert (texts["bootstrap.servers"], "client.sasl.username" in texts) == ("else:1", False)

    def test_wrong_name_gives_the_nearest_one(self, ottla: Any) -> None:
        result = ottla("topic", "list", "--profile", "prdo")
        assert (result.exit_code, result.stdout) == (3, "")
        expected = "error: profile prdo does not exist; did you mean prod? 'ottla profile list' shows all\n"
        assert result.stderr == expected


def test_file_of_properties_belongs_to_the_profile(ottla: Any, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file:1\nsasl.username=ann\nsasl.mechanism=PLAIN\n")
    ottla("profile", "set", "a", "--command-config", str(file), "-X", "sasl.mechanism=SCRAM-SHA-256")
    assert run("both", "--profile", "a")[:2] == ["file:1", {"sasl.username": "ann", "sasl.mechanism": "SCRAM-SHA-256"}]


def test_secrets_are_in_the_file_and_never_printed(ottla: Any, configuration: Path) -> None:
    words = [
        "--secret",
        "sasl.password",
        "--registry-secret",
        "basic.auth.user.info",
        "-b",
        "h:1",
        "-X",
        "sasl.username=a",
    ]
    result = ottla("profile", "set", "p", *words, "-r", f"http://u:{SECRET}@h:2", stdin=f"{SECRET}\nu:{SECRET}\n")
    assert result.exit_code == 0, result.output
    assert configuration.read_text().count(SECRET) == 3
    for output in ("table", "json", "yaml", "csv"):
        for verb in (["show", "p"], ["list"]):
            shown = ottla("profile", *verb, "-o", output).output
            assert (SECRET in shown, "@h:2" in shown) == (False, True)
    assert ottla("profile", "show", "p").stdout.splitlines() == [
        "NAME                            p",
        "CURRENT                         no",
        "BOOTSTRAP SERVERS               h:1",
        "sasl.username                   a",
        "sasl.password                   ********",
        "REGISTRY                        http://********@h:2",
        "registry: basic.auth.user.info  ********",
    ]


def test_missing_line_for_a_secret_is_wrong_usage_and_changes_nothing(ottla: Any, configuration: Path) -> None:
    assert ottla("profile", "set", "p", "--secret", "sasl.password").exit_code == 2
    assert not configuration.exists()


def test_only_the_owner_can_read_the_file(ottla: Any, configuration: Path) -> None:
    ottla("profile", "set", "p", "-b", "h:1")
    configuration.chmod(0o644)
    result = ottla("profile", "list")
    assert "chmod 600" in result.stderr
    ottla("profile", "set", "p", "-b", "h:2")
    assert stat.S_IMODE(configuration.stat().st_mode) == 0o600
    assert stat.S_IMODE(configuration.parent.stat().st_mode) == 0o700
    assert os.listdir(configuration.parent) == [configuration.name]


def test_set_changes_only_what_is_given_and_unset_removes(ottla: Any) -> None:
    ottla("profile", "set", "p", "-b", "h:1", "-X", "a=1", "-X", "b=2")
    ottla("profile", "set", "p", "-r", "http://r:1", "-X", "b=3", "--unset", "a")
    assert json.loads(ottla("profile", "show", "p", "-o", "json").stdout) == [
        {
            "name": "p",
            "is_current": False,
            "bootstrap.servers": "h:1",
            "properties": {"b": "3"},
            "registry": "http://r:1",
        }
    ]
    assert ottla("profile", "set", "p", "--unset", "nothing").exit_code == 3


def test_use_delete_and_none(ottla: Any) -> None:
    ottla("profile", "set", "a", "-b", "h:1")
    ottla("profile", "set", "b", "-b", "h:2", "--use")
    assert [row["is_current"] for row in json.loads(ottla("profile", "list", "-o", "json").stdout)] == [False, True]
    assert ottla("profile", "delete", "b").exit_code == 2  # no terminal to ask
    assert ottla("profile", "delete", "b", "--yes").stdout == "deleted profile b\n"
    assert profiles.load().current is None
    assert ottla("profile", "use", "b").exit_code == 3
    ottla("profile", "use", "a")
    ottla("profile", "use", "--none")
    assert profiles.load().current is None
    assert ottla("profile", "use").exit_code == 2


@pytest.mark.parametrize("name", ["", "../x", "-a", "a b", "a" * 65, "ü"])
def test_invalid_name_is_wrong_usage(ottla: Any, name: str) -> None:
    assert ottla("profile", "set", "--", name).exit_code == 2


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"version": 2, "profiles": {}}', '{"version": 1, "profiles": {"a": 1}}',
        '{"version": 1, "profiles": {"a": {"bootstrap.servers": 1}}}', '{"version": 1, "profiles": {"a": {"x": "y"}}}',
        '{"version": 1, "profiles": {"a": {"properties": {"k": 1}}}}', '{"version": 1, "profiles": {"a b": {}}}',
        '{"version": 1, "profiles": {"a": {"properties": "k"}}}', '{"version": 1, "profiles": {}, "current": 1}',
        '{"version": 1, "profiles": {"a": {"registry": {}}}}', "[" * 100_000, "x" * 2_000_000,
    ],
)  # fmt: skip
def test_unusable_file_is_one_line_with_its_path(ottla: Any, configuration: Path, text: str) -> None:
    configuration.parent.mkdir(parents=True)
    configuration.write_text(text)
    configuration.chmod(0o600)
    result = ottla("topic", "list")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert str(configuration) in result.stderr


def test_changes_at_the_same_time_lose_nothing() -> None:
    def add(name: str) -> None:
        profiles.change(lambda found: replace(found, by_name={**found.by_name, name: Profile(bootstrap="h:1")}))

    names = [f"p{number}" for number in range(16)]
    threads = [threading.Thread(target=add, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(profiles.load().by_name) == sorted(names)


def test_failed_change_keeps_the_file(configuration: Path) -> None:
    profiles.change(lambda found: Profiles(by_name={"a": Profile(bootstrap="h:1")}))
    with pytest.raises(Failure, match="more than"):
        profiles.change(lambda found: Profiles(by_name={"a": Profile(properties={"k": "x" * 2_000_000})}))
    assert list(profiles.load().by_name) == ["a"]
    assert os.listdir(configuration.parent) == [configuration.name]


def test_link_to_the_file_is_kept(configuration: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.json"
    target.write_text('{"version": 1, "profiles": {}}')
    configuration.parent.mkdir(parents=True)
    configuration.symlink_to(target)
    profiles.change(lambda found: Profiles(by_name={"a": Profile()}))
    assert (configuration.is_symlink(), "a" in json.loads(target.read_text())["profiles"]) == (True, True)
