"""Starts the commands of an extra with the Python of an environment that has only this extra.

    make extras EXTRA=edge VERSIONS=minimum

installs the extra into an empty virtual environment. `test_extras.py` runs the same checks in
environments of links.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from extras_environment import ROOT, install, install_tools

from campaign.report import Report

TIMEOUT_S = 300
#: packages that the tests below need besides the extra
_TOOLS = (
    "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "trustme", "jsonschema", "prometheus-client",
)  # fmt: skip
#: tests that run with the minimum versions of the extra `edge`: they use cryptography, PyJWT, protobuf and starlette
_SLICE = (
    "tests/unit/security", "tests/unit/web", "tests/unit/rest", "tests/unit/registry",
    "tests/unit/schemas/test_data_protobuf.py",
)  # fmt: skip
EXTRAS = ("", "edge", "spark", "sdp", "protobuf", "otel", "all")
_AVRO = '{"type":"record","name":"Order","fields":[{"name":"n","type":"int"}]}'
#: imports the module of each command, and prints its help
_HELP = """
import click
from ottla.cli.main import main
context = click.Context(main)
for name in main.list_commands(context):
    main.get_command(context, name).get_help(context)
"""
_IMPORT_ALL = """
import importlib, pkgutil, sys
for package in sys.argv[1:]:
    root = importlib.import_module(package)
    for found in pkgutil.walk_packages(root.__path__, package + "."):
        importlib.import_module(found.name)
"""


class Environment:
    """The Python of an environment, and a directory for the files of its processes."""

    def __init__(self, python: Path, directory: Path) -> None:
        self._python = str(python)
        self.directory = directory
        hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
        self._variables = {name: text for name, text in os.environ.items() if name not in hidden}

    def run(self, *words: str, given: str = "") -> str:
        """Run Python with these words and return what it prints. Fail if it fails."""
        done = subprocess.run(
            [self._python, *words], input=given, capture_output=True, text=True, timeout=TIMEOUT_S,
            cwd=self.directory, env=self._variables,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def ottla(self, *words: str, given: str = "") -> str:
        return self.run("-m", "ottla", *words, given=given)

    @contextmanager
    def started(self, *words: str) -> Iterator[str]:
        """Run a command that prints `ready ADDRESS`. Return the address."""
        with subprocess.Popen(
            [self._python, "-m", "ottla", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=self.directory, env={**self._variables, "OTTLA_END_WITH_STDIN": "1"},
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line.startswith("ready "), f"{words}: {line!r}"
                yield line.split()[1].rpartition("//")[2]
            finally:
                process.kill()

    @contextmanager
    def broker(self) -> Iterator[str]:
        words = ("broker", "--data", str(self.directory / "data"), "--listener", "PLAINTEXT://127.0.0.1:0")
        with self.started(*words) as address:
            yield address


def _ask(address: str, path: str, body: Any = None, media_type: str = "application/json") -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{address}{path}", data, {"content-type": media_type})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def check_help(environment: Environment) -> None:
    """The modules of all commands."""
    environment.run("-c", _HELP)


def check_core(environment: Environment) -> None:
    """The broker and the command line."""
    check_help(environment)
    with environment.broker() as address:
        environment.ottla("topic", "create", "t", "-b", address)
        environment.ottla("produce", "t", "-b", address, given="hello\n")
        assert "hello" in environment.ottla("consume", "t", "-b", address, "--exit")


def check_edge(environment: Environment) -> None:
    """The registry and the REST proxy, with a schema of each format."""
    environment.run("-c", _IMPORT_ALL, "ottla.edge.registry", "ottla.edge.rest", "ottla.schemas", "ottla.edge.web")
    listen = ("--listen", "http://127.0.0.1:0")
    proto = 'syntax = "proto3"; message Order { int32 n = 1; }'
    with environment.broker() as broker, environment.started("registry", "-b", broker, *listen) as registry:
        for number, (kind, text) in enumerate(
            [("AVRO", _AVRO), ("JSON", '{"type":"object"}'), ("PROTOBUF", proto)], start=1
        ):
            made = _ask(registry, f"/subjects/{kind}/versions", {"schemaType": kind, "schema": text})
            assert made["id"] == number
        environment.ottla("topic", "create", "orders", "-b", broker)
        words = ("rest", "-b", broker, *listen, "--registry", f"http://{registry}")
        with environment.started(*words) as rest:
            body = {"value_schema": _AVRO, "records": [{"value": {"n": 5}}]}
            made = _ask(rest, "/topics/orders", body, "application/vnd.kafka.avro.v2+json")
            assert (made["value_schema_id"], made["offsets"][0]["offset"]) == (1, 0)


def check_spark(environment: Environment) -> None:
    """All modules of the source, the sinks and the pipelines."""
    environment.run("-c", _IMPORT_ALL, "ottla.spark", "ottla.pipeline", "ottla.demo")


def check_sdp(environment: Environment) -> None:
    """What Spark Connect and Spark Declarative Pipelines import."""
    environment.run("-c", "import pyspark.pipelines.cli, pyspark.sql.connect.session, grpc_status")


def check_protobuf(environment: Environment) -> None:
    """The compiler of .proto files, which is run as a process."""
    environment.run("-m", "grpc_tools.protoc", "--version")


def check_otel(environment: Environment) -> None:
    """A broker that exports traces; nothing receives them."""
    words = ("broker", "--data", str(environment.directory / "traced"), "--listener", "PLAINTEXT://127.0.0.1:0")
    with environment.started(*words, "-X", "traces.endpoint=http://127.0.0.1:1") as address:
        environment.ottla("topic", "create", "t", "-b", address)


def check_all(environment: Environment) -> None:
    for check in (check_core, check_edge, check_spark, check_sdp, check_protobuf, check_otel):
        check(environment)


CHECKS: dict[str, Callable[[Environment], None]] = {
    "": check_core, "edge": check_edge, "spark": check_spark, "sdp": check_sdp, "protobuf": check_protobuf,
    "otel": check_otel, "all": check_all,
}  # fmt: skip


def run(report: Report, *, extra: str, versions: str) -> None:
    pairs = [
        (each, age)
        for each in ([extra] if extra else ("core", *EXTRAS[1:]))
        for age in ([versions] if versions else ("newest", "minimum"))
    ]
    for number, (each, age) in enumerate(pairs):
        report.progress(number, len(pairs), "environments")
        name = "" if each == "core" else each
        with tempfile.TemporaryDirectory() as directory:
            python = install(Path(directory) / "environment", name, minimum=age == "minimum")
            CHECKS[name](Environment(python, Path(directory)))
            if (each, age) == ("edge", "minimum"):
                install_tools(python, _TOOLS)
                subprocess.run([python, "-m", "pytest", "-q", "-n", "2", *_SLICE], cwd=ROOT, check=True)
        report.say(f"{each} with the {age} versions: its commands start")
    report.figure(f"{len(pairs)} environments, the commands of each start")
