"""Regular expressions of clients: the whole name, in linear time, or a refusal."""

from __future__ import annotations

import sys

import pytest

from ottla.broker.groups.regex import matching_topics
from ottla.model.errors import ErrorCode, Refused


def test_whole_name_must_match() -> None:
    assert matching_topics("b|bc", ["abc", "b", "bc", "bcd"]) == ("b", "bc")


def test_names_come_in_order() -> None:
    assert matching_topics(".*", ["b", "a", "c"]) == ("a", "b", "c")


def test_flags_inside_the_expression_are_understood() -> None:
    assert matching_topics("(?i)ORDERS", ["orders", "Orders", "x"]) == ("Orders", "orders")


@pytest.mark.parametrize("expression", ["(", "a**", "[z-a]", r"(a)\1", "(?=a)", "a{1001}", "((a{100}){100}){100}"])
def test_what_re2_cannot_do_is_refused(expression: str) -> None:
    with pytest.raises(Refused) as caught:
        matching_topics(expression, ["a"])
    assert caught.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_refusal_is_told_to_the_client_and_not_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refused, match="missing"):
        matching_topics("orders-(eu", ["a"])
    assert capfd.readouterr().err == ""


def test_expression_that_is_too_long_is_refused() -> None:
    with pytest.raises(Refused, match="4096"):
        matching_topics("a" * 5000, ["a"])


def test_expression_that_ruins_backtracking_engines_is_harmless() -> None:
    assert matching_topics("(a+)+b", ["a" * 249]) == ()


def test_library_is_loaded_only_when_it_is_needed() -> None:
    """Most brokers never see an expression."""
    import subprocess

    script = "import sys, ottla.broker.groups.consumer; print('re2' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"
