"""The commands of docs/operate run as they are written; the files in deploy/ and the Dockerfile are consistent."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer
from test_documented_examples import ROOT, snippets

from ottla.cli.main import main
from ottla.testing import BrokerProcess
from ottla.testing.secure import SecureBroker

pytestmark = [pytest.mark.broker, pytest.mark.client]

PAGES = ROOT / "docs" / "operate"
CHECK_ADDRESS = "127.0.0.1:19092"


class Host:
    """A machine as the pages describe it: paths, `systemctl` and `ottla` mean this test's directories and broker."""

    def __init__(self, root: Path, broker: BrokerProcess) -> None:
        self._root = root
        self._broker = broker
        self._second: BrokerProcess | None = None
        (root / "var" / "backups").mkdir(parents=True)
        (root / "var" / "tmp").mkdir()
        script = root / "bin" / "ottla"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ottla "$@"\n')
        script.chmod(0o755)

    def close(self) -> None:
        if self._second is not None:
            self._second.close()

    def run(self, line: str) -> None:
        line = re.sub(r"(?<![\w.])/var/", f"{self._root}/var/", line)
        words = shlex.split(line)
        if words[0] == "systemctl":
            {"stop": self._broker.stop, "start": self._broker.launch, "restart": self._broker.restart}[words[1]]()
        elif words[:2] == ["ottla", "broker"]:
            self._second = BrokerProcess.start(data=words[words.index("--data") + 1])
        else:
            self._run_in_shell(line)

    def _run_in_shell(self, line: str) -> None:
        if self._second is not None:
            line = line.replace(CHECK_ADDRESS, self._second.bootstrap)
        environment = {
            **os.environ,
            "PATH": f"{self._root / 'bin'}:{os.environ['PATH']}",
            "OTTLA_BOOTSTRAP_SERVER": self._broker.bootstrap,
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line], cwd=self._root, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def lines(page: str, heading: str) -> list[str]:
    found = [
        one.text for one in snippets((PAGES / page).read_text()) if one.heading == heading and one.language == "sh"
    ]
    assert found, heading
    return "".join(found).splitlines()


