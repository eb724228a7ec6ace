"""`kafka-reassign-partitions`: move replicas to other brokers. `reassign_requests` has its requests."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla.cli.kafka import reassign_requests as requests
from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import RequestError, ToolError, UsageError, fail
from ottla.cli.kafka.java import as_list, hash_order, joined, parse_int, parse_long
from ottla.cli.kafka.json_files import InvalidData, field, parse, partition_of
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.reassign_requests import Replica, text_of
from ottla.cli.kafka.tool import FAILED, Tool, print_line
from ottla.model.types import TopicPartition

_FLAGS = (
    flag("verify", help="Show whether the moves of a file are complete; remove throttles when all are."),
    flag("generate", help="Propose replicas of topics on a list of brokers."),
    flag("execute", help="Begin the moves of a file."),
    flag("cancel", help="Cancel the moves of a file."),
    flag("list", help="List the moves that are in progress."),
    flag("bootstrap-server", help="Brokers to connect to.", metavar="HOST:PORT,..."),
    flag("bootstrap-controller", help="Not supported: connect to brokers.", metavar="HOST:PORT,..."),
    flag("command-config", help="File with properties of the client.", metavar="FILE"),
    flag(
        "reassignment-json-file",
        help='File with {"version": 1, "partitions": [{"topic": "a", "partition": 1, "replicas": [1, 2, 3]}]}.',
        metavar="FILE",
    ),
    flag("topics-to-move-json-file", help='File with {"version": 1, "topics": [{"topic": "a"}]}.', metavar="FILE"),
    flag("broker-list", help="Brokers for --generate.", metavar="ID,..."),
    flag("disable-rack-aware", help="With --generate: do not spread replicas over racks."),
    flag("throttle", help="Limit of the moves between brokers.", metavar="BYTES/S", parse=parse_long, default=-1),
    flag(
        "replica-alter-log-dirs-throttle",
        help="Limit between directories.",
        metavar="BYTES/S",
        parse=parse_long,
        default=-1,
    ),
    flag(
        "timeout",
        help="How long to wait for a move between directories.",
        metavar="MS",
        parse=parse_long,
        default=10000,
    ),
    flag("additional", help="Execute although other moves are in progress."),
    flag("preserve-throttles", help="Do not remove throttles."),
    flag("disallow-replication-factor-change", help="Refuse another number of replicas."),
)
_ACTIONS = ("generate", "execute", "verify", "cancel", "list")
_REQUIRED = {
    "verify": ("reassignment-json-file",), "generate": ("topics-to-move-json-file", "broker-list"),
    "execute": ("reassignment-json-file",), "cancel": ("reassignment-json-file",), "list": (),
}  # fmt: skip
_ALLOWED = {
    "verify": ("preserve-throttles",),
    "generate": ("disable-rack-aware",),
    "execute": (
        "additional", "throttle", "replica-alter-log-dirs-throttle", "timeout", "disallow-replication-factor-change",
    ),
    "cancel": ("bootstrap-controller", "preserve-throttles", "timeout"),
    "list": ("bootstrap-controller",),
}  # fmt: skip
_ANY = "any"
_RETRY_S = 0.1


class Ended(ToolError):
    """The text is printed alone."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The content of a file of reassignments."""

    #: in the order of the file
    targets: list[tuple[TopicPartition, list[int]]]
    #: the directory of each replica that has one
    directories: dict[Replica, str]


def _run(options: Options) -> int:
    action = _check(options)
    if options.has("bootstrap-controller"):
        raise ToolError("--bootstrap-controller is not supported; use --bootstrap-server with the address of a broker")
    try:
        properties = {"client.id": "reassign-partitions-tool", **properties_of(options.value("command-config"))}
        with connect(options.value("bootstrap-server"), properties, call="listPartitionReassignments") as admin:
            _RUN[action](admin, options)
    except UsageError:
        raise
    except Ended as error:
        print_line(str(error))
        return FAILED
    except (ToolError, OSError) as error:
        text = f"{error.java_class}: {error}" if isinstance(error, RequestError) else str(error)
        print_line(f"Error: {text}")
        return FAILED
    return 0


def _check(options: Options) -> str:
    actions = options.any_of(*_ACTIONS)
    if len(actions) != 1:
        raise UsageError(f"Command must include exactly one action: {', '.join(f'--{name}' for name in _ACTIONS)}")
    connections = options.any_of("bootstrap-server", "bootstrap-controller")
    if len(connections) != 1:
        word = "don't specify both --bootstrap-server and" if connections else "specify either --bootstrap-server or"
        raise UsageError(f"Please {word} --bootstrap-controller")
    action = actions[0]
    options.require(*_REQUIRED[action])
    fitting = {action, "bootstrap-server", "command-config", *_REQUIRED[action], *_ALLOWED[action]}
    for name in options.order:
        if name not in fitting:
            raise UsageError(f'Option "[{name}]" can\'t be used with action "[{action}]"')
    return action


