"""Log events as JSON: one line for each, whatever is in the values."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from ottla.env.json_log import JsonFormatter, with_process

HOSTILE = (
    'a"b\\ level=ERROR x="1"',
    "new\nline\r\n", "\x1b[2J\x1b]0;title\x07", "\x00\x7f\x9b31m", "\u2028\u202e", "\ud800",
    '", "level": "CRITICAL', "%s %(x)s {0}", "</script>",
)  # fmt: skip


def formatted(message: str, *values: object, **more: Any) -> dict[str, Any]:
    record = logging.LogRecord("ottla.x", logging.WARNING, "x.py", 1, message, values, more.get("exc_info"))
    record.created = 1_763_589_397.1209
    line = JsonFormatter().format(record)
    assert line.isascii() and line.isprintable()
    event: dict[str, Any] = json.loads(line)
    return event


def test_event_has_time_level_logger_message_and_fields() -> None:
    assert formatted("topic deleted name=%s partitions=%d bytes=%.1f done=%s", "t", 3, 1.5, None) == {
        "time": "2025-11-19T21:56:37.120Z",
        "level": "WARNING",
        "logger": "ottla.x",
        "message": "topic deleted name=t partitions=3 bytes=1.5 done=None",
        "fields": {"name": "t", "partitions": 3, "bytes": 1.5, "done": None},
    }


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_value_stays_in_its_field(value: str) -> None:
    event = formatted("client says name=%s and %s id=%s", value, value, 7)
    assert event["fields"] == {"name": value, "id": 7}
    assert (event["level"], event["logger"]) == ("WARNING", "ottla.x")


def test_percent_sign_of_the_text_is_no_argument() -> None:
    assert formatted("disk is 90 %% full path=%s", "/d")["fields"] == {"path": "/d"}


def test_numbers_that_json_does_not_have_are_texts() -> None:
    assert formatted("rate=%s bytes=%s", float("nan"), b"x")["fields"] == {"rate": "nan", "bytes": "b'x'"}


def test_event_whose_arguments_do_not_fit_is_logged_without_fields() -> None:
    event = formatted("name=%s id=%d", "x")
    assert (event["message"], event["fields"]) == ("name=%s id=%d", {})


def test_very_long_value_is_cut() -> None:
    assert formatted("name=%s", "x" * 1_000_000)["fields"]["name"].endswith("... (1000000 characters)")


def test_traceback_is_a_field_of_the_same_line() -> None:
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        event = formatted("request failed api=%d", 3, exc_info=sys.exc_info())
    assert event["exception"].startswith("Traceback") and event["exception"].endswith("ValueError: bad\nvalue")


def test_line_of_a_process_names_the_process_also_if_it_is_no_event() -> None:
    assert json.loads(with_process('{"level": "INFO"}\n', "broker 1", 0.0)) == {"process": "broker 1", "level": "INFO"}
    event = json.loads(with_process("Exception in thread\x1b[2J\n", "zookeeper", 0.0))
    assert (event["process"], event["level"], event["message"]) == (
        "zookeeper",
        "WARNING",
        "Exception in thread\x1b[2J",
    )
    assert json.loads(with_process("7\n", "rest", 0.0))["message"] == "7"
