"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages import alter_configs, incremental_alter_configs
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.list_config_resources import ListConfigResourcesRequest
from ottla.wire.messages.metadata import MetadataRequest

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

every_describe = pytest.mark.parametrize("version", range(1, 5))
every_increment = pytest.mark.parametrize("version", range(2))
every_replace = pytest.mark.parametrize("version", range(3))

Resource = tuple[int, str]
Change = tuple[str, int, str | None]


@pytest.fixture
def here(client: RawClient) -> str:
    """The name of the broker as a resource."""
    return str(client.ask(MetadataRequest(topics=[]), 12).controller_id)


def describe(
    client: RawClient, version: int, *resources: Resource, keys: Sequence[str] | None = None, **fields: bool
) -> list[Any]:
    rows = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        for kind, name in resources
    ]
    return list(client.ask(DescribeConfigsRequest(resources=rows, **fields), version).results)


def overrides(client: RawClient, topic: str) -> dict[str, str]:
    """What was set for this topic alone."""
    (found,) = describe(client, 4, (TOPIC, topic))
    return {config.name: config.value for config in found.configs if config.config_source == 1}


def increment(
    client: RawClient, version: int, *resources: tuple[Resource, Sequence[Change]], validate_only: bool = False
) -> list[int]:
    rows = [
        incremental_alter_configs.AlterConfigsResource(
            resource_type=kind, resource_name=name,
            configs=[
                incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=value)
                for key, operation, value in changes
            ],
        )
        for (kind, name), changes in resources
    ]  # fmt: skip
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=rows, validate_only=validate_only)
    return [row.error_code for row in client.ask(request, version).responses]


def replace(
    client: RawClient, version: int, *resources: tuple[Resource, Mapping[str, str | None]], validate_only: bool = False
) -> list[int]:
    rows = [
        alter_configs.AlterConfigsResource(
            resource_type=kind, resource_name=name,
            configs=[alter_configs.AlterableConfig(name=key, value=value) for key, value in configs.items()],
        )
        for (kind, name), configs in resources
    ]  # fmt: skip
    request = alter_configs.AlterConfigsRequest(resources=rows, validate_only=validate_only)
    return [row.error_code for row in client.ask(request, version).responses]


# -- DescribeConfigs ------------------------------------------------------------------------------------------------


@every_describe
@pytest.mark.parametrize("keys", [None, ()])
def test_null_and_no_keys_ask_for_every_setting(
    client: RawClient, topic: Any, here: str, version: int, keys: Sequence[str] | None
) -> None:
    for resource in ((TOPIC, topic.name), (BROKER, here)):
        (found,) = describe(client, version, resource, keys=keys)
        assert (found.error_code, found.error_message) == (0, None)
        assert len(found.configs) > 20
    names = {config.name for config in describe(client, version, (TOPIC, topic.name), keys=keys)[0].configs}
    assert {"cleanup.policy", "retention.ms", "max.message.bytes", "min.insync.replicas"} <= names


@every_describe
def test_keys_that_do_not_exist_are_left_out(client: RawClient, topic: Any, version: int) -> None:
    (found,) = describe(client, version, (TOPIC, topic.name), keys=["retention.ms", "nope"])
    (config,) = found.configs
    assert (config.name, config.value, config.config_source, config.read_only) == (
        "retention.ms",
        "604800000",
        5,
        False,
    )
    assert config.config_type == (5 if version >= 3 else 0)


@every_describe
def test_resource_that_is_not_there_has_its_error(client: RawClient, version: int) -> None:
    for resource, code in (
        ((TOPIC, "clause-nowhere"), 3), ((TOPIC, "a b"), 17), ((TOPIC, ""), 17), ((TOPIC, "x" * 32_767), 17),
        ((BROKER, "77"), 42), ((BROKER, "abc"), 42), ((BROKER, "ž" * 16_000), 42),
        ((0, "x"), 42), ((1, "x"), 42), ((3, "x"), 42), ((64, "x"), 42), ((-1, "x"), 42),
    ):  # fmt: skip
        (found,) = describe(client, version, resource)
        assert (found.error_code, found.configs) == (code, ())
        assert (found.resource_type, found.resource_name) == resource
        assert 0 < len(found.error_message) < 3000


