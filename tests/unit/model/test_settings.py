"""The settings of the broker and of topics: parsing, precedence, DescribeConfigs and AlterConfigs."""

from collections.abc import Mapping
from typing import Any

import pytest

import generate_docs
from ottla.model.errors import ErrorCode, InvalidRequest
from ottla.model.setting_types import (
    ANY,
    BOOL,
    CLASS,
    DOUBLE,
    INT,
    LIST,
    LONG,
    PASSWORD,
    SHORT,
    STRING,
    Check,
    Setting,
    SettingsSnapshot,
    format_value,
)
from ottla.model.settings import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    AlterOp,
    BrokerSettings,
    ConfigEntry,
    ConfigSource,
    InvalidSettings,
    TopicSettings,
    apply_incremental,
    describe_broker,
    describe_broker_defaults,
    describe_topic,
    parse_properties,
    validate_topic_overrides,
)
from ottla.model.settings_foreign import foreign_rows
from ottla.model.settings_unused import UnusedSettings
from ottla.model.types import Endpoint

HOUR_MS = 3_600_000

KRAFT_PROPERTIES = """\
# As Kafka's own example for a combined node.
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
log.dirs=/var/lib/kafka
num.recovery.threads.per.data.dir=1
share.coordinator.state.topic.min.isr=1
log.retention.hours=168
"""


def problems_of(properties: Mapping[str, str]) -> tuple[str, ...]:
    with pytest.raises(InvalidSettings) as caught:
        BrokerSettings.parse(properties)
    return caught.value.problems


def entry_of(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    return next(entry for entry in entries if entry.name == name)


# Rows


@pytest.mark.parametrize("table", [BROKER_SETTINGS, TOPIC_SETTINGS], ids=["broker", "topic"])
def test_every_default_is_allowed_by_its_own_row(table: Mapping[str, Setting[Any]]) -> None:
    for row in table.values():
        text = format_value(row.default)
        assert text is None or row.parse(text) == row.default, row.name


@pytest.mark.parametrize("table", [BROKER_SETTINGS, TOPIC_SETTINGS], ids=["broker", "topic"])
def test_every_default_has_the_type_of_its_row(table: Mapping[str, Setting[Any]]) -> None:
    expected = {
        BOOL.id: bool,
        STRING.id: str,
        INT.id: int,
        SHORT.id: int,
        LONG.id: int,
        DOUBLE.id: float,
        LIST.id: tuple,
        CLASS.id: str,
        PASSWORD.id: str,
    }
    for row in table.values():
        assert row.default is None or type(row.default) is expected[row.type.id], row.name


@pytest.mark.parametrize("table", [BROKER_SETTINGS, TOPIC_SETTINGS], ids=["broker", "topic"])
def test_every_row_has_help_that_is_a_sentence(table: Mapping[str, Setting[Any]]) -> None:
    assert [row.name for row in table.values() if not row.help.endswith(".")] == []


def test_no_secret_has_a_default() -> None:
    assert [row.name for row in BROKER_SETTINGS.values() if row.sensitive and row.default] == []


def test_every_synonym_of_a_topic_setting_is_a_broker_setting() -> None:
    named = {synonym.name for row in TOPIC_SETTINGS.values() for synonym in row.synonyms}
    assert named <= set(BROKER_SETTINGS)


def test_the_first_synonym_of_a_topic_setting_can_change_at_run_time() -> None:
    first = {row.synonyms[0].name for row in TOPIC_SETTINGS.values() if row.synonyms}
    assert sorted(name for name in first if not BROKER_SETTINGS[name].dynamic) == []


def test_a_topic_setting_and_its_broker_settings_have_the_same_default() -> None:
    settings = TopicSettings.defaults()
    assert {row.name: settings.value_of(row.name) for row in TOPIC_SETTINGS.values()} == {
        row.name: row.default for row in TOPIC_SETTINGS.values()
    }


def test_type_ids_are_those_of_describe_configs() -> None:
    assert [kind.id for kind in (BOOL, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD)] == list(range(1, 10))


# Texts of values


@pytest.mark.parametrize(("text", "value"), [("true", True), (" FALSE ", False), ("True", True)])
def test_booleans_are_read_in_any_case(text: str, value: bool) -> None:
    assert BOOL.parse(text) is value


@pytest.mark.parametrize("text", ["yes", "1", ""])
def test_other_words_are_no_booleans(text: str) -> None:
    with pytest.raises(ValueError, match="true or false"):
        BOOL.parse(text)


@pytest.mark.parametrize("text", ["1_000", "1.0", "", "0x10", "٣", "2147483648"])
def test_what_java_does_not_read_as_an_int_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a whole number between"):
        INT.parse(text)


@pytest.mark.parametrize(("text", "value"), [(" 7 ", 7), ("+7", 7), ("-2147483648", -(2**31))])
def test_whole_numbers_may_have_spaces_and_signs(text: str, value: int) -> None:
    assert INT.parse(text) == value


@pytest.mark.parametrize("text", ["nan", "inf", "1_0.5", "half"])
def test_doubles_are_finite_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="a number"):
        DOUBLE.parse(text)


