"""Transactions: hanging ones first, with the readers that they hold back, then those that coordinators know."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from ottla.admin.client import AdminClient
from ottla.admin.failure import Failure, NotFound
from ottla.admin.transactions import OpenTransaction, Transaction, TransactionListing, Transactions
from ottla.edge.console.console import Console, wants_json
from ottla.edge.console.pages import PAGE_ROWS, Change, PageRequest, Plan, Route, View, action
from ottla.edge.console.roles import Role
from ottla.edge.console.watch import WatchState
from ottla.model.printable import shown
from ottla.model.types import TopicPartition

_AGE_S: Final = 2.0
#: how long the search for hanging transactions may take, which looks at the partitions of the whole cluster
_SEARCH_S_MAX: Final = 30.0
_GROUPS_SHOWN: Final = 5
_HANGING_SHOWN: Final = 200
#: states with an open transaction, the one that needs a producer's attention first
_OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
_STATES: Final = ("", *_OPEN_STATES, "CompleteCommit", "CompleteAbort", "Empty", "Dead")
_OFFSET_MAX: Final = 2**63 - 1
#: an Ongoing transaction that is older than its timeout by this much is overdue: coordinators look every 10 s
_GRACE_MS: Final = 60_000


class TransactionsSection:
    """The section of the transactions."""

    key, title, path, letter = "transactions", "Transactions", "transactions", "x"

    def is_available(self, console: Console) -> bool:
        return True

    def routes(self) -> Sequence[Route]:
        return [
            Route("transactions", self.list, summary="List the transactions."),
            Route("hanging-transactions", self.show_hanging, summary="Find the hanging transactions."),
            Route("transactions/{id}", self.show, summary="Show a transactional id."),
            action("hanging-transactions/end", self.end, Role.ADMIN, "Abort a hanging transaction."),
        ]

    async def list(self, page: PageRequest) -> View:
        listings, problem = await _listings(page)
        text, state = page.query.get("q", "").strip().lower(), page.choice("state", _STATES)
        found = [
            each for each in listings if text in each.transactional_id.lower() and (not state or each.state == state)
        ]
        found.sort(key=lambda each: (each.state not in _OPEN_STATES, each.transactional_id))
        start = page.number("start", 0)
        shown_ids = tuple(each.transactional_id for each in found[start : start + PAGE_ROWS])
        described = await page.read(
            ("transactions", shown_ids), lambda client: Transactions(client).describe(shown_ids), age_s=_AGE_S
        )  # fmt: skip
        rows = [row_of(each) for each in described.values() if each is not None]
        hanging = await _hanging(page, listings, waits=wants_json(page.request))
        data = {
            "transactions": sorted(rows, key=lambda row: (row["state"] not in _OPEN_STATES, -(row["age_ms"] or 0))),
            "start": start, "matched": len(found), "total": len(listings), "problem": problem, "hanging": hanging,
        }  # fmt: skip
        return View(
            "transactions/list.html", "Transactions", data, state="error" if hanging else "",
            commands=("ottla txn list", "ottla txn hanging", "kafka-transactions list"),
            extra={"page_rows": PAGE_ROWS, "states": _STATES},
        )  # fmt: skip

    async def show_hanging(self, page: PageRequest) -> View:
        listings, _ = await _listings(page)
        data = {"hanging": await _hanging(page, listings, waits=True)}
        return View(
            "transactions/hanging.html", "Hanging transactions", data, state="error" if data["hanging"] else "ok",
            commands=("ottla txn hanging", "kafka-transactions find-hanging --broker-id ID"),
        )  # fmt: skip

    async def show(self, page: PageRequest) -> View:
        name = page.params["id"]
        found = (await page.run(lambda client: Transactions(client).describe([name])))[name]
        if found is None:
            raise NotFound(f"transactional id {shown(name)} does not exist; its coordinator forgets ids after a week")
        places = await page.run(partial(_places, transaction=found))
        row = row_of(found)
        data = {"transaction": row, "places": places}
        state = "warning" if row["is_overdue"] else ""
        quoted = shlex.quote(name)
        return View(
            "transactions/show.html", name, data, state=state,
            commands=(
                f"ottla txn describe {quoted}", f"kafka-transactions describe --transactional-id {quoted}"
            ),
        )  # fmt: skip

    async def end(self, page: PageRequest) -> Plan:
        topic = page.form.get("topic") or page.query.get("topic", "")
        place = TopicPartition(topic, page.number("partition", -1, low=0, high=2**31 - 1))
        start = page.number("start_offset", -1, high=_OFFSET_MAX)

        def read(client: AdminClient) -> tuple[OpenTransaction, int]:
            transactions = Transactions(client)
            found = transactions.find_one(place, start_offset=start)
            transactions.check_hanging(found)
            return found, _held_back(client, [place])[place]

        found, held_back = await page.run(read)
        return Plan(
            title=f"Abort the transaction of producer {found.producer_id} in {place}", confirm=str(place),
            changes=[
                Change(
                    f"{place} from offset {found.start_offset:,}",
                    f"open, producer {found.producer_id}, epoch {found.producer_epoch}", "aborted",
                    f"{held_back:,} offsets become readable",
                )
            ],
            warnings=[
                "Readers with isolation.level=read_committed never get the records of this transaction.",
                "Its coordinator does not know the transaction, so nothing else will end it.",
            ],
            commands=(
                f"ottla txn abort --topic {shlex.quote(topic)} --partition {place.partition} --start-offset {start}",
                f"kafka-transactions abort --topic {shlex.quote(topic)} --partition {place.partition} "
                f"--start-offset {start}",
            ),
            apply=partial(_abort, place=place, start=start), then="transactions",
        )  # fmt: skip


async def _listings(page: PageRequest) -> tuple[list[TransactionListing], str]:
    """Return all transactional ids, and why some may be missing."""

    def read(client: AdminClient) -> tuple[list[TransactionListing], str]:
        transactions = Transactions(client)
        return transactions.list_ids(), "; ".join(each.message for each in transactions.missing_ids())

    try:
        return await page.read("transactional ids", read, age_s=_AGE_S)
    except Failure as failure:
        return [], failure.message


async def _hanging(
    page: PageRequest, listings: Sequence[TransactionListing], *, waits: bool
) -> list[dict[str, Any]] | None:
    """Return the hanging transactions; None if the watch has not looked for them yet.

    The watch finds them among all partitions. Whether those that it has found are still open is asked again.
    """
    watch = page.console.watch(page.cluster)
    watch.look()
    if waits and watch.state.picture is None:
        try:
            async with asyncio.timeout(_SEARCH_S_MAX):
                async for state in watch.changes():
                    if state.picture is not None:
                        break
        except TimeoutError:
            raise Failure(f"the cluster was not read within {_SEARCH_S_MAX:g} s; {watch.state.problem}") from None
    picture = watch.state.picture
    if picture is None:
        return None
    suspects = picture.hanging[:_HANGING_SHOWN]
    if not suspects:
        return []
    places = {each.name for each in suspects}

    def read(client: AdminClient) -> tuple[list[OpenTransaction], dict[TopicPartition, int]]:
        transactions = Transactions(client)
        leaders, _ = transactions.find_leaders(sorted({place.topic for place in places}))
        still = transactions.find_open({place: leaders[place] for place in places if place in leaders})
        return still, _held_back(client, [each.name for each in still])

    still, held_back = await page.run(read)
    found = [each for each in still if any(each.is_same(other) for other in suspects)]
    ids = {each.producer_id: each.transactional_id for each in listings}
    rows = [_hanging_row(each, held_back.get(each.name, 0), ids, watch.state) for each in found]
    return sorted(rows, key=lambda row: -row["held_back"])


def _held_back(client: AdminClient, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return how many offsets readers of committed records cannot reach, in each partition."""
    stable = client.find_offsets(places, "latest", committed=True)
    ends = client.find_offsets(places, "latest")
    return {place: max((ends[place].offset or 0) - (stable[place].offset or 0), 0) for place in dict.fromkeys(places)}