@every_describe
def test_resource_is_described_once_however_often_it_is_named(client: RawClient, topic: Any, version: int) -> None:
    assert len(describe(client, version, *[(TOPIC, topic.name)] * 1000)) == 1


@every_describe
def test_synonyms_are_told_when_asked_for_in_order_of_precedence(client: RawClient, topic: Any, version: int) -> None:
    increment(client, 1, ((TOPIC, topic.name), [("retention.ms", SET, "5000")]))
    (found,) = describe(client, version, (TOPIC, topic.name), keys=["retention.ms"], include_synonyms=True)
    (config,) = found.configs
    assert (config.value, config.config_source) == ("5000", 1)
    synonyms = [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]
    assert synonyms == [("retention.ms", "5000", 1)]
    (found,) = describe(client, version, (TOPIC, topic.name), keys=["retention.ms"])
    assert found.configs[0].synonyms == ()


@every_describe
def test_default_in_another_unit_is_no_synonym(client: RawClient, topic: Any, version: int) -> None:
    names = ["segment.ms", "retention.ms", "retention.bytes", "flush.ms", "segment.jitter.ms"]
    (found,) = describe(client, version, (TOPIC, topic.name), keys=names, include_synonyms=True)
    assert [(config.name, len(config.synonyms)) for config in found.configs] == [
        ("segment.ms", 0), ("retention.ms", 0), ("retention.bytes", 1), ("flush.ms", 0), ("segment.jitter.ms", 0)
    ]  # fmt: skip


@every_describe
def test_named_settings_are_in_the_order_of_the_request(client: RawClient, topic: Any, version: int) -> None:
    for names in (["compression.type", "retention.ms"], ["retention.ms", "compression.type"]):
        (found,) = describe(client, version, (TOPIC, topic.name), keys=[*names, names[0]])
        assert [config.name for config in found.configs] == names


@pytest.mark.parametrize("version", [3, 4])
def test_documentation_is_told_when_asked_for(client: RawClient, topic: Any, version: int) -> None:
    for asked in (True, False):
        (found,) = describe(client, version, (TOPIC, topic.name), keys=["retention.ms"], include_documentation=asked)
        assert bool(found.configs[0].documentation) == asked


@every_describe
def test_settings_that_need_a_restart_are_read_only(client: RawClient, here: str, version: int) -> None:
    (found,) = describe(client, version, (BROKER, here), keys=["log.dirs", "max.connections"])
    assert {config.name: config.read_only for config in found.configs} == {"log.dirs": True, "max.connections": False}


# -- IncrementalAlterConfigs ----------------------------------------------------------------------------------------


@every_increment
def test_setting_is_set_and_deleted(client: RawClient, topic: Any, version: int) -> None:
    resource = (TOPIC, topic.name)
    assert increment(client, version, (resource, [("retention.ms", SET, "5000"), ("segment.ms", SET, "7000")])) == [0]
    assert overrides(client, topic.name) == {"retention.ms": "5000", "segment.ms": "7000"}
    assert increment(client, version, (resource, [("retention.ms", DELETE, None)])) == [0]
    assert overrides(client, topic.name) == {"segment.ms": "7000"}
    assert increment(client, version, (resource, [("retention.ms", DELETE, "any"), ("nope", DELETE, None)])) == [0]


@every_increment
def test_list_is_appended_to_and_subtracted_from(client: RawClient, topic: Any, version: int) -> None:
    resource = (TOPIC, topic.name)
    for operation, value, expected in (
        (APPEND, "compact", "delete,compact"), (APPEND, "compact", "delete,compact"), (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "delete", "compact"),
    ):  # fmt: skip
        assert increment(client, version, (resource, [("cleanup.policy", operation, value)])) == [0]
        assert overrides(client, topic.name) == {"cleanup.policy": expected}


@every_increment
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("retention.ms", APPEND, "1"), 40), (("retention.ms", SUBTRACT, "1"), 40),
        (("cleanup.policy", APPEND, "bad"), 40),
        (("retention.ms", SET, "abc"), 40), (("retention.ms", SET, ""), 40), (("nope", SET, "1"), 40),
        (("x" * 32_767, SET, "1"), 40), (("retention.ms", SET, "ž" * 16_000), 40), (("retention.ms", SET, None), 42),
        (("cleanup.policy", APPEND, None), 42), (("retention.ms", 4, "1"), 42), (("retention.ms", -1, "1"), 42),
    ],
)  # fmt: skip
def test_change_that_makes_no_sense_is_refused(
    client: RawClient, topic: Any, version: int, change: Change, code: int
) -> None:
    assert increment(client, version, ((TOPIC, topic.name), [("segment.ms", SET, "7000"), change])) == [code]
    assert overrides(client, topic.name) == {}