def test_spaces_around_list_items_are_dropped() -> None:
    assert LIST.parse(" compact ,delete ") == ("compact", "delete")


def test_an_empty_text_is_an_empty_list() -> None:
    assert LIST.parse("  ") == ()


def test_an_empty_list_item_is_refused() -> None:
    with pytest.raises(ValueError, match="without empty items"):
        LIST.parse("a,,b")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (("a", "b"), "a,b"),
        (0.5, "0.5"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (-1, "-1"),
    ],
)
def test_values_are_written_as_java_writes_them(value: object, text: str) -> None:
    assert format_value(value) == text


def test_a_refused_password_is_not_shown() -> None:
    row = Setting("some.password", PASSWORD, "", Check("longer", lambda text: len(text) > 99), "A secret.")
    with pytest.raises(ValueError) as caught:
        row.parse("hunter2")
    assert "hunter2" not in str(caught.value)


# Properties files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb:2\nc 3\nd\n", {"a": "1", "b": "2", "c": "3", "d": ""}),
        ("  a  =  1 \r\nb\t:\t2\rc=3", {"a": "1 ", "b": "2", "c": "3"}),
        ("# a=1\n  ! b=2\n\n   \nc=#3", {"c": "#3"}),
        ("a=1,\\\n   2,\\\n  # 3\nb=4", {"a": "1,2,# 3", "b": "4"}),
        ("a=C:\\\\dir\\\\\nb=2", {"a": "C:\\dir\\", "b": "2"}),
        ("a\\=b\\ c=d=e", {"a=b c": "d=e"}),
        ("a=\\u00e9\\t\\q", {"a": "é\tq"}),
        ("# comment \\\na=1", {"a": "1"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\\", {"a": "1"}),
        ("\\\na=1", {"a": "1"}),
        ("a = = b", {"a": "= b"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_a_broken_unicode_escape_names_its_line() -> None:
    with pytest.raises(InvalidSettings, match="line 2: "):
        parse_properties("a=1\nb=\\u12\n")


# Broker settings


def test_without_settings_the_broker_listens_on_loopback_alone() -> None:
    assert BrokerSettings.parse().endpoints == (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)


def test_values_are_typed_and_the_rest_is_default() -> None:
    settings = BrokerSettings.parse({"socket.request.max.bytes": "2048", "auto.create.topics.enable": "False"})
    assert (
        settings.socket_request_max_bytes,
        settings.auto_create_topics_enable,
        settings.num_partitions,
    ) == (
        2048,
        False,
        1,
    )


def test_what_was_set_is_kept_as_text() -> None:
    assert dict(BrokerSettings.parse({"num.partitions": "3"}).explicit) == {"num.partitions": "3"}


def test_node_id_is_another_name_of_broker_id() -> None:
    settings = BrokerSettings.parse({"node.id": "5"})
    assert (settings.broker_id, dict(settings.explicit)) == (5, {"broker.id": "5"})


def test_the_two_names_of_the_broker_id_must_agree() -> None:
    (problem,) = problems_of({"broker.id": "1", "node.id": "2"})
    assert "differ" in problem


def test_log_dirs_wins_over_log_dir() -> None:
    settings = BrokerSettings.parse({"log.dir": "/a", "log.dirs": "/b, /c"})
    assert settings.data_dirs == ("/b", "/c")


def test_log_dir_is_used_when_log_dirs_is_not_set() -> None:
    assert BrokerSettings.parse({"log.dir": "/a"}).data_dirs == ("/a",)


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    assert problems_of({"log.retension.ms": "1"}) == (
        "unknown setting 'log.retension.ms'; did you mean 'log.retention.ms'?",
    )


def test_a_name_like_no_other_is_refused_without_a_guess() -> None:
    (problem,) = problems_of({"quux": "1"})
    assert "did you mean" not in problem


def test_every_problem_has_a_line_of_its_own() -> None:
    problems = problems_of({"num.partitions": "0", "sync.threads": "many", "nun.partitions": "1"})
    assert problems == (
        "unknown setting 'nun.partitions'; did you mean 'num.partitions'?",
        "invalid value '0' for num.partitions: expected at least 1",
        "invalid value 'many' for sync.threads: expected a whole number between -2147483648 and 2147483647",
    )


def test_invalid_settings_reach_a_client_as_invalid_config() -> None:
    assert InvalidSettings(["x"]).code == ErrorCode.INVALID_CONFIG


def test_a_properties_file_written_for_kafka_starts_ottla() -> None:
    settings = BrokerSettings.parse(parse_properties(KRAFT_PROPERTIES))
    assert tuple(settings.ignored) == (
        "process.roles",
        "controller.quorum.voters",
        "share.coordinator.state.topic.min.isr",
    )


def test_an_address_under_kafkas_removed_names_is_not_ignored() -> None:
    assert len(problems_of({"host.name": "10.0.0.1", "port": "9095"})) == 2


def test_the_controller_listener_is_not_opened() -> None:
    settings = BrokerSettings.parse(parse_properties(KRAFT_PROPERTIES))
    assert settings.endpoints == (Endpoint("PLAINTEXT", "", 9092),)
    assert settings.advertised_endpoints == (Endpoint("PLAINTEXT", "localhost", 9092),)


@pytest.mark.parametrize(
    "name",
    [
        "ssl.engine.factory.class",
        "sasl.login.class",
        "security.providers",
        "create.topic.policy.class.name",
    ],
)
def test_a_protection_ottla_cannot_give_is_refused_without_showing_it(name: str) -> None:
    (problem,) = problems_of({name: "canary"})
    assert problem.startswith(f"{name} is not supported yet")
    assert "canary" not in problem


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("create.topic.policy.class.name", ""),
        ("zookeeper.ssl.ocsp.enable", "false"),
    ],
)
def test_kafkas_default_without_protection_is_ignored(name: str, text: str) -> None:
    assert BrokerSettings.parse({name: text}).ignored == {name: text}


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"listeners": "A://:9092", "listener.security.protocol.map": "A:TLS"}, "listener A uses TLS; use one of"),
        ({"listener.name.other.ssl.client.auth": "none"}, "there is no listener OTHER"),
        ({"listener.name.plaintext.ssl.clientauth": "none"}, "did you mean 'ssl.client.auth'"),
        ({"listener.name.plaintext.ssl.client.auth": "yes"}, "expected one of none, requested, required"),
        ({"listener.name.plaintext.max.connections": "0"}, "expected at least 1"),
        ({"listeners": "INTERNAL://:9092"}, "add INTERNAL:PLAINTEXT"),
        ({"listeners": "PLAINTEXT://:9092,PLAINTEXT://:9093"}, "more than once"),
        ({"listeners": ""}, "listeners is empty"),
        ({"listeners": "localhost:9092"}, "expected NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://:70000"}, "expected NAME://HOST:PORT"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "no client can dial"),
        ({"advertised.listeners": "OTHER://host:9092"}, "which listeners does not have"),
        ({"metrics.listener": "127.0.0.1:9464"}, "HTTP://HOST:PORT"),
        ({"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "5"}, "must lie between"),
        ({"log.retention.hours": "0"}, "at least 1, or -1 (no limit)"),
    ],
)
def test_settings_that_cannot_work_are_refused(properties: dict[str, str], said: str) -> None:
    (problem,) = problems_of(properties)
    assert said in problem


