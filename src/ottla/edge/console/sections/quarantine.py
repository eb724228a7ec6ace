"""Quarantine of pipelines: rejected records by cause, with samples; one can be edited, and all can be sent again."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from ottla.admin.client import AdminClient
from ottla.admin.failure import NotFound
from ottla.edge.console.pages import BadInput, Change, PageRequest, Plan, Route, Tab, View
from ottla.edge.console.rendering import url
from ottla.edge.console.roles import Role
from ottla.model.printable import shown
from ottla.quarantine import redrive
from ottla.quarantine.rows import REPLAYS_MAX, CannotEdit, QuarantinedRow, edited, json_text
from ottla.quarantine.tables import Cause, NoTables, find_tables, read_causes, read_row, read_rows

_SAMPLES: Final = 20
_VALUE_SHOWN: Final = 4000
#: rows that a plan looks at, to find those that were not sent yet
_SCANNED_MAX: Final = 20_000
#: threads that read tables at the same time
_READERS: Final = asyncio.Semaphore(2)

_T = TypeVar("_T")


def quarantine_routes() -> list[Route]:
    return [
        Route("quarantine", show_tables, summary="List the quarantine tables with their causes."),
        Route("quarantine/{table}", show_table, summary="Show the causes of a quarantine table, and samples of one."),
        Route("quarantine/{table}/row", show_row, summary="Show a rejected record, to edit it."),
        Route("quarantine/{table}/redrive", plan=plan_redrive, role=Role.EDITOR, summary="Send records again."),
    ]


def pipeline_tabs(page: PageRequest, open_tab: str) -> list[Tab]:
    rows = (("Pipelines", "pipelines"), ("Quarantine", "quarantine"))
    return [Tab(title=title, href=url("c", page.cluster.name, key), is_open=key == open_tab) for title, key in rows]


# -- pages ------------------------------------------------------------------------------------------------------------


async def show_tables(page: PageRequest) -> View:
    tables = await _tables(page)
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for name, path in tables.items():
        try:
            causes = await _in_thread(partial(read_causes, path))
        except NoTables as error:
            problems.append(str(error))
            continue
        rows.append({
            "table": name, "rows": sum(each.count for each in causes), "causes": len(causes),
            "last_ms": max((each.last_ms for each in causes if each.last_ms is not None), default=None),
            "worst": [_cause(each) for each in causes[:3]],
        })  # fmt: skip
    rows.sort(key=lambda row: (-row["rows"], row["table"]))
    return View(
        "quarantine/list.html", "Quarantine", {"tables": rows, "problems": problems},
        tabs=pipeline_tabs(page, "quarantine"), commands=("ottla pipeline quarantine FILE",),
    )  # fmt: skip


async def show_table(page: PageRequest) -> View:
    name, path = await _table(page)
    causes = await _in_thread(partial(read_causes, path))
    chosen = page.query.get("cause")
    samples: list[QuarantinedRow] = []
    sent: set[str] = set()
    if chosen is not None:
        samples = await _in_thread(lambda: list(read_rows(path, chosen, newest=True, count_max=_SAMPLES)))
        sent = await page.read("redrives", redrive.read_sent, age_s=2)
    data = {
        "table": name, "causes": [_cause(each) for each in causes], "cause": chosen,
        "samples": [_sample(each, is_sent=each.id in sent) for each in samples],
        "total": sum(each.count for each in causes), "replays_max": REPLAYS_MAX, "redrive_max": redrive.RECORDS_MAX,
    }  # fmt: skip
    return View(
        "quarantine/table.html", name, data, tabs=pipeline_tabs(page, "quarantine"),
        commands=(
            "ottla pipeline quarantine FILE",
            f"ottla pipeline redrive FILE --table {shlex.quote(name)} --cause {shlex.quote(chosen or '')} --dry-run",
        ),
    )  # fmt: skip


async def show_row(page: PageRequest) -> View:
    name, path = await _table(page)
    row = await _find(path, page.query.get("id", ""))
    sent = await page.read("redrives", redrive.read_sent, age_s=2)
    data = {
        "table": name, **_sample(row, is_sent=row.id in sent), "text": json_text(row.value),
        "replays_max": REPLAYS_MAX,
    }  # fmt: skip
    return View("quarantine/row.html", row.id, data, tabs=pipeline_tabs(page, "quarantine"))


# -- sending again ----------------------------------------------------------------------------------------------------


async def plan_redrive(page: PageRequest) -> Plan:
    name, path = await _table(page)
    row_id, text = page.form.get("id", ""), page.form.get("value", "")
    try:
        value = edited(text) if text.strip() else None
    except CannotEdit as error:
        raise BadInput(str(error)) from None
    if row_id:
        rows = [await _find(path, row_id)]
        if value is not None and json_text(value) == json_text(rows[0].value):
            value = None  # it was shown and not edited: the record is sent as it was
    else:
        cause = page.form.get("cause") if "cause" in page.form else page.query.get("cause")
        if cause is None:
            raise BadInput("cause: choose the cause whose records are sent again")
        rows = await _in_thread(lambda: list(read_rows(path, cause, newest=False, count_max=_SCANNED_MAX)))
    plan = await page.run(lambda client: redrive.make_plan(client, rows, value=value))
    changes = [
        Change(str(place), None, f"{len(records):,} {'record' if len(records) == 1 else 'records'} appended")
        for place, records in plan.by_place.items()
    ]
    if value is not None and plan.records:
        changes.append(Change(f"value of {row_id}", _short(rows[0].value), _short(value)))
    warnings = [f"{count:,} rows are left out: {reason}." for reason, count in plan.left_out.items()]
    if plan.has_more:
        warnings.append(f"These are the first {redrive.RECORDS_MAX:,} records; send the others afterwards.")
    if plan.records:
        warnings.append(
            "All readers of these topics get the records again. A record that fails again comes back here, and is sent "
            f"at most {REPLAYS_MAX} times."
        )
    back = url("quarantine", name)[1:]
    return Plan(
        title=f"Send {len(plan.records):,} quarantined records again", changes=changes, confirm=name,
        warnings=warnings, commands=(_redrive_command(name, page.form.get("cause")),),
        apply=partial(_carry_out, rows=rows, value=value), then=back,
    )  # fmt: skip


def _redrive_command(name: str, cause: str | None) -> str:
    chosen = "" if cause is None else f" --cause {shlex.quote(cause)}"
    return f"ottla pipeline redrive FILE --table {shlex.quote(name)}{chosen}"


def _carry_out(client: AdminClient, rows: Sequence[QuarantinedRow], value: bytes | None) -> Sequence[str]:
    counts = redrive.carry_out(client, redrive.make_plan(client, rows, value=value))
    return [f"sent {count:,} records to {place}" for place, count in counts.items()]


# -- reading ----------------------------------------------------------------------------------------------------------


async def _in_thread(function: Callable[[], _T]) -> _T:
    async with _READERS:
        return await asyncio.to_thread(function)


async def _tables(page: PageRequest) -> dict[str, str]:
    places = [each for each in page.console.settings.pipeline_status_urls if "://" not in each]
    return await asyncio.to_thread(find_tables, places)


async def _table(page: PageRequest) -> tuple[str, str]:
    """Return the name and the path of the table in the request. Raise NotFound."""
    name = page.params["table"]
    path = (await _tables(page)).get(name)
    if path is None:
        raise NotFound(f"there is no quarantine table {shown(name)} in the directories of pipeline.status.urls")
    return name, path


async def _find(path: str, row_id: str) -> QuarantinedRow:
    topic, _, rest = row_id.rpartition("/")[0].rpartition("/")
    offset = row_id.rpartition("/")[2]
    if not (topic and rest.isdecimal() and offset.isdecimal() and len(rest) < 10 and len(offset) < 19):
        raise BadInput("id: give the rejected record as topic/partition/offset")
    row = await _in_thread(lambda: read_row(path, topic, int(rest), int(offset)))
    if row is None:
        raise NotFound(f"the table has no row of {shown(row_id)}")
    return row


def _cause(each: Cause) -> dict[str, Any]:
    return {"cause": each.text, "rows": each.count, "last_ms": each.last_ms}


def _sample(each: QuarantinedRow, *, is_sent: bool) -> dict[str, Any]:
    return {
        "id": each.id,
        "cause": each.cause,
        "topic": each.topic,
        "partition": each.partition,
        "offset": each.offset,
        "timestamp_ms": each.timestamp_ms,
        "key": _short(each.key),
        "value": _short(each.value),
        "row": each.row[:_VALUE_SHOWN] if each.row is not None else None,
        "replays": each.replays,
        "is_sent": is_sent,
        "headers": [{"name": header, "value": _short(value)} for header, value in islice(each.headers, _SAMPLES)],
    }


def _short(value: bytes | None) -> str | None:
    """Return bytes as text, or as hexadecimal digits if they are none."""
    if value is None:
        return None
    part = value[:_VALUE_SHOWN]
    try:
        text = part.decode()
    except UnicodeDecodeError:
        text = part.hex(" ")
    return text + ("…" if len(value) > _VALUE_SHOWN else "")
