"""Rules in words, for tables of the command line and of the docs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.edge.monitor.alerts.patterns import NamePatterns
from ottla.edge.monitor.alerts.rules import CheckCondition, Rule, Rules
from ottla.edge.monitor.alerts.values import NOT_READ, VALUES
from ottla.health.checks import CHECKS

#: what the check of the monitor itself finds
_NOT_READ_PROBLEM = "The monitor cannot read the cluster: no broker answers, or the login fails."


def describe_rules(rules: Rules) -> list[dict[str, str]]:
    """Return a row for each rule."""
    return [
        {
            "rule": rule.name,
            "condition": condition_text(rule),
            "for": _span(rule.for_ms),
            "keep": _span(rule.keep_ms),
            "severity": rule.level.word if rule.level is not None else "of the check",
        }
        for rule in rules.rules
    ]


def _span(span_ms: int) -> str:
    """Return a duration as a file of rules writes it."""
    parts = []
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, span_ms = divmod(span_ms, unit_ms)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0"


def condition_text(rule: Rule) -> str:
    """Return the condition of a rule."""
    condition = rule.condition
    if isinstance(condition, CheckCondition):
        each = ", for each object" if condition.is_per_object else ""
        names = f" of {_patterns(condition.names)}" if condition.names.patterns else ""
        return f"{_patterns(condition.checks)}{names}{each}"
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (("above", condition.above), ("below", condition.below))
        if bound is not None
    ]
    bounds += [f"is {' or '.join(sorted(condition.words))}"] if condition.words else []
    unit = VALUES[condition.value].unit if not condition.words else ""
    match = "".join(f", {label} {_patterns(each)}" for label, each in condition.match.by_label.items())
    return f"{condition.value} {' or '.join(bounds)}{unit and f' {unit}'}{match}"


def _patterns(patterns: NamePatterns) -> str:
    return ", ".join(patterns.patterns)


def describe_conditions() -> Iterator[dict[str, str]]:
    """Yield a row for each check and each value that a rule can name."""
    yield {"kind": "check", "name": NOT_READ, "of": "cluster", "meaning": _NOT_READ_PROBLEM}
    for check in CHECKS:
        yield {"kind": "check", "name": check.name, "of": check.kind, "meaning": check.problem}
    for value in VALUES.values():
        unit = f", in {value.unit}" if value.unit else f": {', '.join(value.words)}" if value.words else ""
        yield {
            "kind": "value", "name": value.name, "of": ", ".join(value.labels) or "cluster",
            "meaning": f"{value.meaning}{unit}",
        }  # fmt: skip