# Files


def _plan(options: Options) -> Plan:
    text = Path(options.value("reassignment-json-file")).read_text()
    data = parse(text)
    if data is None:
        raise InvalidData("The input string is not a valid JSON")
    _check_version(data)
    plan = Plan([], {})
    for row in data.get("partitions", ()):
        name = partition_of(row)
        replicas = field(row, "replicas", list)
        directories = row.get("log_dirs", [_ANY] * len(replicas))
        if len(replicas) != len(directories):
            fail(
                f"Size of replicas list {as_list(replicas)} is different from size of log dirs list "
                f"{as_list(directories)} for partition {text_of(name)}"
            )
        plan.targets.append((name, replicas))
        for broker, directory in zip(replicas, directories, strict=True):
            if directory != _ANY:
                plan.directories[Replica(name, broker)] = directory
    return plan


def _check_version(data: Any) -> None:
    if not isinstance(data, dict):
        raise ToolError(f"Expected JSON object, received {json.dumps(data)}")
    version = data.get("version", 1)
    if version != 1:
        raise InvalidData(f"Not supported version field value {version}")


def _as_json(parts: Mapping[TopicPartition, Sequence[int]], directories: Mapping[Replica, str]) -> str:
    rows = [
        {
            "topic": name.topic, "partition": name.partition, "replicas": list(parts[name]),
            "log_dirs": [directories.get(Replica(name, broker), _ANY) for broker in parts[name]],
        }
        for name in sorted(parts)
    ]  # fmt: skip
    return json.dumps({"version": 1, "partitions": rows}, separators=(",", ":"), ensure_ascii=False)


# --list and --verify


def _list(admin: Admin, options: Options) -> None:
    moves = requests.moves(admin)
    if not moves:
        print_line("No partition reassignments found.")
        return
    print_line("Current partition reassignments:")
    for name in sorted(moves):
        move = moves[name]
        adding = f" adding: {joined(move.adding)}." if move.adding else ""
        removing = f" removing: {joined(move.removing)}." if move.removing else ""
        print_line(f"{text_of(name)}: replicas: {joined(move.replicas)}.{adding}{removing}")


def _verify(admin: Admin, options: Options) -> None:
    plan = _plan(options)
    moves = requests.moves(admin)
    states: dict[TopicPartition, tuple[Sequence[int], Sequence[int], bool]] = {}
    known = requests.replicas(admin, {name.topic for name, _ in plan.targets if name not in moves})
    for name, wanted in plan.targets:
        states[name] = (moves[name].replicas, wanted, False) if name in moves else (known.get(name, ()), wanted, True)
    print_line("Status of partition reassignment:")
    for name in sorted(states):
        current, target, is_done = states[name]
        if not is_done:
            print_line(f"Reassignment of partition {text_of(name)} is still in progress.")
        elif list(current) == list(target):
            print_line(f"Reassignment of partition {text_of(name)} is completed.")
        else:
            print_line(
                f"There is no active reassignment of partition {text_of(name)}, but replica set is {joined(current)} "
                f"rather than {joined(target)}."
            )
    directories = requests.directories(admin, plan.directories)
    lines = [
        _directory_line(replica, plan.directories[replica], *directories.get(replica, (None, None)))
        for replica in sorted(plan.directories, key=lambda each: (each.broker, each.partition))
    ]
    print_line("\n".join(lines))
    has_moves = any(directories.get(replica, (None, None))[1] for replica in plan.directories)
    if not moves and not has_moves and not options.has("preserve-throttles"):
        _clear_throttles(admin, plan)


def _directory_line(replica: Replica, target: str, current: str | None, future: str | None) -> str:
    name = text_of(replica.partition)
    if current is None:
        return (
            f"Partition {name} is not found in any live log dir on broker {replica.broker}. There is likely an offline "
            "log directory on the broker."
        )
    if future is None and current == target:
        return f"Reassignment of replica {name}-{replica.broker} completed successfully."
    if future is None:
        return f"Partition {name} on broker {replica.broker} is not being moved from log dir {current} to {target}."
    if future == target:
        return f"Reassignment of replica {name}-{replica.broker} is still in progress."
    return f"Partition {name} on broker {replica.broker} is being moved to log dir {future} instead of {target}."


