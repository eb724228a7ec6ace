"""Send hostile schemas to a registry while other clients look schemas up and register; print times and memory.

    make campaign NAME=registry-hostile ROUNDS=3

Every hostile schema must be answered with a result or with one of its error codes, within a minute. Memory must stay
below a limit. The other clients must be answered all the time: their longest wait is printed and limited.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hostile_schemas
import httpx
from hostile_schemas import Hostile
from registry_process import RegistryProcess

from campaign.report import Report, shorten
from ottla.testing import BrokerProcess

MEMORY_BYTES_MAX = 1 << 30
#: of another client's lookup; registrations wait for each other
WAIT_S_MAX = 5.0
ANSWER_S_MAX = 60.0
_NUMBERS = itertools.count()


def pairs() -> Iterator[tuple[str, str, str, str]]:
    """Return names, types and texts of two schemas whose comparison takes many steps."""
    one_of, unions = hostile_schemas.one_of, hostile_schemas.mutual_unions
    yield "oneOf 600", "JSON", one_of(600), one_of(600, shift=1)
    yield "oneOf 1500", "JSON", one_of(1500), one_of(1500, shift=1)
    yield "unions 60", "AVRO", unions(60, "int"), unions(60, "long")
    yield "unions 150", "AVRO", unions(150, "int"), unions(150, "string")
    for keyword in ("properties", "allOf", "oneOf"):
        texts = [hostile_schemas.doubled_definitions(60, keyword, {"type": kind}) for kind in ("string", "integer")]
        yield f"doubled {keyword}", "JSON", texts[0], texts[1]


class Bystander(threading.Thread):
    """Sends one kind of request all the time and keeps its longest wait."""

    def __init__(self, registry: RegistryProcess, *, registers: bool) -> None:
        super().__init__(daemon=True)
        self._url = registry.url
        self._registers = registers
        self.stopped = threading.Event()
        self.count, self.longest_s, self.failure = 0, 0.0, ""

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self.stopped.is_set() and not self.failure:
                began = time.monotonic()
                if self._registers:
                    subject = f"bystander-{next(_NUMBERS)}"
                    found = client.post(f"/subjects/{subject}/versions", json={"schema": '"int"'})
                else:
                    found = client.get("/schemas/ids/1")
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.count += 1
                self.failure = "" if found.status_code == 200 else found.text
                self.stopped.wait(0.01)


class Campaign:
    """One registry, its bystanders, and what was measured."""

    def __init__(self, registry: RegistryProcess, report: Report) -> None:
        self.registry = registry
        self._say = report.say
        self.count = 0
        self.violations: list[str] = []

    def send(self, hostile: Hostile, path: str = "") -> None:
        subject = f"hostile-{next(_NUMBERS)}"
        body = {"schema": hostile.text, "schemaType": hostile.schema_type}
        began = time.monotonic()
        status, answer = self.registry.ask("POST", path or f"/subjects/{subject}/versions", body)
        seconds = time.monotonic() - began
        code = 0 if status == 200 else int(answer["error_code"])
        self.count += 1
        self._say(
            f"  {hostile.schema_type:<8} {hostile.name[:40]:<40} {len(hostile.text):>9,} chars  "
            f"{code or 'accepted':>8}  {seconds:6.2f} s"
        )
        if code not in (*hostile.codes, 40901):
            self.violations.append(f"{hostile.name}: {status} {str(answer)[:200]}")
        if seconds > ANSWER_S_MAX:
            self.violations.append(f"{hostile.name}: {seconds:.1f} s")

    def compare(self, name: str, kind: str, first: str, second: str) -> None:
        subject = f"hostile-{next(_NUMBERS)}"
        self.registry.register(subject, first, schemaType=kind)
        self.send(Hostile(name, kind, second, (0, 42209)), f"/subjects/{subject}/versions")
        self.send(Hostile(f"{name}, check", kind, second, (0, 42209)), f"/compatibility/subjects/{subject}/versions")

    def compare_with_many_versions(self, count: int) -> None:
        """A schema that takes a second to compare with one version is compared with all of them."""
        subject = f"hostile-{next(_NUMBERS)}"
        self.registry.ask("PUT", f"/config/{subject}", {"compatibility": "NONE"})
        for version in range(count):
            self.registry.register(subject, hostile_schemas.one_of(300, shift=version), schemaType="JSON")
        self.registry.ask("PUT", f"/config/{subject}", {"compatibility": "FULL_TRANSITIVE"})
        text = json.dumps({"oneOf": [*json.loads(hostile_schemas.one_of(299))["oneOf"], {}]})
        self.send(Hostile(f"{count} versions", "JSON", text, (0, 42209)), f"/subjects/{subject}/versions")

    def peak_bytes(self) -> int:
        lines = Path(f"/proc/{self.registry.pid}/status").read_text().splitlines()
        return int(dict(line.split(":", 1) for line in lines)["VmHWM"].split()[0]) * 1024


def run(report: Report, *, rounds: int) -> None:
    with BrokerProcess.start() as broker, RegistryProcess(broker.bootstrap) as registry:
        campaign = Campaign(registry, report)
        registry.register("first", '"int"')
        idle = campaign.peak_bytes()
        bystanders = [Bystander(registry, registers=False), Bystander(registry, registers=True)]
        for each in bystanders:
            each.start()
        for number in range(rounds):
            report.progress(number, rounds, "rounds")
            for family in ("deep", "wide", "cycles", "expressions", "texts"):
                for hostile in getattr(hostile_schemas, family)():
                    campaign.send(hostile)
            for pair in pairs():
                campaign.compare(*pair)
            campaign.compare_with_many_versions(30)
        for each in bystanders:
            each.stopped.set()
            each.join(60)
            campaign.violations += [each.failure] if each.failure else []
        looked_up, registered = bystanders
        peak = campaign.peak_bytes()
        report.figure(f"{campaign.count} hostile schemas")
        report.figure(f"memory: {idle >> 20} MB before, at most {peak >> 20} MB")
        report.figure(f"lookups beside: {looked_up.count:,}, longest {looked_up.longest_s:.2f} s")
        report.figure(f"registrations beside: {registered.count:,}, longest {registered.longest_s:.2f} s")
        if peak > MEMORY_BYTES_MAX:
            campaign.violations.append(f"{peak >> 20} MB of memory")
        if looked_up.longest_s > WAIT_S_MAX:
            campaign.violations.append(f"a lookup took {looked_up.longest_s:.1f} s")
        if "Traceback" in registry.stderr():
            campaign.violations.append(registry.stderr()[-3000:])
        report.problems_found(shorten(campaign.violations))
