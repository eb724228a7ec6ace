"""Groups as Python's clients use them: members that share, commit, seek and pause, and admin clients that look on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from drivers import DEADLINE_S, Described, GroupAdmin, Member, Place, Read, Record, Refused
from drivers.aio_groups import AiokafkaGroups
from drivers.confluent import Confluent
from drivers.confluent_groups import ConfluentGroups
from drivers.kafka_python_groups import KafkaPythonGroups
from kafka.admin import OffsetSpec

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.client

_NON_EMPTY_GROUP = 68
_GROUP_ID_NOT_FOUND = 69
_GROUP_SUBSCRIBED_TO_TOPIC = 86

_FULL = ["confluent", "confluent-consumer", "kafka-python"]
_ALL = [*_FULL, "aiokafka"]
every_client = pytest.mark.parametrize("groups", _ALL, indirect=True)
every_full_client = pytest.mark.parametrize("groups", _FULL, indirect=True)

Join = Callable[..., Any]


@pytest.fixture
def groups(request: pytest.FixtureRequest, quick_broker: BrokerProcess) -> Any:
    """The client that the test is parametrised with."""
    bootstrap = quick_broker.bootstrap
    if request.param == "aiokafka":
        return AiokafkaGroups(bootstrap)
    if request.param == "kafka-python":
        return KafkaPythonGroups(bootstrap)
    return ConfluentGroups(bootstrap, "consumer" if request.param == "confluent-consumer" else "classic")


@pytest.fixture
def writer(quick_broker: BrokerProcess) -> Confluent:
    return Confluent(quick_broker.bootstrap)


@pytest.fixture
def topic(writer: Confluent, unused_name: str) -> str:
    """Two partitions with five records each."""
    writer.create_topic(unused_name, partitions=2)
    for partition in range(2):
        _write(writer, unused_name, partition, range(5))
    return unused_name


@pytest.fixture
def join(groups: GroupAdmin, group: str) -> Iterator[Join]:
    """Makes members of the group; those that the test has not closed are closed for it."""
    members: list[Member] = []

    def start(**options: Any) -> Member:
        member = groups.member(group, **options)
        members.append(member)
        close = member.close

        def close_once() -> None:
            members.remove(member)
            close()

        member.close = close_once  # type: ignore[method-assign]
        return member

    yield start
    for member in list(members):
        member.close()


# -- members ----------------------------------------------------------------------------------------------------------


@every_client
def test_member_goes_on_where_the_last_one_committed(join: Join, writer: Confluent, topic: str) -> None:
    first = join()
    first.subscribe(topic)
    assert sorted(_read([first], 10)) == _reads(topic, range(2), range(5))
    first.commit()
    first.close()
    _write(writer, topic, 1, [5])
    second = join()
    second.subscribe(topic)
    assert _read([second], 1) == _reads(topic, [1], [5])


@every_client
def test_members_share_partitions_and_take_over_from_those_that_leave(
    join: Join, writer: Confluent, topic: str
) -> None:
    members = [join(), join()]
    for member in members:
        member.subscribe(topic)
    _until(members, lambda: [len(member.assignment()) for member in members] == [1, 1])
    assert set.union(*(member.assignment() for member in members)) == {Place(topic, 0), Place(topic, 1)}
    members[0].close()
    _until(members[1:], lambda: len(members[1].assignment()) == 2)
    for partition in range(2):
        _write(writer, topic, partition, [5])
    assert {read.place for read in _read(members[1:], 2, at=5)} == {Place(topic, 0), Place(topic, 1)}


@every_client
def test_member_seeks_and_pauses(join: Join, topic: str) -> None:
    member = join()
    member.subscribe(topic)
    _read([member], 10)
    first, second = Place(topic, 0), Place(topic, 1)
    member.pause(first)
    member.seek(first, 2)
    member.seek(second, 3)
    assert _read([member], 2) == _reads(topic, [1], [3, 4])
    member.resume(first)
    assert _read([member], 3) == _reads(topic, [0], [2, 3, 4])


@every_client
def test_member_commits_what_it_is_told_to(join: Join, topic: str) -> None:
    member = join()
    member.subscribe(topic)
    _read([member], 10)
    member.commit({Place(topic, 0): 3})
    assert (member.committed(Place(topic, 0)), member.committed(Place(topic, 1))) == (3, None)


@every_client
def test_pattern_finds_topics_also_those_made_later(join: Join, writer: Confluent, unused_name: str) -> None:
    for suffix in ("a", "other"):
        writer.create_topic(f"{unused_name}-{suffix}")
    member = join()
    member.subscribe_pattern(f"^{unused_name}-[ab]$")
    _until([member], lambda: member.assignment() == {Place(f"{unused_name}-a", 0)})
    writer.create_topic(f"{unused_name}-b")
    _until([member], lambda: member.assignment() == {Place(f"{unused_name}-a", 0), Place(f"{unused_name}-b", 0)})


@every_client
def test_consumer_that_assigns_itself_commits_to_a_group(join: Join, topic: str) -> None:
    place = Place(topic, 1)
    first = join()
    first.assign(place)
    _read([first], 5)
    first.commit({place: 2})
    first.close()
    second = join()
    second.assign(place)
    assert second.committed(place) == 2
    assert _read([second], 3) == _reads(topic, [1], [2, 3, 4])


@every_client
def test_committed_records_are_read(join: Join, topic: str) -> None:
    """Nothing here is part of a transaction, so read_committed hides nothing."""
    member = join(read_committed=True)
    member.subscribe(topic)
    assert sorted(_read([member], 10)) == _reads(topic, range(2), range(5))


@every_client
def test_member_without_committed_offset_starts_at_the_end_if_it_wants(
    join: Join, writer: Confluent, topic: str
) -> None:
    member = join(reset="latest")
    member.subscribe(topic)
    _until([member], lambda: len(member.assignment()) == 2)
    deadline = time.monotonic() + DEADLINE_S
    found: list[Read] = []
    # It asks where the end is after it knows its partitions; what is written before that stays unread.
    for offset in range(5, 1000):
        _write(writer, topic, 0, [offset])
        found = member.poll()
        if found:
            break
        assert time.monotonic() < deadline
    assert min(read.offset for read in found) >= 5


@every_client
def test_static_member_comes_back_to_its_partitions(join: Join, groups: GroupAdmin, group: str, topic: str) -> None:
    first, other = join(instance="one", client_id="one"), join(instance="two", client_id="two")
    for member in (first, other):
        member.subscribe(topic)
    _until([first, other], lambda: [len(member.assignment()) for member in (first, other)] == [1, 1])
    held = first.assignment()
    first.close()
    again = join(instance="one", client_id="again")
    again.subscribe(topic)
    _until([again, other], lambda: again.assignment() == held)
    # Nobody was added: the place of the one that went was taken.
    assert {held for _, held in groups.describe_group(group).members} == {
        frozenset(member.assignment()) for member in (again, other)
    }


# -- admin ------------------------------------------------------------------------------------------------------------


@every_client
def test_group_is_listed_and_described(join: Join, groups: GroupAdmin, group: str, topic: str) -> None:
    members = [join(client_id="one"), join(client_id="two")]
    for member in members:
        member.subscribe(topic)
    _until(members, lambda: [len(member.assignment()) for member in members] == [1, 1])
    described = groups.describe_group(group)
    assert group in groups.list_groups()
    assert described.state == "Stable"
    assert dict(described.members) == {
        name: frozenset(member.assignment()) for name, member in zip(("one", "two"), members, strict=True)
    }
    for member in members:
        member.close()
    assert groups.describe_group(group) == Described(state="Empty", members=())


@every_client
def test_offsets_of_a_group_are_listed(join: Join, groups: GroupAdmin, group: str, topic: str) -> None:
    member = join()
    offsets = {Place(topic, 0): 3, Place(topic, 1): 5}
    member.assign(*offsets)
    member.commit(offsets)
    assert groups.group_offsets(group) == offsets


@every_full_client
def test_group_is_deleted_when_nobody_is_in_it(join: Join, groups: Any, group: str, topic: str) -> None:
    member = join()
    member.subscribe(topic)
    _read([member], 10)
    member.commit()
    with pytest.raises(Refused) as refused:
        groups.delete_group(group)
    assert refused.value.code == _NON_EMPTY_GROUP
    member.close()
    groups.delete_group(group)
    assert group not in groups.list_groups()
    with pytest.raises(Refused) as refused:
        groups.delete_group(group)
    assert refused.value.code == _GROUP_ID_NOT_FOUND


@every_full_client
def test_offsets_are_altered_for_members_to_come(join: Join, groups: Any, group: str, topic: str) -> None:
    groups.set_group_offsets(group, {Place(topic, 0): 4, Place(topic, 1): 5})
    member = join()
    member.subscribe(topic)
    assert _read([member], 1) == _reads(topic, [0], [4])


@pytest.mark.parametrize("groups", ["kafka-python"], indirect=True)
def test_offsets_are_deleted_unless_a_member_is_subscribed(
    join: Join, groups: KafkaPythonGroups, group: str, topic: str
) -> None:
    first, second = Place(topic, 0), Place(topic, 1)
    member = join()
    member.subscribe(topic)
    _read([member], 10)
    member.commit()
    with pytest.raises(Refused) as refused:
        groups.delete_group_offset(group, first)
    assert refused.value.code == _GROUP_SUBSCRIBED_TO_TOPIC
    member.close()
    groups.delete_group_offset(group, first)
    assert groups.group_offsets(group) == {second: 5}
    groups.reset_group_offset(group, second, OffsetSpec.EARLIEST)
    assert groups.group_offsets(group) == {second: 0}


# -- what the tests share ----------------------------------------------------------------------------------------------


def _write(writer: Confluent, topic: str, partition: int, numbers: Any) -> None:
    writer.produce(topic, [Record(value=b"%d" % number) for number in numbers], partition=partition)


def _reads(topic: str, partitions: Any, offsets: Any) -> list[Read]:
    return [Read(Place(topic, partition), offset, b"%d" % offset) for partition in partitions for offset in offsets]


def _read(members: list[Any], count: int, *, at: int = 0) -> list[Read]:
    """Poll the members for ``count`` records, at that offset or later."""
    deadline = time.monotonic() + DEADLINE_S
    found: list[Read] = []
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {found} came"
        found += [read for read in _poll(members) if read.offset >= at]
    return found


def _until(members: list[Any], satisfied: Callable[[], bool]) -> None:
    """Poll the members until it is so."""
    deadline = time.monotonic() + DEADLINE_S
    while not satisfied():
        assert time.monotonic() < deadline, f"they hold {[member.assignment() for member in members]}"
        _poll(members)


def _poll(members: list[Any]) -> list[Read]:
    """All at the same time: kafka-python begins to join anew with every poll, and would never meet the others."""
    with ThreadPoolExecutor(len(members)) as pool:
        return [read for found in pool.map(lambda member: member.poll(), members) for read in found]
