"""Zones: labels of flows, their order, and the rules for flows of each zone. Pure data and checks.

A declaration may have its own zones. Without a `zones` section it has the four of `DEFAULT_ZONES`:

    sources -> raw -> staging -> trusted -> refined
          `----------->'

A zone whose content is bytes stores records as they were received. A flow of any other zone that reads a source or a
flow of such a zone decodes the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from ottla.pipeline import keys
from ottla.pipeline.document import Node
from ottla.pipeline.fields import Fields
from ottla.pipeline.problems import Place, Problems, suggestion

#: what `reads_from` calls all sources
SOURCES = "sources"
#: directories of the storage that are not zones
_RESERVED = (SOURCES, "source", "quarantine", "late")


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """A label of flows and its rules."""

    name: str
    description: str = ""
    #: bytes: records as they were received; fields: rows with typed columns
    content: Literal["bytes", "fields"] = "fields"
    #: zones whose flows may be read, and `sources`
    reads_from: tuple[str, ...] = ()
    #: kinds that flows of this zone may have
    kinds: tuple[str, ...] = keys.FLOW_KINDS
    #: keys that every flow of the zone must have, and keys that none may have
    requires: tuple[str, ...] = ()
    forbids: tuple[str, ...] = ()
    place: Place = field(default=Place(""), compare=False)


Zones = Mapping[str, Zone]

DEFAULT_ZONES: Zones = {
    zone.name: zone
    for zone in (
        Zone(name="raw", content="bytes", reads_from=(SOURCES,), kinds=("table",)),
        Zone(name="staging", reads_from=(SOURCES, "raw", "staging"), kinds=("table", "view"), forbids=("deduplicate",)),
        Zone(name="trusted", reads_from=("staging", "trusted")),
        Zone(name="refined", reads_from=("trusted", "refined"), forbids=("deduplicate",)),
    )
}


def may_decode(zones: Zones, name: str) -> bool:
    """Return whether flows of this zone may read bytes, and so decode them."""
    zone = zones[name]
    reads_bytes = (one == SOURCES or zones[one].content == "bytes" for one in zone.reads_from)
    return zone.content == "fields" and any(reads_bytes)


def may_read(zones: Zones, reader: str, zone: str) -> bool:
    """Return whether flows of the zone `reader` may read flows of `zone`, or sources."""
    return zone in zones[reader].reads_from


def zones_with(zones: Zones, key: str) -> list[str]:
    """Return the zones whose flows may have this key."""
    return [one.name for one in zones.values() if one.content == "fields" and key not in one.forbids]


def read_zones(fields: Fields, problems: Problems) -> Zones:
    """Return the zones of a declaration; the default zones if it has none."""
    if not fields.has("zones"):
        return DEFAULT_ZONES
    entries = list(fields.named("zones"))
    names = [name.text for name, _ in entries]
    zones: dict[str, Zone] = {}
    for name, node in entries:
        if name.text.lower() in _RESERVED:
            problems.add(name.place, f"zone {name.text!r}: the name is reserved", "choose another name")
        before = list(zones)
        zones[name.text] = _read_zone(name, node, before, names, problems)
    readers = [zone for zone in zones.values() if SOURCES in zone.reads_from]
    if zones and not readers:
        place = next(iter(zones.values())).place
        problems.add(place, "no zone reads sources", f"add {SOURCES} to reads_from of a zone")
    return zones or DEFAULT_ZONES


def _read_zone(name: Node, node: Node, before: list[str], names: list[str], problems: Problems) -> Zone:
    called = f"zone {name.text!r}"
    given = node if node.kind != "nothing" else Node("mapping", node.place)
    fields = Fields(given, keys.ZONE, called, problems)
    content = fields.choice("content", keys.ZONE_CONTENTS)
    default = (before[-1], name.text) if before else (SOURCES,) if content == "bytes" else (SOURCES, name.text)
    reads_from = []
    for one in fields.words("reads_from"):
        if one.text in (SOURCES, name.text, *before):
            reads_from.append(one.text)
        elif one.text in names:
            what = f"{called} reads from {one.text!r}, which is a later zone"
            problems.add(one.place, what, f"rows go forward only: write {name.text} after {one.text}")
        else:
            advice = suggestion(one.text, (SOURCES, *before, name.text), none="")
            problems.add(one.place, f"{called} reads from {one.text!r}, which is not a zone", advice)
    if content == "bytes" and any(one != SOURCES for one in reads_from or default):
        what = f"{called} has content bytes and reads from other zones"
        problems.add(fields.place_of("reads_from"), what, f"write reads_from: {SOURCES}")
    for key in ("kinds", "requires", "forbids") if content == "bytes" else ():
        allowed = key == "requires" and set(fields.columns(key)) <= {"description", "trigger"}
        if not allowed:
            fields.refuse(key, f"{key} does not apply to content bytes", "remove it")
    zone = Zone(
        name=name.text,
        description=fields.text("description"),
        content=cast(Any, content),
        reads_from=tuple(reads_from) or default,
        kinds=_words(fields, "kinds", keys.FLOW_KINDS, problems) or keys.FLOW_KINDS,
        requires=_words(fields, "requires", keys.ZONE_FLOW_KEYS, problems),
        forbids=_words(fields, "forbids", keys.ZONE_FLOW_KEYS, problems),
        place=name.place,
    )
    for key in sorted({*zone.requires} & {*zone.forbids}):
        problems.add(name.place, f"{called} both requires and forbids {key!r}", "keep one")
    return zone


def _words(fields: Fields, key: str, known: tuple[str, ...], problems: Problems) -> tuple[str, ...]:
    found = fields.words(key)
    for one in found:
        if one.text not in known:
            what = f"{fields.called}: {key}: {one.text!r} is not known"
            problems.add(one.place, what, suggestion(one.text, known, none=""))
    return tuple(one.text for one in found if one.text in known)
