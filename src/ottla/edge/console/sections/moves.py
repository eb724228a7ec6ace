"""Elections of leaders, and moves of replicas between brokers: plans, throttles, progress.

A plan is made from the state of the cluster when it is shown and again when it is confirmed. The cluster carries a move
out by itself; the page of moves shows how far it is, and has a button that cancels.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from ottla.admin import throttles
from ottla.admin.client import AdminClient
from ottla.admin.cluster import ClusterAdmin, ClusterState, Election
from ottla.admin.failure import Failure
from ottla.admin.logs import DirectoryState, describe_directories
from ottla.admin.moves import (
    Move,
    check_leaving,
    finish_moves,
    needs_election,
    parse_plan,
    plan_balance,
    plan_decommission,
    plan_leaders,
    plan_moves,
)
from ottla.admin.topic_state import PartitionState
from ottla.edge.console import formats
from ottla.edge.console.pages import BadInput, Change, PageRequest, Plan, Route, View, action
from ottla.edge.console.roles import Role
from ottla.model.types import TopicPartition

#: partitions that one plan changes: what is confirmed and recorded has to be readable
PARTITIONS_MAX: Final = 500
_SHOWN_MAX: Final = 200
_AGE_S: Final = 1.0
_TEXT_MAX: Final = 1 << 20
_ELECTIONS: Final = ("preferred", "unclean")
_KINDS: Final = ("balance", "leaders", "leave", "list")
_TARGET: Final = re.compile(r"(?P<topic>[^:=\s]+):(?P<partition>[0-9]{1,9})=(?P<replicas>[0-9]+(?:,[0-9]+)*)")
_THROTTLE: Final = "leader.replication.throttled.rate"


def move_routes() -> Sequence[Route]:
    """Return the routes of elections and moves."""
    admin = Role.ADMIN
    return [
        action("elect", elect, admin, "Elect preferred leaders, or unclean ones."),
        Route("moves", show_moves, summary="Show the moves that are in progress."),
        Route("moves/plan", move_form, plan=move, role=admin, summary="Plan moves of replicas."),
        action("moves/cancel", cancel, admin, "Cancel moves."),
        Route("moves/throttle", plan=set_throttle, role=admin, summary="Limit or free the bytes of moves."),
    ]


# -- elections ---------------------------------------------------------------------------------------------------------


async def elect(page: PageRequest) -> Plan:
    """Plan elections for one topic or all; unclean ones for one topic only."""
    kind, topic = page.choice("kind", _ELECTIONS), page.query.get("topic", "")
    is_unclean = kind == "unclean"
    if is_unclean and not topic:
        raise BadInput("topic: an unclean election needs the name of a topic, because committed records may be lost")
    state = await page.run(_state)
    if topic and topic not in state.topics:
        raise BadInput(f"topic: topic {topic!r} does not exist")
    found = [
        each
        for each in state.partitions
        if (not topic or each.name.topic == topic) and needs_election(each, unclean=is_unclean)
    ]
    chosen = found[:PARTITIONS_MAX]
    warnings = [f"These are the first {PARTITIONS_MAX} of {len(found)}."] if len(found) > PARTITIONS_MAX else []
    if is_unclean and chosen:
        warnings.append("A replica that was not in sync becomes leader: committed records may be lost for good.")
    if not is_unclean:
        warnings += _other_elections(state, topic)
    words = f" {shlex.quote(topic)}" if topic else ""
    selection = f"--topic {shlex.quote(topic)}" if topic else "--all-topic-partitions"
    return Plan(
        title=f"Elect {_count(len(chosen), f'{kind} leader')}{' of ' + topic if topic else ''}",
        changes=[
            Change(f"leader of {each.name}", _text(each.leader), _new_leader(each, is_unclean=is_unclean))
            for each in chosen
        ],
        warnings=warnings, confirm=topic if is_unclean else "", then=f"topics/{topic}" if topic else "brokers",
        commands=(
            f"ottla cluster elect{words}{' --unclean' if is_unclean else ''}",
            f"kafka-leader-election --election-type {kind} {selection}",
        ),
        apply=partial(_elect, names=[each.name for each in chosen], kind=Election[kind.upper()]),
    )  # fmt: skip


def _new_leader(each: PartitionState, *, is_unclean: bool) -> str:
    return "any replica that runs" if is_unclean else str(each.preferred)


def _other_elections(state: ClusterState, topic: str) -> list[str]:
    """Return what preferred elections do not solve."""
    own = [each for each in state.partitions if not topic or each.name.topic == topic]
    found = []
    if offline := sum(each.leader is None for each in own):
        found.append(f"{offline} partitions have no leader; start the brokers with their replicas.")
    if waiting := sum(each.leader not in (None, each.preferred) and each.preferred not in each.isr for each in own):
        found.append(f"The preferred replicas of {waiting} partitions are not in sync, and cannot lead yet.")
    return found


def _elect(client: AdminClient, names: Sequence[TopicPartition], kind: Election) -> Sequence[str]:
    admin = ClusterAdmin(client, client.timeout_s)
    return _outcome(len(names), admin.elect(kind, names), "elections")


# -- moves in progress -------------------------------------------------------------------------------------------------


async def show_moves(page: PageRequest) -> View:
    state, directories, throttled = await page.read("moves", _read_moves, age_s=_AGE_S)
    ongoing = [each for each in state.partitions if each.is_reassigned]
    rows = [
        {
            "topic": each.name.topic, "partition": each.name.partition, "replicas": list(each.replicas),
            "adding": list(each.adding), "removing": list(each.removing), "isr": list(each.isr),
            **_progress(directories, each.name, each.leader, each.adding),
        }
        for each in ongoing[:_SHOWN_MAX]
    ]  # fmt: skip
    data = {
        "moves": rows, "total": len(ongoing), "throttled_topics": throttled,
        "brokers": sorted(state.brokers),
        "not_preferred": sum(needs_election(each, unclean=False) for each in state.partitions),
    }  # fmt: skip
    return View(
        "brokers/moves.html", "Moves", data,
        commands=("ottla cluster reassign", "kafka-reassign-partitions --list"),
    )  # fmt: skip


def _read_moves(client: AdminClient) -> tuple[ClusterState, list[DirectoryState], list[str]]:
    state = _state(client)
    names = [each.name for each in state.partitions if each.is_reassigned][:_SHOWN_MAX]
    directories: list[DirectoryState] = []
    if names:
        directories, _ = describe_directories(client, [each.node for each in state.brokers.values()], names)
    return state, directories, _throttled(client, state)


def _throttled(client: AdminClient, state: ClusterState) -> list[str]:
    """Return the topics with throttled replicas. The lists have no effect if no broker has a limit."""
    if not any(_rate_of(client, number) for number in state.brokers):
        return []
    return throttles.throttled_topics(client)


def _rate_of(client: AdminClient, broker: int) -> str | None:
    """Return the limit of a broker in bytes per second; None if it has none."""
    rows = client.describe_config("broker", str(broker))
    return next((row.value for row in rows if row.name == _THROTTLE and not row.is_default), None)


def _progress(
    directories: Sequence[DirectoryState], name: TopicPartition, leader: int | None, adding: Sequence[int]
) -> dict[str, Any]:
    """Return how many bytes of the new replicas are there, and how many there will be."""
    sizes = {
        each.broker_id: log.size_bytes for each in directories if (log := each.logs.get(name)) and not log.is_future
    }
    if not adding or leader not in sizes:
        return {"copied_bytes": None, "total_bytes": None, "share": None}
    total = sizes[leader] * len(adding)
    copied = min(sum(sizes.get(each, 0) for each in adding), total)
    return {"copied_bytes": copied, "total_bytes": total, "share": copied / total if total else 1.0}


async def cancel(page: PageRequest) -> Plan:
    """Plan to cancel the move of one partition, or all moves."""
    topic, partition = page.query.get("topic", ""), page.number("partition", -1)
    state = await page.run(_state)
    found = [
        each
        for each in state.partitions
        if each.is_reassigned and (not topic or each.name == TopicPartition(topic, partition))
    ][:PARTITIONS_MAX]
    names = " ".join(f"{each.name.topic}:{each.name.partition}" for each in found) if topic else ""
    return Plan(
        title=f"Cancel {_count(len(found), 'move')}",
        changes=[
            Change(f"replicas of {each.name}", _list(each.replicas), _list(_before_move(each)))
            for each in found
        ],
        warnings=["What was copied is deleted."] if found else [], then="moves",
        commands=(
            f"ottla cluster reassign --cancel {names}".strip(),
            "kafka-reassign-partitions --cancel --reassignment-json-file FILE",
        ),
        apply=partial(_reassign, targets=dict.fromkeys(each.name for each in found)),
    )  # fmt: skip


# -- plans of moves ----------------------------------------------------------------------------------------------------


async def move_form(page: PageRequest) -> View:
    state = await page.run(_state)
    topic = page.query.get("topic", "")
    lines = [
        f"{each.name.topic}:{each.name.partition}={','.join(map(str, each.replicas))}"
        for each in state.partitions
        if topic and each.name.topic == topic
    ][:PARTITIONS_MAX]
    leaving = page.query.get("leave", "")
    data = {
        "topic": topic, "targets": "\n".join(lines), "leave": leaving,
        "kind": "list" if topic else "leave" if leaving else "balance",
        "brokers": [{"id": number, "rack": each.rack} for number, each in state.brokers.items()],
    }  # fmt: skip
    return View(
        "brokers/move_form.html", "Move partitions", data,
        commands=(
            "ottla cluster balance --dry-run",
            "kafka-reassign-partitions --generate --topics-to-move-json-file FILE",
        ),
    )  # fmt: skip


async def move(page: PageRequest) -> Plan:
    kind = page.choice("kind", _KINDS)
    rate = page.number("throttle", 0, low=1) if page.form.get("throttle", "").strip() else None
    form = dict(page.form)
    state, moves, sizes = await page.run(partial(_plan, kind=kind, form=form))
    chosen = moves[:PARTITIONS_MAX]
    does_copy = any(each.added for each in chosen)
    return Plan(
        title=f"{'Move' if does_copy else 'Change the order of'} the replicas of {_count(len(chosen), 'partition')}",
        changes=[Change(f"replicas of {each.partition}", _list(each.old), _list(each.new)) for each in chosen],
        warnings=_move_warnings(state, chosen, len(moves), sizes), then="moves",
        commands=_move_commands(kind, chosen, rate),
        apply=partial(_start, moves=chosen, rate=rate),
    )  # fmt: skip


def _plan(
    client: AdminClient, kind: str, form: Mapping[str, str]
) -> tuple[ClusterState, list[Move], dict[TopicPartition, int]]:
    """Return the state, the moves of this form and the sizes of their partitions. Raise BadInput or Failure."""
    state = _state(client)
    if kind == "balance":
        moves = plan_balance(state)
    elif kind == "leaders":
        moves = plan_leaders(state)
    elif kind == "leave":
        leaving = _brokers(form.get("leave", ""))
        check_leaving(state, leaving)
        moves = plan_decommission(state, leaving)
    else:
        moves = plan_moves(state, _targets(form.get("targets", ""), state))
    copied = [each.partition for each in moves[:PARTITIONS_MAX] if each.added]
    sizes: dict[TopicPartition, int] = {}
    if copied:
        directories, _ = describe_directories(client, [each.node for each in state.brokers.values()], copied)
        for directory in directories:
            for name, log in directory.logs.items():
                sizes[name] = max(sizes.get(name, 0), log.size_bytes)
    return state, moves, sizes


def _brokers(text: str) -> list[int]:
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() and len(word) < 10 for word in words):
        raise BadInput("leave: give the ids of brokers, such as 3 or 3, 4")
    return [int(word) for word in words]


def _targets(text: str, state: ClusterState) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the replicas that lines, or a file of kafka-reassign-partitions, name. Raise BadInput."""
    if len(text) > _TEXT_MAX:
        raise BadInput(f"targets: give at most {_TEXT_MAX >> 20} MB")
    found: dict[TopicPartition, tuple[int, ...]] = {}
    if text.lstrip().startswith("{"):
        try:
            found = parse_plan(text)
        except ValueError as error:
            raise BadInput(f"targets: {error}") from None
    else:
        for line in filter(None, map(str.strip, text.splitlines())):
            match = _TARGET.fullmatch(line)
            if match is None:
                raise BadInput(f"targets: {line[:80]!r} is not of the form TOPIC:PARTITION=BROKER,BROKER")
            replicas = tuple(int(word) for word in match["replicas"].split(","))
            found[TopicPartition(match["topic"], int(match["partition"]))] = replicas
    for name, replicas in found.items():
        unknown = [each for each in replicas if each not in state.brokers]
        if unknown:
            raise BadInput(f"targets: {name} is to be on broker {unknown[0]}, which does not run")
        if len(set(replicas)) != len(replicas) or not replicas:
            raise BadInput(f"targets: {name} has no brokers, or one of them twice")
    return found


