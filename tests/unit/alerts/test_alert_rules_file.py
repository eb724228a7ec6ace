"""The file of rules: what it can say, and what is reported about one that is wrong."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from alert_fixtures import LATE
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.edge.monitor.alerts.engine import AlertEngine
from ottla.edge.monitor.alerts.patterns import NamePatterns, matches
from ottla.edge.monitor.alerts.rules import CheckCondition, Level, ValueCondition
from ottla.edge.monitor.alerts.rules_file import DEFAULT, BadRules, default_text, load, parse_rules
from ottla.edge.monitor.alerts.values import Observation
from ottla.health.checks import CHECKS

MAIL = 'type = "email"\nsmtp = "mail"\nfrom = "a@b.c"\nto = "d@e.f"\n'
VALUE_RULE = '[[rule]]\nname = "a"\nvalue = "group_lag"\n'


def problems(text: str) -> list[str]:
    with pytest.raises(BadRules) as caught:
        parse_rules(text, "file.toml")
    return list(caught.value.problems)


def test_default_rules_are_valid_and_name_checks_that_exist() -> None:
    rules = load(DEFAULT)
    names = {check.name for check in CHECKS}
    for rule in rules.rules:
        if isinstance(rule.condition, CheckCondition):
            assert set(rule.condition.checks.patterns) <= names | {"cluster-not-read"}, rule.name
    assert rules.receivers == ()


def test_every_check_with_severity_error_opens_an_alert_by_default() -> None:
    """Except for those about addresses, which are wrong from the start and do not change."""
    conditions = [each.condition for each in load(DEFAULT).rules if isinstance(each.condition, CheckCondition)]
    missing = {
        check.name
        for check in CHECKS
        if check.severity.name == "ERROR" and not any(each.checks.match(check.name) for each in conditions)
    }
    assert missing == {"same-address", "loopback-address", "stalled-groups"}  # group-stopped covers stalled groups


def test_rule_has_all_its_settings() -> None:
    rules = parse_rules(
        """
        external_url = "https://console.example/"
        [grouping]
        by = ["group"]
        wait = "0"
        interval = "30s"
        repeat = "1h"
        [[rule]]
        name = "late"
        value = "topic_seconds"
        above = 300
        match = { group = ["orders-*", "!orders-test"], topic = "orders" }
        for = "5m"
        keep = "1h30m"
        severity = "critical"
        text = "{group} is {value} behind in {topic}"
        labels = { team = "shop" }
        notify = "hook"
        [[receiver]]
        name = "hook"
        url = "https://hook.example/x"
        severity_min = "warning"
        """
    )
    (rule,) = rules.rules
    assert isinstance(rule.condition, ValueCondition)
    assert (rule.condition.above, rule.for_ms, rule.keep_ms, rule.level) == (300, 300_000, 5_400_000, Level.CRITICAL)
    assert rule.condition.match.match({"group": "orders-1", "topic": "orders"})
    assert not rule.condition.match.match({"group": "orders-test", "topic": "orders"})
    assert (rules.grouping.by, rules.grouping.wait_ms, rules.grouping.repeat_ms) == (("group",), 0, 3_600_000)
    assert rules.external_url == "https://console.example"
    assert rules.receivers[0].level_min is Level.WARNING


def test_own_file_replaces_and_removes_rules_of_the_default_file() -> None:
    rules = parse_rules(
        'extends = "default"\n[[rule]]\nname = "group-late"\nvalue = "group_seconds"\nabove = 1\n'
        '[[rule]]\nname = "dead-letters"\nenabled = false\n'
    )
    late = rules.rule("group-late")
    assert late is not None and isinstance(late.condition, ValueCondition) and late.condition.above == 1
    assert rules.rule("dead-letters") is None
    assert len(rules.rules) == len(load(DEFAULT).rules) - 1


def test_all_problems_of_a_file_are_reported_with_their_places() -> None:
    assert problems(
        '[[rule]]\nname = "a"\ncheck = "offline-partition"\nfro = "5m"\n'
        '[[rule]]\nname = "b"\nvalue = "group_lag"\nabove = "many"\nfor = "soon"\n'
        '[[rule]]\nname = "b"\nvalue = "group_status"\nis = ["LATE"]\ntext = "{topic} is late"\n'
    ) == [
        "rule 'a': check 'offline-partition' is unknown; did you mean offline-partitions?",
        "rule 'a': fro is unknown; did you mean for?",
        "rule 'b': above must be a number",
        "rule 'b': group_lag is a number: give above or below",
        "rule 'b': for: 'soon' is not a duration: write 1h30m, 7d, 250ms, or ISO 8601 such as PT1H30M",
        "rule 'b': there is another rule with this name",
        "rule 'b': group_status is never 'LATE', its words are NOTFOUND, OK, WARN, ERR",
        "rule 'b': text has {topic}, allowed are check, count, group, name, names, rule, text, value",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rule = 5", "top of the file: rule must be tables, each with [[rule]] above it"),
        ("[[rule]\n", "not TOML: Expected ']]' at the end of an array declaration (at line 1,"),
        ("x = " + "[" * 100_000, "not TOML: too deep"),
        ("xyz = 1", "top of the file: xyz is unknown; allowed are extends,"),
        ('extends = "other"', 'top of the file: extends can only be "default", the rules of the package'),
        ('[[rule]]\nname = "a b"\nvalue = "brokers"\nbelow = 3\n', "rule 1: name is missing, or not letters"),
        ('[[rule]]\nname = "a"\n', """rule 'a': give either check = "…" or value = "…\""""),
        (VALUE_RULE + "above = nan\n", "rule 'a': above must be a number"),
        (VALUE_RULE + "above = true\n", "rule 'a': above must be a number"),
        (
            VALUE_RULE + 'above = 1\nseverity = "bad"\n',
            "rule 'a': severity is 'bad', allowed are info, warning, critical",
        ),
        (VALUE_RULE + 'above = 1\nfor = "1000d"\n', "rule 'a': for is longer than a year"),
        (VALUE_RULE + 'above = 1\nnotify = "x"\n', "rule 'a': notify names 'x', which is no receiver"),
        (
            VALUE_RULE + 'above = 1\nlabels = { group = "x" }\n',
            "rule 'a': labels.group is a label that the alert has already",
        ),
        (
            VALUE_RULE + 'above = 1\nmatch = { topic = "x" }\n',
            "rule 'a': match: topic is no label of this rule; its labels: group",
        ),
        ('[grouping]\nby = ["member"]\n', "grouping: by names 'member', allowed are broker, check,"),
        ('[grouping]\nrepeat = "10s"\n', "grouping: repeat must be 1s at least, and not shorter than interval"),
        ('[[silence]]\nmatch = { rule = "a" }\n', "silence 1: until is missing: a silence must end"),
        ('[[silence]]\nmatch = { rule = "a" }\nuntil = 2026-01-01T00:00:00\n', "silence 1: until needs a time zone"),
    ],
)
def test_wrong_file_is_reported(text: str, problem: str) -> None:
    assert any(each.startswith(problem) for each in problems(text))


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ('url = "file:///etc/passwd"', "url must begin with http://HOST or https://HOST"),
        ('url = "http://user:secret@host/"', "url must not have a user name or a password; use bearer_file"),
        ('url = "http://host/\\r\\nX: 1"', "url must be ASCII without spaces"),
        ('url = "http://host:99999/"', "url is no URL"),
        ("", "give one of url, url_file and url_env"),
        ('url = "http://hook.example/"\nbearer_env = "B"', "secrets are not sent over http:// to another machine"),
        ('url = "http://host/"\nbearer = "secret"', "bearer must not be in this file; write bearer_file or bearer_env"),
        ('url = "http://host/"\nbearer_file = "a"\nbearer_env = "B"', "give one of bearer_file and bearer_env"),
        (MAIL.replace("d@e.f", "d@e.f\\nBcc: x@y.z"), "to must be an address such as alerts@example.com"),
        (MAIL.replace('"mail"', '"mail:x"'), 'smtp must be the mail server, as "HOST" or "HOST:PORT"'),
        (MAIL + 'tls = "none"\nuser = "u"\npassword_env = "P"', 'tls = "none" would send the password readable'),
        (MAIL + 'user = "u"', "user needs password_file or password_env, and they need user"),
        ('type = "pager"\nurl = "http://host/"', "type is 'pager', allowed are webhook, email, slack"),
    ],
)
def test_wrong_receiver_is_reported(keys: str, problem: str) -> None:
    found = problems(f'[[receiver]]\nname = "r"\n{keys}\n')
    assert any(each.startswith(f"receiver 'r': {problem}") for each in found)