def _clear_throttles(admin: Admin, plan: Plan) -> None:
    brokers = sorted(
        {node.broker_id for node in admin.brokers()} | {each for _, target in plan.targets for each in target}
    )
    print_line(f"Clearing broker-level throttles on broker{'' if len(brokers) == 1 else 's'} {joined(brokers)}")
    requests.clear_broker_throttles(admin, brokers)
    topics = hash_order({name.topic for name, _ in plan.targets})
    print_line(f"Clearing topic-level throttles on topic{'' if len(topics) == 1 else 's'} {joined(topics)}")
    requests.clear_topic_throttles(admin, topics)


# --generate


def _generate(admin: Admin, options: Options) -> None:
    brokers = [parse_int(text) for text in options.value("broker-list").split(",")]
    if twice := sorted({each for each in brokers if brokers.count(each) > 1}):
        fail(f"Broker list contains duplicate entries: {as_list(twice)}")
    data = parse(Path(options.value("topics-to-move-json-file")).read_text())
    if data is None:
        raise InvalidData("The input string is not a valid JSON")
    _check_version(data)
    topics = [field(row, "topic", str) for row in data.get("topics", ())]
    if again := hash_order({each for each in topics if topics.count(each) > 1}):
        fail(f"List of topics to reassign contains duplicate entries: {as_list(again)}")
    current = _known(admin, topics)
    racks = requests.racks(admin, brokers)
    proposed = _proposed(current, racks, with_racks=not options.has("disable-rack-aware"))
    directories = requests.directories(admin, [Replica(name, each) for name in current for each in current[name]])
    print_line(f"Current partition replica assignment\n{_as_json(current, _current(directories))}\n")
    print_line(f"Proposed partition reassignment configuration\n{_as_json(proposed, {})}")


def _known(admin: Admin, topics: Sequence[str]) -> dict[TopicPartition, Sequence[int]]:
    """Return the replicas of these topics. Raise RequestError if one does not exist."""
    known = requests.replicas(admin, topics)
    for topic in topics:
        if topic not in {name.topic for name in known}:
            raise RequestError(3, f"Topic {topic} not found.")
    return known


def _proposed(
    current: Mapping[TopicPartition, Sequence[int]], racks: Mapping[int, str | None], *, with_racks: bool
) -> dict[TopicPartition, Sequence[int]]:
    import random

    from ottla.broker.metadata.placement import place_replicas

    known = {broker: rack for broker, rack in racks.items() if rack is not None and with_racks}
    if known and len(known) != len(racks):
        raise InvalidData(
            "Not all brokers have rack information. Add --disable-rack-aware in command line to make replica "
            "assignment without rack information."
        )
    found: dict[TopicPartition, Sequence[int]] = {}
    for topic in sorted({name.topic for name in current}):
        count = sum(name.topic == topic for name in current)
        factor = len(current[TopicPartition(topic, 0)])
        if factor > len(racks):
            raise ToolError(
                f"The target replication factor of {factor} cannot be reached because only {len(racks)} broker(s) are "
                "registered."
            )
        start = random.randrange(len(racks))
        placed = place_replicas(sorted(racks), count, factor, start, racks=known)
        found |= {TopicPartition(topic, number): replicas for number, replicas in enumerate(placed)}
    return found


def _current(directories: Mapping[Replica, tuple[str | None, str | None]]) -> dict[Replica, str]:
    return {replica: current for replica, (current, _) in directories.items() if current is not None}


# --execute and --cancel


def _check_targets(plan: Plan) -> None:
    if not plan.targets:
        fail("Partition reassignment list cannot be empty")
    if not all(target for _, target in plan.targets):
        fail("Partition replica list cannot be empty")
    names = [name for name, _ in plan.targets]
    if twice := hash_order({name for name in names if names.count(name) > 1}):
        fail(f"Partition reassignment contains duplicate topic partitions: {joined(map(text_of, twice))}")
    repeated = [
        f"{text_of(name)} contains multiple entries for {joined(_repeated(target))}"
        for name, target in plan.targets
        if len({*target}) < len(target)
    ]
    if repeated:
        fail(f"Partition replica lists may not contain duplicate entries: {'. '.join(repeated)}")


def _repeated(numbers: Sequence[int]) -> list[int]:
    return sorted({each for each in numbers if numbers.count(each) > 1})