def test_limit_of_connections_of_a_listener_falls_back_to_that_of_the_broker() -> None:
    settings = BrokerSettings.parse({
        "listeners": "A://:9092,B://:9093", "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
        "max.connections": "10", "listener.name.a.max.connections": "3",
    })  # fmt: skip
    changed = settings.with_dynamic(
        {"listener.name.b.max.connections": "5", "listener.name.elsewhere.max.connections": "1"},
        {"listener.name.a.max.connections": "4"},
    )
    assert [settings.of_listener(name).max_connections for name in "AB"] == [3, 10]
    assert [changed.of_listener(name).max_connections for name in "AB"] == [4, 5]
    assert changed.with_dynamic({}, {}) == settings
    with pytest.raises(InvalidSettings, match=r"listener\.name\.a\.ssl\.client\.auth cannot change"):
        settings.with_dynamic({}, {"listener.name.a.ssl.client.auth": "none"})


def test_listener_has_its_own_settings_of_security() -> None:
    settings = BrokerSettings.parse({
        "listeners": "SASL_SSL://:9092,SSL://:9093", "ssl.client.auth": "required", "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.ssl.client.auth": "none",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": "canary", "listener.name.sasl_ssl.ssl.key.password": "canary",
    })  # fmt: skip
    one, other = settings.of_listener("SASL_SSL"), settings.of_listener("SSL")
    assert (one.ssl_client_auth, other.ssl_client_auth) == ("none", "required")
    assert one.sasl_enabled_mechanisms == ("PLAIN",)
    assert settings.listener_overrides.of_mechanism("SASL_SSL", "PLAIN", "sasl.jaas.config") == "canary"
    assert settings.protocol_of("SASL_SSL") == "SASL_SSL"
    shown = [repr(settings), repr(one), repr(describe_broker(settings))]
    assert "canary" not in "".join(shown)
    assert settings.with_dynamic({}, {}) == settings


