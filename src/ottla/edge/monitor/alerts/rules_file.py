"""Reads a file of rules: TOML, bounded in size. All problems of a file are reported together, each with its place."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from ottla.edge.monitor.alerts.fields import Fields
from ottla.edge.monitor.alerts.patterns import LabelPatterns, NamePatterns
from ottla.edge.monitor.alerts.receiver_fields import parse_receiver
from ottla.edge.monitor.alerts.rules import (
    KEEP_MS,
    CheckCondition,
    Grouping,
    Level,
    Rule,
    Rules,
    Silence,
    ValueCondition,
)
from ottla.edge.monitor.alerts.values import NOT_READ, VALUES
from ottla.health.checks import CHECKS
from ottla.model.errors import OttlaError
from ottla.model.printable import shown

#: the name of the file that is part of the package
DEFAULT: Final = "default"
_SIZE_BYTES_MAX: Final = 256 << 10
_RULES_MAX: Final = 500
_LEVELS: Final = {each.word: each for each in Level}
_CHECKS: Final = frozenset({NOT_READ, *(each.name for each in CHECKS)})
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
#: what every text may contain besides the labels of the condition
_PLACEHOLDERS: Final = frozenset({"rule", "names", "count", "value", "check", "name", "text"})
_GROUP_BY: Final = frozenset({"rule", "severity", "check", "name", "group", "topic", "broker", "directory"})


class BadRules(OttlaError):
    """A file of rules cannot be used."""

    def __init__(self, file: str, problems: list[str]) -> None:
        self.file = file
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{shown(file)}: {each}" for each in problems))


def default_text() -> str:
    """Return the text of the file of the package."""
    return files("ottla.edge.monitor.alerts").joinpath("default.toml").read_text(encoding="utf-8")


def load(path: str) -> Rules:
    """Return the rules of a file, or of the package if the path is `default`. Raise BadRules."""
    if path == DEFAULT:
        return parse_rules(default_text(), DEFAULT)
    try:
        with open(path, "rb") as file:
            data = file.read(_SIZE_BYTES_MAX + 1)
    except OSError as error:
        raise BadRules(path, [f"the file cannot be read: {error.strerror}"]) from None
    if len(data) > _SIZE_BYTES_MAX:
        raise BadRules(path, [f"the file has more than {_SIZE_BYTES_MAX} bytes"])
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadRules(path, [f"byte {error.start} is not UTF-8"]) from None
    return parse_rules(text, path, directory=Path(path).resolve().parent)


def parse_rules(text: str, file: str = "", *, directory: Path | None = None) -> Rules:
    """Return the rules of a text. Paths in it are relative to ``directory``. Raise BadRules."""
    problems: list[str] = []
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else shown(str(error))
        raise BadRules(file, [f"not TOML: {reason}"]) from None
    top = Fields("top of the file", document, problems)
    extends = top.take_text("extends")
    if extends not in ("", DEFAULT):
        top.problem('extends can only be "default", the rules of the package')
    external_url = top.take_text("external_url")
    if external_url and not external_url.startswith(("http://", "https://")):
        top.problem("external_url must begin with http:// or https://")
    grouping = _grouping(top.inner("grouping", top.take_table("grouping")))
    known = {each.name: each for each in parse_rules(default_text()).rules} if extends == DEFAULT else {}
    rules: dict[str, Rule] = dict(known)
    declared: set[str] = set()
    for table in _tables(top, "rule", _RULES_MAX):
        name = table.take_name()
        table.place = f"rule {shown(name)[:64]!r}"
        if name in declared:
            table.problem("there is another rule with this name")
        declared.add(name)
        _add_rule(table, name, rules)
    receivers = [parse_receiver(table, directory) for table in _tables(top, "receiver", 50)]
    silences = [_silence(table) for table in _tables(top, "silence", _RULES_MAX)]
    names = [each.name for each in receivers]
    problems += [f"receiver {name!r} is declared twice" for name in sorted(set(names)) if names.count(name) > 1]
    for rule in rules.values():
        missing = sorted(rule.notify - set(names))
        problems += [f"rule {rule.name!r}: notify names {shown(each)!r}, which is no receiver" for each in missing]
    top.end()
    if problems:
        raise BadRules(file, problems)
    return Rules(
        rules=tuple(rules.values()),
        receivers=tuple(receivers),
        silences=tuple(each for each in silences if each is not None),
        grouping=grouping,
        external_url=external_url.rstrip("/"),
    )


def _tables(top: Fields, key: str, count_max: int) -> list[Fields]:
    found: list[Any] = top.take(key, list, f"tables, each with [[{key}]] above it") or []
    if len(found) > count_max:
        top.problem(f"there are more than {count_max} [[{key}]]")
    if not all(isinstance(each, dict) for each in found):
        top.problem(f"{key} must be tables, each with [[{key}]] above it")
        return []
    return [top.inner(f"{key} {number}", each) for number, each in enumerate(found[:count_max], 1)]


def _grouping(table: Fields) -> Grouping:
    usual = Grouping()
    by = table.take_texts("by")
    for label in sorted(set(by or ()) - _GROUP_BY):
        table.problem(f"by names {shown(label)[:64]!r}, allowed are {', '.join(sorted(_GROUP_BY))}")
    made = Grouping(
        by=usual.by if by is None else by,
        wait_ms=table.take_duration("wait", usual.wait_ms),
        interval_ms=table.take_duration("interval", usual.interval_ms),
        repeat_ms=table.take_duration("repeat", usual.repeat_ms),
    )
    if made.repeat_ms < max(made.interval_ms, 1000):
        table.problem("repeat must be 1s at least, and not shorter than interval")
    table.end()
    return made


def _add_rule(table: Fields, name: str, rules: dict[str, Rule]) -> None:
    if not table.take_flag("enabled", True):
        if name not in rules:
            table.problem('enabled = false is for rules of extends = "default"; remove this rule')
        rules.pop(name, None)
        return
    is_check, is_value = table.has("check"), table.has("value")
    if is_check == is_value:
        table.problem('give either check = "…" or value = "…"')
        return
    condition, labels = _check_condition(table) if is_check else _value_condition(table)
    word = table.take_choice("severity", ["", *_LEVELS] if is_check else list(_LEVELS), "" if is_check else "warning")
    rule = Rule(
        name=name,
        condition=condition,
        level=_LEVELS.get(word),
        for_ms=table.take_duration("for", 0),
        keep_ms=table.take_duration("keep", KEEP_MS),
        text=_template(table, "text", labels),
        advice=_template(table, "advice", labels),
        labels=table.take_labels("labels"),
        notify=frozenset(table.take_texts("notify") or ()),
    )
    for label in sorted(rule.labels.keys() & (labels | {"rule", "severity", "check", "name"})):
        table.problem(f"labels.{label} is a label that the alert has already")
    table.end()
    rules[name] = rule


def _check_condition(table: Fields) -> tuple[CheckCondition, frozenset[str]]:
    checks = table.take_texts("check") or ()
    for each in checks:
        name = each.removeprefix("!")
        if "*" not in name and name not in _CHECKS:
            close = difflib.get_close_matches(name, sorted(_CHECKS), 1)
            hint = f"; did you mean {close[0]}?" if close else "; 'ottla alerts conditions' lists them"
            table.problem(f"check {shown(name)[:64]!r} is unknown{hint}")
    per = table.take_choice("per", ("check", "object"), "check")
    match = _match(table, {"name"})
    names = match.by_label.get("name", NamePatterns(()))
    return CheckCondition(checks=NamePatterns(checks), is_per_object=per == "object", names=names), frozenset()


def _value_condition(table: Fields) -> tuple[ValueCondition, frozenset[str]]:
    name = table.take_text("value")
    value = VALUES.get(name)
    if value is None:
        table.problem(f"value {shown(name)[:64]!r} is unknown, allowed are {', '.join(VALUES)}")
    above, below, words = table.take_number("above"), table.take_number("below"), table.take_texts("is")
    if value is not None and value.words:
        if words is None or above is not None or below is not None:
            table.problem(f'{name} is a word: give is = ["{value.words[-1]}"], without above and below')
        for each in sorted(set(words or ()) - set(value.words)):
            table.problem(f"{name} is never {shown(each)[:64]!r}, its words are {', '.join(value.words)}")
    elif value is not None and (words is not None or (above is None and below is None)):
        table.problem(f"{name} is a number: give above or below")
    labels = frozenset(value.labels if value is not None else ())
    return ValueCondition(
        value=name,
        above=above,
        below=below,
        words=frozenset(words or ()),
        match=_match(table, set(labels)),
    ), labels


def _match(table: Fields, allowed: set[str] | None) -> LabelPatterns:
    """Return the patterns of a table's `match`."""
    inner = table.inner(f"{table.place}: match", table.take_table("match"))
    found: dict[str, NamePatterns] = {}
    for label in inner.remaining():
        if allowed is not None and label not in allowed:
            names = ", ".join(sorted(allowed)) or "none"
            inner.problem(f"{shown(label)[:64]} is no label of this rule; its labels: {names}")
        patterns = inner.take_texts(label)
        if patterns is not None:
            found[label] = NamePatterns(patterns)
    return LabelPatterns(found)


def _template(table: Fields, key: str, labels: frozenset[str]) -> str:
    text = table.take_text(key)
    allowed = _PLACEHOLDERS | labels
    for name in _PLACEHOLDER.findall(text):
        if name not in allowed:
            table.problem(f"{key} has {{{shown(name)[:64]}}}, allowed are {', '.join(sorted(allowed))}")
    return text


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the template with values in place of {name}. Braces inside of the values stay as they are."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], ""), template)


def _silence(table: Fields) -> Silence | None:
    match = _match(table, None)
    if not match.by_label:
        table.problem('match is missing: { rule = "NAME" }, or { rule = "*" } for all alerts')
    from_ms, until_ms = table.take_moment("from"), table.take_moment("until")
    reason = table.take_text("reason")
    if until_ms is None:
        table.problem("until is missing: a silence must end")
    elif from_ms is not None and until_ms <= from_ms:
        table.problem("until must be after from")
    table.end()
    if until_ms is None:
        return None
    return Silence(match=match, from_ms=from_ms, until_ms=until_ms, reason=reason)
