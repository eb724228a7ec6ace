"""Checks of brokers and their disks."""

from __future__ import annotations

import pytest
from pictures import GIB, broker, broker_settings, brokers, directory, found, healthy, later, only, topic, topics

from ottla.client.protocol.metadata import Node
from ottla.health.findings import Severity
from ottla.health.types import Feature


def test_missing_controller_is_an_error() -> None:
    finding = only("no-controller", healthy(controller_id=None))
    assert finding.severity is Severity.ERROR and "ZooKeeper" in finding.advice


def test_broker_without_an_answer_is_named_with_the_reason() -> None:
    finding = only("silent-brokers", healthy(brokers=brokers(problem="broker 1 at a:9092 cannot be reached")))
    assert finding.names == ("1",) and "cannot be reached" in finding.text


def test_address_of_two_brokers_is_reported() -> None:
    finding = only("same-address", healthy(brokers=brokers(node=Node(1, "kafka-2.example", 9093))))
    assert finding.names == ("1", "2") and "kafka-2.example:9093" in finding.text


def test_loopback_address_is_reported_unless_the_whole_cluster_is_local() -> None:
    one = healthy(brokers=brokers(node=Node(1, "localhost", 9093)))
    assert only("loopback-address", one).names == ("1",)
    local = {number: broker(number, node=Node(number, "127.0.0.1", 9090 + number)) for number in (1, 2, 3)}
    assert "loopback-address" not in found(healthy(brokers=local, bootstrap_hosts=("localhost",)))
    assert only("loopback-address", healthy(brokers=local)).names == ("1", "2", "3")


def test_broker_without_a_rack_is_reported_if_others_have_one() -> None:
    assert only("racks-partly-set", healthy(brokers=brokers(rack=None))).names == ("1",)
    none = {number: broker(number, rack=None) for number in (1, 2, 3)}
    assert "racks-partly-set" not in found(healthy(brokers=none))


def test_broker_with_older_apis_is_named() -> None:
    assert only("mixed-versions", healthy(brokers=brokers(versions={0: (0, 11), 3: (0, 13)}))).names == ("1",)


def test_feature_below_the_level_of_all_brokers_is_information() -> None:
    behind = {number: broker(number, features={"metadata.version": Feature(27, 20)}) for number in (1, 2, 3)}
    finding = only("upgrade-not-finished", healthy(brokers=behind))
    assert finding.severity is Severity.INFO
    assert finding.text == "metadata.version is at 20, all brokers support 27"
    one_old = {**behind, 1: broker(1, features={"metadata.version": Feature(20, 20)})}
    assert "upgrade-not-finished" not in found(healthy(brokers=one_old))


def test_setting_that_differs_is_named_with_both_values() -> None:
    finding = only("different-settings", healthy(brokers=broker_settings({}, {"message.max.bytes": "99"})))
    assert finding.names == ("1",)
    assert finding.text == "message.max.bytes is 99 on broker 1, 1048588 on most others"


def test_single_replica_by_default_is_reported() -> None:
    one = broker_settings({"default.replication.factor": "1"})
    assert only("default-single-replica", healthy(brokers=one)).names == ("1", "2", "3")


def test_automatic_creation_of_topics_is_information() -> None:
    automatic = broker_settings({"auto.create.topics.enable": "true"})
    assert only("auto-created-topics", healthy(brokers=automatic)).severity is Severity.INFO


def test_short_retention_of_commits_is_reported() -> None:
    finding = only("short-offsets-retention", healthy(brokers=broker_settings({}, {"offsets.retention.minutes": "60"})))
    assert finding.text == "offsets.retention.minutes is 60" and finding.names == ("1",)


def test_messages_larger_than_a_replica_fetch_are_reported() -> None:
    big = topic("orders", max_message_bytes="20000000")
    finding = only("small-replica-fetch", healthy(topics=topics(big)))
    assert finding.text == "1 topic with max.message.bytes above 1048576 (orders)"
    small = broker_settings({"replica.fetch.max.bytes": "1000", "message.max.bytes": "1048588"})
    text = found(healthy(brokers=small, topics={}))["small-replica-fetch"].text
    assert "message.max.bytes is 1048588 on broker" in text


def test_failed_log_directory_is_an_error() -> None:
    finding = only("offline-directories", healthy(brokers=brokers(directories=(directory(1, error_code=56),))))
    assert (finding.severity, finding.names) == (Severity.ERROR, ("1:/data",))


@pytest.mark.parametrize(("free", "severity"), [(70, Severity.WARNING), (20, Severity.ERROR), (100, None)])
def test_disk_that_is_almost_full_is_reported(free: int, severity: Severity | None) -> None:
    picture = healthy(brokers=brokers(directories=(directory(1, usable_bytes=free * GIB),)))
    finding = found(picture).get("full-disks")
    assert (finding.severity if finding else None) == severity
    if finding:
        assert finding.names == ("1:/data",) and f"{free}.0 GiB free" in finding.text


def test_disk_that_fills_up_within_a_day_is_named_with_the_time() -> None:
    now = healthy(brokers=brokers(directories=(directory(1, usable_bytes=399 * GIB),)))
    finding = only("disk-full-soon", later(healthy(), now))
    assert finding.names == ("1:/data",)
    assert finding.text == "/data of broker 1 is full in 6h39m at 17.1 MiB/s"
    slow = healthy(brokers=brokers(directories=(directory(1, usable_bytes=400 * GIB - 1),)))
    assert "disk-full-soon" not in found(later(healthy(), slow))


def test_disk_of_unknown_size_is_no_problem() -> None:
    unknown = brokers(directories=(directory(1, total_bytes=None, usable_bytes=None),))
    assert found(later(healthy(brokers=unknown), healthy(brokers=unknown))) == {}


def test_broker_that_stores_most_data_is_named() -> None:
    finding = only("unequal-disks", healthy(brokers=brokers(directories=(directory(1, size_bytes=900 * GIB),))))
    assert finding.text == "broker 1 stores 900.0 GiB, a fair share are 500.0 GiB"