def test_a_listener_of_any_name_opens_when_it_maps_to_plaintext() -> None:
    settings = BrokerSettings.parse(
        {"listeners": "INTERNAL://[::1]:0", "listener.security.protocol.map": "INTERNAL:PLAINTEXT"}
    )
    assert settings.endpoints == (Endpoint("INTERNAL", "::1", 0),)


def test_metrics_are_off_unless_an_address_is_given() -> None:
    given = BrokerSettings.parse({"metrics.listener": "HTTP://127.0.0.1:9464"})
    assert (BrokerSettings().metrics_endpoint, given.metrics_endpoint) == (
        None,
        Endpoint("HTTP", "127.0.0.1", 9464),
    )


def test_a_snapshot_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="frozen"):
        BrokerSettings().num_partitions = 2


def test_a_snapshot_shows_what_differs_from_the_defaults() -> None:
    assert repr(BrokerSettings.parse({"num.partitions": "3"})) == "BrokerSettings(num_partitions=3)"


def test_a_snapshot_does_not_show_secrets() -> None:
    class Secrets(SettingsSnapshot):
        key_password = Setting("key.password", PASSWORD, "", ANY, "A secret.")

    secrets = Secrets()
    vars(secrets)["key_password"] = "hunter2"
    assert repr(secrets) == "Secrets(key_password=(hidden))"