def test_secret_in_the_file_is_not_repeated_in_the_message() -> None:
    text = '[[receiver]]\nname = "r"\nurl = "http://u:hunter2@h/"\nbearer = "hunter2"\n'
    assert not any("hunter2" in each for each in problems(text))


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "alerts.toml"
    path.write_text('[[receiver]]\nname = "r"\nurl = "https://h/"\nbearer_file = "token"\nca_file = "/etc/ca.pem"\n')
    (receiver,) = load(str(path)).receivers
    assert (receiver.bearer.file, receiver.ca_file) == (str(tmp_path / "token"), "/etc/ca.pem")


def test_file_that_is_too_large_or_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "alerts.toml"
    for data in (b"#" * (300 << 10), b"\xff"):
        path.write_bytes(data)
        with pytest.raises(BadRules):
            load(str(path))
    with pytest.raises(BadRules, match="cannot be read"):
        load(str(tmp_path))


def test_pattern_needs_time_proportional_to_the_text() -> None:
    assert not matches("*a" * 30 + "b", "a" * 20_000)
    assert matches("*a" * 30 + "*", "a" * 20_000)
    assert [matches("ab*ba", text) for text in ("aba", "abba", "abxba")] == [False, True, True]


def test_names_match_some_patterns_and_none_of_the_excluded_ones() -> None:
    assert NamePatterns(()).match("x")
    assert NamePatterns(("!x",)).match("y") and not NamePatterns(("!x",)).match("x")
    assert not NamePatterns(("a*", "!ab*")).match("abc")


