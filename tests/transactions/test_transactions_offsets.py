"""Offsets that are committed in transactions."""

from __future__ import annotations

from contextlib import closing

import pytest
from clients import LIBRARIES
from reading import create_topic

from ottla.testing import BrokerProcess

pytestmark = [pytest.mark.broker, pytest.mark.client]


@pytest.mark.xfail(reason="AddOffsetsToTxn guesses the group's partition before __consumer_offsets exists", strict=True)
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_first_group_of_a_broker_can_commit_in_a_transaction(
    fresh_ottla_broker: BrokerProcess, library: str
) -> None:  # fmt: skip
    (place,) = create_topic(fresh_ottla_broker.bootstrap, "work", 1)
    connect = LIBRARIES[library]
    with closing(connect(fresh_ottla_broker.bootstrap, "worker", "worker", 60_000)) as client:
        client.begin()
        client.send(place, "done")
        client.offsets("first-group", place, 7)
        client.end(commit=True)
