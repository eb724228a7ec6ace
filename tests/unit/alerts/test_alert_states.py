"""When alerts open and close."""

from __future__ import annotations

from alert_fixtures import HOUR, LATE, MINUTE, SECOND, START, deliver, engine, finding, found, seconds, states
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.edge.monitor.alerts import states as alert_states
from ottla.edge.monitor.alerts.engine import AlertEngine
from ottla.edge.monitor.alerts.rules_file import parse_rules
from ottla.edge.monitor.alerts.states import FLAP_KEEP_MS, GAP_MS_MAX, State
from ottla.health.findings import Severity

OFFLINE = '[[rule]]\nname = "offline"\ncheck = "offline-partitions"\nkeep = "0"\n'


def run(of: AlertEngine, *steps: tuple[int, float | None]) -> list[str]:
    """Observe the time lag of group g; return its state after each step."""
    found_states = []
    for at_ms, lag in steps:
        of.observe(seconds(at_ms, g=lag))
        found_states.append(states(of).get("g", ""))
    return found_states


def test_alert_opens_after_its_duration_and_closes_after_its_condition_was_false_long_enough() -> None:
    steps = [(0, 200.0), (59, 200.0), (60, 200.0), (70, 50.0), (189, 50.0), (190, 50.0)]
    assert run(engine(), *[(at * SECOND, lag) for at, lag in steps]) == [
        "pending", "pending", "open", "open", "open", "closed",
    ]  # fmt: skip


def test_condition_that_is_false_once_starts_the_duration_again() -> None:
    steps = [(0, 200.0), (50, 50.0), (60, 200.0), (110, 200.0), (120, 200.0)]
    assert run(engine(), *[(at * SECOND, lag) for at, lag in steps]) == ["pending", "", "pending", "pending", "open"]


def test_condition_that_is_true_again_keeps_the_alert_open() -> None:
    of = engine()
    run(of, (0, 200.0), (60_000, 200.0))
    assert run(of, (70_000, 50.0), (180_000, 200.0), (190_000, 50.0), (300_000, 50.0)) == ["open"] * 4
    assert len(deliver(of, 310_000)) == 0  # the wait of the group has just begun
    assert deliver(of, 320_000) == [{"to": "hook", "open": ["g"]}]


def test_unknown_value_keeps_the_alert_as_it_is() -> None:
    of = engine()
    run(of, (0, 200.0), (60_000, 200.0))
    assert run(of, (70_000, None), (200_000, None), (280_000, 50.0), (390_000, 50.0)) == ["open"] * 4
    assert of.view(START)["alerts"][0]["is_unknown"] is False
    assert run(engine(), (0, 200.0), (59_000, None), (60_000, 200.0), (119_000, 200.0))[-1] == "open"
    assert run(engine(), (0, 200.0), (59_000, None), (60_000, 200.0), (118_000, 200.0))[-1] == "pending"


def test_check_that_cannot_run_keeps_its_alerts_as_they_are() -> None:
    of = engine(OFFLINE)
    of.observe(found(0, finding("offline-partitions", "a-0")))
    of.observe(found(1000, unchecked=frozenset({"offline-partitions"})))
    assert states(of) == {"offline-partitions": "open"}
    assert of.view(START)["alerts"][0]["is_unknown"]
    of.observe(found(2000))
    assert states(of) == {"offline-partitions": "closed"}


def test_check_that_cannot_run_does_not_keep_the_others_of_its_rule_from_opening_alerts() -> None:
    of = engine('[[rule]]\nname = "r"\ncheck = ["offline-partitions", "under-min-isr"]\n')
    findings = (finding("offline-partitions", "a-0"), finding("under-min-isr", "b-0"))
    of.observe(found(0, *findings, unchecked=frozenset({"under-min-isr"})))
    assert states(of) == {"offline-partitions": "open"}


def test_group_that_no_longer_exists_closes_its_alert() -> None:
    of = engine()
    run(of, (0, 200.0), (60_000, 200.0))
    of.observe(seconds(70_000))
    of.observe(seconds(190_000))
    assert states(of) == {"g": "closed"}


def test_one_alert_for_all_objects_of_a_check_or_one_for_each() -> None:
    findings = (finding("offline-partitions", "a-0", "b-0"), finding("offline-partitions", "test-0"))
    of = engine(OFFLINE + 'match = { name = "!test-*" }\n')
    of.observe(found(0, *findings))
    (row,) = of.view(START)["alerts"]
    assert (row["names"], row["count"], row["severity"]) == (["a-0", "b-0"], 2, "critical")
    of = engine(OFFLINE + 'per = "object"\n')
    of.observe(found(0, *findings))
    assert [row["labels"]["name"] for row in of.view(START)["alerts"]] == ["a-0", "b-0", "test-0"]


def test_severity_is_that_of_the_finding_unless_the_rule_has_one() -> None:
    weak = finding("offline-partitions", "a-0", severity=Severity.WARNING)
    for rule, severity in ((OFFLINE, "warning"), (OFFLINE + 'severity = "info"\n', "info")):
        of = engine(rule)
        of.observe(found(0, weak))
        assert of.view(START)["alerts"][0]["severity"] == severity


