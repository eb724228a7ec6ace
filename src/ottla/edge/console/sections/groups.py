"""Consumer groups: how far each is behind, who reads what, why a group waits, and resets of its offsets."""

from __future__ import annotations

import shlex
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Final

from ottla.admin.client import AdminClient
from ottla.admin.failure import Failure, NotFound
from ottla.admin.group_state import GroupListing
from ottla.admin.rebalances import advice_rows, parse_journal, read_journal
from ottla.edge.console import group_rows, rendering
from ottla.edge.console.console import Console, wants_json
from ottla.edge.console.pages import PAGE_ROWS, Events, PageRequest, Route, Tab, View
from ottla.edge.console.rendering import url
from ottla.edge.console.sections.group_actions import action_routes
from ottla.edge.console.watch import WatchState
from ottla.lag.observed import ObservedGroup
from ottla.lag.reading import LagReader
from ottla.lag.reasons import reasons
from ottla.lag.types import GroupLag, LagSnapshot
from ottla.model.printable import shown

_LIST_AGE_S: Final = 2.0
_LAG_AGE_S: Final = 1.0
_JOURNAL_AGE_S: Final = 5.0
_JOURNAL_S_MAX: Final = 5.0
_EVENTS_SHOWN: Final = 50
_REBALANCES_SHOWN: Final = 20
_KINDS: Final = ("", "classic", "consumer", "simple", "share")


class Groups:
    """The section of the groups."""

    key, title, path, letter = "groups", "Groups", "groups", "g"

    def is_available(self, console: Console) -> bool:
        return True

    def routes(self) -> Sequence[Route]:
        return [
            Route("groups", self.list, summary="List the groups."),
            Route("group-lags", self.lags, summary="Get the lags of a page of the list of groups."),
            Route("groups/{group}", self.show_offsets, summary="Show the offsets and the lag of a group."),
            Route("groups/{group}/live", self.live, summary="Get the offsets again and again, as events."),
            Route("groups/{group}/members", self.show_members, summary="Show the members of a group."),
            Route("groups/{group}/why", self.show_why, summary="Show why a group is behind, or waits."),
            *action_routes(self.show_reset),
        ]

    # -- the list -----------------------------------------------------------------------------------------------------

    async def list(self, page: PageRequest) -> View:
        shown_rows, matched, total, failures = await _page_of_list(page, fill=wants_json(page.request))
        start = page.number("start", 0)
        history = page.console.watch(page.cluster).state.history
        data = {
            "groups": shown_rows, "start": start, "matched": matched, "total": total,
            "problems": [each.message for each in failures],
        }  # fmt: skip
        lags = {row["group"]: list(history.group_lags.get(row["group"], ())) for row in shown_rows}
        return View(
            "groups/list.html", "Groups", data, commands=("ottla group list", "kafka-consumer-groups --list"),
            extra={"page_rows": PAGE_ROWS, "kinds": _KINDS, "lags": lags, "lag_text": group_rows.lag_text},
        )  # fmt: skip

    async def lags(self, page: PageRequest) -> View:
        rows, *_ = await _page_of_list(page, fill=True)
        return View("groups/list.html", "Groups", {"cells": {row["group"]: group_rows.cells_of(row) for row in rows}})

    # -- one group ----------------------------------------------------------------------------------------------------

    async def show_offsets(self, page: PageRequest) -> View:
        found = await _read(page)
        if isinstance(found, GroupListing):
            return _other_group(page, found)
        data = await _offsets(page, found)
        return _view(page, "groups/offsets.html", data, "offsets", extra={"page_rows": PAGE_ROWS})

    async def live(self, page: PageRequest) -> Events:
        found = await _read(page)
        if isinstance(found, GroupListing):
            raise NotFound(f"group {shown(found.group_id)} has no offsets that can be shown")
        return Events(_live(page))

    async def show_members(self, page: PageRequest) -> View:
        found = await _read(page)
        if isinstance(found, GroupListing):
            return _other_group(page, found)
        rows, start = group_rows.member_rows(found), page.number("start", 0)
        data = {
            **await _summary(page, found), "members": rows[start : start + PAGE_ROWS], "start": start,
        }  # fmt: skip
        return _view(page, "groups/members.html", data, "members", extra={"page_rows": PAGE_ROWS})

    async def show_why(self, page: PageRequest) -> View:
        found = await _read(page)
        if isinstance(found, GroupListing):
            return _other_group(page, found)
        data = {**await _summary(page, found), **await _why(page, found)}
        return _view(page, "groups/why.html", data, "why")

    async def show_reset(self, page: PageRequest) -> View:
        found = await _read(page)
        if isinstance(found, GroupListing):
            return _other_group(page, found)
        data = {
            **await _summary(page, found),
            "topics": sorted({each.topic for each in found.partitions}),
            "committed_topics": sorted({n.topic for n, each in found.partitions.items() if each.committed is not None}),
        }
        return _view(page, "groups/reset.html", data, "reset")


