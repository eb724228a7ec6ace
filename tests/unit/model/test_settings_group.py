"""Settings of consumer groups: bounded by the broker's, shown with their source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.metadata.nodes import config_json, group_config_path, group_of
from ottla.broker.metadata.store import Changed, Node, check_path
from ottla.broker.metadata.view import ClusterView
from ottla.model.settings import (
    GROUP_SETTINGS,
    BrokerSettings,
    ConfigSource,
    GroupSettings,
    InvalidSettings,
    check_group_overrides,
    describe_group,
)

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
BROKER = BrokerSettings.parse(
    {"group.consumer.min.session.timeout.ms": "1000", "group.consumer.session.timeout.ms": "46000"}
)


def test_group_without_settings_has_those_of_the_broker() -> None:
    settings = GroupSettings.resolve({}, BROKER)
    assert (settings.consumer_session_timeout_ms, settings.consumer_heartbeat_interval_ms) == (46_000, 5000)


def test_groups_own_value_wins() -> None:
    assert GroupSettings.resolve({SESSION: "1000"}, BROKER).consumer_session_timeout_ms == 1000


def test_stored_value_outside_the_brokers_bounds_is_moved_inside() -> None:
    settings = GroupSettings.resolve({SESSION: "1000", HEARTBEAT: "99999"}, BrokerSettings())
    assert (settings.consumer_session_timeout_ms, settings.consumer_heartbeat_interval_ms) == (45_000, 15_000)


@pytest.mark.parametrize(
    ("name", "text"), [(SESSION, "999"), (SESSION, "60001"), (HEARTBEAT, "4999"), (HEARTBEAT, "15001")]
)
def test_value_outside_the_brokers_bounds_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidSettings, match=f"{name} must be between"):
        check_group_overrides({name: text}, BROKER)


def test_values_on_the_bounds_are_accepted() -> None:
    check_group_overrides({SESSION: "1000", HEARTBEAT: "5000"}, BROKER)
    check_group_overrides({SESSION: "60000", HEARTBEAT: "15000"}, BROKER)


def test_every_setting_has_a_broker_setting_and_two_bounds() -> None:
    for name in GROUP_SETTINGS:
        check_group_overrides({name: str(GROUP_SETTINGS[name].default)}, BrokerSettings())


def test_description_shows_the_groups_value_before_the_brokers() -> None:
    entries = {entry.name: entry for entry in describe_group({SESSION: "50000"}, BROKER)}
    assert entries.keys() == GROUP_SETTINGS.keys()
    session = entries[SESSION]
    assert (session.value, session.source_id, session.read_only) == ("50000", ConfigSource.GROUP, False)
    assert session.synonyms == (
        (SESSION, "50000", 8),
        ("group.consumer.session.timeout.ms", "46000", 4),
        ("group.consumer.session.timeout.ms", "45000", 5),
    )
    assert (entries[HEARTBEAT].value, entries[HEARTBEAT].source_id) == ("5000", ConfigSource.DEFAULT)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50))
def test_any_group_name_is_a_path_and_back(group: str) -> None:
    path = group_config_path(group)
    check_path(path)
    assert group_of(path) == group


@pytest.mark.parametrize("group", [".", "..", "a/b", "%2E", "a b", "ž", "\x00"])
def test_odd_group_names_are_paths(group: str) -> None:
    check_path(group_config_path(group))
    assert group_of(group_config_path(group)) == group


def test_view_follows_settings_of_groups() -> None:
    view = ClusterView()
    configs = view.group_configs
    view.apply([Changed(group_config_path("a/b"), Node(config_json({SESSION: "50000"}), 0))])
    assert configs == {"a/b": {SESSION: "50000"}}
    view.apply([Changed(group_config_path("a/b"), None)])
    assert configs == {}
