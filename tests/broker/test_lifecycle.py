"""A broker's life: start, settings, stop, start again."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from ottla.model.errors import ErrorCode
from ottla.testing import BrokerProcess
from ottla.testing.process import TEST_SETTINGS
from ottla.testing.pytest_plugin import StartBroker
from ottla.testing.raw import RawClient, batch_of, produce_request
from ottla.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

pytestmark = pytest.mark.broker


def produce(broker: BrokerProcess, topic: str, values: list[bytes], **settings: object) -> list[int]:
    offsets: list[int] = []

    def delivered(error: object, message: object) -> None:
        assert error is None, error
        offsets.append(message.offset())  # type: ignore[attr-defined]

    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, **settings})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=delivered)
    assert producer.flush(20) == 0
    return offsets


def consume(broker: BrokerProcess, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    while len(values) < count and (messages := consumer.consume(count - len(values), timeout=60)):
        values += [message.value() for message in messages]
    consumer.close()
    return values


def run_broker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ottla", "broker", *arguments], capture_output=True, text=True, timeout=90
    )


def test_records_survive_a_clean_restart(fresh_ottla_broker: BrokerProcess) -> None:
    values = [b"%d" % number for number in range(500)]
    produce(fresh_ottla_broker, "kept", values)
    assert fresh_ottla_broker.stop() == 0
    fresh_ottla_broker.launch()
    assert consume(fresh_ottla_broker, "kept", 500) == values
    assert produce(fresh_ottla_broker, "kept", [b"more"]) == [500]
    assert "not clean" not in fresh_ottla_broker.errors()


def test_records_survive_kill_9_and_the_leader_epoch_goes_up(fresh_ottla_broker: BrokerProcess) -> None:
    values = [b"%d" % number for number in range(500)]
    produce(fresh_ottla_broker, "kept", values, acks="1")
    fresh_ottla_broker.kill()
    fresh_ottla_broker.launch()
    assert consume(fresh_ottla_broker, "kept", 500) == values
    dump = (Path(fresh_ottla_broker.data) / "kept-0" / "leader-epoch-checkpoint").read_text()
    assert dump.split("\n")[:3] == ["0", "1", "0 0"]
    produce(fresh_ottla_broker, "kept", [b"more"])
    dump = (Path(fresh_ottla_broker.data) / "kept-0" / "leader-epoch-checkpoint").read_text()
    assert dump.split("\n")[:4] == ["0", "2", "0 0", "1 500"]


def test_deleted_topic_is_gone_after_restart_and_can_be_made_again(fresh_ottla_broker: BrokerProcess) -> None:
    produce(fresh_ottla_broker, "again", [b"old"])
    admin = AdminClient({"bootstrap.servers": fresh_ottla_broker.bootstrap})
    admin.delete_topics(["again"])["again"].result(10)
    fresh_ottla_broker.restart()
    assert "again" not in admin.list_topics(timeout=60).topics
    assert produce(fresh_ottla_broker, "again", [b"new"]) == [0]
    assert consume(fresh_ottla_broker, "again", 1) == [b"new"]


def test_topic_settings_change_at_run_time_and_survive_restart(fresh_ottla_broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": fresh_ottla_broker.bootstrap})
    admin.create_topics([NewTopic("small", 1, 1)])["small"].result(10)
    entry = ConfigEntry("max.message.bytes", "200", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "small", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)
    failures: list[str] = []
    for _ in range(2):
        producer = Producer({"bootstrap.servers": fresh_ottla_broker.bootstrap})
        producer.produce("small", b"x" * 500, on_delivery=lambda error, _: failures.append(error.name()))
        producer.flush(10)
        fresh_ottla_broker.restart()
    assert failures == ["MSG_SIZE_TOO_LARGE"] * 2


def test_several_log_directories_share_the_partitions(start_ottla_broker: StartBroker, tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    broker = start_ottla_broker(data=str(paths[0]), settings={"log.dirs": ",".join(map(str, paths))})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("spread", 4, 1)])["spread"].result(10)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(4):
        producer.produce("spread", b"v", partition=partition)
    assert producer.flush(10) == 0
    assert [len(list(path.glob("spread-*"))) for path in paths] == [2, 2]
    broker.restart()
    assert consume(broker, "spread", 1) == [b"v"]


def test_broker_starts_without_a_log_directory_that_cannot_be_used(
    start_ottla_broker: StartBroker, tmp_path: Path
) -> None:  # fmt: skip
    paths = [tmp_path / "a", tmp_path / "b"]
    broker = start_ottla_broker(data=str(paths[0]), settings={"log.dirs": ",".join(map(str, paths))})
    topics = ("one", "two")
    for topic in topics:
        produce(broker, topic, [b"v"])
    (kept,), (offline,) = ([topic for topic in topics if (path / f"{topic}-0").exists()] for path in paths)
    broker.stop()
    paths[1].rename(tmp_path / "away")
    paths[1].write_text("")
    broker.launch()
    assert f"log directory {paths[1]} cannot be used: a file is in the place of the directory" in broker.errors()
    assert consume(broker, kept, 1) == [b"v"]
    produce(broker, "new", [b"v"])
    with RawClient(broker.bootstrap) as client:
        answer = client.ask(produce_request((offline, 0, batch_of(b"v")), acks=-1), 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        directories = client.ask(DescribeLogDirsRequest(topics=None), 4).results
        assert [each.error_code for each in directories] == [0, ErrorCode.KAFKA_STORAGE_ERROR]
    broker.stop()
    paths[1].unlink()
    (tmp_path / "away").rename(paths[1])
    broker.launch()
    for topic in (*topics, "new"):
        assert consume(broker, topic, 1) == [b"v"]
    broker.stop()
    paths[0].rename(tmp_path / "away")
    paths[0].write_text("")
    done = run_broker("--data", ",".join(map(str, paths)), "--listener", "PLAINTEXT://127.0.0.1:0")
    assert done.returncode == 1 and f"{paths[0]} cannot be used: a file is in the place" in done.stderr


def error_of_list_offsets(client: RawClient, topic: str, timestamp: int) -> int:
    wanted = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
    code: int = client.ask(request, 7).topics[0].partitions[0].error_code
    return code


def test_segment_that_becomes_unreadable_costs_only_the_requests_that_need_it(
    fresh_ottla_broker: BrokerProcess,
) -> None:
    broker = fresh_ottla_broker
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("timed", 1, 1, config={"segment.bytes": "600"})])["timed"].result(10)
    with RawClient(broker.bootstrap) as client:
        for number in range(6):
            batch = batch_of(b"v" * 200, timestamp=1_700_000_000_000 + number)
            answer = client.ask(produce_request(("timed", 0, batch), acks=-1), 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
        broker.restart()
        segment = Path(broker.data) / "timed-0" / f"{0:020d}.log"
        segment.unlink()
        segment.mkdir()
    with RawClient(broker.bootstrap) as client:
        assert error_of_list_offsets(client, "timed", 1_700_000_000_000) == ErrorCode.KAFKA_STORAGE_ERROR
        assert error_of_list_offsets(client, "timed", 1_700_000_000_004) == 0
        assert error_of_list_offsets(client, "timed", -3) == 0
    assert produce(broker, "timed", [b"more"]) == [6]
    assert "Traceback" not in broker.errors()


def test_records_of_years_ago_are_deleted_at_the_next_check_which_test_brokers_do_not_reach(
    start_ottla_broker: StartBroker,
) -> None:
    broker = start_ottla_broker(settings={"log.retention.check.interval.ms": "100"})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("old", b"v", timestamp=1_700_000_000_000)
    assert producer.flush(10) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "old"})
    deadline = time.monotonic() + 60
    while consumer.get_watermark_offsets(TopicPartition("old", 0), 10) != (1, 1):
        assert time.monotonic() < deadline, "the record is still there"
    consumer.close()
    # A broker of a test session may run for longer than the five minutes between two checks.
    assert int(TEST_SETTINGS["log.retention.check.interval.ms"]) == 24 * 3600 * 1000


def test_log_that_cannot_be_read_is_offline_and_all_others_start(start_ottla_broker: StartBroker) -> None:
    broker = start_ottla_broker(settings={"metrics.listener": "HTTP://127.0.0.1:0"})
    for topic in ("bad", "good"):
        produce(broker, topic, [b"v"] * 3)
    broker.stop()
    segment = Path(broker.data) / "bad-0" / f"{0:020d}.log"
    kept = segment.read_bytes()
    segment.unlink()
    segment.mkdir()
    broker.launch()
    assert consume(broker, "good", 3) == [b"v"] * 3
    with RawClient(broker.bootstrap) as client:
        answer = client.ask(produce_request(("bad", 0, batch_of(b"v")), acks=-1), 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        for timestamp in (0, -1, -3):
            assert error_of_list_offsets(client, "bad", timestamp) == ErrorCode.KAFKA_STORAGE_ERROR
        (directory,) = client.ask(DescribeLogDirsRequest(topics=None), 4).results
        assert directory.error_code == 0
        assert "good" in (names := [topic.name for topic in directory.topics]) and "bad" not in names
    page = urllib.request.urlopen(broker.ready_line.split("metrics=")[1], timeout=10).read().decode()
    assert "ottla_offline_replicas 1\n" in page
    assert "Traceback" not in broker.errors()

    broker.stop()
    segment.rmdir()
    segment.write_bytes(kept)
    broker.launch()
    assert consume(broker, "bad", 3) == [b"v"] * 3


def test_clients_get_the_address_they_dialled(start_ottla_broker: StartBroker) -> None:
    broker = start_ottla_broker(settings={"listeners": "PLAINTEXT://0.0.0.0:0", "allow.insecure.listeners": "true"})
    for host in ("127.0.0.1", "127.0.0.2"):
        brokers = AdminClient({"bootstrap.servers": f"{host}:{broker.port}"}).list_topics(timeout=60).brokers
        assert [(b.host, b.port) for b in brokers.values()] == [(host, broker.port)]


def test_what_is_advertised_is_what_clients_get(start_ottla_broker: StartBroker) -> None:
    broker = start_ottla_broker(settings={"advertised.listeners": "PLAINTEXT://broker.example:1234"})
    brokers = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=60).brokers
    assert [(b.host, b.port) for b in brokers.values()] == [("broker.example", 1234)]


def test_metrics_are_served_for_prometheus(start_ottla_broker: StartBroker) -> None:
    broker = start_ottla_broker(settings={"metrics.listener": "HTTP://127.0.0.1:0"})
    produce(broker, "counted", [b"v"] * 10)
    address = broker.ready_line.split("metrics=")[1]
    page = urllib.request.urlopen(address, timeout=60).read().decode()
    assert 'ottla_requests_total{api="Produce"}' in page
    assert 'ottla_high_watermark{topic="counted",partition="0"} 10\n' in page
    assert "ottla_offline_replicas 0\n" in page


def test_unknown_setting_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    done = run_broker("--data", str(tmp_path / "data"), "-X", "log.retension.ms=5")
    assert done.returncode == 2
    assert "log.retention.ms" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_port_that_is_taken_is_named_and_nothing_is_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_broker("--data", str(tmp_path / "data"), "--listener", f"PLAINTEXT://127.0.0.1:{port}")
    assert done.returncode == 1
    assert str(port) in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "data").exists()


def test_metrics_port_that_is_taken_is_named_and_nothing_is_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        metrics = f"127.0.0.1:{taken.getsockname()[1]}"
        data = str(tmp_path / "data")
        done = run_broker("--data", data, "--listener", "PLAINTEXT://127.0.0.1:0", "--metrics", metrics)
    assert done.returncode == 1
    assert metrics in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("words", "code", "advice"),
    [
        (("--listener", "PLAINTEXT://192.0.2.1:9092"), 1, "this machine has no address 192.0.2.1"),
        (("--metrics", "192.0.2.1:9464"), 1, "this machine has no address 192.0.2.1"),
        (("--data", "{tmp}/file"), 1, "{tmp}/file cannot be used: a file is in the place of the directory"),
        (("--data", "{tmp}/file/below"), 1, "a file is in the place of the directory; choose a directory with --data"),
        (("--config", "{tmp}/missing"), 2, "{tmp}/missing does not exist; check the path after --config"),
        (("--config", "{tmp}"), 2, "cannot be read: Is a directory; check --config"),
    ],
)
def test_start_that_fails_says_what_to_do(words: tuple[str, str], code: int, advice: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    given = {"--data": str(tmp_path / "data"), "--listener": "PLAINTEXT://127.0.0.1:0"}
    given |= {"-X": "allow.insecure.listeners=true"}
    given |= {words[0]: words[1].format(tmp=tmp_path)}
    done = run_broker(*itertools.chain.from_iterable(given.items()))
    assert done.returncode == code
    assert advice.format(tmp=tmp_path) in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_open_listener_without_security_is_refused(tmp_path: Path) -> None:
    refused = run_broker("--data", str(tmp_path / "data"), "--listener", "PLAINTEXT://0.0.0.0:0")
    assert refused.returncode == 1
    assert "ottla broker: listener PLAINTEXT://0.0.0.0:0 uses PLAINTEXT" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_server_properties_file_is_read_and_options_win(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("num.partitions=4\nbroker.id=7\n# comment\nprocess.roles=broker,controller\n")
    with BrokerProcess.start(settings={"num.partitions": "2"}) as broker:
        broker.stop()
    done = subprocess.Popen(
        [sys.executable, "-m", "ottla", "broker", "--data", str(tmp_path / "d"), "--listener", "PLAINTEXT://127.0.0.1:0",
         "--config", str(config), "-X", "num.partitions=2"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert done.stdout is not None
        ready = done.stdout.readline()
        assert "id=7" in ready
        admin = AdminClient({"bootstrap.servers": ready.split()[1].removeprefix("PLAINTEXT://")})
        admin.create_topics([NewTopic("t", -1, 1)])["t"].result(10)
        assert len(admin.list_topics(timeout=60).topics["t"].partitions) == 2
    finally:
        done.terminate()
        done.wait(60)
        done.stdout.close()


def test_clean_stop_notes_where_every_log_ended(fresh_ottla_broker: BrokerProcess) -> None:
    produce(fresh_ottla_broker, "noted", [b"v"] * 3)
    fresh_ottla_broker.stop()
    note = json.loads((Path(fresh_ottla_broker.data) / ".kafka_cleanshutdown").read_text())
    assert note["logs"]["noted-0"][0] == 3
    fresh_ottla_broker.launch()
    assert not (Path(fresh_ottla_broker.data) / ".kafka_cleanshutdown").exists()


def test_port_of_a_stopped_broker_stays_reserved_until_it_is_launched_again(fresh_ottla_broker: BrokerProcess) -> None:
    port = fresh_ottla_broker.port
    fresh_ottla_broker.stop()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    fresh_ottla_broker.launch()
    assert fresh_ottla_broker.port == port
    AdminClient({"bootstrap.servers": fresh_ottla_broker.bootstrap}).list_topics(timeout=60)