# -- reading ----------------------------------------------------------------------------------------------------------


async def _page_of_list(page: PageRequest, *, fill: bool) -> tuple[list[dict[str, Any]], int, int, Sequence[Failure]]:
    """Return the rows of a page of the list, how many match, how many there are, and why some may be missing.

    What the watch has read costs no request. With `fill`, the lags of the page that it has not read are read.
    """
    watch = page.console.watch(page.cluster)
    watch.look()
    listings, failures = await page.read("groups", partial(AdminClient.groups, of_all_kinds=True), age_s=_LIST_AGE_S)
    state, now_ms = watch.state, time.time_ns() // 1_000_000
    known = state.reading.groups if state.reading is not None else {}
    text, kind = page.query.get("q", "").strip().lower(), page.choice("kind", _KINDS)
    only_care = page.choice("state", ["", "care"]) == "care"
    rows = [
        group_rows.list_row(each, known.get(each.group_id), state, now_ms)
        for each in listings
        if text in each.group_id.lower() and (not kind or group_rows.kind_of(each) == kind)
    ]
    if only_care:
        rows = [row for row in rows if row["verdict_state"] in ("warning", "error") or row["problem"]]
    sort, order = page.choice("sort", group_rows.SORTS), page.choice("order", ["asc", "desc"])
    rows = group_rows.ordered(rows, sort, descending=order == "desc")
    start = page.number("start", 0)
    shown_rows = rows[start : start + PAGE_ROWS]
    if fill:
        shown_rows = await _filled(page, shown_rows, listings, state)
    return shown_rows, len(rows), len(listings), failures


async def _filled(
    page: PageRequest, rows: list[dict[str, Any]], listings: Sequence[GroupListing], state: WatchState
) -> list[dict[str, Any]]:
    missing = tuple(row["group"] for row in rows if row["topics"] is None and row["is_read"])
    if not missing:
        return rows
    reading = await page.read(("lags", missing), _lag_reader(missing, with_time=False), age_s=_LIST_AGE_S)
    by_name = {each.group_id: each for each in listings}
    return [
        group_rows.list_row(by_name[row["group"]], reading.groups.get(row["group"]), state, reading.read_at_ms)
        if row["group"] in missing
        else row
        for row in rows
    ]


def _lag_reader(names: Sequence[str], *, with_time: bool = True) -> Callable[[AdminClient], LagSnapshot]:
    """Return a function that reads the lags of these groups.

    Without the time that is one request of each kind to each broker. With the time, a partition that many groups read
    is fetched once for each of their offsets; for a list the watch does that.
    """
    return lambda client: LagReader(client).read(names, with_time=with_time)


async def _read(page: PageRequest) -> GroupLag | GroupListing:
    """Return the lag of the group, or its row of the list if it is no group of consumers. Raise NotFound."""
    name = page.params["group"]
    page.console.watch(page.cluster).look()
    reading = await page.read(("lag", name), _lag_reader([name]), age_s=_LAG_AGE_S)
    found = reading.groups.get(name)
    if found is not None and (found.group is None or found.group.exists):
        return found
    listings, _ = await page.read("groups", partial(AdminClient.groups, of_all_kinds=True), age_s=_LIST_AGE_S)
    listed = next((each for each in listings if each.group_id == name), None)
    if listed is not None and not listed.is_of_consumers:
        return listed
    raise NotFound(f"group {shown(name)} does not exist; it may have been deleted, see the list of groups")


def _observed(page: PageRequest, name: str) -> ObservedGroup | None:
    return page.console.watch(page.cluster).state.groups.get(name)


