"""Kill the leader of three registry instances while clients register schemas: what was acknowledged must hold.

    make campaign NAME=registry-kills KILLS=50 SEED=1

Clients register new schemas, schemas of other subjects and schemas that exist, through any instance, and repeat what
fails. At the end every acknowledged id must name its schema on every instance, also after a restart of all of them, and
no id may name two schemas. With EXPORTER=1 the leader also copies all schemas to another registry, which must have the
same versions and ids in the end.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random

import httpx
from edge_broker import edge_broker
from registry_process import RegistryProcess

from campaign.processes import wait_until
from campaign.report import Report, percentiles, shorten

CLIENTS = 4
_WAIT_S = 120.0
#: errors that a client repeats: the leader is not known, or the outcome is not
RETRIED = {50001, 50002, 50003, 50004}


@dataclass
class Outcome:
    """What the clients saw. `violations` is empty if all is well."""

    acknowledged: list[tuple[str, int, str]] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


class Client(threading.Thread):
    """Registers schemas until it is stopped."""

    def __init__(self, number: int, instances: Sequence[RegistryProcess], seed: int, outcome: Outcome) -> None:
        super().__init__(daemon=True)
        self.number, self.instances, self.outcome = number, instances, outcome
        self.random = Random(f"{seed}-{number}")
        self.stopped = threading.Event()
        self.client = httpx.Client(timeout=60)

    def run(self) -> None:
        with self.client:
            self.register_until_stopped()

    def register_until_stopped(self) -> None:
        count, last = 0, time.monotonic()
        while not self.stopped.is_set():
            subject = f"s{self.random.randrange(6)}"
            count += 1
            name = f"R{self.number}_{self.random.randrange(count)}"
            text = json.dumps({"type": "record", "name": name, "fields": []}, separators=(",", ":"))
            schema_id = self.register(subject, text)
            if schema_id is not None:
                now = time.monotonic()
                self.outcome.gaps_s.append(now - last)
                last = now
                self.outcome.acknowledged.append((subject, schema_id, text))

    def register(self, subject: str, text: str) -> int | None:
        while not self.stopped.is_set():
            instance = self.random.choice(self.instances)
            try:
                answer = self.client.post(f"{instance.url}/subjects/{subject}/versions", json={"schema": text})
            except httpx.HTTPError:
                time.sleep(0.05)
                continue
            body = answer.json()
            if answer.status_code == 200:
                return int(body["id"])
            if body["error_code"] not in RETRIED:
                self.outcome.violations.append(f"{subject}: {answer.status_code} {body}")
            time.sleep(0.05)
        return None


def run(report: Report, *, kills: int, seed: int, exporter: bool) -> None:
    outcome, random = Outcome(), Random(seed)
    with edge_broker() as broker, ExitStack() as stack:
        instances = [RegistryProcess(broker.bootstrap) for _ in range(3)]
        for instance in instances:
            instance.start()
        instances[0].ask("PUT", "/config", {"compatibility": "NONE"})
        target = _export(broker.bootstrap, instances[0]) if exporter else None
        if target is not None:
            stack.callback(target.close)
        clients = [Client(number, instances, seed, outcome) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            for number in range(kills):
                _wait_for(outcome, len(outcome.acknowledged) + random.randint(10, 30))
                leader = _leader(instances)
                leader.kill()
                _wait_for(outcome, len(outcome.acknowledged) + random.randint(5, 15))
                leader.start()
                report.progress(number + 1, kills, f"kills, {len(outcome.acknowledged)} registrations acknowledged")
        finally:
            for client in clients:
                client.stopped.set()
            for client in clients:
                client.join(60)
        _check(instances, outcome)
        if target is not None:
            _check_copy(instances[0], target, outcome)
        for instance in instances:
            instance.kill()
        for instance in instances:
            instance.start()
        _check(instances, outcome)
        for instance in instances:
            instance.close()
    report.problems_found(shorten(outcome.violations))
    ids = len({schema_id for _, schema_id, _ in outcome.acknowledged})
    report.figure(f"{kills} kills, {len(outcome.acknowledged)} registrations acknowledged, {ids} ids")
    report.figure(f"time between two registrations of a client: {percentiles(outcome.gaps_s)}")


def _wait_for(outcome: Outcome, count: int) -> None:
    wait_until(lambda: len(outcome.acknowledged) >= count, lambda: f"registrations; {outcome.violations[:3]}", _WAIT_S)


def _leader(instances: Sequence[RegistryProcess]) -> RegistryProcess:
    leaders: list[RegistryProcess] = []

    def is_elected() -> bool:
        leaders[:] = [each for each in instances if each.ask("GET", "/_health")[1]["status"]["is_leader"]]
        return bool(leaders)

    wait_until(is_elected, "an instance is the leader", _WAIT_S)
    return leaders[0]


def _export(bootstrap: str, source: RegistryProcess) -> RegistryProcess:
    """Return a registry to which all schemas are copied."""
    settings = {"kafkastore.topic": "_schemas_target", "schema.registry.group.id": "target"}
    target = RegistryProcess(bootstrap, settings).start()
    body = {"name": "copy", "contextType": "CUSTOM", "context": "copy", "config": {"schema.registry.url": target.url}}
    status, answer = source.ask("POST", "/exporters", body)
    assert status == 200, answer
    return target


def _check_copy(source: RegistryProcess, target: RegistryProcess, outcome: Outcome) -> None:
    def versions(registry: RegistryProcess, prefix: str) -> set[tuple[str, int, int, str]]:
        rows = registry.get(f"/schemas?subjectPrefix={prefix}&deleted=true")
        return {(row["subject"].removeprefix(prefix), row["version"], row["id"], row["schema"]) for row in rows}

    try:
        wait_until(lambda: versions(source, "") == versions(target, ":.copy:"), "the copy is complete", _WAIT_S)
    except TimeoutError:
        differences = sorted(versions(source, "") ^ versions(target, ":.copy:"))
        status = source.get("/exporters/copy/status")
        outcome.violations.append(f"the copy differs: {differences[:5]}; {status}")


def _check(instances: Sequence[RegistryProcess], outcome: Outcome) -> None:
    texts: dict[int, str] = {}
    for _, schema_id, text in outcome.acknowledged:
        if texts.setdefault(schema_id, text) != text:
            outcome.violations.append(f"id {schema_id} was acknowledged for two schemas: {texts[schema_id]}, {text}")
    for instance in instances:
        for schema_id, text in texts.items():
            status, body = instance.ask("GET", f"/schemas/ids/{schema_id}")
            if status != 200 or body["schema"] != text:
                outcome.violations.append(f"{instance.url}: id {schema_id} is {body}, expected {text}")
        rows = instance.get("/schemas?deleted=true")
        known = {(row["subject"], row["id"]) for row in rows}
        missing = {(subject, schema_id) for subject, schema_id, _ in outcome.acknowledged} - known
        outcome.violations += [
            f"{instance.url}: {subject} has no version with id {schema_id}" for subject, schema_id in missing
        ]
