"""`ottla acl` and `ottla user` against a broker in this process."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from click.testing import CliRunner, Result

from ottla.broker.broker import Broker
from ottla.broker.environment import system_environment
from ottla.cli.main import main
from ottla.model.settings import BrokerSettings
from ottla.security.acls import ResourceType
from ottla.security.scram import Mechanism

Run = Callable[..., Result]
_TIMEOUT_S = 60


class BrokerThread:
    """A broker with ACLs, whose super user is everybody, in a thread of its own."""

    def __init__(self, data: Path) -> None:
        self._settings = BrokerSettings.parse({
            "log.dirs": str(data), "listeners": "PLAINTEXT://127.0.0.1:0", "super.users": "User:ANONYMOUS",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        })  # fmt: skip
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run()))

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(_TIMEOUT_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self.broker.request_stop)
        self._thread.join(_TIMEOUT_S)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        environment = system_environment(self._settings, self._loop, freeze=lambda: None)
        self.broker = Broker(self._settings, environment)
        await self.broker.start()
        self.bootstrap = f"127.0.0.1:{self.broker.endpoints[0].port}"
        self._started.set()
        await self.broker.ended
        await self.broker.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    thread = BrokerThread(tmp_path_factory.mktemp("data"))
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture
def run(server: BrokerThread) -> Iterator[Run]:
    """Run a command. Afterwards all ACLs and users are removed."""

    def run(*words: str, code: int = 0, text: str | None = None) -> Result:
        result = CliRunner().invoke(main, [*words, "-b", server.bootstrap], input=text)
        assert result.exit_code == code, result.output
        return result

    yield run
    view: Any = server.broker.view.access
    for kind, name, pattern_type in list(view.acls):
        names = [] if kind is ResourceType.CLUSTER else [name]
        option = f"--{kind.name.lower().replace('_', '-')}"
        run("acl", "remove", option, *names, "--resource-pattern-type", pattern_type.name.lower(), "--force")
    for user in list(view.credentials):
        run("user", "remove", user)


def listed(run: Run, *words: str) -> list[tuple[str, ...]]:
    rows = json.loads(run("acl", "list", *words, "-o", "json").stdout)
    return [tuple(row.values()) for row in rows]


# -- ACLs -------------------------------------------------------------------------------------------------------------


def test_acl_that_is_added_is_listed(run: Run) -> None:
    added = run("acl", "add", "--topic", "orders", "--allow-principal", "User:alice", "--operation", "Read")
    assert added.stdout.splitlines() == [
        "RESOURCE  NAME    PATTERN  PRINCIPAL   HOST  OPERATION  PERMISSION",
        "TOPIC     orders  LITERAL  User:alice  *     READ       ALLOW",
    ]
    assert run("acl", "list").stdout == added.stdout
    assert json.loads(run("acl", "list", "-o", "json").stdout) == [{
        "resource_type": "TOPIC", "resource_name": "orders", "pattern_type": "LITERAL", "principal": "User:alice",
        "host": "*", "operation": "READ", "permission": "ALLOW",
    }]  # fmt: skip


def test_hosts_denials_and_several_names_are_multiplied(run: Run) -> None:
    run(
        "acl", "add", "--topic", "a", "--topic", "b", "--operation", "Write", "--operation", "AlterConfigs",
        "--deny-principal", "User:eve", "--deny-host", "10.0.0.1", "--deny-host", "10.0.0.2",
    )  # fmt: skip
    assert listed(run) == [
        ("TOPIC", topic, "LITERAL", "User:eve", host, operation, "DENY")
        for topic in "ab" for host in ("10.0.0.1", "10.0.0.2") for operation in ("WRITE", "ALTER_CONFIGS")
    ]  # fmt: skip


def test_producer_and_consumer_stand_for_what_they_need(run: Run) -> None:
    run(
        "acl", "add", "--topic", "orders.", "--prefixed", "--transactional-id", "shop", "--producer", "--idempotent",
        "--allow-principal", "User:p",
    )  # fmt: skip
    run("acl", "add", "--topic", "orders", "--group", "shop", "--consumer", "--allow-principal", "User:c")
    assert {(kind, name, pattern, operation) for kind, name, pattern, _, _, operation, _ in listed(run)} == {
        ("TOPIC", "orders.", "PREFIXED", "WRITE"), ("TOPIC", "orders.", "PREFIXED", "DESCRIBE"),
        ("TOPIC", "orders.", "PREFIXED", "CREATE"), ("TRANSACTIONAL_ID", "shop", "PREFIXED", "WRITE"),
        ("TRANSACTIONAL_ID", "shop", "PREFIXED", "DESCRIBE"),
        ("CLUSTER", "kafka-cluster", "LITERAL", "IDEMPOTENT_WRITE"),
        ("TOPIC", "orders", "LITERAL", "READ"), ("TOPIC", "orders", "LITERAL", "DESCRIBE"),
        ("GROUP", "shop", "LITERAL", "READ"),
    }  # fmt: skip
    run("acl", "remove", "--topic", "orders", "--group", "shop", "--consumer", "--allow-principal", "User:c")
    assert {principal for _, _, _, principal, *_ in listed(run)} == {"User:p"}
    run("acl", "remove", "--cluster", "--force")
    run("acl", "remove", "--transactional-id", "shop", "--prefixed", "--force")
    run("acl", "remove", "--topic", "orders.", "--prefixed", "--force")
    assert listed(run) == []


def test_list_can_show_what_decides_about_a_resource(run: Run) -> None:
    for words in (["orders"], ["ord", "--prefixed"], ["*"], ["other"]):
        run("acl", "add", "--topic", *words, "--allow-principal", "User:a")
    run("acl", "add", "--topic", "orders", "--allow-principal", "User:b")

    def names(*words: str) -> list[str]:
        return sorted({name for _, name, *_ in listed(run, "--topic", "orders", *words)})

    assert names() == ["orders"]
    assert names("--resource-pattern-type", "match") == ["*", "ord", "orders"]
    assert {principal for _, _, _, principal, *_ in listed(run, "--principal", "User:b")} == {"User:b"}


def test_remove_without_principal_asks_first(run: Run) -> None:
    run("acl", "add", "--topic", "orders", "--allow-principal", "User:a", "--operation", "Read")
    run("acl", "remove", "--topic", "orders", code=130, text="n\n")
    assert len(listed(run)) == 1
    removed = run("acl", "remove", "--topic", "orders", text="y\n")
    assert "User:a" in removed.stdout and listed(run) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["add", "--topic", "t"], "--allow-principal"),
        (["add", "--allow-principal", "User:a"], "--topic"),
        (["add", "--topic", "t", "--allow-principal", "alice"], "User:NAME"),
        (["add", "--topic", "t", "--consumer", "--allow-principal", "User:a"], "--group"),
        (["add", "--topic", "t", "--producer", "--operation", "Read", "--allow-principal", "User:a"], "--operation"),
        (["add", "--topic", "t", "--idempotent", "--allow-principal", "User:a"], "--producer"),
        (["add", "--topic", "t", "--operation", "Fly", "--allow-principal", "User:a"], "Fly"),
        (["add", "--topic", "t", "--resource-pattern-type", "match", "--allow-principal", "User:a"], "match"),
    ],
)
def test_flags_that_make_no_acl_are_rejected(run: Run, words: list[str], reason: str) -> None:
    assert reason in run("acl", *words, code=2).output
    assert listed(run) == []


# -- users ------------------------------------------------------------------------------------------------------------


def test_user_that_is_added_can_log_in_with_the_password(run: Run, server: BrokerThread) -> None:
    run("user", "add", "alice", text="correct horse\n")
    view: Any = server.broker.view.access
    for mechanism in Mechanism:
        credential = view.credentials["alice"][mechanism]
        assert credential.is_password(mechanism, "correct horse")
        assert not credential.is_password(mechanism, "correct horse ")
    assert run("user", "list").stdout.splitlines() == [
        "USER   MECHANISM      ITERATIONS",
        "alice  SCRAM-SHA-256        8192",
        "alice  SCRAM-SHA-512        8192",
    ]


def test_password_comes_from_a_file_that_only_its_owner_can_read(
    run: Run, server: BrokerThread, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    path.write_text("first line\nsecond line\n")
    path.chmod(0o644)
    refused = run("user", "add", "bob", "--password-file", str(path), code=1)
    assert "chmod 600" in refused.output and "first line" not in refused.output
    path.chmod(0o600)
    run("user", "add", "bob", "--password-file", str(path), "--mechanism", "SCRAM-SHA-512", "--iterations", "4096")
    view: Any = server.broker.view.access
    assert list(view.credentials["bob"]) == [Mechanism.SCRAM_SHA_512]
    assert view.credentials["bob"][Mechanism.SCRAM_SHA_512].is_password(Mechanism.SCRAM_SHA_512, "first line")


def test_user_is_removed_or_only_one_of_its_mechanisms(run: Run) -> None:
    for user in ("alice", "bob"):
        run("user", "add", user, text="secret\n")
    run("user", "remove", "alice", "--mechanism", "SCRAM-SHA-256")
    assert json.loads(run("user", "list", "alice", "-o", "json").stdout) == [
        {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 8192}
    ]
    run("user", "remove", "alice", "bob")
    assert run("user", "list", "-o", "name").stdout == ""
    assert "no SCRAM credentials" in run("user", "remove", "alice", code=3).output


def test_empty_password_is_rejected(run: Run) -> None:
    assert "empty" in run("user", "add", "alice", text="\n", code=1).output
    run("user", "list", "alice", code=3)


def test_password_is_no_option() -> None:
    for verb in ("add", "remove", "list"):
        help_text = CliRunner().invoke(main, ["user", verb, "--help"]).output
        assert "--password " not in help_text and "--password=" not in help_text