async def _summary(page: PageRequest, lag: GroupLag) -> dict[str, Any]:
    groups = page.console.watch(page.cluster).state.groups
    kind = group_rows.kind_of(lag.group) if lag.group is not None else "unknown"
    status = groups.status(lag.group_id, lag.read_at_ms)
    return group_rows.summary(lag, kind, groups.get(lag.group_id), status)


async def _offsets(page: PageRequest, lag: GroupLag) -> dict[str, Any]:
    rows = group_rows.offset_rows(lag, _observed(page, lag.group_id))
    start = page.number("start", 0)
    return {**await _summary(page, lag), "offsets": rows[start : start + PAGE_ROWS], "start": start}


async def _live(page: PageRequest) -> AsyncIterator[tuple[str, str]]:
    changes = page.console.watch(page.cluster).changes()
    while True:
        found = await _read(page)
        if isinstance(found, GroupListing):
            return
        data = await _offsets(page, found)
        yield "offsets", rendering.part("groups/offsets_body.html", cluster=page.cluster.name, **data)
        await anext(changes)


async def _why(page: PageRequest, lag: GroupLag) -> dict[str, Any]:
    """Return reasons, what this console has seen, and the journal, which only Ottla brokers have."""
    observed, state = _observed(page, lag.group_id), page.console.watch(page.cluster).state
    known = observed.forecast() if observed is not None else None
    journal, problem = [], ""
    has_journal = True
    try:
        values = await page.read(
            ("journal", lag.group_id),
            lambda client: read_journal(client, lag.group_id, _JOURNAL_S_MAX),
            age_s=_JOURNAL_AGE_S,
        )
        has_journal = values is not None
        journal = parse_journal(values or (), lag.group_id)[:_REBALANCES_SHOWN]
    except Failure as failure:
        problem = failure.message
    per_s = known.produced_per_s if known is not None else None
    topics = {each.topic for each in lag.partitions}
    hanging = [str(each.name) for each in (state.picture.hanging if state.picture else ()) if each.name.topic in topics]
    return {
        "reasons": [
            {"severity": each.severity, "text": each.text, "advice": each.advice} for each in reasons(lag, known)
        ],
        "hanging": hanging,
        "rebalances": [
            {**each, "arrived": None if per_s is None else round(per_s * each["duration_ms"] / 1000)}
            for each in journal
        ],
        "advice": advice_rows(journal),
        "has_journal": has_journal,
        "journal_problem": problem,
        "watched_since_ms": observed.first_ms if observed is not None else None,
        "events": [
            {"at_ms": each.at_ms, "kind": each.kind, "text": each.text}
            for each in reversed(observed.events if observed is not None else ())
        ][:_EVENTS_SHOWN],
    }


# -- views ------------------------------------------------------------------------------------------------------------


def _view(
    page: PageRequest, template: str, data: dict[str, Any], tab: str, *, extra: dict[str, Any] | None = None
) -> View:
    name = page.params["group"]
    quoted = shlex.quote(name)
    commands = {
        "offsets": (f"ottla group describe {quoted}", f"kafka-consumer-groups --describe --group {quoted}"),
        "members": (
            f"ottla group describe {quoted} --members",
            f"kafka-consumer-groups --describe --members --verbose --group {quoted}",
        ),
        "why": (f"ottla group why {quoted}",),
        "reset": (
            f"ottla group reset {quoted} --all-topics --to-earliest",
            f"kafka-consumer-groups --reset-offsets --group {quoted} --all-topics --to-earliest --dry-run",
        ),
    }[tab]
    return View(
        template, name, data, state=data["verdict_state"], tabs=_tabs(page, tab), commands=commands, extra=extra or {}
    )


def _tabs(page: PageRequest, open_tab: str) -> list[Tab]:
    rows = (("Offsets", "offsets", ()), ("Members", "members", ("members",)), ("Why", "why", ("why",)),
            ("Resets", "reset", ("reset",)))  # fmt: skip
    return [
        Tab(
            title=title,
            href=url("c", page.cluster.name, "groups", page.params["group"], *parts),
            is_open=name == open_tab,
        )
        for title, name, parts in rows
    ]


def _other_group(page: PageRequest, listing: GroupListing) -> View:
    data = {"group": listing.group_id, "kind": group_rows.kind_of(listing), "group_state": listing.state}
    return View("groups/other.html", listing.group_id, data, commands=("kafka-consumer-groups --list",))
