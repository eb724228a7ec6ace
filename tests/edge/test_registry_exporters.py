"""Exporters between two registries of one cluster: routes, copies, pauses, another leader, a destination that ends."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from edge_broker import Broker, edge_broker
from registry_process import RegistryProcess

from campaign.processes import wait_until
from ottla.cli.main import main
from ottla.edge.registry.store import StoreSettings, read_up_to

_NUMBERS = itertools.count()
SETTINGS = {"exporter.max.exporters": "3", "password.encoder.secret": "of the operator"}


class Pair(NamedTuple):
    """Two registries that keep their schemas in different topics."""

    broker: Broker
    source: RegistryProcess
    target: RegistryProcess


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    other = {"kafkastore.topic": "_schemas_target", "schema.registry.group.id": "target"}
    with (
        edge_broker() as broker,
        RegistryProcess(broker.bootstrap, SETTINGS) as source,
        RegistryProcess(broker.bootstrap, other) as target,
    ):
        yield Pair(broker, source, target)


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"test{next(_NUMBERS)}"


@pytest.fixture
def exporter(pair: Pair, name: str) -> Iterator[str]:
    """A name for an exporter, which is deleted after the test."""
    yield name
    pair.source.ask("DELETE", f"/exporters/{name}")


def create(pair: Pair, name: str, **members: Any) -> None:
    """Create an exporter for the subjects that start with its name, in a context of the same name."""
    body: dict[str, Any] = {
        "name": name, "subjects": [f"{name}*"], "contextType": "CUSTOM", "context": name,
        "config": {"schema.registry.url": pair.target.url},
    }  # fmt: skip
    assert pair.source.ask("POST", "/exporters", body | members) == (200, {"name": name})


def error(registry: RegistryProcess, method: str, path: str, body: Any = None) -> tuple[int, int]:
    status, answer = registry.ask(method, path, body)
    assert set(answer) == {"error_code", "message"}
    assert answer["message"]
    return status, answer["error_code"]


def fixed(size: int) -> str:
    return json.dumps({"type": "fixed", "name": "F", "size": size}, separators=(",", ":"))


def versions(registry: RegistryProcess, prefix: str) -> list[tuple[str, int, int, str, bool]]:
    """Return name without context, version, id, text and whether it is deleted, of every version."""
    rows = registry.get(f"/schemas?subjectPrefix={prefix}&deleted=true")
    found = [
        (row["subject"].rpartition(":")[2], row["version"], row["id"], row["schema"], row.get("deleted", False))
        for row in rows
    ]
    return sorted(found)


def has_copied_all(pair: Pair, name: str) -> bool:
    """Return whether the exporter has noted that it is at the end of the topic, which it does after a copy."""
    page = pair.source.client.get(f"{pair.source.url}/metrics").text
    return f'ottla_registry_exporter_lag{{exporter="{name}"}} 0\n' in page


def is_equal(pair: Pair, name: str) -> bool:
    return versions(pair.target, f":.{name}:") == versions(pair.source, name)


# -- routes -----------------------------------------------------------------------------------------------------------


def test_exporter_is_created_shown_and_deleted(pair: Pair, exporter: str) -> None:
    config = {"schema.registry.url": pair.target.url, "basic.auth.user.info": "ann:secret"}
    create(pair, exporter, config=config, subjectRenameFormat="x_${subject}")
    assert exporter in pair.source.get("/exporters")
    shown = {**config, "basic.auth.user.info": "[hidden]"}
    assert pair.source.get(f"/exporters/{exporter}") == {
        "name": exporter, "contextType": "CUSTOM", "context": f".{exporter}", "subjects": [f"{exporter}*"],
        "subjectRenameFormat": "x_${subject}", "config": shown,
    }  # fmt: skip
    assert pair.source.get(f"/exporters/{exporter}/config") == shown
    status = pair.source.get(f"/exporters/{exporter}/status")
    assert set(status) == {"name", "state", "offset", "ts", "trace"}
    assert status["name"] == exporter
    assert error(pair.source, "POST", "/exporters", {"name": exporter, "config": config}) == (409, 40960)
    assert pair.source.ask("DELETE", f"/exporters/{exporter}") == (204, None)
    assert exporter not in pair.source.get("/exporters")
    stored = read_up_to(StoreSettings(pair.broker.bootstrap, {}, "_exporter_configs"), 0)[0]
    assert b"[hidden]" not in b"".join(row.value or b"" for row in stored)
    for text in (pair.source.stderr(), *(str(row.value) for row in stored)):
        assert "ann:secret" not in text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/status"), ("GET", "/config"), ("PUT", "/config"),
        ("PUT", "/pause"), ("PUT", "/resume"), ("PUT", "/reset"),
    ],
)  # fmt: skip
def test_unknown_exporter_is_40450(pair: Pair, method: str, path: str) -> None:
    assert error(pair.source, method, f"/exporters/missing{path}", {} if method == "PUT" else None) == (404, 40450)


def test_invalid_exporter_is_refused(pair: Pair, name: str) -> None:
    config = {"schema.registry.url": pair.target.url}
    for body, code in [
        ({"config": config}, 40950),
        ({"name": name}, 40951),
        ({"name": name, "config": {"schema.registry.url": "ftp://x"}}, 40951),
        ({"name": name, "config": {**config, "unknown.property": "x"}}, 40951),
        ({"name": name, "config": {**config, "basic.auth.user.info": "secret"}}, 40951),
        ({"name": name, "config": config, "contextType": "CUSTOM"}, 40951),
        ({"name": name, "config": config, "subjects": ["a*b"]}, 40952),
    ]:
        assert error(pair.source, "POST", "/exporters", body) == (409, code)
    assert pair.source.client.post(f"{pair.source.url}/exporters", content=b"{").status_code == 400
    assert name not in pair.source.get("/exporters")


def test_number_of_exporters_is_limited(pair: Pair, name: str) -> None:
    made = [f"{name}-{number}" for number in range(3)]
    try:
        for each in made:
            create(pair, each)
        body = {"name": name, "config": {"schema.registry.url": pair.target.url}}
        assert error(pair.source, "POST", "/exporters", body) == (409, 40964)
    finally:
        for each in made:
            pair.source.ask("DELETE", f"/exporters/{each}")


def test_state_decides_what_is_allowed(pair: Pair, exporter: str) -> None:
    path = f"/exporters/{exporter}"
    create(pair, exporter)
    config = {"schema.registry.url": pair.target.url, "bearer.auth.token": "secret"}
    assert error(pair.source, "PUT", path, {"subjects": ["a"]}) == (409, 40963)
    assert error(pair.source, "PUT", f"{path}/config", config) == (409, 40963)
    assert error(pair.source, "PUT", f"{path}/reset") == (409, 40963)
    wait_until(lambda: pair.source.get(f"{path}/status")["state"] == "RUNNING")
    assert error(pair.source, "PUT", f"{path}/resume") == (409, 40961)
    for _ in range(2):
        assert pair.source.ask("PUT", f"{path}/pause") == (200, {"name": exporter})
    assert pair.source.get(f"{path}/status")["state"] == "PAUSED"
    assert pair.source.ask("PUT", path, {"subjects": ["a*"], "contextType": "NONE"}) == (200, {"name": exporter})
    assert pair.source.ask("PUT", f"{path}/config", config) == (200, {"name": exporter})
    assert error(pair.source, "PUT", f"{path}/config", {}) == (409, 40951)
    shown = pair.source.get(path)
    elsewhere = {**shown["config"], "schema.registry.url": "http://127.0.0.1:1"}
    assert error(pair.source, "PUT", f"{path}/config", elsewhere) == (409, 40951)
    assert error(pair.source, "PUT", path, {"config": elsewhere}) == (409, 40951)
    assert pair.source.get(path) == shown
    assert (shown["subjects"], shown["contextType"], shown["context"]) == (["a*"], "NONE", ".")
    assert shown["config"]["bearer.auth.token"] == "[hidden]"
    assert pair.source.ask("PUT", f"{path}/reset") == (200, {"name": exporter})
    assert pair.source.get(f"{path}/status")["offset"] == 0


def test_exporter_that_cannot_start_yet_is_starting(pair: Pair, exporter: str) -> None:
    create(pair, exporter, config={"schema.registry.url": "http://127.0.0.1:1"})
    assert error(pair.source, "PUT", f"/exporters/{exporter}/resume") == (409, 40962)
    wait_until(lambda: pair.source.get(f"/exporters/{exporter}/status")["trace"])
    status = pair.source.get(f"/exporters/{exporter}/status")
    assert status["state"] == "STARTING"
    assert "127.0.0.1:1" in status["trace"]


def test_openapi_document_has_the_routes(pair: Pair) -> None:
    paths = pair.source.get("/openapi.json")["paths"]
    methods = {path.removeprefix("/exporters"): sorted(row) for path, row in paths.items() if "/exporters" in path}
    assert methods == {
        "": ["get", "post"], "/{name}": ["delete", "get", "put"], "/{name}/status": ["get"],
        "/{name}/config": ["get", "put"], "/{name}/pause": ["put"], "/{name}/resume": ["put"],
        "/{name}/reset": ["put"],
    }  # fmt: skip


# -- copies -----------------------------------------------------------------------------------------------------------


def test_history_and_new_schemas_are_copied_with_ids_and_deletions(pair: Pair, exporter: str) -> None:
    source, name = pair.source, exporter
    text = json.dumps({"type": "record", "name": "B", "fields": [{"name": "x", "type": "int"}]})
    parent = json.dumps({"type": "record", "name": "A", "fields": [{"name": "b", "type": "B"}]})
    references = [{"name": "B", "subject": f"{name}-b", "version": 1}]
    source.register(f"{name}-b", text)
    source.register(f"{name}-a", parent, references=references, metadata={"properties": {"owner": "ann"}})
    source.register(f"{name}-json", '{"type":"object"}', schemaType="JSON")
    source.register(f"{name}-old", fixed(100))
    source.ask("DELETE", f"/subjects/{name}-old")
    create(pair, name)
    wait_until(lambda: len(versions(pair.target, f":.{name}:")) == 4 and is_equal(pair, name))
    assert pair.target.get(f"/mode/:.{name}:") == {"mode": "IMPORT"}
    copied = pair.target.get(f"/subjects/:.{name}:{name}-a/versions/1")
    assert (copied["references"], copied["metadata"]["properties"]["owner"]) == (references, "ann")
    for size in range(101, 104):
        source.ask("PUT", f"/config/{name}-new", {"compatibility": "NONE"})
        source.register(f"{name}-new", fixed(size))
    wait_until(lambda: len(versions(pair.target, f":.{name}:{name}-new")) == 3 and is_equal(pair, name))
    source.ask("DELETE", f"/subjects/{name}-new/versions/2")
    source.ask("DELETE", f"/subjects/{name}-old?permanent=true")
    wait_until(lambda: is_equal(pair, name))
    assert f'ottla_registry_exporter_versions_total{{exporter="{name}",outcome="copied"}}' in source.client.get(
        f"{source.url}/metrics"
    ).text  # fmt: skip


def test_records_that_are_not_applied_yet_are_not_read(pair: Pair, name: str) -> None:
    """The state does not know them: an exporter would take their versions for deleted ones, and skip them."""
    for number in range(3):
        pair.source.register(f"{name}-{number}", '"string"')
    store = StoreSettings(pair.broker.bootstrap, {}, "_schemas")
    every, end = read_up_to(store, 0)
    for row in every[-3:]:
        records, following = read_up_to(store, 0, row.offset)
        assert following == row.offset
        assert records == [each for each in every if each.offset < row.offset]
    assert read_up_to(store, end - 1, end)[1] == end


def test_automatic_context_is_named_after_the_source(pair: Pair, exporter: str) -> None:
    pair.source.register(f"{exporter}-a", '"string"')
    create(pair, exporter, contextType="AUTO", subjectRenameFormat="copy_${subject}")
    context = pair.source.get(f"/exporters/{exporter}")["context"]
    assert context.startswith(".schema-registry-")
    wait_until(lambda: pair.target.get(f"/subjects?subjectPrefix=:{context}:") == [f":{context}:copy_{exporter}-a"])


def test_paused_exporter_copies_nothing_and_reset_restores_what_is_missing(pair: Pair, exporter: str) -> None:
    path, subject = f"/exporters/{exporter}", f"{exporter}-a"
    pair.source.register(subject, '"string"')
    create(pair, exporter)
    wait_until(lambda: has_copied_all(pair, exporter))
    assert len(versions(pair.target, f":.{exporter}:")) == 1
    pair.source.ask("PUT", f"{path}/pause")
    pair.source.register(f"{subject}2", '"string"')
    assert len(versions(pair.target, f":.{exporter}:")) == 1
    assert pair.source.get(f"{path}/status")["offset"] > 0
    for query in ("", "?permanent=true"):
        pair.target.ask("DELETE", f"/subjects/:.{exporter}:{subject}{query}")
    pair.source.ask("PUT", f"{path}/resume")
    wait_until(lambda: len(versions(pair.target, f":.{exporter}:")) == 1)
    pair.source.ask("PUT", f"{path}/pause")
    pair.source.ask("PUT", f"{path}/reset")
    pair.source.ask("PUT", f"{path}/resume")
    wait_until(lambda: is_equal(pair, exporter))


def test_exporter_goes_on_when_the_destination_is_back(pair: Pair, exporter: str) -> None:
    path = f"/exporters/{exporter}/status"
    pair.source.register(f"{exporter}-a", '"string"')
    create(pair, exporter)
    wait_until(lambda: is_equal(pair, exporter))
    pair.target.stop()
    try:
        pair.source.register(f"{exporter}-b", '"string"')
        wait_until(lambda: pair.source.get(path)["trace"])
        assert pair.source.get(path)["state"] == "RUNNING"
    finally:
        pair.target.start()
    wait_until(lambda: is_equal(pair, exporter))
    wait_until(lambda: pair.source.get(path)["trace"] == "")


# -- command line -----------------------------------------------------------------------------------------------------


def test_exporter_on_the_command_line(pair: Pair, exporter: str) -> None:
    def run(*words: str) -> Any:
        result = CliRunner().invoke(
            main, ["schema", "exporter", *words, "--registry", pair.source.url], prog_name="ottla"
        )
        assert result.exit_code == 0, result.output
        return result.output

    pair.source.register(f"{exporter}-a", '"string"')
    made = run("create", exporter, pair.target.url, "--subjects", f"{exporter}*", "--context-type", "custom",
               "--context-name", exporter, "-C", "basic.auth.user.info=ann:secret")  # fmt: skip
    assert made.splitlines()[0].split() == ["NAME", "STATE", "OFFSET", "CHANGED", "TRACE"]
    wait_until(lambda: is_equal(pair, exporter))
    assert json.loads(run("list", "-o", "json"))[0]["name"] == exporter
    run("pause", exporter)
    run("update", exporter, "--subject-format", "x_${subject}", "--to", pair.target.url)
    described = json.loads(run("describe", exporter, "-o", "json"))
    assert described["subjectRenameFormat"] == "x_${subject}"
    assert described["config"]["basic.auth.user.info"] == "[hidden]"
    assert f"schema.registry.url   {pair.target.url}" in run("describe", exporter)
    assert json.loads(run("reset", exporter, "-o", "json"))[0]["offset"] == 0
    assert json.loads(run("resume", exporter, "-o", "json"))[0]["state"] in ("STARTING", "RUNNING")
    wait_until(lambda: len(versions(pair.target, f":.{exporter}:")) == 2)
    assert json.loads(run("status", exporter, "-o", "json"))[0]["state"] == "RUNNING"
    assert run("delete", exporter) == f"deleted {exporter}\n"


# -- the last test: it ends the source --------------------------------------------------------------------------------


def test_next_leader_continues_where_the_last_one_was(pair: Pair, name: str) -> None:
    pair.source.register(f"{name}-a", '"string"')
    create(pair, name, config={"schema.registry.url": pair.target.url, "bearer.auth.token": "secret"})
    wait_until(lambda: is_equal(pair, name))
    with RegistryProcess(pair.broker.bootstrap, SETTINGS) as follower:
        assert follower.get("/exporters") == [name]
        pair.source.kill()
        follower.register(f"{name}-b", '"string"')
        wait_until(lambda: len(versions(pair.target, f":.{name}:")) == 2)
        assert follower.get("/_health")["status"]["is_leader"] is True
        assert follower.get(f"/exporters/{name}/status")["state"] == "RUNNING"
        assert follower.ask("PUT", f"/exporters/{name}/pause") == (200, {"name": name})
