"""Which messages are due, and when."""

from __future__ import annotations

import json

import pytest
from alert_fixtures import HOUR, LATE, MINUTE, SECOND, START, deliver, engine, finding, found, seconds

from ottla.edge.monitor.alerts.engine import AlertEngine, BadState
from ottla.edge.monitor.alerts.rules_file import parse_rules
from ottla.health.findings import Severity


def opened(text: str = LATE, **groups: float | None) -> AlertEngine:
    """Return an engine with open alerts at minute 1."""
    of = engine(text)
    of.observe(seconds(0, **(groups or {"g": 200.0})))
    of.observe(seconds(MINUTE, **(groups or {"g": 200.0})))
    return of


def test_first_message_waits_for_other_alerts_of_its_group() -> None:
    of = opened(a=200.0, b=200.0)
    assert deliver(of, MINUTE) == []
    of.observe(seconds(MINUTE + 5 * SECOND, a=200.0, b=200.0))
    assert deliver(of, MINUTE + 9 * SECOND) == []
    assert [set(each["open"]) for each in deliver(of, MINUTE + 10 * SECOND)] == [{"a", "b"}]


def test_message_is_repeated_while_the_alert_stays_open() -> None:
    of = opened()
    deliver(of, MINUTE)
    assert deliver(of, 2 * MINUTE) == [{"to": "hook", "open": ["g"]}]
    assert deliver(of, 2 * MINUTE + 4 * HOUR - 1) == []
    assert deliver(of, 2 * MINUTE + 4 * HOUR) == [{"to": "hook", "open": ["g"], "reminder": True}]


def test_closing_is_reported_once_and_with_what_is_still_open() -> None:
    of = opened(a=200.0, b=200.0)
    deliver(of, MINUTE)
    deliver(of, 2 * MINUTE)
    of.observe(seconds(2 * MINUTE, a=200.0, b=50.0))
    of.observe(seconds(4 * MINUTE, a=200.0, b=50.0))
    assert deliver(of, 4 * MINUTE) == [{"to": "hook", "open": ["a"], "closed": ["b"]}]
    of.observe(seconds(5 * MINUTE, a=50.0))
    of.observe(seconds(7 * MINUTE, a=50.0))
    assert deliver(of, 7 * MINUTE) == [{"to": "hook", "closed": ["a"]}]
    assert deliver(of, 12 * HOUR) == [] and of.groups.reported == {}


def test_changes_of_a_group_are_collected_for_an_interval() -> None:
    of = opened(a=200.0)
    deliver(of, MINUTE)
    deliver(of, 2 * MINUTE)
    of.observe(seconds(2 * MINUTE, a=200.0, b=200.0))
    of.observe(seconds(3 * MINUTE, a=200.0, b=200.0))
    of.groups.reported[("hook", (("rule", "late"),))].sent_ms = START + 3 * MINUTE
    assert deliver(of, 3 * MINUTE + 59 * SECOND) == []
    assert [set(each["open"]) for each in deliver(of, 4 * MINUTE)] == [{"a", "b"}]


def test_message_that_was_not_accepted_stays_due_and_tells_the_present_state() -> None:
    of = opened(a=200.0)
    of.due(START + MINUTE)
    assert len(of.due(START + 2 * MINUTE)) == len(of.due(START + 3 * MINUTE)) == 1
    of.observe(seconds(4 * MINUTE, a=50.0))
    of.observe(seconds(6 * MINUTE, a=50.0))
    assert of.due(START + 6 * MINUTE) == []  # the receiver never knew of it
    assert of.groups.reported == {}


def test_message_is_due_again_after_a_restart_unless_it_was_accepted() -> None:
    of = opened()
    of.due(START + MINUTE)
    again = engine()
    again.restore(of.dump())
    again.due(START + MINUTE)
    assert deliver(again, 2 * MINUTE) == [{"to": "hook", "open": ["g"]}]
    last = engine()
    last.restore(again.dump())
    assert deliver(last, 3 * MINUTE) == []