def _hanging_row(each: OpenTransaction, held_back: int, ids: dict[int, str], state: WatchState) -> dict[str, Any]:
    groups = [
        name
        for name, lag in (state.reading.groups.items() if state.reading is not None else ())
        if each.name in lag.partitions
    ]
    return {
        "topic": each.name.topic,
        "partition": each.name.partition,
        "transactional_id": ids.get(each.producer_id),
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "coordinator_epoch": each.coordinator_epoch,
        "start_offset": each.start_offset,
        "last_ms": each.last_timestamp,
        "age_ms": max(_now_ms() - each.last_timestamp, 0),
        "leader": each.leader.broker_id,
        "held_back": held_back,
        "groups": groups[:_GROUPS_SHOWN],
        "groups_total": len(groups),
    }


def row_of(each: Transaction) -> dict[str, Any]:
    """Return a transactional id as values of JSON. Brokers report 1970 for ids without an open transaction."""
    started_ms = each.started_ms if each.state in _OPEN_STATES else None
    age_ms = None if started_ms is None else max(_now_ms() - started_ms, 0)
    names = [str(place) for place in each.partitions]
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "started_ms": started_ms,
        "age_ms": age_ms,
        "timeout_ms": each.timeout_ms,
        "is_overdue": age_ms is not None and age_ms > each.timeout_ms + _GRACE_MS,
        "partitions": names[:PAGE_ROWS],
        "partitions_total": len(names),
        "coordinator": each.coordinator.broker_id,
    }


def _places(client: AdminClient, transaction: Transaction) -> list[dict[str, Any]]:
    """Return what the leaders know of the producer in the partitions of its transaction."""
    wanted = transaction.partitions[:PAGE_ROWS]
    transactions = Transactions(client)
    leaders, _ = transactions.find_leaders(sorted({place.topic for place in wanted})) if wanted else ({}, [])
    known = {
        each.name: each
        for each in transactions.find_open({place: leaders[place] for place in wanted if place in leaders})
        if each.producer_id == transaction.producer_id
    }
    held_back = _held_back(client, list(known))
    return [
        {
            "topic": place.topic,
            "partition": place.partition,
            "start_offset": known[place].start_offset if place in known else None,
            "last_ms": known[place].last_timestamp if place in known else None,
            "held_back": held_back.get(place),
        }
        for place in wanted
    ]


def _abort(client: AdminClient, place: TopicPartition, start: int) -> Sequence[str]:
    transactions = Transactions(client)
    found = transactions.find_one(place, start_offset=start)
    transactions.check_hanging(found)
    transactions.write_abort_marker(found)
    return [f"aborted the transaction of producer {found.producer_id} in {place} from offset {found.start_offset}"]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
