"""Compares the rules with an observation: which alerts should be open. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ottla.edge.monitor.alerts.rules import CheckCondition, Level, Rule, ValueCondition
from ottla.edge.monitor.alerts.rules_file import fill
from ottla.edge.monitor.alerts.values import VALUES, Observation
from ottla.health.evaluation import NOT_CHECKED
from ottla.health.findings import Finding, Severity
from ottla.model.figures import format_bytes, format_count, format_duration_ms, format_first
from ottla.model.printable import shown

Labels = tuple[tuple[str, str], ...]

#: names that an alert keeps of the objects that it is about
NAMES_MAX = 20
#: characters of a label
LABEL_LENGTH_MAX = 300
#: texts of one check that an alert shows
_TEXTS_MAX = 3
_LEVELS = {Severity.INFO: Level.INFO, Severity.WARNING: Level.WARNING, Severity.ERROR: Level.CRITICAL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A condition that is true for these labels."""

    labels: Labels
    level: Level
    text: str
    advice: str
    #: objects that it is about, the worst first
    names: tuple[str, ...] = ()
    #: how many objects there are
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a rule."""

    hits: Sequence[Hit]
    #: the rule could not be compared at all: its alerts stay as they are
    is_unknown: bool = False
    #: labels whose value is not known: their alerts stay as they are
    unknown: frozenset[Labels] = frozenset()
    #: checks that could not run: their alerts stay as they are
    unknown_checks: frozenset[str] = frozenset()


def evaluate(rule: Rule, seen: Observation) -> Outcome:
    """Return for which labels the condition of the rule is true."""
    if isinstance(rule.condition, CheckCondition):
        return _evaluate_check(rule, rule.condition, seen)
    return _evaluate_value(rule, rule.condition, seen)


def _evaluate_check(rule: Rule, condition: CheckCondition, seen: Observation) -> Outcome:
    by_check: dict[str, list[Finding]] = {}
    for finding in seen.findings:
        # What could not be checked is no problem of the cluster.
        if finding.check in (NOT_CHECKED, *seen.unchecked):
            continue
        if condition.checks.match(finding.check):
            by_check.setdefault(finding.check, []).append(finding)
    found = _per_object if condition.is_per_object else _per_check
    return Outcome(
        hits=[hit for check, findings in by_check.items() for hit in found(rule, condition, check, findings)],
        unknown_checks=seen.unchecked,
    )


def _per_check(rule: Rule, condition: CheckCondition, check: str, findings: Sequence[Finding]) -> Iterator[Hit]:
    chosen = [each for each in findings if _named(condition, each)]
    if not chosen:
        return
    names = list(dict.fromkeys(name for each in chosen for name in _named(condition, each)))
    worst = max(chosen, key=lambda each: each.severity)
    more = f" and {len(chosen) - _TEXTS_MAX} more" if len(chosen) > _TEXTS_MAX else ""
    text = "; ".join(each.text for each in chosen[:_TEXTS_MAX]) + more
    yield _check_hit(rule, {"check": check}, worst, text, names)


def _per_object(rule: Rule, condition: CheckCondition, check: str, findings: Sequence[Finding]) -> Iterator[Hit]:
    by_name: dict[str, Finding] = {}
    for each in findings:
        for name in _named(condition, each):
            before = by_name.get(name)
            if before is None or each.severity > before.severity:
                by_name[name] = each
    for name, finding in by_name.items():
        text = finding.text if len(finding.names) <= 1 else f"{finding.kind} {name}: {finding.text}"
        yield _check_hit(rule, {"check": check, "name": name}, finding, text, [name])


def _named(condition: CheckCondition, finding: Finding) -> list[str]:
    """Return the objects of a finding that the rule is about."""
    return [name for name in finding.names or ("",) if condition.names.match(name)]


def _check_hit(rule: Rule, own: Mapping[str, str], finding: Finding, text: str, names: Sequence[str]) -> Hit:
    labels = _labels(own, rule)
    count = str(len(names))
    values = {**dict(labels), "rule": rule.name, "text": text, "count": count, "value": count}
    values["names"] = format_first(names)
    return Hit(
        labels=labels,
        level=_LEVELS[finding.severity] if rule.level is None else rule.level,
        text=fill(rule.text, values) if rule.text else text,
        advice=fill(rule.advice, values) if rule.advice else finding.advice,
        names=tuple(name for name in names[:NAMES_MAX] if name),
        count=len(names),
    )


def _labels(own: Mapping[str, str], rule: Rule) -> Labels:
    """Return the labels of an alert in their order. Values can be names of up to 32 KB from the cluster."""
    return tuple(sorted((name, _bounded(shown(text))) for name, text in (*own.items(), *rule.labels.items())))


def _bounded(text: str) -> str:
    if len(text) <= LABEL_LENGTH_MAX:
        return text
    # The hash keeps two long names apart that begin alike.
    return f"{text[: LABEL_LENGTH_MAX - 9]}~{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"


def _evaluate_value(rule: Rule, condition: ValueCondition, seen: Observation) -> Outcome:
    samples = seen.samples.get(condition.value)
    if samples is None:
        return Outcome(hits=(), is_unknown=True)
    hits, unknown = [], []
    for sample in samples:
        if not condition.match.match(sample.labels):
            continue
        labels = _labels(sample.labels, rule)
        if sample.value is None or (isinstance(sample.value, float) and math.isnan(sample.value)):
            unknown.append(labels)
        elif condition.holds(sample.value):
            hits.append(_value_hit(rule, condition, labels, sample.value))
    return Outcome(hits=hits, unknown=frozenset(unknown))


def _value_hit(rule: Rule, condition: ValueCondition, labels: Labels, value: float | str) -> Hit:
    shown_value = format_value(condition.value, value)
    values = {**dict(labels), "rule": rule.name, "value": shown_value, "count": "1", "names": "", "text": ""}
    about = ", ".join(f"{name} {text}" for name, text in labels)
    return Hit(
        labels=labels,
        level=Level.WARNING if rule.level is None else rule.level,
        text=fill(rule.text, values) if rule.text else f"{condition.value} is {shown_value}{about and f' of {about}'}",
        advice=fill(rule.advice, values),
    )


def format_value(name: str, value: float | str) -> str:
    """Return a value as people read it.

    >>> [format_value(name, value) for name, value in (("group_seconds", 192.0), ("group_status", "ERR"))]
    ['3m12s', 'ERR']
    """
    if isinstance(value, str):
        return value
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    unit = VALUES[name].unit
    if unit == "seconds":
        return format_duration_ms(max(round(value * 1000), 0))
    if unit == "bytes":
        return format_bytes(value)
    if unit == "%":
        return f"{value:.1f} %"
    return format_count(round(value), "record") if unit == "records" else f"{value:g}"
