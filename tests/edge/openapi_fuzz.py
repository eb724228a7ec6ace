"""Run schemathesis over the OpenAPI documents of a registry and of a REST proxy.

    make campaign NAME=openapi-fuzz EXAMPLES=100 SEED=1

schemathesis generates requests from the documents, valid ones and others. Every answer must be described: its status,
its media type, its body. No answer may be an error of the server, and a request that the document does not allow must
be refused. The coverage phase tries the limits of each value, the fuzzing phase random values, and the stateful phase
uses the results of earlier requests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from registry_process import RegistryProcess
from rest_process import RestClient, rest_process

from campaign.report import Report
from ottla.testing import BrokerProcess

_HERE = Path(__file__).parent
#: so that requests that follow a topic end
_REST_OPTIONS = ("-X", "streaming.connection.max.duration.ms=1000")
_BROKER_SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
_REPEATABLE = """
[phases.fuzzing]
extra-data-sources.responses = false
error-feedback.enabled = false
operation-ordering = "none"
"""
#: the routes below /contexts are the same ones again, and the mode of all subjects would end registrations
REGISTRY_FILTERS = ("--exclude-path-regex", r"^/contexts/\{context\}/", "--exclude-name", "PUT /mode")


class Fuzzed(NamedTuple):
    """The result of one run."""

    cases: int
    has_passed: bool
    output: str


@contextmanager
def services() -> Iterator[tuple[RegistryProcess, RestClient]]:
    """Start a broker, a registry and a proxy that no other test uses: anything may be changed or deleted."""
    with (
        BrokerProcess.start(settings=_BROKER_SETTINGS) as broker,
        RegistryProcess(broker.bootstrap) as registry,
        rest_process(broker.bootstrap, "--registry", registry.url, *_REST_OPTIONS) as rest,
    ):
        rest.find_cluster()
        rest.create_topic("fuzzed")
        yield registry, rest


def fuzz(url: str, config: str, options: Sequence[str], cluster_id: str = "", *, is_repeatable: bool = False) -> Fuzzed:
    """Run schemathesis against a service. With ``is_repeatable``, the requests do not depend on earlier answers."""
    text = (_HERE / config).read_text() + (_REPEATABLE if is_repeatable else "")
    command = [
        sys.executable, "-m", "schemathesis.cli", "--no-color", "--config-file", "config.toml", "run",
        f"{url}/openapi.json", "--request-timeout", "60", "--suppress-health-check", "all", "--warnings", "off",
        *options,
    ]  # fmt: skip
    # It writes reports to the current directory.
    with tempfile.TemporaryDirectory(prefix="ottla-openapi-") as directory:
        Path(directory, "config.toml").write_text(text)
        done = subprocess.run(
            command, cwd=directory, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={**os.environ, "OTTLA_CLUSTER_ID": cluster_id},
        )  # fmt: skip
    found = re.search(r"^ *([\d,]+) generated", done.stdout, re.MULTILINE)
    cases = int(found[1].replace(",", "")) if found else 0
    return Fuzzed(cases, done.returncode == 0, done.stdout)


def run(report: Report, *, examples: int, seed: int) -> None:
    options = ["--max-examples", str(examples), "--seed", str(seed), "--continue-on-failure"]
    mode = [*options, "--include-name", "PUT /mode"]
    with services() as (registry, rest):
        runs = {
            "registry": lambda: fuzz(registry.url, "openapi_registry.toml", [*options, *REGISTRY_FILTERS]),
            "mode of all subjects": lambda: fuzz(registry.url, "openapi_registry.toml", mode),
            "REST proxy": lambda: fuzz(rest.url, "openapi_rest.toml", options, rest.cluster_id),
        }
        for number, (name, send) in enumerate(runs.items()):
            report.progress(number, len(runs), "documents")
            result = send()
            report.figure(f"{name}: {result.cases:,} requests")
            if not result.has_passed:
                report.say(result.output)
                report.problem(f"{name}: an answer is not as its document says")
        if "Traceback" in registry.stderr():
            report.problem(f"the registry has logged a traceback: {registry.stderr()[-5000:]}")
