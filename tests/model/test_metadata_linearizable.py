"""Random admin requests on several brokers that share a faulty metadata store are linearizable.

Two brokers run the real handlers. Each has its own session on a simulated ensemble, and a view that lags. Two or three
admin clients send requests to them, one after the other each; two clients can use the same broker. Connections break,
answers are lost and sessions expire. At the end a checker looks for an order of all requests that explains every error
code and the final metadata: each request takes effect once, at one moment between its call and its answer. A request
that was answered with REQUEST_TIMED_OUT took effect at some time after its call, or never.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.admin_fixtures import BROKER, GROUP, TOPIC, Admin, create_skeleton
from tests.unit.metadata.metadata_store_fixtures import VirtualLoop, run_on

from ottla.broker.metadata.decide import load_view
from ottla.broker.metadata.view import ClusterView
from ottla.broker.transactions.producer_ids import BLOCK, ProducerIds
from ottla.model.errors import ErrorCode, InvalidPartitions, InvalidTopic, KafkaError
from ottla.testing.metadata_store import SimulatedEnsemble, Timing

#: `make test` always takes the same examples; `make campaign NAME=properties` looks for new ones
EXAMPLES = 2000 if "OTTLA_RANDOM_EXAMPLES" in os.environ else 200
BROKERS = 2

NONE, TIMED_OUT, IMPOSSIBLE = 0, ErrorCode.REQUEST_TIMED_OUT, -1
EXISTS, UNKNOWN = ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

Config = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Metadata:
    """The state of the model."""

    #: name, topic id, number of partitions, settings; sorted. The id is None if the answer to its creation was lost
    topics: tuple[tuple[str, bytes | None, int, Config], ...] = ()
    #: settings by resource other than a topic, without resources that have none; sorted
    configs: tuple[tuple[str, Config], ...] = ()
    #: first producer id of the last block
    last_block: int = -BLOCK

    def with_topic(self, name: str, topic_id: bytes | None, partitions: int, config: Config = ()) -> Metadata:
        others = self.without_topic(name).topics
        new = (name, topic_id, partitions, config)
        return Metadata(tuple(sorted((*others, new), key=lambda topic: topic[0])), self.configs, self.last_block)

    def without_topic(self, name: str) -> Metadata:
        return Metadata(tuple(topic for topic in self.topics if topic[0] != name), self.configs, self.last_block)

    def with_config(self, resource: str, config: Config) -> Metadata:
        others = [each for each in self.configs if each[0] != resource]
        new = [(resource, config)] if config else []
        return Metadata(self.topics, tuple(sorted(others + new)), self.last_block)

    def explains(self, final: Metadata) -> bool:
        """Return whether the store can contain ``final`` if this is the state."""
        if self.configs != final.configs or len(self.topics) != len(final.topics):
            return False
        return all(
            mine == other or (mine[1] is None and mine[0] == other[0] and mine[2:] == other[2:])
            for mine, other in zip(self.topics, final.topics, strict=True)
        )


@dataclass(frozen=True)
class Request:
    """A request of an admin client: its kind, its resource and its argument."""

    kind: str
    name: str = ""
    argument: Any = None

    async def send(self, admin: Admin) -> tuple[int, bytes | int | None]:
        """Return the error code of the answer, and the id of the topic or of the first producer, if it has one."""
        if self.kind == "create":
            partitions, config = self.argument
            return await admin.create_topic_with_id(self.name, partitions, dict(config))
        if self.kind == "block":
            try:
                return NONE, await ProducerIds(admin.store, admin.metadata.broker_id).next()
            except KafkaError:
                return TIMED_OUT, None
        return await self._change(admin), None

    async def _change(self, admin: Admin) -> int:
        if self.kind == "grow":
            return await admin.create_partitions(self.name, self.argument)
        if self.kind == "delete":
            return await admin.delete_topic(self.name)
        kind, name = {"group": (GROUP, "g"), "broker": (BROKER, "")}.get(self.name, (TOPIC, self.name))
        if self.kind == "set":
            return await admin.set_configs(kind, name, dict(self.argument))
        return await admin.replace_configs(kind, name, dict(self.argument))

    def apply(self, state: Metadata, created_id: Any) -> tuple[int, Metadata]:
        """Return the error code of this request in a state, and the state after it."""
        topics = {name: rest for name, *rest in state.topics}
        if self.kind == "block":
            # Ids may be left out, but none is allocated twice. A block whose answer was lost is not used.
            if created_id is None:
                return NONE, state
            if created_id <= state.last_block:
                return IMPOSSIBLE, state
            return NONE, Metadata(state.topics, state.configs, created_id)
        if self.kind == "create":
            if self.name in topics:
                return EXISTS, state
            if any(other.replace(".", "_") == self.name.replace(".", "_") for other in topics):
                return InvalidTopic.code, state
            return NONE, state.with_topic(self.name, created_id, *self.argument)
        if self.name in ("group", "broker"):
            known = dict(state.configs).get(self.name, ())
            return NONE, state.with_config(self.name, self._changed(known))
        if self.name not in topics:
            return UNKNOWN, state
        topic_id, partitions, config = topics[self.name]
        if self.kind == "delete":
            return NONE, state.without_topic(self.name)
        if self.kind == "grow":
            if self.argument <= partitions:
                return InvalidPartitions.code, state
            return NONE, state.with_topic(self.name, topic_id, self.argument, config)
        return NONE, state.with_topic(self.name, topic_id, partitions, self._changed(config))

    def _changed(self, config: Config) -> Config:
        changed = dict(config if self.kind == "set" else ())
        changed.update(self.argument)
        return tuple(sorted((name, value) for name, value in changed.items() if value is not None))


@dataclass
class Call:
    """A request, the numbers of the events of its call and of its answer, and the answer."""

    request: Request
    called: int
    answered: float = float("inf")
    code: int = TIMED_OUT
    #: id of the created topic, or the first producer id of a block
    created_id: bytes | int | None = None

    @property
    def timed_out(self) -> bool:
        return self.code == TIMED_OUT

    def apply(self, state: Metadata) -> Metadata | None:
        """Return the state after this call; None if its answer is impossible in ``state``."""
        code, after = self.request.apply(state, None if self.timed_out else self.created_id)
        return after if self.timed_out or code == self.code else None


def is_linearizable(calls: list[Call], final: Metadata) -> bool:
    """Return whether some order of the calls explains their answers and the final state."""
    done = sum(1 << number for number, call in enumerate(calls) if not call.timed_out)
    pending = [(0, Metadata())]
    seen = set(pending)
    while pending:
        applied, state = pending.pop()
        if applied & done == done and state.explains(final):
            return True
        # A call can be next if no other call was answered before it was made.
        limit = min(
            (call.answered for number, call in enumerate(calls) if not applied >> number & 1 and not call.timed_out),
            default=float("inf"),
        )
        for number, call in enumerate(calls):
            if applied >> number & 1 or call.called > limit:
                continue
            after = call.apply(state)
            if after is None:
                continue
            step = applied | 1 << number, after
            if step not in seen:
                seen.add(step)
                pending.append(step)
    return False


# Generated runs

CONFIGS: dict[str, dict[str, tuple[str | None, ...]]] = {
    "t": {"retention.ms": ("1000", "2000", None), "segment.bytes": ("1000000", "2000000", None)},
    "group": {
        "consumer.session.timeout.ms": ("46000", "47000", None),
        "consumer.heartbeat.interval.ms": ("6000", None),
    },
    "broker": {"log.retention.ms": ("5000", "6000", None), "max.connections": ("500", "600", None)},
}
FAULTS = ("break", "expire", "lose applied", "lose unapplied", "cut")
#: kinds of requests of one run, so that its requests meet at the same resource
THEMES = (
    ("grow", "recreate"),
    ("grow", "recreate"),
    ("grow", "config t", "delete", "create"),
    ("config t", "recreate"),
    ("config t", "recreate"),
    ("config group", "regroup"),
    ("config group", "regroup"),
    ("config broker",),
    ("collide", "collide", "delete"),
    ("block",),
    ("create", "delete", "grow", "config t", "config group", "config broker", "collide", "block"),
)


def random_requests(rng: Random, kind: str) -> list[Request]:
    """Return the requests of one kind that a client sends one after the other."""
    create = Request("create", "t", (rng.randint(1, 3), rng.choice(((), (("retention.ms", "2000"),)))))
    if kind == "create":
        return [create]
    if kind == "recreate":
        return [Request("delete", "t"), create]
    if kind == "grow":
        return [Request("grow", "t", rng.randint(2, 9))]
    if kind == "delete":
        return [Request("delete", rng.choice(("t", "a.b", "a_b")))]
    if kind == "collide":
        return [Request("create", rng.choice(("a.b", "a_b")), (1, ()))]
    if kind == "block":
        return [Request("block")]
    if kind == "regroup":
        session, heartbeat = sorted(CONFIGS["group"], reverse=True)
        return [
            Request("set", "group", ((heartbeat, None), (session, None))),
            Request("set", "group", rng.choice([((heartbeat, "6000"),), ((session, "47000"),)])),
        ]
    resource = kind.removeprefix("config ")
    names = rng.sample(sorted(CONFIGS[resource]), rng.choice((1, 1, 2)))
    changes = {name: rng.choice(CONFIGS[resource][name]) for name in names}
    if rng.random() < 0.2:
        return [Request("replace", resource, tuple((n, v) for n, v in sorted(changes.items()) if v is not None))]
    return [Request("set", resource, tuple(sorted(changes.items())))]


class Run:
    """One run: the scripts of the clients, each with its broker, and the faults, all drawn from a seed."""

    def __init__(self, seed: int, *, faults: bool) -> None:
        self.rng = rng = Random(seed)
        self.calls: list[Call] = []
        self._seed = seed
        self._events = 0
        theme = rng.choice(THEMES)
        # A client that starts late has a broker with an old view, which no write of its own has brought up to date.
        old_view = rng.random() < 0.5
        #: broker, seconds until the start, requests
        self._scripts = []
        for client in range(2 if old_view else rng.randint(2, 3)):
            broker = client if old_view else rng.randrange(BROKERS)
            start_s = 0.04 * client if old_view else 0.0
            kinds = [rng.choice(theme) for _ in range(1 if old_view else rng.randint(2, 4))]
            script = [request for kind in kinds for request in random_requests(rng, kind)]
            self._scripts.append((broker, start_s, script))
        self._faults = (
            [(rng.randrange(BROKERS), rng.choice(FAULTS)) for _ in range(rng.randint(1, 4))] if faults else []
        )
        self._timing = Timing(watch_s=(0.0001, 10.0 if old_view else rng.choice((0.001, 0.02, 0.5))))

    def execute(self) -> None:
        """Run the clients. Raise AssertionError if no order of their requests explains the answers."""
        loop = VirtualLoop()
        ensemble = SimulatedEnsemble(loop, Random(self._seed), timing=self._timing)
        final = run_on(loop, self._main(ensemble, self.rng))
        assert is_linearizable(self.calls, final), "\n".join(
            [f"seed {self._seed}", *map(repr, self.calls), repr(final)]
        )

    async def _main(self, ensemble: SimulatedEnsemble, rng: Random) -> Metadata:
        reader = ensemble.connect("reader")
        await create_skeleton(reader)
        first = [
            Request("create", "t", (1, (("retention.ms", "1000"),))),
            *([Request("set", "group", (("consumer.heartbeat.interval.ms", "6000"),))] if rng.random() < 0.5 else []),
        ]
        await self._client(await Admin(reader, broker_id=BROKERS).open(), 0.0, first, rng)
        admins = [
            await Admin(ensemble.connect(f"broker-{number}"), broker_id=number, seed=self._seed).open()
            for number in range(BROKERS)
        ]
        clients = [self._client(admins[broker], start_s, script, rng) for broker, start_s, script in self._scripts]
        await asyncio.gather(*clients, self._disturb(ensemble, rng))
        view = await load_view(reader)
        while any(admin.view.versions != view.versions for admin in admins):
            await asyncio.sleep(0.1)
        assert all(admin.view.topics == view.topics for admin in admins)
        return metadata_of(view)

    async def _client(self, admin: Admin, start_s: float, script: list[Request], rng: Random) -> None:
        await asyncio.sleep(start_s)
        for request in script:
            await asyncio.sleep(rng.choice((0, 0, 0.001, 0.005)))
            self._events += 1
            call = Call(request, self._events)
            self.calls.append(call)
            call.code, call.created_id = await request.send(admin)
            self._events += 1
            call.answered = self._events

    async def _disturb(self, ensemble: SimulatedEnsemble, rng: Random) -> None:
        for broker, fault in self._faults:
            await asyncio.sleep(rng.uniform(0, 0.02))
            client = f"broker-{broker}"
            if fault == "break":
                ensemble.break_connection(client)
            elif fault == "expire":
                ensemble.expire(client)
            elif fault == "cut":
                ensemble.cut(client)
                await asyncio.sleep(rng.uniform(0, 10))
                ensemble.heal(client)
            else:
                ensemble.lose_answer(client, applied=fault == "lose applied")


def metadata_of(view: ClusterView) -> Metadata:
    configs = {"group": view.group_configs.get("g", {}), "broker": view.broker_configs.get("<default>", {})}
    return Metadata(
        topics=tuple(
            (name, topic.topic_id, len(topic.partitions), tuple(sorted(topic.config.items())))
            for name, topic in sorted(view.topics.items())
        ),
        configs=tuple((name, tuple(sorted(config.items()))) for name, config in sorted(configs.items()) if config),
    )


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**32))
def test_concurrent_admin_requests_are_linearizable(seed: int) -> None:
    Run(seed, faults=True).execute()


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**32))
def test_no_concurrent_admin_request_times_out_without_faults(seed: int) -> None:
    run = Run(seed, faults=False)
    run.execute()
    assert not any(call.timed_out for call in run.calls)


# The checker finds errors

ID = bytes(16)
T1 = Request("create", "t", (1, ()))
GROW_8, GROW_6 = Request("grow", "t", 8), Request("grow", "t", 6)


@pytest.mark.parametrize(
    ("calls", "partitions", "expected"),
    [
        ([Call(T1, 1, 2, 0, ID), Call(GROW_8, 3, 6, 0), Call(GROW_6, 4, 5, 0)], 8, True),
        ([Call(T1, 1, 2, 0, ID), Call(GROW_8, 3, 6, 0), Call(GROW_6, 4, 5, 0)], 6, False),
        ([Call(T1, 1, 2, 0, ID), Call(GROW_8, 3, 4, 0), Call(GROW_6, 5, 6, 0)], 8, False),
        ([Call(T1, 1, 2, 0, ID), Call(GROW_8, 3, 4, 0), Call(GROW_6, 5, 6, InvalidPartitions.code)], 8, True),
        ([Call(T1, 1, 2, 0, ID), Call(GROW_8, 3, 4, TIMED_OUT)], 8, True),
        ([Call(T1, 1, 2, 0, ID), Call(GROW_8, 3, 4, TIMED_OUT)], 1, True),
        ([Call(T1, 1, 2, 0, ID), Call(GROW_8, 3, 4, 0)], 1, False),
        ([Call(T1, 1, 2, 0, ID), Call(T1, 3, 4, 0, ID)], 1, False),
    ],
)
def test_checker_accepts_only_explained_histories(calls: list[Call], partitions: int, expected: bool) -> None:
    assert is_linearizable(calls, Metadata(topics=(("t", ID, partitions, ()),))) is expected


@pytest.mark.parametrize(("first", "second", "expected"), [(0, 1000, True), (1000, 3000, True), (0, 0, False)])
def test_checker_accepts_only_disjoint_blocks(first: int, second: int, expected: bool) -> None:
    calls = [Call(Request("block"), 1, 4, 0, first), Call(Request("block"), 2, 3, 0, second)]
    assert is_linearizable(calls, Metadata()) is expected
