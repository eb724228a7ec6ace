"""Which cluster a command speaks to, and how."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from ottla.cli.connection import load_properties, make_connection, split_addresses


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_BOOTSTRAP_SERVER", raising=False)


def test_the_default_address_is_local_and_known_to_be_the_default() -> None:
    connection = make_connection(None, {}, {}, 5)
    assert (connection.bootstrap, connection.bootstrap_named) == ("127.0.0.1:9092", False)


def test_flag_beats_property_beats_file_beats_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", "env:1")
    in_file, in_flag = {"bootstrap.servers": "file:1"}, {"bootstrap.servers": "x:1"}
    assert make_connection("flag:1", in_flag, in_file, 5).bootstrap == "flag:1"
    assert make_connection(None, in_flag, in_file, 5).bootstrap == "x:1"
    assert make_connection(None, {}, in_file, 5).bootstrap == "file:1"
    assert make_connection(None, {}, {}, 5).bootstrap == "env:1"


def test_a_properties_file_has_comments_and_joined_lines(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# comment\n! another\n\na = 1\nb:2\nc=x\\\n  y=z\n")
    assert load_properties(str(path)) == {"a": "1", "b": "2", "c": "xy=z"}


def test_line_without_a_value_is_refused_by_its_number(tmp_path: Path) -> None:
    """The line itself is not shown: it may be the password of a setting whose name is missing."""
    path = tmp_path / "client.properties"
    path.write_text("# settings\ncanary\n")
    with pytest.raises(click.UsageError, match=r"client\.properties: line 2 ") as refused:
        load_properties(str(path))
    assert "canary" not in str(refused.value)


def test_a_java_login_line_becomes_user_and_password() -> None:
    jaas = 'org.apache.kafka.PlainLoginModule required username="alice" password="s\\"ecret";'
    properties = make_connection(None, {}, {"sasl.jaas.config": jaas}, 5).properties
    assert properties == {"sasl.username": "alice", "sasl.password": 's"ecret'}


def test_a_login_line_without_a_password_says_what_to_set_instead() -> None:
    with pytest.raises(click.UsageError, match=r"sasl\.password"):
        make_connection(None, {}, {"sasl.jaas.config": 'Module required username="a";'}, 5)


def test_addresses_may_have_schemes_brackets_and_no_port() -> None:
    addresses = split_addresses("PLAINTEXT://a:1, [::1]:2,b")
    assert addresses == [("a", 1), ("::1", 2), ("b", 9092)]


@pytest.mark.parametrize("text", ["", "a:b", "a:1:2", "a b:1", "a,,b"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError):
        split_addresses(text)
