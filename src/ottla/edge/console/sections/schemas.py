"""The schemas of the registry: subjects, versions with their differences, tests of new schemas, compatibility."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from ottla.admin.client import AdminClient
from ottla.admin.failure import Failure, NotFound, NotHealthy
from ottla.client.registry import RegistryError, RegistryUnreachable, SchemaRegistry
from ottla.edge.console.console import Console
from ottla.edge.console.pages import PAGE_ROWS, BadInput, Change, PageRequest, Plan, Route, Tab, View
from ottla.edge.console.rendering import url
from ottla.edge.console.roles import Role
from ottla.edge.console.text_diff import pretty, side_by_side

_LEVELS: Final = (
    "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "NONE",
)  # fmt: skip
_MODES: Final = ("READWRITE", "READONLY", "IMPORT")
_TYPES: Final = ("AVRO", "JSON", "PROTOBUF")
#: what a registry answers for a subject that has no level, or no mode, of its own
_NOT_SET: Final = (40408, 40409)
_INHERITED: Final = "inherited"


class Schemas:
    """The section of the schema registry."""

    key, title, path, letter = "schemas", "Schemas", "schemas", "s"

    def is_available(self, console: Console) -> bool:
        return console.registry is not None

    def routes(self) -> Sequence[Route]:
        subject = "schemas/{subject}"
        editor, admin = Role.EDITOR, Role.ADMIN
        return [
            Route("schemas", self.list, summary="List the subjects of the registry."),
            Route(subject, self.show, summary="Show a version of a subject, and what it changes."),
            Route(f"{subject}/test", self.form, plan=self.register, role=editor, summary="Test and register a schema."),
            Route(f"{subject}/config", plan=self.set_config, role=admin, summary="Set compatibility or mode."),
            Route(f"{subject}/delete", plan=self.delete, role=admin, summary="Delete a version or a subject."),
        ]

    async def list(self, page: PageRequest) -> View:
        names = await _ask(page, "GET", "/subjects")
        text = page.query.get("q", "").strip().lower()
        matched = sorted(name for name in names if text in name.lower())
        start = page.number("start", 0)
        level = await _ask(page, "GET", "/config")
        rows = await asyncio.gather(*(_row(page, name) for name in matched[start : start + PAGE_ROWS]))
        data = {
            "subjects": rows, "total": len(names), "matched": len(matched), "start": start,
            "compatibility": level["compatibilityLevel"],
        }  # fmt: skip
        return View(
            "schemas/list.html", "Schemas", data, commands=("ottla schema list",), extra={"page_rows": PAGE_ROWS}
        )

    async def show(self, page: PageRequest) -> View:
        subject = page.params["subject"]
        versions = await _versions(page, subject)
        number = page.number("version", versions[-1])
        before = page.number("before", max((each for each in versions if each < number), default=number))
        chosen, earlier = await _schema(page, subject, number), await _schema(page, subject, before)
        text = pretty(chosen["schema"])
        data = {
            "subject": subject, "versions": versions, "version": number, "before": before, "id": chosen["id"],
            "type": chosen.get("schemaType", "AVRO"), "schema": text,
            "references": chosen.get("references", []), "compatibility": await _level(page, subject),
            "mode": await _mode(page, subject),
            "referenced_by": await _ask(page, "GET", f"{_path(subject)}/versions/{number}/referencedby"),
            "difference": side_by_side(pretty(earlier["schema"]), text) if before != number else [],
        }  # fmt: skip
        commands = (f"ottla schema get {subject} {number}", f"ottla schema check {subject} FILE")
        return View(
            "schemas/show.html", subject, data, tabs=_tabs(page, subject, "versions"), commands=commands,
            extra={"levels": _LEVELS, "modes": _MODES, "inherited": _INHERITED},
        )  # fmt: skip

    async def form(self, page: PageRequest) -> View:
        """Show the form for a new schema; with a schema in it, also whether it is compatible."""
        subject = page.params["subject"]
        try:
            versions = await _versions(page, subject)
            latest = await _schema(page, subject, versions[-1])
        except Failure:
            latest = {"schema": "", "schemaType": page.choice("type", _TYPES)}
        data = {
            "subject": subject, "type": latest.get("schemaType", "AVRO"), "schema": pretty(latest["schema"]),
        }  # fmt: skip
        return View(
            "schemas/form.html", f"New version of {subject}", data, tabs=_tabs(page, subject, "test"),
            extra={"types": _TYPES}, commands=(f"ottla schema check {subject} FILE",),
        )  # fmt: skip

    # -- actions ------------------------------------------------------------------------------------------------------

    async def register(self, page: PageRequest) -> Plan:
        subject, text = page.params["subject"], page.form.get("schema", "")
        if not text.strip():
            raise BadInput("schema: give the text of a schema")
        body = {"schema": text, "schemaType": page.choice("type", _TYPES)}
        try:
            versions = await _versions(page, subject)
        except NotFound:
            versions = []
        warnings = await _incompatibilities(page, subject, body) if versions else []
        latest = pretty((await _schema(page, subject, versions[-1]))["schema"]) if versions else ""
        rows = [
            Change("line", before, after)
            for kind, before, after in side_by_side(latest, pretty(text))
            if kind != "equal"
        ]
        return Plan(
            title=f"Register a version of {subject}", changes=rows or [Change(f"subject {subject}", None, "no change")],
            warnings=warnings, apply=_later(page, "POST", f"{_path(subject)}/versions", body),
            then=_relative(subject), commands=(f"ottla schema register {subject} FILE",),
        )  # fmt: skip

    async def set_config(self, page: PageRequest) -> Plan:
        subject = page.params["subject"]
        if "mode" in page.form:
            before, after = await _mode(page, subject), page.choice("mode", [*_MODES, _INHERITED])
            path, body = f"/mode/{_quoted(subject)}", {"mode": after}
        else:
            before, after = await _level(page, subject), page.choice("compatibility", [*_LEVELS, _INHERITED])
            path, body = f"/config/{_quoted(subject)}", {"compatibility": after}
        what = "mode" if "mode" in page.form else "compatibility"
        is_removed = after == _INHERITED
        return Plan(
            title=f"Set the {what} of {subject}", changes=[Change(what, before, after)] if before != after else [],
            warnings=["Every schema is then accepted, also one that readers cannot read."] if after == "NONE" else [],
            apply=_later(page, "DELETE" if is_removed else "PUT", path, None if is_removed else body),
            then=_relative(subject), commands=(f"ottla schema config {subject}",),
        )  # fmt: skip

    async def delete(self, page: PageRequest) -> Plan:
        subject = page.params["subject"]
        versions = await _versions(page, subject)
        number = page.number("version", 0)
        path = f"{_path(subject)}/versions/{number}" if number else _path(subject)
        what = f"version {number} of {subject}" if number else f"{subject} with {len(versions)} versions"
        readers = await _ask(page, "GET", f"{_path(subject)}/versions/{number or versions[-1]}/referencedby")
        warnings = ["Records with its id can still be read: the deletion is soft, and registering it again undoes it."]
        if readers:
            warnings.append(f"Schemas with these ids refer to it: {', '.join(map(str, readers))}.")
        return Plan(
            title=f"Delete {what}", changes=[Change(what, "registered", "deleted")], confirm=subject,
            warnings=warnings, apply=_later(page, "DELETE", path), then="schemas",
            commands=(f"ottla schema delete {subject}{f' --version {number}' if number else ''}",),
        )  # fmt: skip


def _tabs(page: PageRequest, subject: str, open_tab: str) -> list[Tab]:
    base = ("c", page.cluster.name, "schemas", subject)
    tabs = [Tab(title="Versions", href=url(*base), is_open=open_tab == "versions")]
    if page.may(Role.EDITOR):
        tabs.append(Tab(title="Test a new schema", href=url(*base, "test"), is_open=open_tab == "test"))
    return tabs


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _path(subject: str) -> str:
    return f"/subjects/{_quoted(subject)}"


def _relative(subject: str) -> str:
    return url("schemas", subject).removeprefix("/")


async def _ask(page: PageRequest, method: str, path: str, body: Any = None) -> Any:
    """Return an answer of the registry. Raise Failure."""
    registry = page.console.registry
    assert registry is not None, "the section is not shown without a registry"
    try:
        return await registry.ask(page.caller.identity, method, path, body)
    except RegistryError as error:
        raise _failure(error) from None
    except RegistryUnreachable as error:
        raise NotHealthy(str(error)) from None


def _failure(error: RegistryError) -> Failure:
    kind = NotFound if error.status == 404 else Failure
    return kind(f"the schema registry refuses it: {error} ({error.code})")


async def _versions(page: PageRequest, subject: str) -> list[int]:
    found: list[int] = await _ask(page, "GET", f"{_path(subject)}/versions")
    return found


async def _schema(page: PageRequest, subject: str, version: int) -> dict[str, Any]:
    found: dict[str, Any] = await _ask(page, "GET", f"{_path(subject)}/versions/{version}")
    return found


async def _row(page: PageRequest, subject: str) -> dict[str, Any]:
    """Return a row of the list. A subject that was deleted meanwhile has no versions."""
    try:
        versions = await _versions(page, subject)
        latest = await _schema(page, subject, versions[-1])
    except NotFound:
        versions, latest = [], {}
    return {
        "subject": subject, "type": latest.get("schemaType", "AVRO"), "versions": len(versions), "id": latest.get("id"),
        "topic": topic_of(subject), "references": [each["subject"] for each in latest.get("references", [])],
    }  # fmt: skip


def topic_of(subject: str) -> str | None:
    """Return the topic whose keys or values have this subject by the default naming; None if the name has no ending.

    >>> topic_of("orders-value"), topic_of(":.eu:orders-key"), topic_of("Order")
    ('orders', 'orders', None)
    """
    name = subject.rpartition(":")[2] if subject.startswith(":.") else subject
    return next((name.removesuffix(ending) for ending in ("-value", "-key") if name.endswith(ending)), None)


async def _level(page: PageRequest, subject: str) -> str:
    return await _own(page, f"/config/{_quoted(subject)}", "compatibilityLevel")


async def _mode(page: PageRequest, subject: str) -> str:
    return await _own(page, f"/mode/{_quoted(subject)}", "mode")


async def _own(page: PageRequest, path: str, field: str) -> str:
    """Return a setting of a subject; `inherited` if it has none of its own."""
    registry = page.console.registry
    assert registry is not None
    try:
        answer: Mapping[str, Any] = await registry.ask(page.caller.identity, "GET", path)
    except RegistryError as error:
        if error.code in _NOT_SET or error.status == 404:
            return _INHERITED
        raise _failure(error) from None
    except RegistryUnreachable as error:
        raise NotHealthy(str(error)) from None
    return str(answer[field])


async def _incompatibilities(page: PageRequest, subject: str, body: Mapping[str, Any]) -> list[str]:
    """Return why a schema is not compatible with the versions that it must be compatible with."""
    path = f"/compatibility{_path(subject)}/versions?verbose=true"
    verdict = await _ask(page, "POST", path, body)
    if verdict["is_compatible"]:
        return []
    return ["The schema is not compatible, and the registry will refuse it:", *verdict.get("messages", ())]


def _later(page: PageRequest, method: str, path: str, body: Any = None) -> Any:
    """Return a function that sends a request to the registry, in the thread of an action."""
    registry = page.console.registry
    assert registry is not None
    return partial(_send, registry.client_of(page.caller.identity), method, path, body)


def _send(registry: SchemaRegistry, method: str, path: str, body: Any, client: AdminClient) -> Sequence[str]:
    try:
        answer = registry.ask(method, path, body)
    except RegistryError as error:
        raise _failure(error) from None
    except RegistryUnreachable as error:
        raise NotHealthy(str(error)) from None
    return [f"{method} {path}: {answer}"]