# Dynamic broker settings


def test_own_dynamic_values_win_over_dynamic_defaults_over_those_set_at_start() -> None:
    started = BrokerSettings.parse({"message.max.bytes": "1", "log.segment.bytes": "100", "max.connections": "1"})
    changed = started.with_dynamic({"message.max.bytes": "2", "log.segment.bytes": "200"}, {"message.max.bytes": "3"})
    assert (changed.message_max_bytes, changed.log_segment_bytes, changed.max_connections) == (3, 200, 1)


def test_taking_dynamic_values_back_restores_those_set_at_start() -> None:
    started = BrokerSettings.parse({"message.max.bytes": "1"})
    assert started.with_dynamic({}, {"message.max.bytes": "3"}).with_dynamic({}, {}) == started


def test_a_setting_that_needs_a_restart_cannot_become_dynamic() -> None:
    with pytest.raises(InvalidSettings, match=r"num\.partitions cannot change while the broker runs"):
        BrokerSettings().with_dynamic({}, {"num.partitions": "2"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sasl.kerberos.kinit.cmd", "/bin/kinit"),
        ("sasl.kerberos.min.time.before.relogin", "58000"),
        ("sasl.kerberos.ticket.renew.jitter", "0.1"),
        ("sasl.kerberos.ticket.renew.window.factor", "0.7"),
        ("ssl.keymanager.algorithm", "PKIX"),
        ("ssl.protocol", "TLSv1.2"),
        ("ssl.secure.random.implementation", "SHA1PRNG"),
        ("ssl.trustmanager.algorithm", "SunX509"),
    ],
)
def test_security_setting_of_java_without_effect_is_accepted_as_in_kafka(name: str, text: str) -> None:
    assert BrokerSettings().with_dynamic({}, {name: text}).is_set(name)
    listeners = {"listeners": "A://127.0.0.1:0", "listener.security.protocol.map": "A:PLAINTEXT"}
    BrokerSettings.parse({**listeners, name: text, f"listener.name.a.{name}": text})


# Topic settings


def test_hours_set_at_start_become_milliseconds_of_the_topic() -> None:
    broker = BrokerSettings.parse({"log.retention.hours": "2", "log.roll.hours": "3"})
    settings = TopicSettings.resolve({}, broker)
    assert (settings.retention_ms, settings.segment_ms) == (2 * HOUR_MS, 3 * HOUR_MS)


@pytest.mark.parametrize(
    ("properties", "retention_ms"),
    [
        ({"log.retention.ms": "5", "log.retention.minutes": "1", "log.retention.hours": "1"}, 5),
        ({"log.retention.minutes": "1", "log.retention.hours": "1"}, 60_000),
        ({"log.retention.hours": "-1"}, -1),
        ({}, 168 * HOUR_MS),
    ],
)
def test_retention_prefers_the_finer_unit(properties: dict[str, str], retention_ms: int) -> None:
    assert TopicSettings.resolve({}, BrokerSettings.parse(properties)).retention_ms == retention_ms


def test_an_override_wins_over_the_broker() -> None:
    broker = BrokerSettings.parse({"log.retention.ms": "5"})
    assert TopicSettings.resolve({"retention.ms": "6"}, broker).retention_ms == 6


def test_a_dynamic_broker_value_reaches_topics_without_override() -> None:
    broker = BrokerSettings.parse({"log.retention.hours": "2"}).with_dynamic({"log.retention.ms": "7"}, {})
    assert TopicSettings.resolve({}, broker).retention_ms == 7


def test_flush_ms_falls_back_to_the_scheduler_interval() -> None:
    broker = BrokerSettings.parse({"log.flush.scheduler.interval.ms": "9"})
    assert TopicSettings.resolve({}, broker).flush_ms == 9