def _move_warnings(
    state: ClusterState, moves: Sequence[Move], total: int, sizes: Mapping[TopicPartition, int]
) -> list[str]:
    found = []
    if total > len(moves):
        found.append(f"These are the first {len(moves)} of {total}; plan again when they are complete.")
    received: Counter[int] = Counter()
    for each in moves:
        for broker in each.added:
            received[broker] += sizes.get(each.partition, 0)
    if received:
        parts = ", ".join(f"{formats.size(size)} to broker {broker}" for broker, size in sorted(received.items()))
        found.append(f"About {formats.size(sum(received.values()))} are copied: {parts}.")
    left = {broker for each in moves for broker in each.old if broker not in each.new and broker not in state.brokers}
    if left:
        found.append(f"Replicas leave brokers that do not run: {', '.join(map(str, sorted(left)))}.")
    return found


def _move_commands(kind: str, moves: Sequence[Move], rate: int | None) -> tuple[str, ...]:
    options = f" --throttle {rate}" if rate else ""
    own = {
        "balance": f"ottla cluster balance{options}",
        "leave": f"ottla cluster decommission BROKER{options}",
    }.get(kind, f"ottla cluster reassign TOPIC:PARTITION=BROKER,BROKER{options}")
    if kind in ("leaders", "list") and 0 < len(moves) <= 10:
        words = " ".join(f"{m.partition.topic}:{m.partition.partition}={','.join(map(str, m.new))}" for m in moves)
        own = f"ottla cluster reassign {words}{options}"
    return own, f"kafka-reassign-partitions --execute --reassignment-json-file FILE{options}"


