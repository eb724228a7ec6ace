"""Admin clients of others drive a cluster of three brokers, unchanged. Kafka's tools: test_cluster_java_tools.py."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from drivers import Place, Record, Refused, golang
from drivers.cluster import ClusterState, Described
from drivers.cluster_admins import DOWNGRADE, UPGRADE, ConfluentAdmin, FranzAdmin, KafkaPythonAdmin, SaramaAdmin
from drivers.confluent import Confluent
from drivers.confluent_transactions import ConfluentTransactions

from campaign.processes import wait_until
from ottla.model.errors import ErrorCode
from ottla.testing import ClusterProcess

pytestmark = pytest.mark.foreign

_BENCH = Path(__file__).resolve().parents[2] / ".bench"
_numbers = itertools.count()

all_clients = pytest.mark.parametrize("client", ["confluent", "kafka_python", "sarama", "franz_go"], indirect=True)
#: librdkafka has no requests for reassignments and log directories
moving_clients = pytest.mark.parametrize("client", ["kafka_python", "sarama", "franz_go"], indirect=True)
#: sarama has no requests for features, the quorum, transactions and changes of log directories either
feature_clients = pytest.mark.parametrize("client", ["kafka_python", "franz_go"], indirect=True)


def make_client(name: str, bootstrap: str) -> Any:
    """Return the client. Skip the test if it cannot be built."""
    if name in ("confluent", "kafka_python"):
        return {"confluent": ConfluentAdmin, "kafka_python": KafkaPythonAdmin}[name](bootstrap)
    source, command = {"sarama": ("sarama", "sarama"), "franz_go": ("go", "franz")}[name]
    problem = golang.build(source, _BENCH / "go" / command)
    if problem is not None:
        pytest.skip(problem)
    return (SaramaAdmin if name == "sarama" else FranzAdmin)(bootstrap, _BENCH / "go" / command)


@pytest.fixture
def client(request: pytest.FixtureRequest, ottla_cluster: ClusterProcess) -> Any:
    return make_client(request.param, ottla_cluster.bootstrap)


@pytest.fixture(scope="module")
def state(ottla_cluster: ClusterProcess) -> ClusterState:
    return ClusterState(ottla_cluster)


@pytest.fixture(scope="module")
def producer(ottla_cluster: ClusterProcess) -> Confluent:
    return Confluent(ottla_cluster.bootstrap)


@pytest.fixture
def topic() -> str:
    return f"admin-{next(_numbers)}"


@all_clients
def test_topics_are_created_with_replicas_and_assignments(client: Any, state: ClusterState, topic: str) -> None:
    client.create(topic, 3, 3)
    # Its first replica leads a partition, unless a busy machine has interrupted it.
    assert sorted(each.replicas[0] for each in state.wait_in_sync(topic, 3)) == [1, 2, 3]
    with pytest.raises(Refused) as refused:
        client.create(topic, 3, 3)
    assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assigned = f"{topic}-assigned"
    client.create_assigned(assigned, [[1, 2], [2, 3]])
    state.wait_in_sync(assigned, 2)
    client.grow(assigned, 3, [[3, 1]])
    found = state.wait_in_sync(assigned, 3)
    assert [each.replicas for each in found] == [(1, 2), (2, 3), (3, 1)]
    wait_until(lambda: client.describe(assigned) == state.wait_in_sync(assigned, 3), lambda: str(found))


@moving_clients
def test_partition_is_moved_and_its_preferred_replica_elected(
    client: Any, state: ClusterState, producer: Confluent, topic: str
) -> None:
    client.create_assigned(topic, [[1, 2]])
    state.wait_in_sync(topic, 1)
    producer.produce(topic, [Record(value=b"x" * 1000)] * 10)
    client.reassign(topic, [3, 1])
    state.wait(topic, lambda found: found[0].replicas == (3, 1) and found[0].is_in_sync)
    assert client.reassignments(topic) == []
    assert client.elect(topic, "preferred") == 0
    state.wait(topic, lambda found: found[0].leader == 3)
    assert client.elect(topic, "preferred") == ErrorCode.ELECTION_NOT_NEEDED
    assert client.elect(topic, "unclean") == ErrorCode.ELECTION_NOT_NEEDED
    # A replica that was removed is deleted in the background.
    wait_until(lambda: client.log_dirs(topic)[2] == {}, lambda: str(client.log_dirs(topic)))
    sizes = client.log_dirs(topic)
    assert sizes[1] == sizes[3] and sizes[1][0] > 1000


@feature_clients
def test_log_directories_of_replicas_are_chosen(client: Any, state: ClusterState, topic: str) -> None:
    client.create_assigned(topic, [[1, 2]])
    state.wait_in_sync(topic, 1)
    own = {number: broker.data for number, broker in state.cluster.brokers.items()}
    assert client.alter_log_dir(topic, 1, own[1]) == 0
    assert client.alter_log_dir(topic, 2, own[1]) == ErrorCode.LOG_DIR_NOT_FOUND
    assert client.alter_log_dir(topic, 3, own[3]) == ErrorCode.REPLICA_NOT_AVAILABLE


@all_clients
def test_each_broker_has_its_own_settings(client: Any, state: ClusterState) -> None:
    controller, brokers = client.cluster()
    assert brokers == [1, 2, 3] and controller in brokers
    # A value that no other client has set: below 1,000, and another one for each broker.
    values = {number: str(10 * (next(_numbers) % 90) + number) for number in brokers}
    for number in brokers:
        client.set_broker_config(number, "background.threads", values[number])
    for number in brokers:
        assert client.broker_config(number, "background.threads") == values[number]
        assert client.broker_config(number, "log.dirs") == state.cluster.brokers[number].data


@feature_clients
def test_features_are_changed_and_the_quorum_is_described(client: Any) -> None:
    client.set_feature("transaction.version", 1, DOWNGRADE)
    # Each call connects to some broker, and a broker learns the level by watching.
    wait_until(lambda: client.features()["transaction.version"] == 1, lambda: str(client.features()))
    client.set_feature("transaction.version", 2, UPGRADE)
    wait_until(lambda: client.features()["transaction.version"] == 2, lambda: str(client.features()))
    with pytest.raises(Refused) as refused:
        client.set_feature("transaction.version", 3, UPGRADE)
    assert refused.value.code == ErrorCode.INVALID_UPDATE_VERSION
    # The quorum is ZooKeeper's, and here it has one server.
    leader, voters = client.quorum()
    assert voters == [leader]


@all_clients
def test_groups_are_found_at_their_coordinators(
    client: Any, state: ClusterState, producer: Confluent, topic: str
) -> None:
    client.create_assigned(topic, [[1, 2]])
    state.wait_in_sync(topic, 1)
    producer.produce(topic, [Record(value=b"x")] * 9)
    groups = [f"{topic}-{letter}" for letter in "abcd"]
    for number, group in enumerate(groups):
        client.commit(group, topic, number + 3)
    assert set(groups) <= client.groups()
    assert [client.offset(group, topic) for group in groups] == [3, 4, 5, 6]
    for group in groups:
        client.delete_group(group)
    assert not set(groups) & client.groups()


@feature_clients
def test_transactions_are_found_at_their_coordinators(client: Any, state: ClusterState, topic: str) -> None:
    client.create_assigned(topic, [[1, 2]])
    state.wait_in_sync(topic, 1)
    names = [f"{topic}-{letter}" for letter in "ab"]
    transactions = ConfluentTransactions(state.cluster.bootstrap)
    for name in names:
        writer = transactions.transactional(name)
        writer.begin()
        writer.send(Place(topic, 0), b"x")
        assert client.transactions(name) == {name: ("Ongoing", "Ongoing")}
        writer.commit()
        wait_until(lambda: _is_complete(client, name), lambda: name)  # noqa: B023


def _is_complete(client: Any, name: str) -> bool:
    return bool(client.transactions(name) == {name: ("CompleteCommit", "CompleteCommit")})


def test_clients_show_and_handle_a_broker_that_is_down(state: ClusterState, topic: str) -> None:
    """One test for all clients, because a broker is stopped and started."""
    names = "confluent", "kafka_python", "sarama", "franz_go"
    bootstrap = ",".join(state.cluster.brokers[number].bootstrap for number in (1, 2))
    clients = {name: make_client(name, bootstrap) for name in names}
    for name, client in clients.items():
        client.create_assigned(f"{topic}-{name}", [[3, 1]])
        client.create_assigned(f"{topic}-{name}-moved", [[1, 2]])
    for name in names:
        state.wait_in_sync(f"{topic}-{name}", 1)
        state.wait_in_sync(f"{topic}-{name}-moved", 1)
    state.cluster.brokers[3].kill()
    try:
        for name, client in clients.items():
            shown, moved = f"{topic}-{name}", f"{topic}-{name}-moved"
            state.wait(shown, lambda found: found[0].isr == (1,) and found[0].leader == 1)
            offline = () if name == "confluent" else (3,)
            assert client.describe(shown) == [Described(1, (3, 1), (1,), offline)]
            assert client.elect(shown, "preferred") == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            wait_until(lambda: client.cluster()[1] == [1, 2], lambda: "the brokers that are alive")  # noqa: B023
            if name == "confluent":
                continue
            assert sorted(client.log_dirs(shown)) == [1, 2]
            # The move waits for the broker that is down.
            client.reassign(moved, [1, 3])
            state.wait(moved, lambda found: found[0].replicas == (1, 3, 2))
            assert client.reassignments(moved) == [((1, 3, 2), (3,), (2,))]
            client.reassign(moved, None)
            state.wait(moved, lambda found: found[0].replicas == (1, 2))
            assert client.reassignments(moved) == []
        with pytest.raises(Refused) as refused:
            clients["franz_go"].unregister(1)
        assert refused.value.code == ErrorCode.INVALID_REQUEST
        clients["franz_go"].unregister(3)
    finally:
        state.cluster.brokers[3].launch()
    for name in names:
        state.wait_in_sync(f"{topic}-{name}", 1)


def test_clients_elect_a_replica_that_is_not_in_sync(state: ClusterState, producer: Confluent, topic: str) -> None:
    """Broker 2 is down while records are written; then broker 1, which alone has them, is down too."""
    names = "confluent", "kafka_python", "sarama", "franz_go"
    clients = {name: make_client(name, state.cluster.brokers[3].bootstrap) for name in names}
    brokers = state.cluster.brokers
    for name, client in clients.items():
        client.create_assigned(f"{topic}-{name}", [[1, 2]])
        state.wait_in_sync(f"{topic}-{name}", 1)
    brokers[2].kill()
    try:
        for name in names:
            state.wait(f"{topic}-{name}", lambda found: found[0].isr == (1,))
            producer.produce(f"{topic}-{name}", [Record(value=b"lost")])
        brokers[1].kill()
        brokers[2].launch()
        for name, client in clients.items():
            state.wait(f"{topic}-{name}", lambda found: found[0].leader == -1)
            assert client.elect(f"{topic}-{name}", "preferred") == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            assert client.elect(f"{topic}-{name}", "unclean") == 0
            state.wait(f"{topic}-{name}", lambda found: found[0].leader == 2)
    finally:
        for number in (1, 2):
            if not brokers[number].running:
                brokers[number].launch()
    for name in names:
        state.wait_in_sync(f"{topic}-{name}", 1)
        assert producer.watermarks(f"{topic}-{name}", 0) == (0, 0)
