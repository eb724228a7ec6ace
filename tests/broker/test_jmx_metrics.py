"""The names that the JMX exporter gives the metrics of Apache Kafka, on the metrics page of a broker."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ottla.admin.client import AdminClient
from ottla.client.cluster import Isolation
from ottla.client.fetching import PartitionReader
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.testing import BrokerProcess

pytestmark = [pytest.mark.broker, pytest.mark.client]

GAPS = Path(__file__).parents[2] / "docs" / "reference" / "gaps.md"
ORDERS = TopicPartition("orders", 0)
Series = dict[str, list[tuple[dict[str, str], float]]]

_TOPIC = "kafka_server_brokertopicmetrics"
_OF_PARTITION = frozenset({"topic", "partition"})
#: rows 1 to 32 of the names that dashboards use, and the labels that one of the series must have
NAMES: dict[str, frozenset[str]] = {
    **dict.fromkeys((
        "kafka_controller_kafkacontroller_activecontrollercount",
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "kafka_controller_kafkacontroller_globaltopiccount", "kafka_controller_kafkacontroller_globalpartitioncount",
        "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        "kafka_controller_controllerstats_leaderelectionrateandtimems_count",
        "kafka_server_replicamanager_underreplicatedpartitions",
        "kafka_server_replicamanager_underminisrpartitioncount", "kafka_server_replicamanager_atminisrpartitioncount",
        "kafka_server_replicamanager_partitioncount", "kafka_server_replicamanager_leadercount",
        "kafka_server_replicamanager_offlinereplicacount", "kafka_server_replicamanager_isrshrinks_total",
        "kafka_server_replicamanager_isrexpands_total", f"{_TOPIC}_replicationbytesin_total",
        f"{_TOPIC}_replicationbytesout_total", f"{_TOPIC}_totalproducerequests_total",
        f"{_TOPIC}_totalfetchrequests_total", "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        "kafka_network_socketserver_networkprocessoravgidlepercent",
        "kafka_network_socketserver_networkprocessoravgidle_percent", "kafka_network_requestchannel_requestqueuesize",
        "kafka_log_logflushstats_logflushrateandtimems_count",
        "kafka_log_logflushstats_logflushrateandtimems_count_total",
        "kafka_coordinator_group_groupmetadatamanager_numgroups",
        "kafka_coordinator_group_groupmetadatamanager_numgroupsstable",
        "kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance",
        "kafka_coordinator_group_groupmetadatamanager_numgroupsempty",
        "kafka_coordinator_group_groupmetadatamanager_numgroupsdead",
        "kafka_coordinator_group_groupmetadatamanager_numoffsets", "process_cpu_seconds_total",
        "process_resident_memory_bytes", "process_open_fds", "process_max_fds", "process_start_time_seconds",
    ), frozenset[str]()),
    f"{_TOPIC}_messagesin_total": frozenset({"topic"}),
    f"{_TOPIC}_bytesin_total": frozenset({"topic"}),
    f"{_TOPIC}_bytesout_total": frozenset({"topic"}),
    "kafka_network_processor_idlepercent": frozenset({"networkProcessor"}),
    "kafka_network_requestmetrics_requests_total": frozenset({"request"}),
    "kafka_network_requestmetrics_totaltimems": frozenset({"request", "quantile"}),
    "kafka_network_requestmetrics_totaltimems_count": frozenset({"request"}),
    "kafka_network_requestmetrics_totaltimems_count_total": frozenset({"request"}),
    "kafka_network_requestchannel_responsequeuesize": frozenset({"processor"}),
    "kafka_server_delayedoperationpurgatory_purgatorysize": frozenset({"delayedOperation"}),
    "kafka_server_replicafetchermanager_maxlag": frozenset({"clientId"}),
    "kafka_log_log_size": _OF_PARTITION,
    "kafka_log_log_logstartoffset": _OF_PARTITION,
    "kafka_log_log_logendoffset": _OF_PARTITION,
    "kafka_log_log_numlogsegments": _OF_PARTITION,
    "kafka_cluster_partition_underreplicated": _OF_PARTITION,
    "kafka_cluster_partition_insyncreplicascount": _OF_PARTITION,
    "kafka_cluster_partition_replicascount": _OF_PARTITION,
    "kafka_server_socketservermetrics_connection_count": frozenset({"listener", "networkProcessor"}),
}  # fmt: skip
#: names of the same rows that a broker does not have; the page of gaps says why
MISSING = (
    f"{_TOPIC}_bytesrejected_total", f"{_TOPIC}_failedproducerequests_total", f"{_TOPIC}_failedfetchrequests_total",
    "kafka_network_requestmetrics_requestqueuetimems", "kafka_network_requestmetrics_localtimems",
    "kafka_network_requestmetrics_remotetimems", "kafka_network_requestmetrics_responsequeuetimems",
    "kafka_network_requestmetrics_responsesendtimems", "kafka_network_requestmetrics_throttletimems",
    "kafka_network_requestmetrics_errors_total", "kafka_controller_controllerstats_leaderelectionrateandtimems",
    "kafka_log_logflushstats_logflushrateandtimems", "kafka_server_quota_throttle_time", "kafka_server_quota_byte_rate",
    "jvm_memory_used_bytes", "jvm_gc_collection_seconds_sum",
)  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess.start(settings={"metrics.listener": "HTTP://127.0.0.1:0"}) as started:
        yield started


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[AdminClient]:
    with AdminClient(broker.bootstrap, {}, timeout_s=60) as opened:
        yield opened


def scrape(broker: BrokerProcess) -> Series:
    with urllib.request.urlopen(broker.ready_line.split("metrics=")[1], timeout=60) as page:
        text = page.read().decode()
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def value(series: Series, name: str, **labels: str) -> float:
    (found,) = [number for own, number in series[name] if own == labels]
    return found


def produce(client: AdminClient, count: int) -> int:
    """Produce a batch and return its size in bytes."""
    batch = build_batch([Record(timestamp=1, key=None, value=b"v" * 100) for _ in range(count)])
    client.cluster.produce(ORDERS, batch)
    return len(batch)


def test_names_of_the_jmx_exporter_are_on_the_page_or_in_the_gaps(broker: BrokerProcess, client: AdminClient) -> None:
    scrape(broker)
    client.cluster.create_topic("orders", 2)
    size = produce(client, 5) + produce(client, 7)
    reader = PartitionReader(client.cluster, ORDERS, 0, 12, isolation=Isolation.READ_UNCOMMITTED)
    with reader:
        for _ in reader:
            pass
    client.cluster.commit("group", {ORDERS: 3})
    found = scrape(broker)
    assert NAMES.keys() - found.keys() == set()
    for name, labels in NAMES.items():
        assert any(labels == own.keys() for own, _ in found[name]), name
    assert value(found, f"{_TOPIC}_messagesin_total", topic="orders") == 12
    assert value(found, f"{_TOPIC}_bytesin_total", topic="orders") == size
    assert value(found, f"{_TOPIC}_bytesout_total", topic="orders") == size
    # The commit of the group is a record, too.
    assert value(found, f"{_TOPIC}_messagesin_total") == 13
    assert value(found, "kafka_log_log_logendoffset", topic="orders", partition="0") == 12
    assert value(found, "kafka_coordinator_group_groupmetadatamanager_numgroupsempty") == 1
    gaps = GAPS.read_text()
    for name in MISSING:
        assert name not in found
        assert f"`{name}`" in gaps, name


def test_topics_with_series_are_limited_and_internal_ones_come_last(broker: BrokerProcess, client: AdminClient) -> None:
    for name in ("a-topic", "b-topic"):
        client.cluster.create_topic(name, 1)
    client.alter_config("broker", "0", {"metrics.jmx.topics.max": "2"}, [])
    found = scrape(broker)
    assert {labels["topic"] for labels, _ in found["kafka_log_log_size"]} == {"a-topic", "b-topic"}
    client.alter_config("broker", "0", {"metrics.jmx.topics.max": "0"}, [])
    assert "kafka_log_log_size" not in scrape(broker)