@every_increment
def test_key_or_resource_that_is_named_twice_is_an_invalid_request(client: RawClient, topic: Any, version: int) -> None:
    change = ("retention.ms", SET, "5000")
    assert increment(client, version, ((TOPIC, topic.name), [change, change])) == [42]
    assert increment(client, version, *[((TOPIC, topic.name), [change])] * 2) == [42, 42]
    assert overrides(client, topic.name) == {}


@every_increment
def test_resource_that_cannot_be_changed_has_its_error(client: RawClient, topic: Any, here: str, version: int) -> None:
    for resource, changes, code in (
        ((TOPIC, "clause-nowhere"), [("retention.ms", SET, "1")], 3),
        ((TOPIC, "a b"), [("retention.ms", SET, "1")], 17),
        ((BROKER, "77"), [("max.connections", SET, "1")], 42),
        ((BROKER, here), [("log.dirs", SET, "/elsewhere")], 42),
        ((0, "x"), [], 42), ((1, "x"), [], 42), ((64, "x"), [], 42), ((-1, "x"), [], 42),
    ):  # fmt: skip
        assert increment(client, version, (resource, changes)) == [code]


@every_increment
def test_one_resource_does_not_spoil_another(client: RawClient, topic: Any, version: int) -> None:
    change = [("retention.ms", SET, "5000")]
    codes = increment(client, version, ((TOPIC, topic.name), change), ((TOPIC, "clause-nowhere"), change))
    assert codes == [0, 3]
    assert overrides(client, topic.name) == {"retention.ms": "5000"}


@every_increment
def test_validation_changes_nothing(client: RawClient, topic: Any, version: int) -> None:
    change = [("retention.ms", SET, "5000")]
    assert increment(client, version, ((TOPIC, topic.name), change), validate_only=True) == [0]
    assert overrides(client, topic.name) == {}


@every_increment
def test_unknown_setting_of_a_broker_is_stored_and_its_value_is_hidden(
    client: RawClient, here: str, version: int
) -> None:
    name = "x.ssl.protocol"
    for resource, source in ((here, 2), ("", 3)):
        assert increment(client, version, ((BROKER, resource), [(name, SET, "v")])) == [0]
        for described in (here, resource):
            (found,) = describe(client, 4, (BROKER, described), keys=[name])
            (entry,) = found.configs
            assert (entry.value, entry.config_source, entry.config_type) == (None, source, 0)
            assert (entry.read_only, entry.is_sensitive) == (True, True)
        assert increment(client, version, ((BROKER, resource), [(name, APPEND, "w")])) == [40]
        assert increment(client, version, ((BROKER, resource), [(name, DELETE, None)])) == [0]
    (found,) = describe(client, 4, (BROKER, here), keys=[name])
    assert not found.configs


@every_increment
def test_setting_of_kerberos_is_accepted_without_kerberos(client: RawClient, here: str, version: int) -> None:
    name = "sasl.kerberos.min.time.before.relogin"
    assert increment(client, version, ((BROKER, here), [(name, SET, "58000")])) == [0]
    (found,) = describe(client, 4, (BROKER, here), keys=[name])
    assert (found.configs[0].value, found.configs[0].read_only) == ("58000", False)
    assert increment(client, version, ((BROKER, here), [(name, DELETE, None)])) == [0]


@every_increment
def test_setting_of_the_broker_changes_at_run_time(client: RawClient, here: str, version: int) -> None:
    for name, source in ((here, 2), ("", 3)):
        assert increment(client, version, ((BROKER, name), [("max.connections", SET, "100000")])) == [0]
        (found,) = describe(client, 4, (BROKER, here), keys=["max.connections"])
        assert (found.configs[0].value, found.configs[0].config_source) == ("100000", source)
        assert increment(client, version, ((BROKER, name), [("max.connections", DELETE, None)])) == [0]


