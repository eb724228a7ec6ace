"""kafkajs in groups: what its consumers share, commit and find again, and what its admin client says of groups."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from drivers import Record, Refused
from drivers.confluent import Confluent
from drivers.kafkajs import KafkaJs
from drivers.parameters import NewTopic

pytestmark = pytest.mark.foreign

_NON_EMPTY_GROUP = 68
_GROUP_ID_NOT_FOUND = 69


def _offsets(kafkajs: KafkaJs, group: str, topic: str) -> dict[int, int]:
    (found,) = _without_errors(kafkajs.administer(("fetchOffsets", {"groupId": group, "topics": [topic]})))
    return {each["partition"]: int(each["offset"]) for each in found[0]["partitions"]}


def test_consumer_goes_on_where_the_last_one_committed(
    kafkajs: KafkaJs, confluent: Confluent, new_topic: NewTopic, group: str
) -> None:
    topic = new_topic()
    confluent.produce(topic, [Record(value=b"%d" % n) for n in range(5)])
    first = kafkajs.share([{"groupId": group}], [topic], 5)
    assert _offsets(kafkajs, group, topic) == {0: 5}
    confluent.produce(topic, [Record(value=b"later")])
    second = kafkajs.share([{"groupId": group}], [topic], 1)
    assert [_places(found) for found in (first, second)] == [[(0, n) for n in range(5)], [(0, 5)]]


def test_offset_that_the_application_commits_is_kept(
    kafkajs: KafkaJs, confluent: Confluent, new_topic: NewTopic, group: str
) -> None:
    topic = new_topic()
    confluent.produce(topic, [Record(value=b"x")] * 5)
    place = {"topic": topic, "partition": 0, "offset": "3", "metadata": "by hand"}
    kafkajs.share([{"groupId": group}], [topic], 5, run={"autoCommit": False}, commit=[place])
    (found,) = _without_errors(kafkajs.administer(("fetchOffsets", {"groupId": group, "topics": [topic]})))
    assert found[0]["partitions"] == [{"partition": 0, "offset": "3", "metadata": "by hand"}]


def test_consumer_seeks(kafkajs: KafkaJs, confluent: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic()
    confluent.produce(topic, [Record(value=b"%d" % n) for n in range(5)])
    assert [each.record.value for each in kafkajs.consume(topic, 2, offset=3)] == [b"3", b"4"]


def test_consumer_finds_topics_by_a_regular_expression(
    kafkajs: KafkaJs, confluent: Confluent, unused_name: str, group: str
) -> None:
    for suffix in ("a", "b", "other"):
        confluent.create_topic(f"{unused_name}-{suffix}")
        confluent.produce(f"{unused_name}-{suffix}", [Record(value=b"x")])
    found = kafkajs.share([{"groupId": group}], [{"pattern": f"^{unused_name}-[ab]$"}], 2)
    assert set(found["members"][0]["assignment"]) == {f"{unused_name}-a", f"{unused_name}-b"}


def test_two_consumers_share_partitions_and_are_described(kafkajs: KafkaJs, new_topic: NewTopic, group: str) -> None:
    topic = new_topic(partitions=4)
    messages = [{"value": f"{n}", "partition": n % 4} for n in range(40)]
    found = kafkajs.share(
        [{"groupId": group}, {"groupId": group}], [topic], 40, send={"topic": topic, "messages": messages},
        calls=[["describeGroups", [group]], ["listGroups"], ["deleteGroups", [group]]],
    )  # fmt: skip
    held = [set(member["assignment"][topic]) for member in found["members"]]
    assert [len(partitions) for partitions in held] == [2, 2]
    assert set.union(*held) == {0, 1, 2, 3}
    for member, partitions in zip(found["members"], held, strict=True):
        assert {each["partition"] for each in member["records"]} == partitions
    described, listed, deleted = found["calls"]
    (told,) = described["groups"]
    assert (told["state"], told["protocolType"], told["protocol"]) == ("Stable", "consumer", "RoundRobinAssigner")
    assert [member["clientId"] for member in told["members"]] == ["kafkajs", "kafkajs"]
    assert {"groupId": group, "protocolType": "consumer"} in listed["groups"]
    assert isinstance(deleted, Refused)
    assert deleted.code == _NON_EMPTY_GROUP
    assert _offsets(kafkajs, group, topic) == dict.fromkeys(range(4), 10)


def test_group_is_deleted_and_then_unknown(
    kafkajs: KafkaJs, confluent: Confluent, new_topic: NewTopic, group: str
) -> None:
    topic = new_topic()
    confluent.produce(topic, [Record(value=b"x")])
    kafkajs.share([{"groupId": group}], [topic], 1)
    described, deleted, listed, again = kafkajs.administer(
        ("describeGroups", [group]), ("deleteGroups", [group]), ("listGroups",), ("deleteGroups", [group])
    )
    assert described["groups"][0]["state"] == "Empty"
    assert [each["errorCode"] for each in deleted] == [0]
    assert group not in {each["groupId"] for each in listed["groups"]}
    assert again.code == _GROUP_ID_NOT_FOUND
    assert _offsets(kafkajs, group, topic) == {0: -1}


def test_offsets_are_set_and_reset(kafkajs: KafkaJs, confluent: Confluent, new_topic: NewTopic, group: str) -> None:
    """Its admin client joins the group for this and rests for five seconds: both at once, then."""
    topic = new_topic(partitions=2)
    for partition in range(2):
        confluent.produce(topic, [Record(value=b"x")] * 5, partition=partition)

    def change(name: str, method: str, **arguments: Any) -> dict[int, str]:
        place = {"groupId": f"{group}-{name}", "topic": topic}
        question = {"groupId": f"{group}-{name}", "topics": [topic]}
        _, (found,) = _without_errors(
            kafkajs.administer((method, {**place, **arguments}), ("fetchOffsets", question)),
        )
        return {each["partition"]: each["offset"] for each in found["partitions"]}

    places = [{"partition": 0, "offset": "2"}, {"partition": 1, "offset": "4"}]
    with ThreadPoolExecutor(2) as pool:
        given = pool.submit(change, "set", "setOffsets", partitions=places)
        first = pool.submit(change, "first", "resetOffsets", earliest=True)
    assert given.result() == {0: "2", 1: "4"}
    # It commits -2 for the first offset, and takes it for what it means when it reads it.
    assert first.result() == {0: "-2", 1: "-2"}


def _places(found: dict[str, Any]) -> list[tuple[int, int]]:
    return [(each["partition"], int(each["offset"])) for member in found["members"] for each in member["records"]]


def _without_errors(found: list[Any]) -> list[Any]:
    for each in found:
        if isinstance(each, Refused):
            raise each
    return found