def _execute(admin: Admin, options: Options) -> None:
    plan = _plan(options)
    _check_targets(plan)
    moves = requests.moves(admin)
    if moves and not options.has("additional"):
        raise Ended(
            "Cannot execute because there is an existing partition assignment.  Use --additional to override this and "
            "create a new partition assignment in addition to the existing one. The --additional flag can also be used "
            "to change the throttle by resubmitting the current reassignment."
        )
    targets = dict(plan.targets)
    alive = {node.broker_id for node in admin.brokers()}
    for broker in sorted({each for target in targets.values() for each in target}):
        if broker not in alive:
            fail(f"Unknown broker id {broker}")
    known = _known(admin, sorted({name.topic for name in targets}))
    missing = [name for name in hash_order(targets) if name not in known]
    if missing:
        raise RequestError(3, f"Unable to find partition: {', '.join(map(text_of, missing))}")
    current = {name: known[name] for name in targets}
    directories = requests.directories(admin, [Replica(name, each) for name in current for each in current[name]])
    print_line(
        f"Current partition replica assignment\n\n{_as_json(current, _current(directories))}\n\nSave this to use as "
        "the --reassignment-json-file option during rollback"
    )
    _set_throttles(admin, options, plan, {**current, **{name: move.sources for name, move in moves.items()}})
    allowed = not options.has("disallow-replication-factor-change")
    errors = requests.reassign(admin, targets, allow_factor_change=allowed)
    if errors:
        lines = [f"{text_of(name)}: {errors[name]}" for name in sorted(errors)]
        raise Ended("\n".join(["Error reassigning partition(s):", *lines]))
    plural = "" if len(targets) == 1 else "s"
    print_line(f"Successfully started partition reassignment{plural} for {joined(map(text_of, sorted(targets)))}")
    _move_directories(admin, plan.directories, options.value("timeout"))


def _set_throttles(admin: Admin, options: Options, plan: Plan, sources: Mapping[TopicPartition, Sequence[int]]) -> None:
    between, inside = options.value("throttle"), options.value("replica-alter-log-dirs-throttle")
    if between < 0 and inside < 0:
        return
    print_line(
        "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle "
        "is removed."
    )
    if between >= 0:
        requests.throttle(admin, dict(plan.targets), sources, between)
        print_line(f"The inter-broker throttle limit was set to {between} B/s")
    if inside >= 0:
        requests.throttle_directories(admin, {replica.broker for replica in plan.directories}, inside)
        print_line(f"The replica-alter-dir throttle limit was set to {inside} B/s")


def _move_directories(admin: Admin, wanted: Mapping[Replica, str], timeout_ms: int) -> None:
    deadline = time.monotonic() + timeout_ms / 1000
    pending = dict(wanted)
    while pending:
        started = requests.move_directories(admin, pending)
        for replica in sorted(started, key=lambda each: (each.broker, each.partition)):
            print_line(
                f"Successfully started moving log directory to {pending.pop(replica)} for replica "
                f"{text_of(replica.partition)} with broker {replica.broker} "
            )
        if pending and time.monotonic() >= deadline:
            names = joined(f"{text_of(each.partition)}-{each.broker}" for each in sorted(pending))
            plural = "" if len(pending) == 1 else "s"
            raise Ended(f"Timed out before log directory move{plural} could be started for: {names}")
        if pending:
            # A replica that moves to another broker has no directory there yet.
            time.sleep(_RETRY_S)


def _cancel(admin: Admin, options: Options) -> None:
    plan = _plan(options)
    moves = requests.moves(admin)
    active = [name for name in dict(plan.targets) if name in moves and (moves[name].adding or moves[name].removing)]
    if active:
        errors = requests.reassign(admin, dict.fromkeys(active), allow_factor_change=True)
        plural = "" if len(errors or active) == 1 else "s"
        if errors:
            lines = [f"{text_of(name)}: {errors[name]}" for name in sorted(errors)]
            raise Ended("\n".join([f"Error cancelling partition reassignment{plural} for:", *lines]))
        names = joined(map(text_of, sorted(active)))
        print_line(f"Successfully cancelled partition reassignment{plural} for: {names}")
    else:
        print_line("None of the specified partition reassignments are active.")
    directories = requests.directories(admin, plan.directories)
    moving = {replica: current for replica, (current, future) in directories.items() if current and future}
    if moving:
        _move_directories(admin, moving, options.value("timeout"))
    else:
        import sys

        # Java's tool does not end this line.
        sys.stdout.write("None of the specified partition moves are active.")
    if not options.has("preserve-throttles"):
        _clear_throttles(admin, plan)


_RUN = {"verify": _verify, "generate": _generate, "execute": _execute, "cancel": _cancel, "list": _list}

TOOL = Tool(
    name="kafka-reassign-partitions",
    summary="This tool helps to move topic partitions between replicas.",
    flags=_FLAGS,
    run=_run,
)