def test_flapping_alert_closes_only_after_a_quiet_quarter_of_an_hour() -> None:
    of = engine(OFFLINE)
    for number in range(4):
        of.observe(found(number * 2 * MINUTE, finding("offline-partitions", "a-0")))
        of.observe(found(number * 2 * MINUTE + MINUTE))
    assert states(of) == {"offline-partitions": "open"}
    assert of.view(START)["alerts"][0]["is_flapping"]
    last = 7 * MINUTE
    for minute in range(1, 15):
        of.observe(found(last + minute * MINUTE))
    assert states(of) == {"offline-partitions": "open"}
    of.observe(found(last + FLAP_KEEP_MS))
    assert states(of) == {"offline-partitions": "closed"}


def test_time_without_observations_counts_for_nothing() -> None:
    gap = GAP_MS_MAX + 1
    assert run(engine(), (0, 200.0), (gap, 200.0), (gap + MINUTE, 200.0)) == ["pending", "pending", "open"]
    of = engine()
    run(of, (0, 200.0), (MINUTE, 200.0), (MINUTE + 1, 50.0))
    assert run(of, (MINUTE + gap + 1, 50.0), (3 * MINUTE + gap + 1, 50.0)) == ["open", "closed"]


def test_clock_that_is_set_back_neither_opens_nor_blocks_alerts() -> None:
    of = engine()
    run(of, (HOUR, 200.0))
    assert run(of, (HOUR - 1, 50.0)) == ["pending"]  # an observation that arrives late
    assert run(of, (0, 200.0), (59_000, 200.0), (60_000, 200.0)) == ["pending", "pending", "open"]


def test_alert_of_a_rule_that_is_removed_closes() -> None:
    of = engine()
    run(of, (0, 200.0), (60_000, 200.0))
    of.use(parse_rules(OFFLINE))
    run(of, (61_000, 200.0))
    assert states(of) == {"g": "closed"}


def test_number_of_alerts_is_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(alert_states, "ALERTS_MAX", 10)
    of = engine()
    of.observe(seconds(0, **{f"g{number}": 200.0 for number in range(15)}))
    assert (len(of.alerts.by_key), of.view(START)["left_out"]) == (10, 5)


def test_closed_alerts_are_forgotten_after_an_hour() -> None:
    of = engine(OFFLINE)
    of.observe(found(0, finding("offline-partitions", "a-0")))
    of.observe(found(1000))
    for minute in range(1, 62):
        of.observe(found(minute * MINUTE))
    assert of.alerts.by_key == {}


LAGS = st.lists(st.tuples(st.integers(1, 90), st.sampled_from([50.0, 200.0, None, "gone"])), min_size=1, max_size=60)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(LAGS)
def test_states_follow_the_history_of_the_condition(steps: list[tuple[int, float | str | None]]) -> None:
    """An open alert had its condition true for a minute; a closed one had it false for two."""
    of = engine()
    now, true_since, false_since = 0, None, None
    before = ""
    for wait, lag in steps:
        now += wait * SECOND
        of.observe(seconds(now) if lag == "gone" else seconds(now, g=lag))  # type: ignore[arg-type]
        if lag is None:
            true_since = now if true_since is not None else None
            false_since = None
        elif lag == 200.0:
            true_since, false_since = (now if true_since is None else true_since), None
        else:
            true_since, false_since = None, (now if false_since is None else false_since)
        state = states(of).get("g", "")
        if state == "open" and before != "open":
            assert true_since is not None and now - true_since >= MINUTE
        if state == "closed" and before == "open":
            assert false_since is not None and now - false_since >= 2 * MINUTE
        if state == "pending":
            assert true_since is not None
        if before == "open":
            assert state in ("open", "closed")
        before = state


@settings(max_examples=100, deadline=None, derandomize=True)
@given(LAGS, st.lists(st.booleans(), min_size=60, max_size=60))
def test_restart_changes_nothing(steps: list[tuple[int, float | str | None]], restarts: list[bool]) -> None:
    """The state survives a restart at any moment: the same alerts, the same messages."""
    text = LATE + '[grouping]\nwait = "0"\n'
    one, other = engine(text), engine(text)
    now = 0
    for (wait, lag), is_restarted in zip(steps, restarts, strict=False):
        now += wait * SECOND
        seen = seconds(now) if lag == "gone" else seconds(now, g=lag)  # type: ignore[arg-type]
        if is_restarted:
            restored = engine(text)
            restored.restore(other.dump())
            other = restored
        one.observe(seen)
        other.observe(seen)
        assert one.dump() == other.dump()
        # The wait of a new group begins again at a restart, so both receivers are asked without it.
        assert deliver(one, now) == deliver(other, now)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(LAGS, st.lists(st.booleans(), min_size=60, max_size=60))
def test_receiver_that_accepts_again_knows_the_open_alerts(
    steps: list[tuple[int, float | str | None]], answers: list[bool]
) -> None:
    """Whatever was lost before: after the receiver has accepted what is due, it knows exactly the open alerts."""
    of = engine()
    now = 0
    for (wait, lag), is_up in zip(steps, answers, strict=False):
        now += wait * SECOND
        of.observe(seconds(now) if lag == "gone" else seconds(now, g=lag))  # type: ignore[arg-type]
        if is_up:
            deliver(of, now)
    for _ in range(3):
        now += MINUTE
        deliver(of, now)
    is_open = {each.fingerprint for each in of.alerts.by_key.values() if each.state is State.OPEN}
    assert set(of.groups.needed()) == is_open