@every_increment
def test_settings_of_a_group_are_changed_described_and_listed(client: RawClient, version: int) -> None:
    group, session = (GROUP, f"clause group/{version}"), "consumer.session.timeout.ms"
    assert increment(client, version, (group, [(session, SET, "50000")])) == [0]
    (found,) = describe(client, 4, group, keys=[session], include_synonyms=True)
    (config,) = found.configs
    assert (config.value, config.config_source, config.read_only) == ("50000", 8, False)
    assert [(s.name, s.source) for s in config.synonyms] == [(session, 8), (f"group.{session}", 5)]
    assert group in list_resources(client, 1, [GROUP])[1]
    assert group in list_resources(client, 1, ())[1]
    assert increment(client, version, (group, [(session, DELETE, None)])) == [0]
    assert group not in list_resources(client, 1, [GROUP])[1]
    assert replace(client, 2, (group, {session: "46000"})) == [0]
    assert replace(client, 2, (group, {})) == [0]
    assert group not in list_resources(client, 1, [GROUP])[1]


@every_increment
def test_settings_that_a_group_cannot_have_are_refused(client: RawClient, version: int) -> None:
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    for group, changes, code in (
        ("g", [(session, SET, "1000")], 40), ("g", [(session, SET, "100000")], 40), ("g", [(heartbeat, SET, "1")], 40),
        ("g", [(session, SET, "abc")], 40), ("g", [(session, SET, None)], 42), ("g", [("nope", SET, "1")], 40),
        ("g", [(session, APPEND, "50000")], 40), ("g", [(session, SET, "50000")] * 2, 42), ("", [], 42),
        ("g", [("share.session.timeout.ms", SET, "50000")], 40), ("x" * 5000, [(session, SET, "50000")], 42),
        ("g", [("nope", DELETE, None)], 0),
    ):  # fmt: skip
        assert increment(client, version, ((GROUP, group), changes)) == [code], changes
    assert (GROUP, "g") not in list_resources(client, 1, [GROUP])[1]


def test_settings_of_a_group_reach_its_members_and_survive_a_restart(fresh_ottla_broker: BrokerProcess) -> None:
    def heartbeat() -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id="timed", member_id="m", member_epoch=0, rebalance_timeout=1000, subscribed_topic_names=["t"],
            topic_partitions=[],
        )  # fmt: skip
        while (answer := client.ask(request, 1)).error_code in (14, 15, 16):  # the coordinator is starting
            client.ask(FindCoordinatorRequest(key="timed"), 0)
        return answer.error_code, answer.heartbeat_interval

    with RawClient(fresh_ottla_broker.bootstrap) as client:
        assert heartbeat() == (0, 5000)
        assert increment(client, 1, ((GROUP, "timed"), [("consumer.heartbeat.interval.ms", SET, "7000")])) == [0]
        assert heartbeat() == (0, 7000)
    fresh_ottla_broker.kill()
    fresh_ottla_broker.launch()
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        assert heartbeat() == (0, 7000)


def test_many_requests_change_settings_of_one_group_at_once(client: RawClient) -> None:
    """Each creates or deletes the same node of the store, and none may fail because of the others."""
    group, session = (GROUP, "clause-busy"), "consumer.session.timeout.ms"
    others = [RawClient("{}:{}".format(*client.socket.getpeername())) for _ in range(8)]
    requests = [
        incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[
                incremental_alter_configs.AlterConfigsResource(
                    resource_type=group[0], resource_name=group[1],
                    configs=[incremental_alter_configs.AlterableConfig(name=session, config_operation=op, value=value)],
                )
            ]
        )
        for op, value in [(SET, "50000"), (DELETE, None)] * 4
    ]  # fmt: skip
    sent = [other.send(request, 1) for other, request in zip(others, requests, strict=True)]
    answers = [other.receive(44, 1, number) for other, number in zip(others, sent, strict=True)]
    for other in others:
        other.close()
    assert [answer.responses[0].error_code for answer in answers] == [0] * 8


def test_very_many_changes_are_refused_quickly(client: RawClient, topic: Any) -> None:
    """Half a second for all of them, not for each."""
    client.socket.settimeout(5)
    assert increment(client, 1, ((TOPIC, topic.name), [(f"nope-{n}", SET, "1") for n in range(20_000)])) == [40]
    assert increment(client, 1, ((TOPIC, topic.name), [("retention.ms", SET, "1")] * 20_000)) == [42]


# -- AlterConfigs ---------------------------------------------------------------------------------------------------


