"""`ottla schema`: list, read, register, compare and delete the schemas of a registry."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from ottla.admin.failure import NotFound
from ottla.cli import schema_exporter
from ottla.cli.names import SUBJECT
from ottla.cli.options import deletion_dry_run_option, gathered_options
from ottla.cli.output import Column, output_option, print_data, print_rows
from ottla.cli.registry_options import registry_options
from ottla.cli.watch import WatchCommand

if TYPE_CHECKING:
    from ottla.client.registry import SchemaRegistry

_TYPES = ("AVRO", "JSON", "PROTOBUF")
#: the type of a file by its suffix
_SUFFIXES = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}
_LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")
_MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD")
_VERSION_COLUMNS = (
    Column("SUBJECT", "subject"), Column("VERSION", "version"), Column("ID", "id"), Column("TYPE", "type"),
    Column("REFERENCES", "references"),
)  # fmt: skip
#: how the subject of a global setting is shown
_GLOBAL = "<global>"
_SUBJECT_NOT_FOUND = 40401


def _parse_reference(text: str) -> dict[str, Any]:
    name, _, place = text.partition("=")
    subject, _, version = place.rpartition(":")
    if not name or not subject or not version.isdigit():
        raise click.BadParameter(f"{text!r} is not NAME=SUBJECT:VERSION", param_hint="--reference")
    return {"name": name, "subject": subject, "version": int(version)}


def _body(file: Any, schema_type: str | None, references: tuple[str, ...]) -> dict[str, Any]:
    """Return a schema as the registry takes it."""
    chosen = (schema_type or _SUFFIXES.get(Path(file.name).suffix, "AVRO")).upper()
    body: dict[str, Any] = {"schema": file.read(), "schemaType": chosen}
    if references:
        body["references"] = [_parse_reference(text) for text in references]
    return body


#: FILE, --type and --reference; the command gets a `body`
_schema_options = gathered_options(
    "body",
    _body,
    click.argument("file", metavar="FILE", type=click.File("r", encoding="utf-8")),
    click.option(
        "-t",
        "--type",
        "schema_type",
        type=click.Choice(_TYPES, case_sensitive=False),
        help="Type of the schema.  [default: by the suffix .avsc, .json or .proto, else AVRO]",
    ),
    click.option(
        "--reference",
        "references",
        metavar="NAME=SUBJECT:VERSION",
        multiple=True,
        help="A schema that this one uses under NAME. Repeatable.",
    ),
)


@click.group("schema")
def command() -> None:
    """List, read, register, compare and delete the schemas of a registry.

    Works with `ottla registry` and with Confluent's registry.
    """


command.add_command(schema_exporter.command)


@command.command("list", cls=WatchCommand)
@click.argument("prefix", metavar="[PREFIX]", default="", type=SUBJECT)
@click.option("--all", "all_versions", is_flag=True, help="Every version, not only the latest.")
@click.option("--deleted", is_flag=True, help="Also print soft-deleted versions.")
@registry_options
@output_option()
def list_schemas(prefix: str, all_versions: bool, deleted: bool, registry: SchemaRegistry, output: str) -> None:
    """Print subjects and their versions: all, or those that start with PREFIX."""
    latest = "" if all_versions else "&latestOnly=true"
    path = f"/schemas?subjectPrefix={quote(prefix, safe='')}{latest}{'&deleted=true' if deleted else ''}"
    print_rows([_row(value) for value in registry.ask("GET", path)], _VERSION_COLUMNS, output, "subject")


@command.command("get")
@click.argument("name", metavar="SUBJECT|ID", type=SUBJECT)
@click.argument("version", default="latest")
@click.option("--text", "only_text", is_flag=True, help="Print nothing but the schema, as it is stored.")
@registry_options
@output_option()
def get(name: str, version: str, only_text: bool, registry: SchemaRegistry, output: str) -> None:
    """Print a version of a subject, or the schema with an id."""
    if name.isdigit() and version == "latest":
        value = registry.ask("GET", f"/schemas/ids/{name}") | {"id": int(name)}
    else:
        value = registry.ask("GET", f"{_versions(name)}/{version}")
    if only_text:
        click.echo(value["schema"])
    elif output == "table":
        print_rows([_row(value)], _VERSION_COLUMNS, output, "subject")
        click.echo(f"\n{_pretty(value)}")
    else:
        print_data(value, output)


@command.command("register")
@click.argument("subject", type=SUBJECT)
@_schema_options
@click.option(
    "--normalize", is_flag=True, help="Normalise the schema first, so that schemas with the same meaning get one id."
)
@registry_options
@output_option()
def register(subject: str, body: dict[str, Any], normalize: bool, registry: SchemaRegistry, output: str) -> None:
    """Register the schema in FILE under SUBJECT. Print its id; a schema that exists keeps its id."""
    query = "?normalize=true" if normalize else ""
    schema_id = registry.ask("POST", f"{_versions(subject)}{query}", body)["id"]
    value = registry.ask("POST", f"/subjects/{quote(subject, safe='')}{query}", body)
    print_rows([_row({**value, "id": schema_id})], _VERSION_COLUMNS, output, "subject")


@command.command("check")
@click.argument("subject", type=SUBJECT)
@_schema_options
@click.option(
    "--version",
    metavar="N",
    help="Compare with this version only.  [default: the versions that the compatibility level demands]",
)
@registry_options
@output_option()
@click.pass_context
def check(
    ctx: click.Context,
    *,
    subject: str,
    body: dict[str, Any],
    version: str | None,
    registry: SchemaRegistry,
    output: str,
) -> None:
    """Compare the schema in FILE with the versions of SUBJECT. Exit with 1 if it is incompatible."""
    path = f"/compatibility{_versions(subject)}{f'/{version}' if version else ''}?verbose=true"
    verdict = registry.ask("POST", path, body)
    reasons = verdict.get("messages") or []
    if output == "table":
        click.echo(_verdict(registry, subject) if verdict["is_compatible"] else "incompatible")
        for reason in reasons:
            click.echo(f"  {reason}")
    else:
        print_data({"subject": subject, "is_compatible": verdict["is_compatible"], "messages": reasons}, output)
    if not verdict["is_compatible"]:
        ctx.exit(1)


@command.command("diff")
@click.argument("subject", type=SUBJECT)
@click.argument("old")
@click.argument("new", default="latest")
@registry_options
def diff(subject: str, old: str, new: str, registry: SchemaRegistry) -> None:
    """Print the difference of two versions of SUBJECT, line by line."""
    before, after = (_pretty(registry.ask("GET", f"{_versions(subject)}/{version}")) for version in (old, new))
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{subject} {old}", f"{subject} {new}", lineterm=""
    )
    for line in lines:
        click.echo(line)


@command.command("delete")
@click.argument("subject", type=SUBJECT)
@click.option("--version", metavar="N", help="Delete this version only.")
@click.option(
    "--permanent", is_flag=True, help="Permanently delete soft-deleted versions. Their ids are not used again."
)
@deletion_dry_run_option
@registry_options
@output_option()
def delete(
    *, subject: str, version: str | None, permanent: bool, dry_run: bool, registry: SchemaRegistry, output: str
) -> None:
    """Delete a subject or one of its versions. The schemas stay readable by id unless --permanent is given."""
    path = f"{_versions(subject)}/{version}" if version else f"/subjects/{quote(subject, safe='')}"
    query = "?permanent=true" if permanent else ""
    if dry_run:
        found = registry.ask("GET", f"{_versions(subject)}?{'deletedOnly=true' if permanent else ''}")
        deleted = [number for number in found if version is None or str(number) == version]
    else:
        answer = registry.ask("DELETE", f"{path}{query}")
        deleted = answer if isinstance(answer, list) else [answer]
    status = f"{'would be ' if dry_run else ''}deleted{' permanently' if permanent else ''}"
    rows = [{"subject": subject, "version": number, "status": status} for number in deleted]
    print_rows(rows, (*_VERSION_COLUMNS[:2], Column("STATUS", "status")), output, "subject")


@command.command("config")
@click.argument("subject", required=False, type=SUBJECT)
@click.option("--set", "level", type=click.Choice(_LEVELS, case_sensitive=False), help="Set the compatibility level.")
@click.option("--unset", is_flag=True, help="Remove the level of SUBJECT, so that the global one applies.")
@registry_options
@output_option()
def config(subject: str | None, level: str | None, unset: bool, registry: SchemaRegistry, output: str) -> None:
    """Print or change the compatibility level, global or of SUBJECT."""
    _setting(
        registry, "config", subject, level, fields=("compatibilityLevel", "compatibility"), unset=unset, output=output
    )


@command.command("mode")
@click.argument("subject", required=False, type=SUBJECT)
@click.option("--set", "mode_name", type=click.Choice(_MODES, case_sensitive=False), help="Set the mode.")
@click.option("--unset", is_flag=True, help="Remove the mode of SUBJECT, so that the global one applies.")
@registry_options
@output_option()
def mode(subject: str | None, mode_name: str | None, unset: bool, registry: SchemaRegistry, output: str) -> None:
    """Print or change the mode, global or of SUBJECT: READWRITE, READONLY, IMPORT and others."""
    _setting(registry, "mode", subject, mode_name, fields=("mode", "mode"), unset=unset, output=output)


def _setting(
    registry: SchemaRegistry,
    kind: str,
    subject: str | None,
    value: str | None,
    *,
    fields: tuple[str, str],
    unset: bool,
    output: str,
) -> None:
    """Print, set or delete a setting of a subject or the registry. `fields` are its names in answers and requests."""
    field, sent = fields
    if value is not None and unset:
        raise click.UsageError("--set and --unset cannot be combined")
    path = f"/{kind}/{quote(subject, safe='')}" if subject else f"/{kind}"
    if value is not None:
        registry.ask("PUT", path, {sent: value.upper()})
    elif unset:
        registry.ask("DELETE", path)
    found = registry.ask("GET", f"{path}?defaultToGlobal=true")
    row = {"subject": subject or _GLOBAL, kind: found.get(field)}
    title = "MODE" if kind == "mode" else "COMPATIBILITY"
    print_rows([row], (Column("SUBJECT", "subject"), Column(title, kind)), output, "subject")


def _verdict(registry: SchemaRegistry, subject: str) -> str:
    """Return the text for a compatible schema. A registry also calls it compatible if the subject has no versions."""
    from ottla.client.registry import RegistryError

    try:
        registry.ask("GET", _versions(subject))
    except RegistryError as error:
        if error.code == _SUBJECT_NOT_FOUND:
            return f"compatible: {subject} has no versions yet"
    return "compatible"


def _versions(subject: str) -> str:
    if not subject:
        raise NotFound("the name of a subject is empty; see 'ottla schema list'")
    return f"/subjects/{quote(subject, safe='')}/versions"


def _row(value: dict[str, Any]) -> dict[str, Any]:
    references = [f"{row['subject']}:{row['version']}" for row in value.get("references") or ()]
    return {
        "subject": value.get("subject"), "version": value.get("version"), "id": value.get("id"),
        "type": value.get("schemaType") or "AVRO", "references": ", ".join(references),
    }  # fmt: skip


def _pretty(value: dict[str, Any]) -> str:
    """Return the text of a schema with line breaks."""
    text: str = value["schema"]
    if value.get("schemaType") == "PROTOBUF":
        return text.rstrip("\n")
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
