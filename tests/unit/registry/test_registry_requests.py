"""Bodies of requests: every value that cannot be stored is an error of the client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.registry.registry_fixtures import FakeRegistry, number, record

from ottla.edge.registry import changes
from ottla.edge.registry.answers import registered_json, version_json
from ottla.edge.registry.requests import NewSchema, TagChange, parse_body, parse_config, parse_mode, parse_number
from ottla.edge.web.app import HttpError

#: values for each member of a body
VALUES: tuple[Any, ...] = (
    None, True, -1, 2**31, 2**63, 1.5, 1e308, "", "\0", "x", [], [[]], {}, [1], [None], [{}], {"a": {}}, {"a": None},
    [{"schemaEntity": {"entityType": "sr_field", "entityPath": "A.x"}, "tags": [1]}],
    [{"schemaEntity": {"entityType": "x", "entityPath": "A.x"}, "tags": ["a"]}],
    [{"schemaEntity": {"entityType": "sr_field", "entityPath": "none"}, "tags": None}],
    [{"name": "a", "subject": "a", "version": 1}], [{"name": 1}], [{"subject": "a"}],
    [{"name": "a", "subject": "s", "version": 1}], [{"name": "a", "subject": "s", "version": -1}],
)  # fmt: skip
#: values for metadata and rule sets
OBJECTS: tuple[Any, ...] = (
    {"tags": 1}, {"tags": {"a": [1]}}, {"tags": {"a": None}}, {"properties": {"a": 1}}, {"properties": {"a": None}},
    {"sensitive": [{}]}, {"domainRules": [1]}, {"domainRules": {}}, {"migrationRules": None},
    *({"domainRules": [{"name": "n", "type": "t", name: value}]}
      for name in ("name", "type", "doc", "kind", "mode", "tags", "params", "expr", "onSuccess", "onFailure",
                   "disabled", "unknown")
      for value in (None, 1, [1], [None, "a"], {"a": 1}, {"a": {}}, "x", "a,b")),
    {"domainRules": [{"name": "n", "type": "t"}], "enableAt": 1},
)  # fmt: skip
WITH_OBJECTS = ("metadata", "ruleSet", "rulesToMerge", "defaultMetadata", "overrideRuleSet")
MEMBERS = (
    "schema", "schemaType", "references", "metadata", "ruleSet", "id", "version", "schemaTagsToAdd",
    "schemaTagsToRemove", "propagateSchemaTags", "tagsToAdd", "newVersion", "rulesToMerge", "rulesToRemove",
    "compatibility", "compatibilityLevel", "mode", "alias", "normalize", "defaultMetadata", "overrideRuleSet",
    "compatibilityGroup", "compatibilityPolicy",
)  # fmt: skip


def register(registry: FakeRegistry, body: dict[str, Any]) -> None:
    new = NewSchema.parse(body)
    row = registry.register("s", new.text, **{name: value for name, value in body.items() if name != "schema"})
    registered_json(row, new)
    version_json(row)


def look_up(registry: FakeRegistry, body: dict[str, Any]) -> None:
    changes.find(registry.state, registry.parser, "s", NewSchema.parse(body), normalize=True)


def configure(registry: FakeRegistry, body: dict[str, Any]) -> None:
    registry.config("s", **parse_config(body))
    registry.register("s", record("A", number("x"), number("y", default=0)))
    registry.state.config_in_scope("s")


def change_tags(registry: FakeRegistry, body: dict[str, Any]) -> None:
    sent = TagChange.parse(body)
    new = NewSchema.parse({"schema": record("A", number("x")), "schemaTagsToAdd": body.get("tagsToAdd")})
    row = registry.state.latest("s")
    assert row is not None
    changed = changes.change_tags(
        registry.state, registry.parser, "s", row, new, rules=sent.rules_to_merge, version=sent.new_version
    )
    registry.apply(changed.records)


@pytest.mark.parametrize("work", [register, look_up, configure, change_tags])
def test_values_of_any_type_are_stored_or_are_client_errors(
    work: Callable[[FakeRegistry, dict[str, Any]], None],
) -> None:
    for member in MEMBERS:
        for value in (*VALUES, *(OBJECTS if member in WITH_OBJECTS else ())):
            registry = FakeRegistry()
            registry.register("s", record("A", number("x")))
            # Another exception would be an error 500.
            with contextlib.suppress(HttpError):
                work(registry, {"schema": record("A", number("x")), member: value})
            registry.replayed()


@pytest.mark.parametrize("body", ['{"a":NaN}', '{"a":-Infinity}', '{"a":1e999}', '{"a":"\\ud800"}', '{"\\udfff":1}',
                                  "[" * 100_000, '{"a":' + "[" * 60 + "]" * 60 + "}", "", "{'a':1}"])  # fmt: skip
def test_body_that_cannot_be_stored_as_json_is_refused(body: str) -> None:
    with pytest.raises(HttpError) as error:
        parse_body(body.encode("utf-8", "surrogatepass"))
    assert error.value.status == 400


def test_body_of_usual_depth_is_read() -> None:
    assert parse_body(b'{"a":{"b":[{"c":["\\ud83d\\ude00",1.5e300,null]}]}}') == {
        "a": {"b": [{"c": ["😀", 1.5e300, None]}]}
    }


@pytest.mark.parametrize("mode", [1, [], "x"])
def test_mode_that_is_none_is_refused(mode: Any) -> None:
    with pytest.raises(HttpError) as error:
        parse_mode({"mode": mode})
    assert error.value.status == 422


@pytest.mark.parametrize("text", ["", "-", "+", "1_0", " 1", "1 ", "١", "0x1", "1.0", "2147483648", "-2147483649",
                                  "9" * 5000])  # fmt: skip
def test_text_that_is_no_number_of_java_is_none(text: str) -> None:
    assert parse_number(text) is None


def test_numbers_are_read_as_java_does() -> None:
    texts = ("0", "007", "-1", "+1", "2147483647", "-2147483648", "0" * 5000 + "1")
    assert [parse_number(text) for text in texts] == [0, 7, -1, 1, 2147483647, -2147483648, 1]
