"""Version 3 of the REST API: clusters, brokers, topics, partitions, configs, groups, ACLs."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from rest_process import RestClient, error_of

from ottla.testing.process import BrokerProcess

pytestmark = pytest.mark.broker


def resource(rest: RestClient, kind: str, path: str, name: str) -> dict[str, Any]:
    """Return the fields that each resource begins with."""
    metadata = {"self": f"{rest.cluster}{path}", "resource_name": f"crn:///kafka={rest.cluster_id}{name}"}
    return {"kind": kind, "metadata": metadata, "cluster_id": rest.cluster_id}


def listing(rest: RestClient, kind: str, path: str, data: list[Any]) -> dict[str, Any]:
    return {"kind": f"{kind}List", "metadata": {"self": f"{rest.cluster}{path}", "next": None}, "data": data}


# Clusters and brokers


def test_cluster_has_links_to_its_collections(rest: RestClient) -> None:
    expected = {
        **resource(rest, "KafkaCluster", "", ""),
        "controller": {"related": f"{rest.cluster}/brokers/0"},
        "acls": {"related": f"{rest.cluster}/acls"},
        "brokers": {"related": f"{rest.cluster}/brokers"},
        "broker_configs": {"related": f"{rest.cluster}/broker-configs"},
        "consumer_groups": {"related": f"{rest.cluster}/consumer-groups"},
        "topics": {"related": f"{rest.cluster}/topics"},
        "partition_reassignments": {"related": f"{rest.cluster}/topics/-/partitions/-/reassignment"},
    }
    assert rest.get(f"/v3/clusters/{rest.cluster_id}").json() == expected
    listed = rest.get("/v3/clusters")
    assert listed.status_code == 200
    assert listed.json()["data"] == [expected]
    assert listed.json()["metadata"] == {"self": f"{rest.url}/v3/clusters", "next": None}
    assert listed.json()["kind"] == "KafkaClusterList"


def test_another_cluster_id_is_not_found(rest: RestClient) -> None:
    for path in (
        "", "/topics", "/brokers", "/acls", "/consumer-groups", "/broker-configs", "/brokers/-/configs",
        "/topics/-/configs", "/topics/-/partitions/-/reassignment", "/topics/t/partitions/0/reassignment",
    ):  # fmt: skip
        assert error_of(rest.get(f"/v3/clusters/other{path}")) == (404, 404)


def test_brokers_are_listed(rest: RestClient, rest_broker: BrokerProcess) -> None:
    expected = {
        **resource(rest, "KafkaBroker", "/brokers/0", "/broker=0"),
        "broker_id": 0,
        "host": "127.0.0.1",
        "port": int(rest_broker.bootstrap.rpartition(":")[2]),
        "rack": None,
        "configs": {"related": f"{rest.cluster}/brokers/0/configs"},
        "partition_replicas": {"related": f"{rest.cluster}/brokers/0/partition-replicas"},
    }
    assert rest.get("brokers/0").json() == expected
    assert rest.get("brokers").json() == listing(rest, "KafkaBroker", "/brokers", [expected])
    assert error_of(rest.get("brokers/7")) == (404, 404)
    assert error_of(rest.get("brokers/one")) == (404, 404)
    assert error_of(rest.get("brokers/7/partition-replicas")) == (404, 404)


# Topics


def test_topic_is_created_described_enlarged_and_deleted(rest: RestClient) -> None:
    path = "/topics/v3-life"
    created = rest.post("topics", {
        "topic_name": "v3-life", "partitions_count": 2, "replication_factor": 1,
        "configs": [{"name": "cleanup.policy", "value": "compact"}],
    })  # fmt: skip
    expected = {
        **resource(rest, "KafkaTopic", path, "/topic=v3-life"),
        "topic_name": "v3-life",
        "is_internal": False,
        "replication_factor": 1,
        "partitions_count": 2,
        "partitions": {"related": f"{rest.cluster}{path}/partitions"},
        "configs": {"related": f"{rest.cluster}{path}/configs"},
        "partition_reassignments": {"related": f"{rest.cluster}{path}/partitions/-/reassignment"},
        "authorized_operations": [],
    }
    assert (created.status_code, created.json()) == (201, expected)
    assert created.headers["location"] == f"{rest.cluster}{path}"
    assert rest.get("topics/v3-life").json() == expected
    listed = rest.get("topics").json()
    assert expected in listed["data"]
    assert listed["kind"] == "KafkaTopicList"
    more = rest.patch("topics/v3-life", {"partitions_count": 3})
    assert (more.status_code, more.json()) == (200, {**expected, "partitions_count": 3})
    assert error_of(rest.patch("topics/v3-life", {"partitions_count": 2})) == (400, 40002)
    gone = rest.delete("topics/v3-life")
    assert (gone.status_code, gone.content) == (204, b"")
    assert error_of(rest.get("topics/v3-life")) == (404, 40403)
    assert error_of(rest.delete("topics/v3-life")) == (404, 40403)
    assert error_of(rest.patch("topics/v3-life", {"partitions_count": 4})) == (404, 40403)


def test_replicas_can_be_assigned(rest: RestClient) -> None:
    created = rest.post("topics", {"topic_name": "v3-assigned", "replicas_assignments": {"0": [0], "1": [0]}})
    assert created.status_code == 201
    assert (created.json()["partitions_count"], created.json()["replication_factor"]) == (2, 1)


def test_validate_only_creates_no_topic(rest: RestClient) -> None:
    checked = rest.post("topics", {"topic_name": "v3-checked", "partitions_count": 5, "validate_only": True})
    assert (checked.status_code, checked.json()["partitions_count"]) == (200, 5)
    assert error_of(rest.get("topics/v3-checked")) == (404, 40403)


def test_invalid_topics_are_rejected(rest: RestClient) -> None:
    rest.create_topic("v3-exists")
    cases: list[tuple[Any, tuple[int, int]]] = [
        ({"topic_name": "v3-exists"}, (400, 40002)),
        ({"topic_name": "v3-x", "replication_factor": 9}, (400, 40002)),
        ({"topic_name": "v3-x", "partitions_count": 0}, (400, 40002)),
        ({"topic_name": "v3-x", "configs": [{"name": "no.such", "value": "1"}]}, (400, 40002)),
        ({"topic_name": "not valid"}, (422, 42206)),
        ({"topic_name": "x" * 250}, (422, 42206)),
        ({}, (400, 400)),
        ({"topic_name": "v3-x", "partition_count": 2}, (422, 422)),
        ({"topic_name": "v3-x", "configs": [{"name": "retention.ms", "val": "1"}]}, (422, 422)),
        ({"topic_name": 7}, (400, 400)),
        ({"topic_name": "v3-x", "partitions_count": "2"}, (400, 400)),
        ({"topic_name": "v3-x", "partitions_count": True}, (400, 400)),
        ({"topic_name": "v3-x", "partitions_count": 10**30}, (400, 400)),
        ({"topic_name": "v3-x", "replicas_assignments": {"a": [0]}}, (400, 400)),
        ({"topic_name": "v3-x", "replicas_assignments": {"0": [True]}}, (400, 400)),
        ({"topic_name": "v3-x", "configs": {"name": "x"}}, (400, 400)),
        ([], (400, 400)),
        (None, (422, 42206)),
    ]
    for body, expected in cases:
        assert error_of(rest.post("topics", body)) == expected, body
    assert error_of(rest.get("topics/v3-x")) == (404, 40403)


def test_authorized_operations_are_listed_on_request(rest: RestClient) -> None:
    rest.create_topic("v3-operations")
    found = rest.get("topics/v3-operations?include_authorized_operations=true").json()["authorized_operations"]
    assert {"READ", "WRITE", "DELETE", "ALTER_CONFIGS"} <= set(found)
    assert error_of(rest.get("topics/v3-operations?include_authorized_operations=maybe")) == (400, 400)


# Partitions


def test_partitions_replicas_and_offsets(rest: RestClient, rest_broker: BrokerProcess) -> None:
    rest.create_topic("v3-parts", 2)
    producer = Producer({"bootstrap.servers": rest_broker.bootstrap})
    for _ in range(3):
        producer.produce("v3-parts", b"v", partition=1)
    producer.flush()
    path = "/topics/v3-parts/partitions/1"
    name = "/topic=v3-parts/partition=1"
    place = {"topic_name": "v3-parts", "partition_id": 1}
    partition = {
        **resource(rest, "KafkaPartition", path, name), **place,
        "leader": {"related": f"{rest.cluster}{path}/replicas/0"},
        "replicas": {"related": f"{rest.cluster}{path}/replicas"},
        "reassignment": {"related": f"{rest.cluster}{path}/reassignment"},
    }  # fmt: skip
    replica = {
        **resource(rest, "KafkaReplica", f"{path}/replicas/0", f"{name}/replica=0"), **place, "broker_id": 0,
        "is_leader": True, "is_in_sync": True, "broker": {"related": f"{rest.cluster}/brokers/0"},
    }  # fmt: skip
    assert rest.get(path[1:]).json() == partition
    listed = rest.get("topics/v3-parts/partitions").json()
    assert listed == listing(rest, "KafkaPartition", "/topics/v3-parts/partitions", [listed["data"][0], partition])
    assert rest.get(f"{path[1:]}/offset").json() == {
        **resource(rest, "KafkaPartitionWithOffsets", f"{path}/offset", f"{name}/offset"), **place,
        "earliest_offset": 0, "latest_offset": 3,
    }  # fmt: skip
    assert rest.get(f"{path[1:]}/replicas/0").json() == replica
    assert rest.get(f"{path[1:]}/replicas").json() == listing(rest, "KafkaReplica", f"{path}/replicas", [replica])
    assert replica in rest.get("brokers/0/partition-replicas").json()["data"]
    assert error_of(rest.get(f"{path[1:]}/replicas/5")) == (404, 404)
    assert error_of(rest.get("topics/v3-parts/partitions/2")) == (404, 40402)
    assert error_of(rest.get("topics/v3-parts/partitions/-1")) == (404, 404)
    for unknown in ("", "/0", "/0/replicas", "/0/replicas/0", "/0/offset", "/0/reassignment"):
        assert error_of(rest.get(f"topics/none/partitions{unknown}")) == (404, 40403)
    assert error_of(rest.get(f"{path[1:]}/offset?offset_type=latest")) == (400, 400)


def test_reassignments_of_a_quiet_cluster_are_empty(rest: RestClient) -> None:
    rest.create_topic("v3-moves")
    for path in ("topics/-/partitions/-/reassignment", "topics/v3-moves/partitions/-/reassignment"):
        assert rest.get(path).json() == listing(rest, "KafkaReassignment", f"/{path}", [])
    assert error_of(rest.get("topics/v3-moves/partitions/0/reassignment")) == (404, 404)
    assert rest.get("topics/none/partitions/-/reassignment").json()["data"] == []


# Configs


@pytest.mark.parametrize(
    ("path", "kind", "name", "fields"),
    [
        ("topics/v3-configs/configs", "KafkaTopicConfig", "/topic=v3-configs/config=", {"topic_name": "v3-configs"}),
        ("brokers/0/configs", "KafkaBrokerConfig", "/broker=0/config=", {"broker_id": 0}),
        ("broker-configs", "KafkaClusterConfig", "/broker-config=", {"config_type": "BROKER"}),
    ],
)
def test_configs_are_set_altered_and_reset(
    rest: RestClient, path: str, kind: str, name: str, fields: dict[str, Any]
) -> None:
    if rest.get("topics/v3-configs").status_code == 404:
        rest.create_topic("v3-configs")
    setting = "retention.ms" if path.startswith("topics") else "log.retention.ms"
    source = {
        "topics": "DYNAMIC_TOPIC_CONFIG", "brokers": "DYNAMIC_BROKER_CONFIG",
        "broker-configs": "DYNAMIC_DEFAULT_BROKER_CONFIG",
    }[path.partition("/")[0]]  # fmt: skip
    done = rest.put(f"{path}/{setting}", {"value": "123456789"})
    assert (done.status_code, done.content) == (204, b"")
    found = rest.get(f"{path}/{setting}").json()
    synonyms = found["synonyms"]
    assert synonyms[0] == {"name": setting, "value": "123456789", "source": source}
    assert found == {
        **resource(rest, kind, f"/{path}/{setting}", f"{name}{setting}"), **fields, "name": setting,
        "value": "123456789", "is_default": False, "is_read_only": False, "is_sensitive": False, "source": source,
        "synonyms": synonyms,
    }  # fmt: skip
    listed = rest.get(path).json()
    assert (listed["kind"], listed["metadata"]["self"]) == (f"{kind}List", f"{rest.cluster}/{path}")
    assert found in listed["data"]
    changes = [{"name": setting, "value": "987654321", "operation": "SET"}]
    assert rest.post(f"{path}:alter", {"data": changes, "validate_only": True}).status_code == 204
    assert rest.get(f"{path}/{setting}").json()["value"] == "123456789"
    assert rest.post(f"{path}:alter", {"data": changes}).status_code == 204
    assert rest.get(f"{path}/{setting}").json()["value"] == "987654321"
    assert rest.post(f"{path}:alter", {"data": [{"name": setting, "operation": "delete"}]}).status_code == 204
    # The number of a config is often sent as a number.
    assert rest.put(f"{path}/{setting}", {"value": 5}).status_code == 204
    assert rest.get(f"{path}/{setting}").json()["value"] == "5"
    assert rest.delete(f"{path}/{setting}").status_code == 204
    reset = rest.get(f"{path}/{setting}")
    assert reset.status_code == 404 if path == "broker-configs" else reset.json()["is_default"]
    assert error_of(rest.put(f"{path}/{setting}", {"value": "many"})) == (400, 40002)
    assert error_of(rest.put(f"{path}/no.such", {"value": "1"})) == (404, 404)
    assert error_of(rest.put(f"{path}/{setting}", {"value": [5]})) == (400, 400)
    assert error_of(rest.put(f"{path}/{setting}", {"values": "5"})) == (422, 422)
    assert error_of(rest.put(f"{path}/{setting}")) == (422, 42206)
    assert error_of(rest.delete(f"{path}/no.such")) == (404, 404)
    assert error_of(rest.get(f"{path}/no.such")) == (404, 404)
    assert error_of(rest.post(f"{path}:alter", {"data": [{"name": "no.such", "value": "1"}]})) == (404, 404)
    assert error_of(rest.post(f"{path}:alter", {"data": [{"value": "1"}]})) == (400, 400)
    assert error_of(rest.post(f"{path}:alter", {})) == (400, 400)
    assert error_of(rest.post(f"{path}:alter", {"data": [{"name": setting, "operation": "ADD"}]})) == (400, 400)


def test_configs_of_unknown_owners_are_not_found(rest: RestClient) -> None:
    assert error_of(rest.get("topics/none/configs")) == (404, 40403)
    assert error_of(rest.get("brokers/9/configs")) == (404, 404)
    assert error_of(rest.put("topics/none/configs/retention.ms", {"value": "1"})) == (404, 40403)


def test_configs_of_all_topics_and_all_brokers_are_listed(rest: RestClient) -> None:
    rest.create_topic("v3-all-configs", configs={"retention.ms": "77"})
    topics = rest.get("topics/-/configs").json()
    assert topics["metadata"]["self"] == f"{rest.cluster}/topics/-/configs"
    found = [
        row["value"] for row in topics["data"] if (row["topic_name"], row["name"]) == ("v3-all-configs", "retention.ms")
    ]
    assert found == ["77"]
    brokers = rest.get("brokers/-/configs").json()
    assert brokers["kind"] == "KafkaBrokerConfigList"
    assert {row["broker_id"] for row in brokers["data"]} == {0}


def test_configs_of_several_topics_are_altered_with_one_request(rest: RestClient) -> None:
    rest.create_topic("v3-several-1")
    rest.create_topic("v3-several-2")

    def alter(one: str, other: str) -> Any:
        return rest.post("topics/-/configs:alter", {"data": [
            {"topic_name": "v3-several-1", "configs": [{"name": "retention.ms", "value": one}]},
            {"topic_name": "v3-several-2", "configs": [{"name": "retention.ms", "value": other}]},
        ]})  # fmt: skip

    assert alter("1000", "2000").status_code == 204
    partly = alter("3000", "x")
    assert partly.status_code == 207
    (failure,) = partly.json()["failures"]
    assert (failure["topic_name"], failure["error_code"]) == ("v3-several-2", 40002)
    assert rest.get("topics/v3-several-1/configs/retention.ms").json()["value"] == "3000"
    assert rest.get("topics/v3-several-2/configs/retention.ms").json()["value"] == "2000"
    unknown = {"data": [{"topic_name": "v3-several-1", "configs": [{"name": "no.such", "value": "1"}]}]}
    assert error_of(rest.post("topics/-/configs:alter", unknown)) == (404, 404)


# Consumer groups


def test_consumer_group_with_members_and_lag(rest: RestClient, rest_broker: BrokerProcess) -> None:
    rest.create_topic("v3-lag", 2)
    producer = Producer({"bootstrap.servers": rest_broker.bootstrap})
    for number in range(5):
        producer.produce("v3-lag", b"v", partition=number % 2)
    producer.flush()
    consumer = Consumer({
        "bootstrap.servers": rest_broker.bootstrap, "group.id": "v3-group", "client.id": "v3-client",
        "group.instance.id": "v3-static", "auto.offset.reset": "earliest", "enable.auto.commit": False,
    })  # fmt: skip
    try:
        consumer.subscribe(["v3-lag"])
        assert consumer.poll(60) is not None
        consumer.commit(offsets=[TopicPartition("v3-lag", 0, 1), TopicPartition("v3-lag", 1, 2)], asynchronous=False)
        _check_group(rest)
    finally:
        consumer.close()
    for path in ("", "/consumers", "/consumers/x", "/consumers/x/assignments", "/lags", "/lag-summary"):
        assert error_of(rest.get(f"consumer-groups/none{path}")) == (404, 404)


def _check_group(rest: RestClient) -> None:
    path = "/consumer-groups/v3-group"
    name = "/consumer-group=v3-group"
    own = {"consumer_group_id": "v3-group"}
    group = {
        **resource(rest, "KafkaConsumerGroup", path, name), **own, "is_simple": False, "partition_assignor": "range",
        "state": "STABLE", "type": "CLASSIC", "is_mixed_consumer_group": False,
        "coordinator": {"related": f"{rest.cluster}/brokers/0"},
        "consumers": {"related": f"{rest.cluster}{path}/consumers"},
        "lag_summary": {"related": f"{rest.cluster}{path}/lag-summary"},
    }  # fmt: skip
    assert rest.get(path[1:]).json() == group
    assert group in rest.get("consumer-groups").json()["data"]
    (member,) = rest.get(f"{path[1:]}/consumers").json()["data"]
    consumer_id = member["consumer_id"]
    who = {"consumer_id": consumer_id, "instance_id": "v3-static", "client_id": "v3-client"}
    consumers = f"{path}/consumers/{consumer_id}"
    assert member == {
        **resource(rest, "KafkaConsumer", consumers, f"{name}/consumer={consumer_id}"), **own, **who,
        "assignments": {"related": f"{rest.cluster}{consumers}/assignments"},
    }  # fmt: skip
    assert rest.get(consumers[1:]).json() == member
    assigned = rest.get(f"{consumers[1:]}/assignments").json()["data"]
    assert assigned[1] == {
        **resource(rest, "KafkaConsumerAssignment", f"{consumers}/assignments/v3-lag/partitions/1",
                   f"{name}/consumer={consumer_id}/assignment=v3-lag/partition=1"),
        **own, "consumer_id": consumer_id, "topic_name": "v3-lag", "partition_id": 1,
        "partition": {"related": f"{rest.cluster}/topics/v3-lag/partitions/1"},
        "lag": {"related": f"{rest.cluster}{path}/lags/v3-lag/partitions/1"},
    }  # fmt: skip
    assert rest.get(f"{consumers[1:]}/assignments/v3-lag/partitions/1").json() == assigned[1]
    assert error_of(rest.get(f"{consumers[1:]}/assignments/v3-lag/partitions/2")) == (404, 404)
    assert error_of(rest.get(f"{path[1:]}/consumers/none")) == (404, 404)
    lags = rest.get(f"{path[1:]}/lags").json()["data"]
    assert [row["lag"] for row in lags] == [2, 0]
    assert lags[0] == {
        **resource(rest, "KafkaConsumerLag", f"{path}/lags/v3-lag/partitions/0", f"{name}/lag=v3-lag/partition=0"),
        **own, **who, "topic_name": "v3-lag", "partition_id": 0, "current_offset": 1, "log_end_offset": 3, "lag": 2,
    }  # fmt: skip
    assert rest.get(f"{path[1:]}/lags/v3-lag/partitions/0").json() == lags[0]
    assert error_of(rest.get(f"{path[1:]}/lags/v3-lag/partitions/9")) == (404, 404)
    assert rest.get(f"{path[1:]}/lag-summary").json() == {
        **resource(rest, "KafkaConsumerGroupLagSummary", f"{path}/lag-summary", f"{name}/lag-summary"), **own,
        "max_lag_consumer_id": consumer_id, "max_lag_instance_id": "v3-static", "max_lag_client_id": "v3-client",
        "max_lag_topic_name": "v3-lag", "max_lag_partition_id": 0, "max_lag": 2, "total_lag": 2,
        "max_lag_consumer": {"related": f"{rest.cluster}{consumers}"},
        "max_lag_partition": {"related": f"{rest.cluster}/topics/v3-lag/partitions/0"},
    }  # fmt: skip


# ACLs


def test_acls_are_created_searched_and_deleted(rest: RestClient) -> None:
    acl = {
        "resource_type": "TOPIC", "resource_name": "v3-acl-", "pattern_type": "PREFIXED", "principal": "User:alice",
        "host": "*", "operation": "READ", "permission": "ALLOW",
    }  # fmt: skip
    query = (
        "resource_type=TOPIC&resource_name=v3-acl-&pattern_type=PREFIXED&principal=User%3Aalice&host=*"
        "&operation=READ&permission=ALLOW"
    )
    created = rest.post("acls", acl)
    assert (created.status_code, created.content) == (201, b"")
    assert created.headers["location"] == f"{rest.cluster}/acls?{query}"
    expected = {
        "kind": "KafkaAcl", "metadata": {"self": f"{rest.cluster}/acls?{query}", "resource_name": None},
        "cluster_id": rest.cluster_id, **acl,
    }  # fmt: skip
    found = rest.get("acls?principal=User:alice")
    assert (found.status_code, found.json()["kind"], found.json()["data"]) == (200, "KafkaAclList", [expected])
    other = {**acl, "resource_name": "v3-acl-b", "pattern_type": "literal", "permission": "deny"}
    batch = rest.post("acls:batch", {"data": [acl, other]})
    assert (batch.status_code, batch.content) == (204, b"")
    assert len(rest.get("acls?principal=User:alice&resource_type=topic").json()["data"]) == 2
    deleted = rest.delete("acls?resource_type=TOPIC&pattern_type=ANY&principal=User:alice&operation=ANY&permission=ANY")
    assert deleted.status_code == 200
    assert [row["resource_name"] for row in deleted.json()["data"]] == ["v3-acl-", "v3-acl-b"]
    assert rest.get("acls?principal=User:alice").json()["data"] == []


def test_invalid_acls_are_rejected(rest: RestClient) -> None:
    acl = {
        "resource_type": "TOPIC", "resource_name": "t", "pattern_type": "LITERAL", "principal": "User:bob",
        "host": "*", "operation": "READ", "permission": "ALLOW",
    }  # fmt: skip
    for change, expected in (
        ({"resource_type": "CLUSTER", "resource_name": "x"}, (400, 40002)),
        ({"resource_type": "ANY"}, (400, 400)),
        ({"operation": "UNKNOWN"}, (400, 400)),
        ({"operation": "FLY"}, (400, 400)),
        ({"pattern_type": "MATCH"}, (400, 400)),
        ({"principal": None}, (400, 400)),
        ({"hosts": "*"}, (422, 422)),
        ({"host": 5}, (400, 400)),
    ):
        assert error_of(rest.post("acls", {**acl, **change})) == expected, change
        assert error_of(rest.post("acls:batch", {"data": [acl, {**acl, **change}]})) == expected, change
    assert rest.get("acls?principal=User:bob").json()["data"] == []
    assert error_of(rest.delete("acls")) == (400, 400)
    assert error_of(rest.delete("acls?resource_type=TOPIC&pattern_type=ANY&operation=ANY")) == (400, 400)
    assert error_of(rest.get("acls?resource_type=UNKNOWN")) == (400, 400)
    assert error_of(rest.get("acls?resource_type=THING")) == (404, 404)
    assert error_of(rest.post("acls")) == (422, 42206)
    assert error_of(rest.post("acls:batch", {})) == (422, 42206)
    assert rest.post("acls:batch", {"data": []}).status_code == 204