def _start(client: AdminClient, moves: Sequence[Move], rate: int | None) -> Sequence[str]:
    """Start the moves. Moves that copy nothing are complete at once, and their first replicas are elected."""
    admin = ClusterAdmin(client, client.timeout_s)
    copies = [each for each in moves if each.added]
    if rate is not None and copies:
        throttles.throttle(client, copies, rate)
    failures = admin.reassign({each.partition: each.new for each in moves})
    orders = [each for each in moves if not each.added and each.partition not in failures]
    if orders:
        failures |= finish_moves(admin, orders)
    return _outcome(len(moves), failures, "moves")


def _reassign(client: AdminClient, targets: Mapping[TopicPartition, Sequence[int] | None]) -> Sequence[str]:
    failures = ClusterAdmin(client, client.timeout_s).reassign(targets)
    return _outcome(len(targets), failures, "moves")


# -- throttles ---------------------------------------------------------------------------------------------------------


async def set_throttle(page: PageRequest) -> Plan:
    """Plan to limit the moves that are in progress, or to free them."""
    rate = page.number("throttle", 0, low=1) if page.form.get("throttle", "").strip() else None
    state, before, throttled = await page.run(_throttle_state)
    ongoing = [
        Move(each.name, _before_move(each), each.replicas)
        for each in state.partitions
        if each.is_reassigned and each.adding
    ]
    if rate is not None and not ongoing:
        raise BadInput("throttle: no replicas are being copied; give the limit with the plan of the moves")
    after = None if rate is None else f"{rate} bytes per second"
    changes = [Change(f"limit of broker {number}", old and f"{old} bytes per second", after)
               for number, old in before.items() if old != (None if rate is None else str(rate))]  # fmt: skip
    if rate is None:
        changes += [Change(f"throttled replicas of {topic}", "set", None) for topic in throttled[:PARTITIONS_MAX]]
    return Plan(
        title="Remove the limits of moves" if rate is None else f"Limit moves to {formats.size(rate)}/s per broker",
        changes=changes, then="moves",
        apply=partial(_throttle, moves=ongoing, rate=rate),
        commands=(_throttle_command(rate),),
    )  # fmt: skip


