"""A classic group against a dumb twin: no counters, no timers, a look at everybody every second."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.unit.coordinators.classic_fixtures import ClassicFixture, subscription

from ottla.broker.coordinators.outcome import NEVER
from ottla.broker.groups.requests import Sender
from ottla.model.errors import ErrorCode, Refused
from ottla.wire.messages.join_group import JoinGroupResponse
from ottla.wire.messages.leave_group import MemberIdentity

DELAY_S = 3
NEW_MEMBER_S = 300
TOPICS = st.sampled_from(["x", "y"])
SESSION_S = st.sampled_from([6, 20])
REBALANCE_S = st.sampled_from([8, 15, 40])
INSTANCES = st.sampled_from(["i0", "i1"])
NUMBER = st.integers(0, 5)

OK, PARKED = 0, -100
UNKNOWN, ILLEGAL, REBALANCING = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
)


@dataclass
class Peer:
    """A member as the twin knows it; tickets are 0 where nothing is parked."""

    id: str
    instance: str | None
    topic: str
    session_s: int
    rebalance_s: int
    until: float
    is_new: bool = True
    join: int = 0
    sync: int = 0
    synced: bool = True


@dataclass
class Twin:
    """The same group, as a child would write it. Every method returns a code, or PARKED."""

    state: str = "Empty"
    generation: int = 0
    leader: str | None = None
    peers: list[Peer] = field(default_factory=list)
    pending: dict[str, float] = field(default_factory=dict)
    join_at: float = NEVER
    sync_at: float = NEVER
    initial: bool = False
    waited_s: float = 0
    remaining_s: float = 0
    has_new: bool = False
    stored: tuple[int, str | None, list[Peer]] | None = None

    def find(self, member_id: str) -> Peer | None:
        return next((peer for peer in self.peers if peer.id == member_id), None)

    def holder(self, instance: str) -> Peer | None:
        return next((peer for peer in self.peers if peer.instance == instance), None)

    def join(self, asked: Peer, ticket: int, now: float) -> int:
        """``asked`` has the id that the group gave, or will give, to it."""
        known = self.find(asked.id)
        if known is None:
            self.pending.pop(asked.id, None)
            asked.until, asked.join = now + NEW_MEMBER_S, ticket
            self.peers.append(asked)
            self.leader = self.leader or asked.id
            self.has_new = True
            self.rebalance(now)
        elif asked.topic == known.topic and (
            self.state == "CompletingRebalance" or (self.state == "Stable" and self.leader != asked.id)
        ):
            known.until = now + known.session_s
            return OK
        else:
            known.topic, known.session_s, known.rebalance_s = asked.topic, asked.session_s, asked.rebalance_s
            known.join = ticket
            self.rebalance(now)
        return PARKED if any(peer.join == ticket for peer in self.peers) else OK

    def replace(self, old: Peer, asked: Peer, ticket: int, now: float) -> int:
        self.peers.remove(old)
        asked.is_new, asked.until, asked.synced = False, now + asked.session_s, True
        self.peers.append(asked)
        if self.leader == old.id:
            self.leader = asked.id
        if self.state == "Stable" and asked.topic == old.topic:
            self.store()
            return OK
        asked.join = ticket
        self.rebalance(now)
        return PARKED if asked.join else OK

    def sync(self, member_id: str, generation: int, ticket: int, now: float) -> int:
        peer = self.find(member_id)
        if peer is None:
            return UNKNOWN
        if generation != self.generation:
            return ILLEGAL
        if self.state == "PreparingRebalance":
            return REBALANCING
        peer.synced = True
        if self.state == "Stable":
            peer.until = now + peer.session_s
            return OK
        peer.sync = ticket
        if member_id != self.leader:
            return PARKED
        self.state = "Stable"
        self.release_syncs(now)
        self.store()
        return OK

    def beat(self, member_id: str, generation: int, now: float) -> int:
        peer = self.find(member_id)
        if peer is None:
            return UNKNOWN
        if generation != self.generation:
            return ILLEGAL
        if not peer.is_new:
            peer.until = now + peer.session_s
        return REBALANCING if self.state == "PreparingRebalance" else OK

    def leave(self, member_id: str, now: float) -> int:
        if self.pending.pop(member_id, None) is not None:
            self.complete_unless_initial(now)
            return OK
        peer = self.find(member_id)
        if peer is None:
            return UNKNOWN
        self.drop(peer)
        self.rebalance(now)
        return OK

    def disconnect(self, peer: Peer, now: float) -> int:
        if peer.is_new and peer.instance is None:
            self.drop(peer)
            self.complete_unless_initial(now)
            return UNKNOWN
        peer.join = peer.sync = 0
        peer.is_new, peer.until = False, now + peer.session_s
        return REBALANCING

    def restart(self, now: float) -> None:
        stored = self.stored
        generation, leader, peers = stored if stored is not None else (0, None, [])
        self.__init__()  # type: ignore[misc]
        self.stored = stored
        self.generation, self.leader, self.peers = generation, leader, deepcopy(peers)
        self.state = "Stable" if peers else "Empty"
        for peer in self.peers:
            peer.until, peer.is_new, peer.join, peer.sync, peer.synced = now + peer.session_s, False, 0, 0, True

    # -- time ---------------------------------------------------------------------------------------------------------

    def deadlines(self) -> list[tuple[float, int, str]]:
        waiting = [(until, 0, member_id) for member_id, until in self.pending.items()]
        waiting += [(p.until, 1, p.id) for p in self.peers if p.is_new or not (p.join or p.sync)]
        if self.state == "PreparingRebalance":
            waiting.append((self.join_at, 2, ""))
        if any(not peer.synced for peer in self.peers):
            waiting.append((self.sync_at, 3, ""))
        return sorted(waiting)

    def tick(self, now: float) -> None:
        while self.deadlines() and self.deadlines()[0][0] <= now:
            _, kind, member_id = self.deadlines()[0]
            if kind == 0:
                del self.pending[member_id]
                self.complete_if_all_joined(now)
            elif kind == 1:
                peer = self.find(member_id)
                assert peer is not None
                self.drop(peer)
                if self.state == "PreparingRebalance":
                    self.complete_if_all_joined(now)
                else:
                    self.rebalance(now)
            elif kind == 2:
                self.end_join_wait(now)
            else:
                for peer in [each for each in self.peers if not each.synced]:
                    self.drop(peer)
                self.rebalance(now)

    def end_join_wait(self, now: float) -> None:
        if not (self.initial and self.has_new and self.remaining_s > 0):
            self.complete(now)
            return
        self.has_new = False
        wait = min(DELAY_S, self.remaining_s)
        self.remaining_s = max(self.remaining_s - self.waited_s, 0)
        self.waited_s = wait
        self.join_at = now + wait

    # -- rebalancing --------------------------------------------------------------------------------------------------

    def timeout(self) -> int:
        return max([peer.rebalance_s for peer in self.peers], default=0)

    def drop(self, peer: Peer) -> None:
        self.peers.remove(peer)
        if self.leader == peer.id:
            self.leader = self.peers[0].id if self.peers else None

    def release_syncs(self, now: float) -> None:
        for peer in self.peers:
            if peer.sync:
                peer.sync, peer.until = 0, now + peer.session_s

    def rebalance(self, now: float) -> None:
        if self.state == "PreparingRebalance":
            self.complete_unless_initial(now)
            return
        self.initial = self.state == "Empty"
        self.release_syncs(now)
        for peer in self.peers:
            peer.synced = True
        self.state = "PreparingRebalance"
        self.has_new = False
        self.waited_s, self.remaining_s = DELAY_S, max(self.timeout() - DELAY_S, 0)
        self.join_at = now + (DELAY_S if self.initial else self.timeout())
        self.complete_unless_initial(now)

    def complete_unless_initial(self, now: float) -> None:
        if not self.initial:
            self.complete_if_all_joined(now)

    def complete_if_all_joined(self, now: float) -> None:
        if self.state == "PreparingRebalance" and all(peer.join for peer in self.peers) and not self.pending:
            self.complete(now)

    def complete(self, now: float) -> None:
        for peer in [each for each in self.peers if not each.join and each.instance is None]:
            self.drop(peer)
        joined = [peer.id for peer in self.peers if peer.join]
        if self.peers and not joined:
            self.join_at = now + self.timeout()
            return
        self.generation += 1
        self.initial = False
        if not self.peers:
            self.state = "Empty"
            self.store()
            return
        self.state = "CompletingRebalance"
        self.leader = self.leader if self.leader in joined else joined[0]
        self.sync_at = now + self.timeout()
        for peer in self.peers:
            peer.until, peer.join, peer.is_new, peer.synced = now + peer.session_s, 0, False, False

    def store(self) -> None:
        self.stored = (self.generation, self.leader, deepcopy(self.peers))


class ClassicGroupMachine(RuleBasedStateMachine):
    """Rules do the same to both; invariants compare."""

    def __init__(self) -> None:
        super().__init__()
        self.fixture = ClassicFixture()
        self.twin = Twin()
        #: generation -> who was shown its members, from the answers that were looked at
        self.leaders: dict[int, str] = {}
        self.answers_seen = 0

    def pick(self, number: int) -> Peer:
        return self.twin.peers[number % len(self.twin.peers)]

    def protocols(self, topic: str) -> dict[str, bytes]:
        return {"range": subscription(topic)}

    def code(self, ticket: int) -> int:
        answer = self.fixture.answers.get(ticket)
        return PARKED if answer is None else answer.error_code  # type: ignore[attr-defined]

    def newest_id(self) -> str:
        return list(self.fixture.group.members)[-1]

    # -- joining ------------------------------------------------------------------------------------------------------

    @rule(topic=TOPICS, session_s=SESSION_S, rebalance_s=REBALANCE_S)
    def join_new(self, topic: str, session_s: int, rebalance_s: int) -> None:
        ticket = self.fixture.join(
            protocols=self.protocols(topic), session_ms=session_s * 1000, rebalance_ms=rebalance_s * 1000
        )
        peer = Peer(self.newest_id(), None, topic, session_s, rebalance_s, 0)
        assert self.twin.join(peer, ticket, self.fixture.now) == self.code(ticket)

    @rule(session_s=SESSION_S)
    def ask_for_an_id(self, session_s: int) -> None:
        ticket = self.fixture.join(session_ms=session_s * 1000, version=4)
        assert self.code(ticket) == ErrorCode.MEMBER_ID_REQUIRED
        self.twin.pending[self.fixture.joined(ticket).member_id] = self.fixture.now + session_s

    @precondition(lambda self: self.twin.pending)
    @rule(number=NUMBER, topic=TOPICS)
    def join_with_an_id(self, number: int, topic: str) -> None:
        ids = sorted(self.twin.pending)
        member_id = ids[number % len(ids)]
        ticket = self.fixture.join(
            member_id, protocols=self.protocols(topic), session_ms=6000, rebalance_ms=15_000, version=4
        )
        assert self.twin.join(Peer(member_id, None, topic, 6, 15, 0), ticket, self.fixture.now) == self.code(ticket)

    @rule(instance=INSTANCES, topic=TOPICS, session_s=SESSION_S)
    def start_static(self, instance: str, topic: str, session_s: int) -> None:
        old = self.twin.holder(instance)
        ticket = self.fixture.join(
            instance=instance,
            protocols=self.protocols(topic),
            session_ms=session_s * 1000,
            rebalance_ms=15_000,
            version=9,
        )
        peer = Peer(self.newest_id(), instance, topic, session_s, 15, 0)
        if old is None:
            assert self.twin.join(peer, ticket, self.fixture.now) == self.code(ticket)
            return
        fenced = [each for each in (old.join, old.sync) if each]
        assert self.twin.replace(old, peer, ticket, self.fixture.now) == self.code(ticket)
        assert all(self.code(each) == ErrorCode.FENCED_INSTANCE_ID for each in fenced)

    @precondition(lambda self: self.twin.peers)
    @rule(number=NUMBER, topic=TOPICS)
    def rejoin(self, number: int, topic: str) -> None:
        known = self.pick(number)
        ticket = self.fixture.join(
            known.id,
            instance=known.instance,
            protocols=self.protocols(topic),
            session_ms=known.session_s * 1000,
            rebalance_ms=known.rebalance_s * 1000,
            version=9,
        )
        asked = Peer(known.id, known.instance, topic, known.session_s, known.rebalance_s, 0)
        assert self.twin.join(asked, ticket, self.fixture.now) == self.code(ticket)

    @precondition(lambda self: self.twin.state == "PreparingRebalance")
    @rule()
    def everybody_rejoins(self) -> None:
        for number, peer in enumerate(list(self.twin.peers)):
            if not peer.join and peer in self.twin.peers:
                self.rejoin(number, peer.topic)

    # -- the rest of a member's life ----------------------------------------------------------------------------------

    @precondition(lambda self: self.twin.peers)
    @rule(number=NUMBER, back=st.sampled_from([0, 0, 0, 1]))
    def sync(self, number: int, back: int) -> None:
        peer = self.pick(number)
        generation = self.twin.generation - back
        ticket = self.fixture.sync(peer.id, generation, instance=peer.instance)
        assert self.twin.sync(peer.id, generation, ticket, self.fixture.now) == self.code(ticket)

    @precondition(lambda self: self.twin.state == "CompletingRebalance")
    @rule(leader=st.booleans())
    def everybody_syncs(self, leader: bool) -> None:
        for number, peer in enumerate(list(self.twin.peers)):
            if leader or peer.id != self.twin.leader:
                self.sync(number, 0)

    @precondition(lambda self: self.twin.peers)
    @rule(number=NUMBER, back=st.sampled_from([0, 0, 0, 1]))
    def heartbeat(self, number: int, back: int) -> None:
        peer = self.pick(number)
        generation = self.twin.generation - back
        assert self.fixture.heartbeat(peer.id, generation, peer.instance) == self.twin.beat(
            peer.id, generation, self.fixture.now
        )

    @precondition(lambda self: self.twin.peers)
    @rule(number=NUMBER)
    def commit(self, number: int) -> None:
        peer = self.pick(number)
        sender = Sender(peer.id, peer.instance, self.twin.generation)
        if self.twin.state == "CompletingRebalance":
            with pytest.raises(Refused):
                self.fixture.group.check_commit(sender, self.fixture.moment)
            return
        self.fixture.group.check_commit(sender, self.fixture.moment)
        self.twin.beat(peer.id, self.twin.generation, self.fixture.now)

    @rule(number=NUMBER)
    def leave(self, number: int) -> None:
        ids = [peer.id for peer in self.twin.peers] + sorted(self.twin.pending) + ["ghost"]
        member_id = ids[number % len(ids)]
        assert self.fixture.leave(member_id).members[0].error_code == self.twin.leave(member_id, self.fixture.now)

    @precondition(lambda self: any(peer.join or peer.sync for peer in self.twin.peers))
    @rule(number=NUMBER)
    def disconnect(self, number: int) -> None:
        waiting = [peer for peer in self.twin.peers if peer.join or peer.sync]
        peer = waiting[number % len(waiting)]
        ticket = peer.join or peer.sync
        self.fixture.disconnect(ticket)
        assert self.code(ticket) == self.twin.disconnect(peer, self.fixture.now)

    @rule(instance=INSTANCES)
    def remove_static(self, instance: str) -> None:
        old = self.twin.holder(instance)
        expected = self.twin.leave(old.id, self.fixture.now) if old is not None else UNKNOWN
        assert self.fixture.leave(MemberIdentity(group_instance_id=instance)).members[0].error_code == expected

    @precondition(lambda self: self.twin.state in ("PreparingRebalance", "CompletingRebalance"))
    @rule()
    def come_to_rest(self) -> None:
        if self.twin.state == "PreparingRebalance":
            self.everybody_rejoins()
        for _ in range(5):
            if self.twin.state == "PreparingRebalance":
                self.pass_time(2)
        if self.twin.state == "CompletingRebalance":
            self.everybody_syncs(True)

    # -- time and restarts --------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 1, 2, 3, 5, 7, 16, 41, 310]))
    def pass_time(self, seconds: int) -> None:
        start = int(self.fixture.now)
        for second in range(start, start + seconds + 1):
            self.twin.tick(second)
        self.fixture.pass_time(seconds)

    @rule()
    def everybody_lives_for_a_while(self) -> None:
        for _ in range(5):
            for number in range(len(self.twin.peers)):
                self.heartbeat(number, 0)
            self.pass_time(5)

    @rule()
    def restart(self) -> None:
        self.fixture.restart()
        self.twin.restart(self.fixture.now)
        # What was not stored is made again, by whoever comes first.
        self.leaders = {number: who for number, who in self.leaders.items() if number <= self.twin.generation}

    # -- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def both_show_the_same(self) -> None:
        group, twin = self.fixture.group, self.twin
        assert (group.state, group.generation.number, group.leader_id) == (twin.state, twin.generation, twin.leader)
        assert list(group.members) == [peer.id for peer in twin.peers]
        assert group.is_disposable == (twin.stored is None and not twin.peers and not twin.pending)

    @invariant()
    def the_same_requests_wait_and_none_is_lost(self) -> None:
        parked = {ticket for peer in self.twin.peers for ticket in (peer.join, peer.sync) if ticket}
        assert self.fixture.waiting == parked
        if self.fixture.group.state in ("Empty", "Stable"):
            assert not self.fixture.waiting

    @invariant()
    def every_generation_has_one_leader(self) -> None:
        for answer in list(self.fixture.answers.values())[self.answers_seen :]:
            if isinstance(answer, JoinGroupResponse) and answer.members and not answer.skip_assignment:
                assert self.leaders.setdefault(answer.generation_id, answer.member_id) == answer.member_id
        self.answers_seen = len(self.fixture.answers)

    @invariant()
    def group_wakes_up_in_time(self) -> None:
        deadlines = self.twin.deadlines()
        assert self.fixture.group.wake_at <= (deadlines[0][0] if deadlines else NEVER)

    @invariant()
    def log_knows_the_last_settled_generation(self) -> None:
        stored, twin = self.fixture.group.stored, self.twin.stored
        assert (stored is None) == (twin is None)
        if stored is not None and twin is not None:
            assert (stored.generation, stored.leader) == twin[:2]
            assert [each.member_id for each in stored.members] == [peer.id for peer in twin[2]]

    @invariant()
    def every_settled_generation_was_explained(self) -> None:
        assert all(each.causes for each in self.fixture.rebalances)

    def teardown(self) -> None:
        """Left alone, every group comes to rest with nobody in it, and asks to be left alone."""
        self.pass_time(1000)
        assert self.fixture.group.state == "Empty"
        assert (self.fixture.waiting, self.fixture.group.wake_at) == (set(), NEVER)


ClassicGroupMachine.TestCase.settings = settings(
    deadline=None, derandomize=True, max_examples=200, stateful_step_count=40
)
test_classic_group = ClassicGroupMachine.TestCase