def test_alert_that_becomes_worse_is_reported_again_and_one_that_becomes_better_is_not() -> None:
    of = engine(
        '[[rule]]\nname = "disk"\ncheck = "full-disks"\n[[receiver]]\nname = "r"\nurl = "http://h/"\n'
        '[grouping]\nwait = "0"\ninterval = "1s"\n'
    )
    said = []
    for minute, severity in enumerate((Severity.WARNING, Severity.ERROR, Severity.WARNING, Severity.ERROR)):
        of.observe(found(minute * MINUTE, finding("full-disks", "1:/data", severity=severity)))
        said.append(len(deliver(of, minute * MINUTE)))
    assert said == [1, 1, 0, 0]


def test_receivers_get_the_alerts_that_they_ask_for() -> None:
    of = opened(
        LATE
        + '[[receiver]]\nname = "critical"\nurl = "http://h/"\nseverity_min = "critical"\n'
        + '[[receiver]]\nname = "shop"\nurl = "http://h/"\nmatch = { group = "shop-*" }\n',
        **{"shop-1": 200.0, "bank": 200.0},
    )
    of.due(START + MINUTE)
    assert sorted((each["to"], sorted(each["open"])) for each in deliver(of, 2 * MINUTE)) == [
        ("hook", ["bank", "shop-1"]),
        ("shop", ["shop-1"]),
    ]


def test_receiver_that_wants_no_news_of_closing_gets_none() -> None:
    of = opened(LATE + "send_closed = false\n")
    deliver(of, MINUTE)
    deliver(of, 2 * MINUTE)
    of.observe(seconds(3 * MINUTE, g=50.0))
    of.observe(seconds(5 * MINUTE, g=50.0))
    assert deliver(of, 10 * MINUTE) == [] and of.groups.reported == {}


SILENCED = (
    LATE + '[[silence]]\nmatch = { rule = "late", group = "g*" }\nuntil = 2100-01-01T00:00:00Z\nreason = "move"\n'
)


def test_silenced_alert_is_shown_and_not_sent() -> None:
    of = opened(SILENCED)
    assert deliver(of, MINUTE) == deliver(of, 2 * MINUTE) == []
    assert of.view(START + MINUTE)["alerts"][0]["is_silenced"]


def test_silence_of_an_alert_that_was_sent_stops_reminders_and_not_the_closing() -> None:
    of = opened()
    deliver(of, MINUTE)
    deliver(of, 2 * MINUTE)
    of.use(parse_rules(SILENCED))
    assert deliver(of, 5 * HOUR) == []
    of.observe(seconds(5 * HOUR, g=50.0))
    of.observe(seconds(5 * HOUR + 2 * MINUTE, g=50.0))
    assert deliver(of, 6 * HOUR) == [{"to": "hook", "closed": ["g"]}]


def test_message_about_a_receiver_that_was_removed_is_forgotten() -> None:
    of = opened()
    deliver(of, MINUTE)
    (message,) = of.due(START + 2 * MINUTE)
    of.use(parse_rules(LATE.partition("[[receiver]]")[0]))
    of.accepted(message, START + 2 * MINUTE)
    assert of.groups.reported == {}


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"version":2}', b'{"version":1,"alerts":[{}],"reported":[],"observed_ms":0}', b"[" * 100_000,
     b'{"version":1,"alerts":5,"reported":[],"observed_ms":0}',
     json.dumps({"version": 1, "observed_ms": 0, "reported": [], "alerts": [0] * 3000}).encode()],
)  # fmt: skip
def test_state_that_is_not_one_is_refused_and_changes_nothing(data: bytes) -> None:
    of = opened()
    before = of.dump()
    with pytest.raises(BadState):
        of.restore(data)
    assert of.dump() == before


def test_names_of_the_cluster_are_escaped_and_bounded() -> None:
    of = opened(**{"\x1b[2J{value}": 200.0, "x" * 30_000: 200.0, "x" * 30_001: 200.0})
    rows = of.view(START)["alerts"]
    assert [row["text"] for row in rows if "value" in row["text"]] == ["group \\x1b[2J{value} is 3m20s behind"]
    long = [row["labels"]["group"] for row in rows if row["labels"]["group"].startswith("x")]
    assert [len(each) for each in long] == [300, 300] and len(set(long)) == 2
