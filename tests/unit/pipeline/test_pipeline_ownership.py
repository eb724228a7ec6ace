"""Which run owns a pipeline: the choice of the group's leader, and what a run does with the answers of the group."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from ottla.client.errors import BrokerError, ClientError, ClusterUnreachable, RemovedFromGroup
from ottla.client.membership import DescribedMember
from ottla.model.errors import ErrorCode
from ottla.pipeline import ownership as module
from ottla.pipeline.ownership import AlreadyRunning, Ownership, RunIdentity, choose_owner

_OTHER = RunIdentity(run="other" * 6, host="far", pid=1, started_ms=5)
_WAIT_S_MAX = 60.0


def member(started_ms: int, *, is_owner: bool = False) -> bytes:
    return RunIdentity(run=f"r{started_ms}", host="h", pid=1, started_ms=started_ms, is_owner=is_owner).encode()


def owner_among(**members: bytes) -> str:
    assignments = choose_owner(members)
    assert set(assignments) == set(members), "each member learns who the owner is"
    (metadata,) = set(assignments.values())
    return next(name for name, given in members.items() if given == metadata)


def test_owner_stays_the_owner_and_else_the_run_that_started_first_is_chosen() -> None:
    assert owner_among(a=member(1)) == "a"
    assert owner_among(a=member(1), b=member(2, is_owner=True)) == "b"
    assert owner_among(a=member(2), b=member(1)) == "b"
    assert owner_among(a=member(1), b=replace_run(member(1))) == "a"
    assert owner_among(a=b"no identity", b=member(9)) == "b"


def replace_run(metadata: bytes) -> bytes:
    identity = RunIdentity.decode(metadata)
    assert identity is not None
    return replace(identity, run="another").encode()


def test_identity_is_read_as_it_was_written_and_foreign_bytes_are_none() -> None:
    here = RunIdentity.here("run")
    assert RunIdentity.decode(here.encode()) == here
    for data in (b"", b"{}", b"[]", b"\xff", b"null", b'{"run":"r","host":"h","pid":"x","started_ms":1}'):
        assert RunIdentity.decode(data) is None


class Group:
    """Stands for the group: each request of the run takes the next answer, and without one waits until the end."""

    def __init__(self) -> None:
        self.members: dict[str, DescribedMember] = {}
        self.answers: deque[Any] = deque()
        #: what the run has sent
        self.requests: list[Any] = []
        self.changed = threading.Condition()
        self.has_left = threading.Event()
        self.is_over = False

    def answer(self, *answers: Any) -> None:
        with self.changed:
            self.answers.extend(answers)
            self.changed.notify_all()

    def take(self, request: Any) -> Any:
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.answers or self.is_over, _WAIT_S_MAX)
            answer = self.answers.popleft() if self.answers else ClientError("the test is over")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def await_requests(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.requests) >= count, _WAIT_S_MAX)

    # As `Membership`

    def __call__(self, cluster: Any, group: str, **options: Any) -> Group:
        self.group = group
        return self

    def join(self, metadata: bytes, assign: Any) -> bytes | None:
        identity = RunIdentity.decode(metadata)
        assert identity is not None
        answer = self.take(identity)
        return metadata if answer == "you" else answer  # type: ignore[no-any-return]

    def heartbeat(self) -> bool:
        return bool(self.take("heartbeat"))

    def leave(self) -> None:
        self.has_left.set()


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    group = Group()
    monkeypatch.setattr(module, "Membership", group)
    monkeypatch.setattr(module, "members_of", lambda cluster, name: group.members)
    monkeypatch.setattr(module, "_TICK_S", 0.001)
    monkeypatch.setattr(module, "_REJOIN_S", 0.0)
    yield group
    group.is_over = True
    group.answer()


@pytest.fixture
def owner(group: Group) -> Iterator[Ownership]:
    with Ownership("shop", "mine", nullcontext, heartbeat_s=0.0) as ownership:  # type: ignore[arg-type]
        yield ownership
        group.is_over = True
        group.answer()


def refuse_lines(line: str) -> None:
    raise AssertionError(line)


def await_replaced(ownership: Ownership) -> None:
    shared = ownership._shared
    with shared.changed:
        assert shared.changed.wait_for(lambda: ownership.was_replaced, _WAIT_S_MAX)


def test_run_that_is_alone_owns_the_pipeline(group: Group, owner: Ownership) -> None:
    owner.start(refuse_lines)
    group.answer(None, "you")
    owner.claim(refuse_lines)
    assert group.group == "ottla.pipeline.shop"
    assert not owner.was_replaced
    # It claims to be the owner only when it joins again.
    group.answer(True, False, "you")
    group.await_requests(5)
    first, again, *heartbeats, last = group.requests[:5]
    assert (first.is_owner, again.is_owner, heartbeats, last.is_owner) == (
        False, False, ["heartbeat", "heartbeat"], True,
    )  # fmt: skip


def test_run_is_refused_while_the_owner_is_alive(group: Group, owner: Ownership) -> None:
    group.members = {"m": DescribedMember("", _OTHER.encode(), b"")}
    group.answer(replace(_OTHER, is_owner=True).encode())
    with pytest.raises(AlreadyRunning) as refused:
        owner.claim(lambda line: None)
    assert str(refused.value) == (
        "the pipeline shop is running (run otheroth, process 1 on far): stop it with 'ottla pipeline stop' first"
    )
    assert group.has_left.wait(_WAIT_S_MAX)


def test_run_waits_for_the_session_of_a_dead_owner_and_says_so(group: Group, owner: Ownership) -> None:
    group.members = {"m": DescribedMember("", _OTHER.encode(), b"")}
    lines: list[str] = []

    def waiting(line: str) -> None:
        lines.append(line)
        group.answer("you")

    owner.claim(waiting)
    assert lines[0] == "waiting for run otheroth, process 1 on far: it has not answered for 0 of 10 s"
    assert not owner.was_replaced


def test_start_returns_before_the_session_of_a_dead_owner_has_expired(
    group: Group, owner: Ownership, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.pipeline.ownership._ANSWER_S", 0.0)
    group.members = {"m": DescribedMember("", _OTHER.encode(), b"")}
    owner.start(refuse_lines)
    assert owner._shared.state.name == "JOINING"
    group.answer("you")
    owner.claim(lambda line: None)
    assert owner._shared.state.name == "OWNER"


def test_brokers_that_are_away_do_not_stop_the_owner(group: Group, owner: Ownership) -> None:
    owner.start(refuse_lines)
    group.answer("you")
    owner.claim(refuse_lines)
    group.answer(*[ClusterUnreachable("b:1", "connection refused")] * 5, True)
    group.await_requests(8)
    assert not owner.was_replaced and not group.has_left.is_set()


def removed() -> RemovedFromGroup:
    return RemovedFromGroup(ErrorCode.UNKNOWN_MEMBER_ID, "group g")


def test_owner_whose_session_has_expired_goes_on_if_no_other_run_has_come(group: Group, owner: Ownership) -> None:
    owner.start(refuse_lines)
    group.answer("you")
    owner.claim(refuse_lines)
    group.answer(removed(), "you", True)
    group.await_requests(4)
    assert not owner.was_replaced
    assert not group.requests[2].is_owner, "it has lost its claim with its session"


def test_owner_that_was_replaced_learns_by_whom(group: Group, owner: Ownership) -> None:
    owner.start(refuse_lines)
    group.answer("you")
    owner.claim(refuse_lines)
    group.answer(removed(), _OTHER.encode())
    await_replaced(owner)
    assert owner.other == _OTHER
    assert group.has_left.wait(_WAIT_S_MAX)


def test_owner_goes_on_after_an_unexpected_exception_and_notices_its_replacement(
    group: Group, owner: Ownership, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has left the group then, so that another run may own the pipeline."""
    monkeypatch.setattr("ottla.env.tasks.RESTART_S", 0)
    owner.start(refuse_lines)
    group.answer("you")
    owner.claim(refuse_lines)
    group.answer(AttributeError("boom"), ClusterUnreachable("b:1", "connection refused"), _OTHER.encode())
    await_replaced(owner)
    assert owner.other == _OTHER
    assert "Traceback" in caplog.text and "boom" in caplog.text


@pytest.mark.parametrize("call", [Ownership.start, Ownership.claim])
def test_group_that_cannot_be_joined_is_an_error(
    group: Group, owner: Ownership, call: Callable[[Ownership, Any], None]
) -> None:
    group.members = {"m": DescribedMember("", _OTHER.encode(), b"")}
    group.answer(BrokerError(30, "group ottla.pipeline.shop"))
    with pytest.raises(BrokerError, match="does not let this client use the group"):
        call(owner, lambda line: None)
