"""A storm of changes to a group, drawn from a seed: members come, go, die and stand still; the broker may do so too.

Changes are drawn from the seed, and drawn again when one cannot be made just then. When a rebalance begins and ends
depends on the machine, so a seed repeats the kind of storm and not every race in it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from group_run import SESSION_S, GroupRun, MemberProcess

from campaign.processes import check_log, wait_until
from ottla.testing import BrokerProcess

CLASSIC_CLIENTS = ("confluent", "aiokafka", "kafka-python")
CONSUMER_CLIENTS = ("confluent-848",)

_LIVE_MAX = 5
#: less than half of the members, so that a change can always be made
_FROZEN_MAX = 2
_DRAW_AGAIN_S = 0.02
_PARTITIONS_MAX = 12
_INSTANCES = ("s1", "s2")
_PAUSE_S = (0.1, 1.6)
#: in a long storm there is now and then time for a group to come to rest
_CALM_S = (3.0, 9.0)
_CALM_SHARE = 0.25
#: every start of a broker gives dead members a new session, so a group of a broker that ends all the time never rests
_CHANGES_BETWEEN_ENDS = 8
_SHORT_FREEZE_S = (0.3, 2.5)
_LONG_FREEZE_S = (SESSION_S + 1.5, SESSION_S + 4.0)


class Storm:
    """Plays changes on a group; ``told`` is what it has done."""

    def __init__(
        self, run: GroupRun, seed: int, clients: Sequence[str], broker: BrokerProcess | None = None, *,
        calm: bool = False,
    ) -> None:  # fmt: skip
        self.told: list[str] = []
        self.broker_ends = 0
        self._calm = calm
        self._changes_since_end = 0
        self._run = run
        self._rng = random.Random(seed)
        self._clients = clients
        self._broker = broker
        self._pause = threading.Event()
        self._started = time.monotonic()
        #: when a frozen member goes on
        self._thaws: dict[MemberProcess, float] = {}
        #: under the consumer protocol an instance id is taken until its session is over
        self._instance_free_at: dict[str, float] = {}
        self._changes: list[tuple[float, Callable[[], bool]]] = [
            (6, self._join),
            (4, self._leave),
            (3, self._kill),
            (2, self._freeze_for_long),
            (2, self._freeze_shortly),
            (1, self._grow),
        ]
        if broker is not None:
            self._changes += [(1, self._restart_broker), (1, self._kill_broker)]

    def play(self, changes: int) -> None:
        """Start with two members, make that many changes, and let all members go on.

        Every kind of change is made once, so that a short storm has them all; the rest are drawn by weight.
        """
        self._join()
        self._join()
        done = 0
        weights, acts = zip(*self._changes, strict=True)
        due = list(acts)
        is_refused = False
        while done < changes:
            # A change that cannot be made now may need another one first, such as a member to freeze.
            act = self._rng.choice(due) if due and not is_refused else self._rng.choices(acts, weights)[0]
            is_refused = not act()
            if is_refused:
                # Those who stand still must be able to go on meanwhile.
                self._wait(_DRAW_AGAIN_S)
            else:
                done += 1
                if act in due:
                    due.remove(act)
                self._changes_since_end += 1
                calm = self._calm and self._rng.random() < _CALM_SHARE
                self._wait(self._rng.uniform(*(_CALM_S if calm else _PAUSE_S)))
        while self._thaws:
            self._wait(0.1)
        self._tell("the storm is over")

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for member in [member for member, due in self._thaws.items() if due <= now]:
                del self._thaws[member]
                member.thaw()
                self._tell(f"{member.name} goes on")
            if now >= deadline:
                return
            self._pause.wait(max(min([deadline, *self._thaws.values()]) - now, 0.0))

    def _tell(self, line: str) -> None:
        self.told.append(f"{time.monotonic():.2f} ({time.monotonic() - self._started:.2f}) {line}")

    # -- changes: whether it could be made ------------------------------------------------------------------------

    def _join(self) -> bool:
        client, static = self._rng.choice(self._clients), self._rng.random() < 0.3
        if len(self._run.live) >= _LIVE_MAX:
            return False
        instance = self._free_instance() if static else ""
        member = self._run.join(client, instance=instance)
        self._tell(f"{member.name} {instance} joins")
        # From then on it can be asked to stop.
        wait_until(lambda: member.count("started") > 0, lambda: f"{member.name} starts", 60)
        return True

    def _free_instance(self) -> str:
        now = time.monotonic()
        taken = {member.record.instance for member in self._run.live}
        taken |= {instance for instance, free_at in self._instance_free_at.items() if free_at > now}
        return next((instance for instance in _INSTANCES if instance not in taken), "")

    def _victim(self, spared: str = "") -> MemberProcess | None:
        """Any member that is not standing still; somebody always goes on working."""
        awake = [each for each in self._run.live if not each.frozen and not each.record.asked_to_stop]
        chosen = [each for each in awake if each.client != spared]
        return self._rng.choice(chosen) if chosen and len(awake) > 1 else None

    def _leave(self) -> bool:
        if (member := self._victim()) is None:
            return False
        self._tell(f"{member.name} leaves")
        member.ask_to_stop()
        return True

    def _kill(self) -> bool:
        if (member := self._victim()) is None:
            return False
        self._tell(f"{member.name} is killed")
        member.kill()
        if member.record.instance and member.client in CONSUMER_CLIENTS:
            self._instance_free_at[member.record.instance] = time.monotonic() + SESSION_S + 3
        return True

    def _freeze_for_long(self) -> bool:
        """kafka-python is spared: it keeps its positions when it gets a partition back that others read meanwhile.

        It then commits what it had read before, as a member in good standing, and nobody could refuse that.
        """
        return self._freeze(self._rng.uniform(*_LONG_FREEZE_S), spared="kafka-python")

    def _freeze_shortly(self) -> bool:
        return self._freeze(self._rng.uniform(*_SHORT_FREEZE_S))

    def _freeze(self, seconds: float, spared: str = "") -> bool:
        if len(self._thaws) >= _FROZEN_MAX or (member := self._victim(spared)) is None:
            return False
        self._tell(f"{member.name} stands still for {seconds:.1f} s")
        member.freeze()
        self._thaws[member] = time.monotonic() + seconds
        return True

    def _grow(self) -> bool:
        by = self._rng.randint(1, 2)
        if self._run.partitions + by > _PARTITIONS_MAX:
            return False
        self._run.grow(by)
        self._tell(f"{self._run.partitions} partitions")
        return True

    def _restart_broker(self) -> bool:
        return self._end_broker(kill=False)

    def _kill_broker(self) -> bool:
        return self._end_broker(kill=True)

    def _end_broker(self, *, kill: bool) -> bool:
        if self._changes_since_end < _CHANGES_BETWEEN_ENDS:
            return False
        assert self._broker is not None
        self._tell("the broker is killed" if kill else "the broker restarts")
        end_and_launch(self._broker, kill=kill)
        self.broker_ends += 1
        self._changes_since_end = 0
        return True


def end_and_launch(broker: BrokerProcess, *, kill: bool) -> None:
    """End a broker, one way or the other, and start it again."""
    check_log(broker)
    if kill:
        broker.kill()
    else:
        assert broker.stop() == 0, broker.errors()
        check_log(broker)
    broker.launch()