def test_examples_of_the_docs_are_one_valid_file() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operate" / "alerts.md").read_text()
    blocks = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    rules = parse_rules("\n".join(blocks))
    assert len(blocks) == 3 and len(rules.receivers) == 3 and rules.silences and rules.rule("orders-late")


FULL = (
    default_text()
    + LATE
    + '[[receiver]]\nname = "m"\ntype = "email"\nsmtp = "h:1"\nfrom = "a@b.c"\nto = ["d@e.f"]\n'
    + '[[silence]]\nmatch = { rule = "late" }\nuntil = 2100-01-01T00:00:00Z\n'
)
PIECES = [
    "[",
    "]",
    "=",
    '"',
    "{",
    "}",
    "-1",
    "true",
    "nan",
    "1e400",
    "2026-01-01",
    '""',
    "[[rule]]",
    "é",
    "*",
    "0x",
    "[]",
    "{}",
    "\n",
]
DAMAGES = st.tuples(st.integers(0, len(FULL)), st.integers(0, 12), st.sampled_from(PIECES))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(DAMAGES, min_size=1, max_size=4))
def test_damaged_file_is_valid_or_reported(damages: list[tuple[int, int, str]]) -> None:
    text = FULL
    for position, length, piece in damages:
        text = text[:position] + piece + text[position + length :]
    # No other exception than BadRules.
    with contextlib.suppress(BadRules):
        AlertEngine(parse_rules(text, "file")).observe(Observation(at_ms=1))