@pytest.mark.parametrize(
    ("policy", "compact", "delete"),
    [("delete", False, True), ("compact", True, False), ("compact, delete", True, True), ("", False, False)],
)
def test_the_cleanup_policy_answers_both_questions(policy: str, compact: bool, delete: bool) -> None:
    settings = TopicSettings.resolve({"cleanup.policy": policy}, BrokerSettings())
    assert (settings.compact, settings.delete) == (compact, delete)


def test_log_append_time_follows_the_timestamp_type() -> None:
    settings = TopicSettings.resolve({"message.timestamp.type": "LogAppendTime"}, BrokerSettings())
    assert (settings.log_append_time, TopicSettings.defaults().log_append_time) == (True, False)


def test_acks_all_waits_for_the_disk_unless_told_otherwise() -> None:
    relaxed = TopicSettings.resolve({"flush.acks.all": "false"}, BrokerSettings())
    assert (TopicSettings.defaults().flush_acks_all, relaxed.flush_acks_all) == (True, False)


def test_equal_settings_compare_equal() -> None:
    assert TopicSettings.resolve({"retention.ms": "604800000"}, BrokerSettings()) == TopicSettings.defaults()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"retention.mss": "1"}, "did you mean 'retention.ms'?"),
        ({"retention.ms": None}, "retention.ms has no value"),
        ({"retention.ms": "-2"}, "expected at least -1"),
        ({"cleanup.policy": "delete,delete"}, "each at most once"),
        ({"cleanup.policy": "shred"}, "a list of compact, delete"),
        ({"compression.type": "brotli"}, "one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ({"compression.gzip.level": "0"}, "between 1 and 9, or -1"),
        ({"remote.storage.enable": "true"}, "Ottla has no remote storage"),
        ({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}, "is above max.compaction.lag.ms"),
        ({"leader.replication.throttled.replicas": "0:1,x"}, "PARTITION:BROKER"),
    ],
)
def test_bad_overrides_are_refused(overrides: dict[str, str | None], said: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        validate_topic_overrides(overrides)
    assert said in str(caught.value)


def test_good_overrides_pass() -> None:
    validate_topic_overrides({"retention.ms": "-1", "leader.replication.throttled.replicas": "0:1,1:2"})


# DescribeConfigs


def test_a_topic_is_described_completely() -> None:
    assert [entry.name for entry in describe_topic({}, BrokerSettings())] == list(TOPIC_SETTINGS)


def test_an_overridden_topic_setting_comes_from_the_topic() -> None:
    broker = BrokerSettings.parse({"log.retention.hours": "2"})
    entry = entry_of(describe_topic({"retention.ms": "5"}, broker), "retention.ms")
    assert (entry.value, entry.type_id, entry.source_id, entry.read_only) == (
        "5",
        LONG.id,
        ConfigSource.TOPIC,
        False,
    )
    assert entry.synonyms == (
        ("retention.ms", "5", 1),
        ("log.retention.hours", "2", 4),
        ("log.retention.hours", "168", 5),
    )


def test_a_topic_setting_from_the_broker_shows_the_broker_as_its_source() -> None:
    broker = BrokerSettings.parse({"log.retention.hours": "2"})
    entry = entry_of(describe_topic({}, broker), "retention.ms")
    assert (entry.value, entry.source_id) == (str(2 * HOUR_MS), ConfigSource.STATIC_BROKER)


def test_a_topic_setting_without_broker_setting_is_a_default() -> None:
    entry = entry_of(describe_topic({}, BrokerSettings()), "remote.storage.enable")
    assert (entry.value, entry.source_id, entry.synonyms) == ("false", ConfigSource.DEFAULT, ())


def test_the_source_of_a_described_value_is_where_its_value_comes_from() -> None:
    broker = BrokerSettings.parse({"message.max.bytes": "1"}).with_dynamic(
        {"message.max.bytes": "2"}, {"message.max.bytes": "3"}
    )
    entry = entry_of(describe_broker(broker), "message.max.bytes")
    assert (entry.value, entry.source_id) == ("3", ConfigSource.DYNAMIC_BROKER)
    assert entry.synonyms == (
        ("message.max.bytes", "3", 2),
        ("message.max.bytes", "2", 3),
        ("message.max.bytes", "1", 4),
        ("message.max.bytes", "1048588", 5),
    )


@pytest.mark.parametrize("name", ["log.retention.ms", "log.retention.minutes", "log.roll.ms", "log.flush.interval.ms"])
def test_unset_setting_without_a_default_has_no_synonyms(name: str) -> None:
    """As in Kafka 4.3, also when another unit of the same setting is set."""
    broker = BrokerSettings.parse(
        {"log.retention.hours": "1", "log.roll.hours": "1", "log.flush.scheduler.interval.ms": "5"}
    )
    entry = entry_of(describe_broker(broker), name)
    assert (entry.value, entry.source_id, entry.synonyms) == (None, ConfigSource.DEFAULT, ())


def test_values_that_were_set_at_start_are_static() -> None:
    settings = BrokerSettings.parse(parse_properties(KRAFT_PROPERTIES) | {"confluent.license": "canary"})
    entries = {entry.name: entry for entry in describe_broker(settings)}
    for name, value in {
        "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        "broker.id": "1",
        "node.id": "1",
        "num.io.threads": "8",
        "process.roles": "broker,controller",
    }.items():
        entry = entries[name]
        assert (entry.value, entry.source_id) == (value, ConfigSource.STATIC_BROKER)
        assert entry.synonyms[0] == (name, value, ConfigSource.STATIC_BROKER)
    assert (entries["confluent.license"].value, entries["confluent.license"].sensitive) == (None, True)
    assert len({entry.name for entry in describe_broker(settings)}) == len(describe_broker(settings))


def test_addresses_that_were_not_set_are_null() -> None:
    entry = entry_of(describe_broker(BrokerSettings()), "advertised.listeners")
    assert (entry.value, entry.source_id, entry.synonyms) == (None, ConfigSource.DEFAULT, ())


def test_broker_settings_that_need_a_restart_are_read_only() -> None:
    entries = describe_broker(BrokerSettings())
    assert (
        entry_of(entries, "num.partitions").read_only,
        entry_of(entries, "log.retention.ms").read_only,
    ) == (
        True,
        False,
    )


def test_the_clusters_defaults_show_only_what_was_set_there() -> None:
    broker = BrokerSettings.parse({"message.max.bytes": "1"}).with_dynamic({"message.max.bytes": "2"}, {})
    (entry,) = describe_broker_defaults(broker)
    assert (entry.name, entry.value, entry.source_id, entry.synonyms) == (
        "message.max.bytes",
        "2",
        ConfigSource.DYNAMIC_DEFAULT_BROKER,
        (("message.max.bytes", "2", 3),),
    )


def test_a_setting_without_effect_says_so() -> None:
    row = next(row for row in BROKER_SETTINGS.values() if not row.used)
    assert entry_of(describe_broker(BrokerSettings()), row.name).documentation.endswith("Accepted, no effect yet.")


# AlterConfigs


@pytest.mark.parametrize("name", sorted(UnusedSettings.rows()))
def test_dynamic_setting_of_kafka_without_effect_is_accepted_and_shown(name: str) -> None:
    text = format_value(BROKER_SETTINGS[name].default) or ""
    changed = apply_incremental({}, [(name, AlterOp.SET, text)], BROKER_SETTINGS)
    entry = entry_of(describe_broker(BrokerSettings().with_dynamic({}, changed)), name)
    assert (entry.value, entry.source_id) == (text, ConfigSource.DYNAMIC_BROKER)


@pytest.mark.parametrize(
    "name",
    ["ssl.engine.factory.class", "listener.name.plaintext.ssl.key.password",
     "sasl.jaas.config", "metric.reporters", "process.roles", "controller.quorum.voters", "zookeeper.connect"],
)  # fmt: skip
def test_setting_of_kafka_that_cannot_be_changed_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name) as raised:
        apply_incremental({}, [(name, AlterOp.SET, "canary")], BROKER_SETTINGS)
    assert "unknown" not in str(raised.value) and "canary" not in str(raised.value)


