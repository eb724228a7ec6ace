"""What all ways to produce share: keys and values become bytes, and results are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, TypeVar

from ottla.edge.rest.bodies import INT32_MAX, Fields
from ottla.edge.rest.errors import JSON_CONVERSION, bad_request, no_registry
from ottla.edge.rest.kafka import Arrival, Delivery, Identity
from ottla.edge.rest.records import NOTHING, PLAIN_FORMATS, SCHEMA_FORMATS, Encoded, encode_plain
from ottla.edge.rest.schema_data import STRATEGIES, SchemaData, SchemaWanted
from ottla.edge.rest.writable_topics import WritableTopic
from ottla.edge.web.app import HttpError

#: records of a request that are worked on without a pause: some milliseconds
_WITHOUT_PAUSE: Final = 500
_FORMATS: Final = (*PLAIN_FORMATS, *SCHEMA_FORMATS)
#: fields that name a schema, and all fields of a key or a value
_SCHEMA_FIELDS: Final = ("subject", "subject_name_strategy", "schema_id", "schema_version", "schema")
#: a key or a value without a schema has a type and data
_PLAIN_FIELDS: Final = 2
_NAME_MAX: Final = 80
_PART_FIELDS: Final = frozenset(("type", "data", *_SCHEMA_FIELDS))

_T = TypeVar("_T")


async def with_pauses(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Return the items, and let other requests have their turn after some of them."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _WITHOUT_PAUSE == 0:
            await asyncio.sleep(0)


async def wait_for_all(deliveries: Sequence[Delivery], arrival: Arrival) -> None:
    """Wait until all records are acknowledged or have failed."""
    position = 0
    while True:
        while position < len(deliveries) and deliveries[position].is_done:
            position += 1
        if position == len(deliveries):
            return
        await arrival.wait()


class DataEncoder:
    """Makes bytes of the keys and values of version 3: `{"type": "JSON", "data": …}`."""

    def __init__(self, schemas: SchemaData | None) -> None:
        self._schemas = schemas

    async def encode(self, identity: Identity, topic: WritableTopic, part: Any, *, is_key: bool) -> Encoded:
        """Return the bytes of a key or a value. Raise HttpError 400 or 422 if the data do not fit the format."""
        if part is None:
            return NOTHING
        if not isinstance(part, dict):
            raise bad_request(f"{'key' if is_key else 'value'} must be an object with type and data")
        _check_part(part)
        form = part.get("type")
        if isinstance(form, str) and form.upper() in PLAIN_FORMATS:
            return Encoded(encode_plain(form.upper(), part.get("data")), form.upper())
        fields = Fields(part)
        wanted = SchemaWanted(
            topic, is_key,
            None if form is None else fields.choice("type", _FORMATS),
            fields.optional_text("subject"),
            fields.choice("subject_name_strategy", STRATEGIES, STRATEGIES[0]),
            fields.optional_integer("schema_id"),
            fields.optional_integer("schema_version", 1),
            fields.optional_text("schema", INT32_MAX),
        )  # fmt: skip
        if self._schemas is None:
            raise no_registry()
        found = await self._schemas.find(identity, wanted)
        try:
            return found.encode(part["data"])
        except HttpError as error:
            # Version 2 has a code of its own for this.
            raise bad_request(error.message) if error.error_code == JSON_CONVERSION else error from None


def _check_part(part: dict[str, Any]) -> None:
    """Raise HttpError 400 if the fields of a key or a value do not go together.

    Confluent's server has the same rules. A type with a schema needs the text of that schema: for a schema of the
    registry, the registry knows the type.
    """
    if not _PART_FIELDS.issuperset(part):
        raise bad_request(f"Unrecognized field: {min(set(part) - _PART_FIELDS)[:_NAME_MAX]}")
    if "data" not in part:
        raise bad_request("data is required")
    given = [name for name in _SCHEMA_FIELDS if part.get(name) is not None] if len(part) > _PLAIN_FIELDS else []
    form = part.get("type")
    if not given and (form is None or str(form).upper() not in SCHEMA_FORMATS):
        return
    if "subject" in given and "subject_name_strategy" in given:
        raise bad_request("subject and subject_name_strategy exclude each other")
    if len({"schema_id", "schema_version", "schema"}.intersection(given)) > 1:
        raise bad_request("schema_id, schema_version and schema exclude each other")
    if form is None:
        return
    if str(form).upper() in PLAIN_FORMATS:
        raise bad_request(f"type={str(form).upper()} has no schema: {given[0]} cannot be used with it")
    if "schema" not in given:
        raise bad_request("type is only used together with schema: the registry knows the type of its schemas")