def produce(broker: BrokerProcess, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce("orders", key="k", value=value)
    assert producer.flush(30) == 0


def values(broker: BrokerProcess, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    found = [message.value() for message in consumer.consume(count, timeout=30)]
    consumer.close()
    return found


def test_backup_and_restore_bring_back_the_records_of_the_backup(tmp_path: Path) -> None:
    with BrokerProcess.start(data=tmp_path / "var" / "lib" / "ottla") as broker:
        host = Host(tmp_path, broker)
        try:
            produce(broker, "before the backup")
            for heading in ("Copy of a stopped broker", "Check a copy"):
                for line in lines("backup.md", heading):
                    host.run(line)
            produce(broker, "after the backup")
            for heading in ("Restore", "Copy of single topics"):
                for line in lines("backup.md", heading):
                    host.run(line)
            produce(broker, "after the restore")
            assert values(broker, 2) == [b"before the backup", b"after the restore"]
            assert (tmp_path / "orders.tsv").read_text() == "k\tbefore the backup\n"
        finally:
            host.close()


def test_commands_that_check_a_deployment_succeed(tmp_path: Path) -> None:
    with BrokerProcess.start(data=tmp_path / "var" / "lib" / "ottla") as broker:
        host = Host(tmp_path, broker)
        for line in lines("deploy.md", "Check a deployment"):
            host.run(line)


def test_commands_of_the_security_page_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    broker: SecureBroker | None = None
    printed: dict[str, str] = {}
    headings = ("A secure broker", "Users and ACLs", "Certificates", "Check")
    try:
        for line in (line for heading in headings for line in lines("security.md", heading)):
            if line.startswith("ottla broker "):
                broker = SecureBroker(tmp_path / "secure", has_files=True)
                client = tmp_path / "secure" / "client.properties"
                client.write_text(client.read_text().replace("localhost:0", f"localhost:{broker.ports[0]}"))
            elif command := re.fullmatch(r"(?:echo '([^']*)' \| )?ottla (.+)", line):
                words = shlex.split(command[2])
                # The page has the default ports.
                words += ["--port", "0"] if words[:2] == ["security", "init"] else []
                lines_in = None if command[1] is None else f"{command[1]}\n"
                result = CliRunner().invoke(main, words, input=lines_in, prog_name="ottla")
                assert result.exit_code == 0, f"{line}\n{result.output}"
                printed[line] = result.output
            else:
                port = 0 if broker is None else broker.ports[1]
                text = line.replace("localhost:9093", f"localhost:{port}")
                subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=True, timeout=60)
        assert "an order\n" in printed["ottla consume orders --exit --command-config alice.properties"]
        assert "PARTITIONS  3" in printed["ottla topic describe orders --command-config bob.properties"]
    finally:
        if broker is not None:
            broker.close()


def test_files_that_the_deployment_commands_install_exist() -> None:
    sources = re.findall(r"install -D -m \d+ (\S+)", (PAGES / "deploy.md").read_text())
    assert sources == ["deploy/server.properties", "deploy/ottla.service"]
    assert all((ROOT / source).is_file() for source in sources)


def broker_options(words: list[str]) -> dict[str, object]:
    """Return the options of an `ottla broker` command line; raise UsageError if it is not a valid one."""
    context = main.make_context("ottla", words)
    command = main.get_command(context, words[0])
    assert command is not None
    return command.make_context("broker", words[1:], parent=context).params


def test_commands_of_the_cluster_page_are_valid_command_lines() -> None:
    text = "".join(one.text for one in snippets((PAGES / "cluster.md").read_text()))
    commands = [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("ottla ")]
    assert {words[0] for words in commands} == {"zookeeper", "broker", "cluster", "doctor"}
    for words in commands:
        group: click.Command | None = main
        context = main.make_context("ottla", words)
        while isinstance(group, click.Group):
            group = group.get_command(context, words.pop(0))
        assert group is not None
        group.make_context(group.name, words, parent=context)


def test_service_unit_starts_the_broker_with_settings_that_it_accepts() -> None:
    unit = (ROOT / "deploy" / "ottla.service").read_text()
    (start,) = re.findall(r"^ExecStart=(\S+) (.+)$", unit, re.M)
    options = broker_options(start[1].split())
    assert options["config_file"] == "/etc/ottla/server.properties"
    from ottla.broker.main import gather_settings

    settings = gather_settings({}, config_file=str(ROOT / "deploy" / "server.properties"))
    assert list(settings.data_dirs) == ["/var/lib/ottla"] and not settings.ignored


@pytest.mark.foreign
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing: apt-get install systemd"
)
def test_systemd_accepts_the_service_unit(tmp_path: Path) -> None:
    unit = (ROOT / "deploy" / "ottla.service").read_text()
    path = tmp_path / "ottla.service"
    # systemd-analyze wants the program to exist.
    path.write_text(unit.replace("/opt/ottla/bin/ottla", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    # The exposure that systemd computes is 1.4 of 10; it was 3.0 without a filter of system calls.
    words = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_service_unit_leaves_no_secrets_in_core_dumps() -> None:
    unit = (ROOT / "deploy" / "ottla.service").read_text()
    assert re.search(r"^LimitCORE=0$", unit, re.M)


def test_dockerfile_copies_files_that_exist_and_starts_the_broker() -> None:
    text = (ROOT / "Dockerfile").read_text()
    copied = [word for words in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M) for word in words.split()]
    assert copied and all((ROOT / name).exists() for name in copied)
    kept = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    assert kept == set(copied)
    (command,) = re.findall(r"^CMD (\[.+\])$", text, re.M)
    options = broker_options(shlex.split(command.strip("[]").replace(",", " ")))
    assert options["data"] == "/var/lib/ottla"


def test_broker_tells_the_service_manager_when_it_is_ready_and_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with BrokerProcess.start():
            assert manager.recv(100) == b"READY=1"
        assert manager.recv(100) == b"STOPPING=1"
