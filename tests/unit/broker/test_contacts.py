"""When a refused connection proves that the process of another broker has ended."""

from __future__ import annotations

import math

from ottla.broker.cluster.contacts import Contacts
from ottla.broker.metadata.broker_nodes import BrokerView

RUN = 7


def registered(epoch: int) -> BrokerView:
    return BrokerView(broker_id=2, epoch=epoch, endpoints=(), rack=None, incarnation=b"run")


def seen(epoch: int, *, run: int = RUN, now: float = 0.0, contacts: Contacts | None = None) -> Contacts:
    contacts = contacts or Contacts()
    contacts.note_registered({2: registered(epoch)}, {2: run}, now)
    return contacts


def may_declare(contacts: Contacts, epoch: int, *, run: int = RUN, opened_at: float = -math.inf, now: float) -> bool:
    return contacts.may_declare_dead(registered(epoch), run, opened_at, now)


def test_registration_that_was_never_reached_is_not_declared_dead() -> None:
    """Its address may be wrong for this broker only."""
    contacts = seen(1)
    assert not may_declare(contacts, 1, now=1.0)
    contacts.note_reached(registered(1))
    assert may_declare(contacts, 1, now=1.0)
    seen(2, contacts=contacts)
    assert not may_declare(contacts, 2, now=1.0), "that was an earlier registration"


def test_connection_of_a_follower_counts_if_it_was_opened_to_this_registration() -> None:
    """A new controller has not probed the others before, and one of them may have been killed with the last one."""
    contacts = seen(1, now=10.0)
    assert not may_declare(contacts, 1, opened_at=9.0, now=20.0)
    assert may_declare(contacts, 1, opened_at=11.0, now=20.0)


def test_broker_that_registers_again_in_the_same_run_is_left_alone_for_longer_each_time() -> None:
    contacts, now, waits = Contacts(), 0.0, []
    for epoch in range(1, 10):
        seen(epoch, contacts=contacts, now=now)
        contacts.note_reached(registered(epoch))
        since = now
        while not may_declare(contacts, epoch, now=now):
            now += 10.0
        waits.append(now - since)
        contacts.note_declared_dead(registered(epoch), RUN)
    assert waits == [0.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0]


def test_broker_that_was_started_again_is_declared_dead_at_once() -> None:
    contacts = seen(1)
    contacts.note_declared_dead(registered(1), RUN)
    seen(2, contacts=contacts)
    contacts.note_reached(registered(2))
    assert not may_declare(contacts, 2, now=1.0)
    seen(3, run=RUN + 1, contacts=contacts)
    contacts.note_reached(registered(3))
    assert may_declare(contacts, 3, run=RUN + 1, now=1.0)


def test_broker_that_ended_and_was_started_again_is_no_mistake() -> None:
    contacts = seen(1)
    contacts.note_declared_dead(registered(1), RUN)
    seen(2, run=RUN + 1, contacts=contacts)
    contacts.note_reached(registered(2))
    assert may_declare(contacts, 2, run=RUN + 1, now=1.0)
