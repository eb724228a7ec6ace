"""Whether a refused connection proves that the process of another broker has ended. Pure: no I/O, no clock.

A connection is refused when no process listens at the address. It is also refused by a wrong route, a firewall or a
wrong entry of a name server, and then the broker is healthy. Two rules keep such a fault of one broker from removing
another one from the cluster again and again:

- Only a registration with which this broker had a connection before is declared dead: the address was right then.
- If a broker registers again without a new run, its process had not ended. It is not declared dead again for a while,
  which doubles each time. The end of its session still removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.broker.metadata.broker_nodes import BrokerView

#: how long a broker is not declared dead after that was wrong, the first time and at most
_BACK_OFF_S = 30.0
_BACK_OFF_S_MAX = 3600.0


class _Declared(NamedTuple):
    epoch: int
    run: int


class _Mistakes(NamedTuple):
    run: int
    number: int
    until: float


class Contacts:
    """What this broker knows of the processes of others, by broker id."""

    def __init__(self) -> None:
        #: the epoch of the registration, and when this broker first saw it
        self._seen: dict[int, tuple[int, float]] = {}
        #: the epoch of the registration with which a connection was open
        self._reached: dict[int, int] = {}
        #: the last registration that this broker declared dead
        self._declared: dict[int, _Declared] = {}
        self._mistakes: dict[int, _Mistakes] = {}

    def note_registered(self, brokers: Mapping[int, BrokerView], runs: Mapping[int, int], now: float) -> None:
        """Note the registered brokers; ``runs`` are the versions of /brokers/registered."""
        for number, broker in brokers.items():
            if self._seen.get(number, (-1, 0.0))[0] == broker.epoch:
                continue
            self._seen[number] = broker.epoch, now
            declared = self._declared.get(number)
            if declared is not None and declared.epoch != broker.epoch:
                del self._declared[number]
                if declared.run == runs.get(number):
                    self._note_mistake(number, declared.run, now)

    def _note_mistake(self, number: int, run: int, now: float) -> None:
        before = self._mistakes.get(number)
        mistakes = before.number + 1 if before is not None and before.run == run else 1
        wait_s = min(_BACK_OFF_S * 2 ** (mistakes - 1), _BACK_OFF_S_MAX)
        self._mistakes[number] = _Mistakes(run, mistakes, now + wait_s)

    def note_reached(self, broker: BrokerView) -> None:
        """A connection to this registration was opened."""
        self._reached[broker.broker_id] = broker.epoch

    def may_declare_dead(self, broker: BrokerView, run: int, opened_at: float, now: float) -> bool:
        """Return whether a refused connection proves that this process has ended.

        ``opened_at`` is the time at which any part of this broker last opened a connection to the address.
        """
        number = broker.broker_id
        epoch, seen_at = self._seen.get(number, (-1, now))
        was_reached = self._reached.get(number) == broker.epoch or (epoch == broker.epoch and opened_at > seen_at)
        mistakes = self._mistakes.get(number)
        return was_reached and (mistakes is None or mistakes.run != run or now >= mistakes.until)

    def note_declared_dead(self, broker: BrokerView, run: int) -> None:
        """This broker deletes the registration."""
        self._declared[broker.broker_id] = _Declared(broker.epoch, run)
