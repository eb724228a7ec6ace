"""One run at a time owns a pipeline. The cluster decides which: the consumer group `ottla.pipeline.NAME`.

Each run joins the group as a member that describes its run (`RunIdentity`) and says whether it owns the pipeline. The
leader of the group chooses the owner (`choose_owner`), and every member learns from its assignment who that is:

- A new run joins. The group rebalances, and a live owner joins again with its next heartbeat: it stays the owner, and
  the new run is refused (AlreadyRunning).
- An owner that crashed sends no heartbeats. The group removes it when its session has expired, and the new run is the
  owner. It makes no difference whether both have the same hostname and process id, as in a restarted container.
- An owner that was frozen, or cut off from the brokers, learns from its next heartbeat that the group has removed it.
  It joins again like a new run: either no other run has come and it is the owner again, or it was replaced and stops.

    NEW --start--> JOINING --chosen--> OWNER --removed or rebalance--> OWNER or REPLACED
                   JOINING --not chosen--> REFUSED        JOINING --an error that does not pass--> FAILED

An owner stays OWNER while no broker answers: heartbeats are repeated until one does. Outputs have their own fencing, so
that two runs that overlap for some seconds cannot write a batch twice.

One thread per run sends all requests, with a `Cluster` of its own.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Final, Self

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RemovedFromGroup
from ottla.client.membership import Membership, members_of
from ottla.env.tasks import keep_thread
from ottla.model.errors import OttlaError
from ottla.pipeline.connecting import open_cluster
from ottla.pipeline.declaration import Declaration

log = logging.getLogger("ottla.pipeline")

SESSION_TIMEOUT_S: Final = 10.0
#: a live owner answers a new run within this time
HEARTBEAT_S: Final = 2.0
#: a live owner has almost certainly answered after this time
_ANSWER_S: Final = 4.0
_PROTOCOL_TYPE: Final = "ottla-pipeline"
_PROTOCOL: Final = "run-v1"
_TICK_S: Final = 1.0
#: before this run joins again
_REJOIN_S: Final = 0.1
_LEAVE_S_MAX: Final = 6.0
#: how many hexadecimal digits of a run id are shown
_SHOWN: Final = 8


class AlreadyRunning(OttlaError):
    """Another run owns the pipeline and is alive."""

    def __init__(self, pipeline: str, owner: RunIdentity | None) -> None:
        who = f" ({owner})" if owner is not None else ""
        super().__init__(f"the pipeline {pipeline} is running{who}: stop it with 'ottla pipeline stop' first")


class TakenOver(OttlaError):
    """Another run has become the owner of the pipeline while this one was frozen or cut off from the brokers."""

    def __init__(self, pipeline: str, owner: RunIdentity | None) -> None:
        who = f" ({owner})" if owner is not None else ""
        super().__init__(
            f"another run has taken over the pipeline {pipeline}{who}, because this one did not answer for "
            f"{SESSION_TIMEOUT_S:.0f} s; this run has stopped"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """A run as the other runs of its pipeline see it."""

    run: str
    host: str
    pid: int
    started_ms: int
    #: whether the run owned the pipeline when it joined; a new owner says so only when it joins again
    is_owner: bool = False

    @classmethod
    def here(cls, run: str) -> Self:
        return cls(run=run, host=socket.gethostname(), pid=os.getpid(), started_ms=int(time.time() * 1000))

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """Return the identity in the metadata of a member; None if there is none."""
        try:
            fields = json.loads(data)
            return cls(
                run=str(fields["run"]),
                host=str(fields["host"]),
                pid=int(fields["pid"]),
                started_ms=int(fields["started_ms"]),
                is_owner=bool(fields["is_owner"]),
            )
        except (ValueError, KeyError, TypeError):
            return None

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def __str__(self) -> str:
        return f"run {self.run[:_SHOWN]}, process {self.pid} on {self.host}"


def choose_owner(members: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the assignment of each member: the metadata of the member that owns the pipeline from now on.

    The member that owns it already stays the owner. Else it is the run that started first, which makes a run whose
    session has expired the owner again if no other run has become it.
    """

    def rank(member_id: str) -> tuple[bool, int, str]:
        identity = RunIdentity.decode(members[member_id])
        if identity is None:
            return True, 1 << 63, member_id
        return not identity.is_owner, identity.started_ms, member_id

    owner = min(members, key=rank)
    return dict.fromkeys(members, members[owner])


class _State(Enum):
    NEW = 0
    JOINING = 1
    OWNER = 2
    REFUSED = 3
    REPLACED = 4
    FAILED = 5