@every_replace
def test_replacing_forgets_what_was_set_before(client: RawClient, topic: Any, version: int) -> None:
    resource = (TOPIC, topic.name)
    assert replace(client, version, (resource, {"retention.ms": "5000", "segment.ms": "7000"})) == [0]
    assert replace(client, version, (resource, {"segment.ms": "8000"})) == [0]
    assert overrides(client, topic.name) == {"segment.ms": "8000"}
    assert replace(client, version, (resource, {}), validate_only=True) == [0]
    assert overrides(client, topic.name) == {"segment.ms": "8000"}
    assert replace(client, version, (resource, {})) == [0]
    assert overrides(client, topic.name) == {}


@every_replace
def test_replacement_that_makes_no_sense_is_refused(client: RawClient, topic: Any, here: str, version: int) -> None:
    replace(client, version, ((TOPIC, topic.name), {"segment.ms": "8000"}))
    for resource, configs, code in (
        ((TOPIC, topic.name), {"retention.ms": "abc"}, 40), ((TOPIC, topic.name), {"nope": "1"}, 40),
        ((TOPIC, topic.name), {"retention.ms": None}, 42), ((TOPIC, "clause-nowhere"), {}, 3), ((TOPIC, "a b"), {}, 17),
        ((BROKER, "77"), {}, 42), ((BROKER, here), {"log.dirs": "/elsewhere"}, 42), ((3, "x"), {}, 42),
    ):  # fmt: skip
        assert replace(client, version, (resource, configs)) == [code]
    assert overrides(client, topic.name) == {"segment.ms": "8000"}


# -- ListConfigResources --------------------------------------------------------------------------------------------


def list_resources(client: RawClient, version: int, kinds: Sequence[int]) -> tuple[int, set[tuple[int, str]]]:
    answer = client.ask(ListConfigResourcesRequest(resource_types=kinds), version)
    return answer.error_code, {(row.resource_type, row.resource_name) for row in answer.config_resources}


def test_first_version_lists_client_metrics_of_which_there_are_none(client: RawClient) -> None:
    assert list_resources(client, 0, ()) == (0, set())


def test_resources_are_listed_by_kind(client: RawClient, topic: Any, here: str) -> None:
    code, everything = list_resources(client, 1, ())
    assert code == 0
    assert {(TOPIC, topic.name), (BROKER, here), (LOGGER, here)} <= everything
    assert list_resources(client, 1, [BROKER, BROKER]) == (0, {(BROKER, here)})
    assert list_resources(client, 1, [CLIENT_METRICS]) == (0, set())
    code, topics = list_resources(client, 1, [TOPIC])
    assert code == 0
    assert (TOPIC, topic.name) in topics
    assert {kind for kind, _ in topics} == {TOPIC}


@pytest.mark.parametrize("kinds", [[99], [TOPIC, 99], [0], [-1], [1]])
def test_unknown_kind_of_resource_is_unsupported(client: RawClient, kinds: list[int]) -> None:
    assert list_resources(client, 1, kinds) == (35, set())


@every_increment
def test_limits_of_a_listener_change_at_run_time(client: RawClient, here: str, version: int) -> None:
    for base in ("max.connections", "max.connection.creation.rate"):
        name = f"listener.name.plaintext.{base}"
        for resource, source in ((here, 2), ("", 3)):
            assert increment(client, version, ((BROKER, resource), [(name, SET, "100000")])) == [0]
            (found,) = describe(client, 4, (BROKER, here), keys=[name], include_synonyms=True)
            (config,) = found.configs
            assert (config.value, config.config_source, config.read_only) == ("100000", source, False)
            assert [(each.name, each.source) for each in config.synonyms] == [(name, source), (base, 5)]
            if not resource:
                (found,) = describe(client, 4, (BROKER, ""))
                assert [(each.name, each.value) for each in found.configs] == [(name, "100000")]
            assert increment(client, version, ((BROKER, resource), [(name, DELETE, None)])) == [0]
    for name, text in (
        ("listener.name.plaintext.max.connections", "0"), ("listener.name.plaintext.max.connections", "many"),
        ("listener.name.other.max.connections", "1"), ("listener.name.plaintext.ssl.client.auth", "none"),
    ):  # fmt: skip
        assert increment(client, version, ((BROKER, here), [(name, SET, text)])) == [42]
