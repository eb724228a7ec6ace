"""kafka-server-start: a broker with the server.properties of Kafka, unchanged, in the foreground or as a daemon.

What Kafka's broker would do otherwise:

- A setting that neither Kafka nor Ottla knows gets a warning, as Kafka gives it; `ottla broker` refuses it.
- A listener without encryption and without a host, such as PLAINTEXT://:9092, listens on 127.0.0.1 and not on all
  addresses, unless `allow.insecure.listeners` is set.
- A file in KRaft mode starts a broker of its own if it is the only voter. A node of a KRaft cluster is refused: brokers
  of Ottla form a cluster with ZooKeeper.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ottla.cli.kafka.errors import ToolError
from ottla.cli.kafka.tool import FAILED, KAFKA_VERSION, OK, guarded, print_error, print_line
from ottla.model.settings import BROKER_SETTINGS, parse_properties
from ottla.model.settings_broker import ALIASES
from ottla.model.settings_foreign import is_ignored
from ottla.model.settings_security import is_listener_setting

USAGE: Final = "USAGE: kafka-server-start.sh [-daemon] server.properties [--override property=value]*"
_DAEMON: Final = "-daemon"
_OVERRIDE: Final = "--override"
_INSECURE: Final = "allow.insecure.listeners"
_LOOPBACK: Final = "127.0.0.1"
_PLAIN: Final = ("PLAINTEXT://:", "SASL_PLAINTEXT://:")
_CLUSTER_HELP: Final = (
    "Ottla's brokers form a cluster with ZooKeeper and have no separate controllers. For a cluster, start "
    "'zookeeper-server-start zookeeper.properties', remove process.roles and controller.* from the file, and set "
    "broker.id and zookeeper.connect=HOST:2181. For one broker, keep process.roles=broker,controller and a single voter"
)


def main(words: Sequence[str]) -> int:
    """Run the tool and return its exit code."""
    return guarded(lambda: _main(list(words)))


def _main(words: list[str]) -> int:
    if not words:
        print_line(USAGE)
        return FAILED
    is_daemon = words[0] == _DAEMON
    if is_daemon:
        words = words[1:]
    if "--version" in words:
        print_line(KAFKA_VERSION)
        return OK
    if not words or words[0].startswith("-"):
        print_error(USAGE)
        return FAILED
    path, overrides = words[0], parse_overrides(words[1:])
    if is_daemon:
        return start_daemon("kafka-server-start", [path, *words[1:]], name="kafkaServer")
    properties = settings_of(path, overrides)
    # The broker brings most of Ottla.
    from ottla.broker.main import run_broker

    code = run_broker(properties=properties, config_file=None, data=None, listeners=(), broker_id=None, metrics=None)
    return FAILED if code else OK


def parse_overrides(words: Sequence[str]) -> dict[str, str]:
    """Return the settings of --override. Raise ToolError for other words."""
    settings: dict[str, str] = {}
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        flag, equals, text = word.partition("=")
        if flag != _OVERRIDE:
            raise ToolError(f"Found non argument parameters: {word}\n{USAGE}")
        if not equals:
            if not rest:
                raise ToolError("Option override requires an argument")
            text = rest.pop()
        name, equals, value = text.partition("=")
        if not equals:
            raise ToolError(f"Invalid command line properties: {text}")
        settings[name.strip()] = value.strip()
    return settings


def settings_of(path: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """Return what a file of Kafka means for a broker of Ottla. Raise ToolError if it means none."""
    found = {**parse_properties(Path(path).read_text("utf-8")), **overrides}
    unknown = [name for name in found if not _is_known(name)]
    for name in unknown:
        print_error(f"WARN These configurations '[{name}]' were supplied but are not used yet.")
    settings = {name: value for name, value in found.items() if name not in unknown}
    _check_mode(settings)
    return _closed(settings)


def _is_known(name: str) -> bool:
    return ALIASES.get(name, name) in BROKER_SETTINGS or is_listener_setting(name) or is_ignored(name)


def _check_mode(settings: Mapping[str, str]) -> None:
    """Raise ToolError for a node of a KRaft cluster."""
    roles = {role.strip() for role in settings.get("process.roles", "").split(",") if role.strip()}
    voters = [each for each in settings.get("controller.quorum.voters", "").split(",") if each.strip()]
    if not roles:
        return
    if "broker" not in roles:
        raise ToolError(f"this file describes a controller of a KRaft cluster. {_CLUSTER_HELP}")
    if "controller" not in roles or len(voters) > 1:
        raise ToolError(f"this file describes a node of a KRaft cluster. {_CLUSTER_HELP}")


def _closed(settings: dict[str, str]) -> dict[str, str]:
    """Return the settings with listeners of all addresses moved to this machine, if they are open to everybody."""
    if settings.get(_INSECURE, "false").strip().lower() == "true":
        return settings
    listeners = settings.get("listeners", "PLAINTEXT://:9092")
    kept = [each.strip() for each in listeners.split(",")]
    moved = [_on_loopback(each) for each in kept]
    if moved == kept:
        return settings
    print_error(
        f"WARN listeners={listeners} would let every machine of the network read and write all records; listening on "
        f"{_LOOPBACK} only. Allow it with --override {_INSECURE}=true, or use SSL or SASL_SSL."
    )
    return {**settings, "listeners": ",".join(moved)}


def _on_loopback(listener: str) -> str:
    upper = listener.upper()
    for prefix in _PLAIN:
        if upper.startswith(prefix):
            return f"{listener[: len(prefix) - 1]}{_LOOPBACK}:{listener[len(prefix) :]}"
    return listener


def start_daemon(command: str, words: Sequence[str], *, name: str) -> int:
    """Start a command that goes on when this one has ended. Its output is in a file, as that of Kafka's daemons is."""
    directory = Path(os.environ.get("LOG_DIR", "logs"))
    directory.mkdir(parents=True, exist_ok=True)
    program = f"from ottla.cli.kafka.start import start; start({command!r})"
    with open(directory / f"{name}.out", "ab") as output:
        subprocess.Popen(
            [sys.executable, "-c", program, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return OK