@dataclass(slots=True)
class _Shared:
    """What the thread reports. Guarded by `changed`."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    state: _State = _State.NEW
    #: whether the group had members before this run joined; None until that is known
    has_members: bool | None = None
    #: the one of these members that owns the pipeline, or is about to; None while brokers do not describe it
    holder: RunIdentity | None = None
    #: the run that this one was refused or replaced for
    other: RunIdentity | None = None
    error: ClientError | None = None


class Ownership:
    """The claim of one run to its pipeline. `start` and `claim` belong to the run's thread."""

    def __init__(
        self,
        pipeline: str,
        run: str,
        connect: Callable[[], Cluster],
        *,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        # Config
        self.pipeline = pipeline
        self.identity = RunIdentity.here(run)
        self._connect = connect
        self._session_timeout_s = session_timeout_s
        self._heartbeat_s = heartbeat_s
        # State
        self._shared = _Shared()
        self._joining_since = 0.0
        self._stopping = threading.Event()
        self._thread = keep_thread(self._run, f"owner-{pipeline}")

    @classmethod
    def of(cls, declaration: Declaration, run: str) -> Self:
        return cls(declaration.name, run, lambda: open_cluster(declaration))

    def start(self, waiting: Callable[[str], None]) -> None:
        """Begin to join, in a thread, and return before it is decided which run owns the pipeline.

        If no other run holds the pipeline, return at once: the coordinator gives an empty group a few seconds for more
        members. Otherwise return after 4 s, or earlier when this run owns it. Raise AlreadyRunning if the other run
        answers in this time. A run that has crashed does not answer, its session expires after 10 s, and Spark can
        start meanwhile. `claim` must be called before anything is written.
        """
        shared = self._shared
        with shared.changed:
            shared.state = _State.JOINING
        self._joining_since = time.monotonic()
        self._thread.start()
        with shared.changed:
            shared.changed.wait_for(lambda: shared.has_members is not None or shared.state is not _State.JOINING)
            if shared.state is _State.JOINING and not shared.has_members:
                return
        self._await_decision(waiting, _ANSWER_S)

    def claim(self, waiting: Callable[[str], None]) -> None:
        """Return when this run owns the pipeline. `waiting` receives a line each second meanwhile.

        Raise AlreadyRunning if another run owns it and is alive, ClientError if the group cannot be joined.
        """
        if self._shared.state is _State.NEW:
            self.start(waiting)
        self._await_decision(waiting, float("inf"))
        assert self._shared.state is not _State.JOINING, "the thread reports how it ends"

    def _await_decision(self, waiting: Callable[[str], None], timeout_s: float) -> None:
        """Wait until it is decided which run owns the pipeline, at most this long. Raise as `claim` does."""
        shared = self._shared
        deadline = time.monotonic() + timeout_s
        with shared.changed:
            while shared.state is _State.JOINING and self._thread.is_alive() and time.monotonic() < deadline:
                if not shared.changed.wait(_TICK_S) and shared.has_members:
                    waiting(self._waiting_line(shared.holder, time.monotonic() - self._joining_since))
            if shared.state is _State.REFUSED:
                raise AlreadyRunning(self.pipeline, shared.other)
            if shared.error is not None:
                raise shared.error

    @property
    def was_replaced(self) -> bool:
        """Whether another run has become the owner since this one was it."""
        return self._shared.state is _State.REPLACED

    @property
    def other(self) -> RunIdentity | None:
        """The run that has replaced this one, if it is known."""
        return self._shared.other

    def close(self) -> None:
        """Give the pipeline up, so that the next run need not wait for the session to expire."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_LEAVE_S_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _waiting_line(self, holder: RunIdentity | None, waited_s: float) -> str:
        who = holder or "another run"
        return f"waiting for {who}: it has not answered for {waited_s:.0f} of {self._session_timeout_s:.0f} s"

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._connect() as cluster:
                self._describe(cluster)
                self._hold(cluster)
        except ClientError as error:
            if self._shared.state is _State.OWNER:
                raise  # the thread begins again: an owner must notice when another run replaces it
            self._report(_State.FAILED, error=error)

    def _describe(self, cluster: Cluster) -> None:
        members = {name: each.metadata for name, each in members_of(cluster, group_of(self.pipeline)).items()}
        holder = RunIdentity.decode(next(iter(choose_owner(members).values()))) if members else None
        shared = self._shared
        with shared.changed:
            shared.holder, shared.has_members = holder, bool(members)
            shared.changed.notify_all()

    def _hold(self, cluster: Cluster) -> None:
        """Join, then send heartbeats until this run ends, is refused or is replaced."""
        member = Membership(
            cluster, group_of(self.pipeline), protocol_type=_PROTOCOL_TYPE, protocol=_PROTOCOL,
            session_timeout_s=self._session_timeout_s,
        )  # fmt: skip
        is_member, is_answered = False, True
        claims = self.identity
        pause_s = 0.0
        try:
            while not self._stopping.wait(pause_s):
                pause_s = self._heartbeat_s
                try:
                    if is_member:
                        is_member, is_answered = member.heartbeat(), True
                        pause_s = self._heartbeat_s if is_member else 0.0
                        continue
                    assignment = member.join(claims.encode(), choose_owner)
                except RemovedFromGroup:
                    log.warning("the session of this run in group %s has expired; it joins again", member.group)
                    is_member, claims, pause_s = False, self.identity, _REJOIN_S
                    continue
                except ClientError as error:
                    if self._shared.state is not _State.OWNER:
                        raise
                    if is_answered:
                        log.warning("group %s does not answer; heartbeats are repeated: %s", member.group, error)
                    is_answered = False
                    continue
                if assignment is None:
                    pause_s = _REJOIN_S
                    continue
                is_member = True
                if not self._take(RunIdentity.decode(assignment)):
                    return
                claims = replace(self.identity, is_owner=True)
        finally:
            member.leave()

    def _take(self, owner: RunIdentity | None) -> bool:
        """Report who the owner is; return whether it is this run."""
        if owner is not None and owner.run == self.identity.run:
            self._report(_State.OWNER)
            return True
        was_owner = self._shared.state is _State.OWNER
        self._report(_State.REPLACED if was_owner else _State.REFUSED, other=owner)
        return False

    def _report(self, state: _State, *, other: RunIdentity | None = None, error: ClientError | None = None) -> None:
        shared = self._shared
        with shared.changed:
            shared.state, shared.other, shared.error = state, other, error
            shared.changed.notify_all()


def group_of(pipeline: str) -> str:
    """Return the consumer group whose members are the runs of this pipeline."""
    return f"ottla.pipeline.{pipeline}"