def _throttle_command(rate: int | None) -> str:
    if rate is None:
        return "ottla cluster reassign --unthrottle"
    return f"ottla cluster reassign --throttle {rate} TOPIC:PARTITION=BROKER,BROKER"


def _throttle_state(client: AdminClient) -> tuple[ClusterState, dict[int, str | None], list[str]]:
    state = _state(client)
    rates = {number: _rate_of(client, number) for number in state.brokers}
    return state, rates, throttles.throttled_topics(client)


def _throttle(client: AdminClient, moves: Sequence[Move], rate: int | None) -> Sequence[str]:
    if rate is None:
        throttles.unthrottle(client)
        return ["limits removed"]
    throttles.throttle(client, moves, rate)
    return [f"each broker copies at most {rate} bytes per second"]


# -- parts -------------------------------------------------------------------------------------------------------------


def _state(client: AdminClient) -> ClusterState:
    return ClusterAdmin(client, client.timeout_s).state()


def _outcome(count: int, failures: Mapping[TopicPartition, Failure], noun: str) -> list[str]:
    """Return one line for what was done. Raise Failure if a part was refused."""
    if failures:
        first = next(iter(failures.values()))
        raise Failure(f"{len(failures)} of {count} {noun} were refused: {first.message}")
    return [f"{count} {noun} started"]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _before_move(each: PartitionState) -> tuple[int, ...]:
    """Return the replicas of a partition without those that a move adds."""
    return tuple(number for number in each.replicas if number not in each.adding)


def _text(broker: int | None) -> str | None:
    return None if broker is None else str(broker)


def _list(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers))
