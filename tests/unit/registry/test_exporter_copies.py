"""Exporters without a network: names, definitions, and copies that end like their source whatever is repeated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import trustme
from starlette.requests import Request
from tests.unit.registry.registry_fixtures import FakeRegistry, number, record

from ottla.client.errors import ClientError, PropertyRefused
from ottla.client.registry import RegistryError, SchemaRegistry
from ottla.client.security import TLS_PROPERTIES
from ottla.edge.registry.answers import version_json
from ottla.edge.registry.exporters import definition
from ottla.edge.registry.exporters.api import ExporterHandlers
from ottla.edge.registry.exporters.definition import Entry, Exporter, ExporterState, Task, changes_in, tasks_of
from ottla.edge.registry.exporters.destination import Conflict, Destination, connect
from ottla.edge.registry.store import Applied
from ottla.edge.registry.subjects import normalize
from ottla.edge.web.app import HttpError
from ottla.edge.web.authentication import Identity
from ottla.security.secret_box import SecretBox

AUTO = ".here"
URL = {"schema.registry.url": "http://127.0.0.1:1"}
AUTHORITY = trustme.CA(key_type=trustme.KeyType.ECDSA)


def make(**members: Any) -> Exporter:
    return definition.create({"name": "e", "config": URL} | members, AUTO)


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(HttpError) as error:
        call()
    assert error.value.status == 409
    return error.value.error_code


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "selected"),
    [
        (["*"], ["a", "ab"]),
        (["a"], ["a"]),
        (["a*"], ["a", "ab"]),
        ([":*:"], ["a", "ab", ":.x:a", ":.y:b"]),
        ([":*:a*"], ["a", "ab", ":.x:a"]),
        ([".x"], [":.x:a", ":.x:c"]),
        ([":.x:"], [":.x:a", ":.x:c"]),
        ([":.x:a*", "ab"], ["ab", ":.x:a"]),
    ],
)
def test_subjects_are_selected_by_name_prefix_and_context(patterns: list[str], selected: list[str]) -> None:
    names = ["a", "ab", ":.x:a", ":.y:b", *([":.x:c"] if patterns[0] in (".x", ":.x:") else [])]
    assert [name for name in names if make(subjects=patterns).selects(name)] == selected


def test_copy_in_the_same_registry_is_not_copied_again() -> None:
    exporter = make(subjects=[":*:"])
    assert not exporter.selects(":.here:a")
    assert not exporter.selects(":.here.x:a")
    assert exporter.selects(":.hereafter:a")
    assert make(subjects=[".here"]).selects(":.here:a")


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, [":.here:a", ":.here.x:a"]),
        ({"contextType": "CUSTOM", "context": "site"}, [":.site:a", ":.site.x:a"]),
        ({"contextType": "custom", "context": ":.site:"}, [":.site:a", ":.site.x:a"]),
        ({"contextType": "NONE"}, ["a", ":.x:a"]),
        ({"contextType": "DEFAULT"}, ["a", "a"]),
        ({"contextType": "NONE", "subjectRenameFormat": "dc_${subject}"}, ["dc_a", ":.x:dc_a"]),
    ],
)
def test_subject_has_a_name_at_the_destination(members: dict[str, Any], expected: list[str]) -> None:
    assert [make(**members).destination(name) for name in ("a", ":.x:a")] == expected


# -- definitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"name": None}, 40950),
        ({"name": ""}, 40950),
        ({"name": "a/b"}, 40950),
        ({"name": "a\n"}, 40950),
        ({"name": 1}, 40950),
        ({"name": "x" * 256}, 40950),
        ({"config": None}, 40951),
        ({"config": {}}, 40951),
        ({"config": {"schema.registry.url": 1}}, 40951),
        ({"contextType": "SOME"}, 40951),
        ({"contextType": "CUSTOM"}, 40951),
        ({"contextType": "CUSTOM", "context": "."}, 40951),
        ({"contextType": "CUSTOM", "context": "a:b"}, 40951),
        ({"contextType": "CUSTOM", "context": ["a"]}, 40951),
        ({"subjects": "a"}, 40952),
        ({"subjects": [1]}, 40952),
        ({"subjects": ["a*b"]}, 40952),
        ({"subjects": ["a\x00"]}, 40952),
        ({"subjectRenameFormat": "x"}, 40952),
        ({"subjectRenameFormat": ":.c:${subject}"}, 40952),
        ({"subjectRenameFormat": 1}, 40952),
    ],
)
def test_invalid_definition_is_refused(members: dict[str, Any], code: int) -> None:
    assert code_of(lambda: make(**members)) == code


def test_one_subject_can_get_another_name() -> None:
    assert make(subjects=["a"], subjectRenameFormat="b", contextType="NONE").destination("a") == "b"


def test_secrets_are_hidden_and_kept_when_they_come_back_hidden() -> None:
    config = {**URL, "basic.auth.user.info": "ann:secret", "schema.registry.bearer.auth.token": "secret"}
    exporter = make(config=config)
    shown = exporter.as_json()
    assert shown["config"] == {**URL, "basic.auth.user.info": "[hidden]", "bearer.auth.token": "[hidden]"}
    assert "secret" not in repr(exporter)
    again = definition.update(exporter, shown, AUTO)
    assert again.config == exporter.config
    changed = definition.update(exporter, {"config": {**URL, "basic.auth.user.info": "bob:other"}}, AUTO)
    assert changed.config == {**URL, "basic.auth.user.info": "bob:other"}


@pytest.mark.parametrize(
    "change",
    [
        {"schema.registry.url": "http://other:8081"},
        {"schema.registry.url": "http://127.0.0.1:1,http://other:8081"},
        {"ssl.truststore.certificates": "a certificate"},
        {"enable.ssl.certificate.verification": "false"},
    ],
)
def test_hidden_secret_is_not_sent_to_another_server(change: dict[str, str]) -> None:
    """A user who does not know the secret must not get it by giving the address of an own server."""
    exporter = make(config={**URL, "basic.auth.user.info": "ann:secret", "bearer.auth.token": ""})
    shown = exporter.visible_config()
    with pytest.raises(HttpError) as caught:
        definition.update(exporter, {"config": {**shown, **change}}, AUTO)
    assert caught.value.error_code == 40951
    assert "give the value of basic.auth.user.info in the same request" in caught.value.message
    repeated = {**shown, **change, "schema.registry.basic.auth.user.info": "ann:secret"}
    assert definition.update(exporter, {"config": repeated}, AUTO).config["basic.auth.user.info"] == "ann:secret"
    without = {name: text for name, text in {**shown, **change}.items() if name != "basic.auth.user.info"}
    assert "basic.auth.user.info" not in definition.update(exporter, {"config": without}, AUTO).config


def test_update_keeps_members_that_are_absent() -> None:
    old = make(subjects=["a*"], contextType="CUSTOM", context="site", subjectRenameFormat="x${subject}")
    assert definition.update(old, {}, AUTO) == old
    assert definition.update(old, {"contextType": "AUTO"}, AUTO).context == AUTO
    assert code_of(lambda: definition.update(make(), {"contextType": "CUSTOM"}, AUTO)) == 40951


def test_exporters_are_loaded_from_the_records_of_both_topics() -> None:
    first = Entry(make(), ExporterState.RUNNING, 7, 1000, "why")
    second = Entry(make(name="f", config={**URL, "bearer.auth.token": "t"}), ExporterState.PAUSED, 9, 2000)
    every = [(first, "g"), (second, "g"), (Entry(make(name="other")), "another-group"), (Entry(make(name="gone")), "g")]
    definitions = [Applied(*entry.definition_record(group), 0, 0) for entry, group in every]
    progress = [Applied(*entry.progress_record(group), 0, 0) for entry, group in every]
    definitions.append(Applied(*definition.tombstone("g", "gone"), 0, 0))
    loaded = definition.load("g", definitions, progress)
    assert loaded == {"e": Entry(make(), ExporterState.STARTING, 7, 1000, "why"), "f": second}


def test_secrets_are_encrypted_in_the_topic() -> None:
    box = SecretBox("one")
    entry = Entry(make(config={**URL, "bearer.auth.token": "password"}))
    record, again = (Applied(*entry.definition_record("g", box), 0, 0) for _ in range(2))
    assert record.value is not None
    assert b"password" not in record.value
    assert record.value != again.value
    assert definition.load("g", [record], [], SecretBox("one"))["e"] == entry
    for other in (None, SecretBox("two")):
        loaded = definition.load("g", [record], [], other)["e"].exporter
        with pytest.raises(PropertyRefused, match=r"password\.encoder\.secret"):
            connect(loaded)
        stored = Entry(loaded).definition_record("g", other).value
        assert stored == record.value  # not encrypted twice


FILE_PROPERTIES = [name for name in TLS_PROPERTIES if name.endswith(".location")]


def refusal(path: Path | str, directory: Path | str = "", name: str = "ssl.ca.location") -> str:
    """Return why an exporter cannot name a file."""
    config = {"schema.registry.url": "https://127.0.0.1:1", f"schema.registry.{name}": str(path)}
    with pytest.raises(PropertyRefused) as refused:
        connect(make(config=config), str(directory))
    return str(refused.value)


@pytest.mark.parametrize("name", FILE_PROPERTIES)
@pytest.mark.parametrize("has_directory", [False, True])
def test_files_outside_of_the_directory_of_exporters_are_refused_whether_they_exist_or_not(
    tmp_path: Path, name: str, has_directory: bool
) -> None:
    (allowed := tmp_path / "files").mkdir()
    (tmp_path / "files2").mkdir()
    for file in (tmp_path / "secret.pem", tmp_path / "files2" / "secret.pem"):
        file.write_bytes(AUTHORITY.cert_pem.bytes())
    (allowed / "link.pem").symlink_to(tmp_path / "secret.pem")
    (allowed / "dangling.pem").symlink_to(tmp_path / "missing.pem")
    paths = (
        "secret.pem", "missing.pem", "files2/secret.pem", "files2/missing.pem", "files/../secret.pem", "files", "",
        "files/link.pem", "files/dangling.pem", "files/\0",
    )  # fmt: skip
    directory = allowed if has_directory else ""
    refusals = {refusal(f"{tmp_path}/{path}", directory, name) for path in paths}
    refusals |= {refusal(path, directory, name) for path in ("../secret.pem", "../missing.pem", "/etc/passwd", ".", "")}
    assert len(refusals) == 1
    assert "exporter.files.directory" in refusals.pop()


@pytest.mark.parametrize("path", ["ca.pem", "{directory}/ca.pem", "{directory}/sub/../linked.pem"])
def test_files_in_the_directory_of_exporters_can_be_used(tmp_path: Path, path: str) -> None:
    (tmp_path / "ca.pem").write_bytes(AUTHORITY.cert_pem.bytes())
    (tmp_path / "linked.pem").symlink_to("ca.pem")
    config = {"schema.registry.url": "https://127.0.0.1:1", "ssl.ca.location": path.format(directory=tmp_path)}
    connect(make(config=config), str(tmp_path)).close()
    assert "no file" in refusal("missing.pem", tmp_path)


def test_certificates_in_the_configuration_need_no_directory() -> None:
    config = {"schema.registry.url": "https://127.0.0.1:1", "ssl.ca.pem": AUTHORITY.cert_pem.bytes().decode()}
    connect(make(config=config)).close()


def test_only_listed_users_change_exporters() -> None:
    handlers = ExporterHandlers(cast(Any, None), cast(Any, None), cast(Any, SimpleNamespace(pause=None)), ["ann"])
    for identity in (None, Identity("bob")):
        request = Request({"type": "http", "path_params": {"name": "e"}, "identity": identity, "headers": []})
        with pytest.raises(HttpError) as error:
            asyncio.run(handlers.pause(request))
        assert (error.value.status, error.value.error_code) == (403, 40301)


# -- copies -----------------------------------------------------------------------------------------------------------


class FakeClient:
    """Answers the requests of an exporter from a registry in memory."""

    def __init__(self, registry: FakeRegistry) -> None:
        self.registry = registry
        self.changes = 0

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        url = urlsplit(path)
        segments = [unquote(segment) for segment in url.path.split("/")[1:]]
        self.changes += method != "GET"
        try:
            return self._answer(method, segments, parse_qs(url.query), body)
        except HttpError as error:
            raise RegistryError(error.status, error.error_code, error.message) from None

    def _answer(self, method: str, segments: list[str], query: dict[str, list[str]], body: Any) -> Any:
        state = self.registry.state
        if segments[0] == "mode":
            if method == "PUT":
                self.registry.mode(segments[1], body["mode"])
            return {"mode": state.mode_in_scope(segments[1])}
        subject = normalize(segments[1])
        if method == "POST":
            members = {name: value for name, value in body.items() if name != "schema"}
            return {"id": self.registry.register(subject, body["schema"], **members).id}
        version = int(segments[3])
        if method == "DELETE":
            return self.registry.delete_version(subject, version, permanent="permanent" in query)
        row = state.get(subject, version, deleted=True)
        if row is None:
            raise HttpError(404, 40402, "no such version")
        return version_json(row)


class Link:
    """An exporter between two registries in memory."""

    def __init__(self, **members: Any) -> None:
        self.source, self.target = FakeRegistry(), FakeRegistry()
        self.exporter = make(**members)
        self.client = FakeClient(self.target)
        self.position = 0

    def copy(self, end: int | None = None) -> None:
        """Copy up to an offset, or everything, as a worker does that has just started."""
        end = len(self.source.log) if end is None else end
        rows = [Applied(*self.source.log[offset], offset, 0) for offset in range(self.position, end)]
        tasks = tasks_of(changes_in(rows), self.exporter, self.source.state)
        destination = Destination(self.exporter, cast(SchemaRegistry, self.client))
        in_use = destination.copy(tasks, lambda task, is_changed: None)
        self.position = min((task.offset for task in in_use), default=end)

    def versions(self, registry: FakeRegistry) -> dict[str, list[tuple[int, int, str, bool]]]:
        found: dict[str, list[tuple[int, int, str, bool]]] = {}
        for row in registry.state.all_versions(":*:", deleted=True):
            name = self.exporter.destination(row.subject) if registry is self.source else row.subject
            found.setdefault(name, []).append((row.version, row.id, row.text, row.is_deleted))
        return found


def test_history_is_copied_with_ids_versions_references_and_deletions() -> None:
    link = Link(subjects=["a"], contextType="NONE", subjectRenameFormat="dc_${subject}")
    link.source.register("b", record("B", number("x")))
    parent = json.dumps({"type": "record", "name": "A", "fields": [{"name": "b", "type": "B"}]})
    link.source.register("other", '"string"')
    link.source.register("a", parent, references=[{"name": "B", "subject": "b", "version": 1}])
    link.copy()
    assert sorted(link.target.state.subjects()) == ["dc_a", "dc_b"]
    row = link.target.state.get("dc_a", 1)
    assert row is not None
    assert (row.id, row.references[0].subject) == (3, "dc_b")
    assert link.target.state.modes == {"dc_a": "IMPORT", "dc_b": "IMPORT"}
    link.source.delete("a")
    link.copy()
    deleted = link.target.state.get("dc_a", 1, deleted=True)
    assert deleted is not None and deleted.is_deleted
    link.source.delete("a", permanent=True)
    link.copy()
    assert link.target.state.get("dc_a", 1, deleted=True) is None


def test_repeated_copy_changes_nothing() -> None:
    link = Link(subjects=[":*:"])
    for name in ("a", "b", ":.x:a"):
        link.source.register(name, record("A", number("x")))
    link.copy()
    assert link.client.changes == 2 + 3  # two contexts in mode IMPORT, three versions
    link.position = link.client.changes = 0
    link.copy()
    assert link.client.changes == 0


def test_subjects_of_others_are_not_changed() -> None:
    link = Link(contextType="NONE")
    for registry in (link.source, link.target):
        registry.register("a", '"int"')
    link.target.register("b", '"string"')
    link.source.register("b", '"long"')
    link.source.delete("a")
    link.source.delete("a", permanent=True)
    with pytest.raises(ClientError, match=r"42205|has id"):
        link.copy()
    assert [row.text for row in link.target.state.all_versions()] == ['"int"', '"string"']


def test_other_id_in_the_same_place_is_a_conflict() -> None:
    link = Link(contextType="NONE")
    link.target.register("a", '"string"')
    link.target.register("b", '"int"')
    link.source.register("b", '"int"')
    with pytest.raises(Conflict, match="has id 2 at the destination, not 1"):
        link.copy()


def test_version_in_use_is_deleted_after_those_that_refer_to_it() -> None:
    link = Link()
    link.source.register("b", record("B", number("x")))
    parent = json.dumps({"type": "record", "name": "A", "fields": [{"name": "b", "type": "B"}]})
    link.source.register("a", parent, references=[{"name": "B", "subject": "b", "version": 1}])
    link.copy()
    link.source.delete("a")
    link.source.delete("b")
    link.position = 0
    link.copy(1)  # b alone: it is still in use
    assert link.position == 0
    link.copy()
    assert link.versions(link.target) == link.versions(link.source)


def test_process_that_was_paused_does_not_go_on_with_old_decisions() -> None:
    link, clock = Link(), [0.0]
    for name in "abc":
        link.source.register(name, '"int"')
    rows = [Applied(*row, offset, 0) for offset, row in enumerate(link.source.log)]
    tasks = tasks_of(changes_in(rows), link.exporter, link.source.state)
    destination = Destination(link.exporter, cast(SchemaRegistry, link.client), lambda: clock[0])
    done: list[Task] = []

    def pause(task: Task, is_changed: bool) -> None:
        done.append(task)
        clock[0] += 60.0

    for count in (1, 2, 3):
        assert destination.copy([task for task in tasks if task not in done], pause) == []
        assert done == tasks[:count]
    assert link.versions(link.target) == link.versions(link.source)


@pytest.mark.parametrize("seed", range(30))
def test_copy_ends_like_its_source_whatever_is_repeated(seed: int) -> None:
    random = Random(seed)
    link = Link(subjects=[":*:"], contextType=random.choice(["AUTO", "NONE"]))
    subjects = ["a", "b", "c", ":.x:a"]
    for _ in range(60):
        subject = random.choice(subjects)
        work = random.choice(["register"] * 5 + ["delete", "delete version", "permanent", "copy", "copy", "reset"])
        try:
            if work == "register":
                _register(link.source, subject, random)
            elif work == "delete":
                link.source.delete(subject)
            elif work == "permanent":
                link.source.delete(subject, permanent=True)
            elif work == "delete version":
                link.source.delete_version(subject, random.randint(1, 3), permanent=random.random() < 0.5)
            elif work == "reset":
                link.position = 0
            else:
                link.copy(random.randint(link.position, len(link.source.log)))
        except HttpError:
            continue  # not possible at this moment
    link.copy()
    assert link.position == len(link.source.log)
    assert link.versions(link.target) == link.versions(link.source)


def _register(source: FakeRegistry, subject: str, random: Random) -> None:
    """Register a record, which may refer to a version of another subject."""
    fields: list[dict[str, Any]] = [number(name, default=0) for name in "xyz" if random.random() < 0.5]
    references = []
    others = [row for row in source.state.all_versions() if row.subject != subject and not row.references]
    if others and not subject.startswith(":") and random.random() < 0.4:
        other = random.choice(others)
        name = json.loads(other.text)["name"]
        fields.append({"name": "other", "type": ["null", name], "default": None})
        references.append({"name": name, "subject": other.subject, "version": other.version})
    text = record(f"R{normalize(subject).strip(':.').replace(':', '_')}", *fields)
    source.register(subject, text, references=references, force=True)