def test_table_of_foreign_settings_names_none_that_has_a_row() -> None:
    names = [name for name, _, _ in foreign_rows()]
    assert names == sorted(names) and len(set(names)) == len(names)
    assert not BROKER_SETTINGS.keys() & set(names)


def test_set_and_delete_change_the_overrides() -> None:
    ops = [("retention.ms", AlterOp.SET, "5"), ("segment.ms", AlterOp.DELETE, None)]
    current = {"segment.ms": "1", "flush.ms": "2"}
    assert apply_incremental(current, ops, TOPIC_SETTINGS) == {"flush.ms": "2", "retention.ms": "5"}


def test_altering_leaves_the_current_overrides_alone() -> None:
    current = {"retention.ms": "1"}
    apply_incremental(current, [("retention.ms", AlterOp.SET, "5")], TOPIC_SETTINGS)
    assert current == {"retention.ms": "1"}


@pytest.mark.parametrize(
    ("current", "op", "text", "expected"),
    [
        ({}, AlterOp.APPEND, "compact", "delete,compact"),
        ({"cleanup.policy": "compact"}, AlterOp.APPEND, "compact,delete", "compact,delete"),
        ({"cleanup.policy": "compact,delete"}, AlterOp.SUBTRACT, "compact", "delete"),
        ({"cleanup.policy": "compact"}, AlterOp.SUBTRACT, "delete", "compact"),
        ({}, AlterOp.SUBTRACT, "delete", ""),
    ],
)
def test_lists_grow_and_shrink_from_the_current_or_default_value(
    current: dict[str, str], op: AlterOp, text: str, expected: str
) -> None:
    altered = apply_incremental(current, [("cleanup.policy", op, text)], TOPIC_SETTINGS)
    assert altered == {"cleanup.policy": expected}


@pytest.mark.parametrize(
    "ops",
    [
        [("retention.ms", AlterOp.SET, None)],
        [("retention.ms", AlterOp.SET, "1"), ("retention.ms", AlterOp.DELETE, None)],
        [("retention.ms", 4, "1")],
        [("cleanup.policy", AlterOp.APPEND, None)],
    ],
)
def test_a_request_that_makes_no_sense_is_an_invalid_request(ops: list[tuple[str, int, str | None]]) -> None:
    with pytest.raises(InvalidRequest):
        apply_incremental({}, ops, TOPIC_SETTINGS)


@pytest.mark.parametrize(
    "op",
    [
        ("retention.mss", AlterOp.SET, "1"),
        ("retention.ms", AlterOp.SET, "soon"),
        ("retention.ms", AlterOp.APPEND, "1"),
        ("retention.ms", AlterOp.SUBTRACT, "1"),
        ("cleanup.policy", AlterOp.APPEND, "shred"),
    ],
)
def test_a_name_or_value_that_is_not_allowed_is_an_invalid_config(op: tuple[str, int, str | None]) -> None:
    with pytest.raises(InvalidSettings):
        apply_incremental({}, [op], TOPIC_SETTINGS)


def test_a_read_only_broker_setting_cannot_be_altered() -> None:
    with pytest.raises(InvalidRequest, match=r"num\.partitions cannot change"):
        apply_incremental({}, [("num.partitions", AlterOp.SET, "2")], BROKER_SETTINGS)


def test_a_name_left_behind_can_be_deleted() -> None:
    assert apply_incremental({"gone.ms": "1"}, [("gone.ms", AlterOp.DELETE, None)], TOPIC_SETTINGS) == {}


# Documentation


def test_the_reference_page_is_up_to_date() -> None:
    assert generate_docs.outdated_pages() == [], "run: python tools/generate_docs.py"
