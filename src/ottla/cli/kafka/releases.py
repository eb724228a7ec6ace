"""The features of Kafka's releases, as kafka-features and kafka-storage print them.

A release has a version of the metadata, such as 4.3-IV0, and levels of the other features that are set with it.
"""

from __future__ import annotations

from typing import Final

METADATA: Final = "metadata.version"
#: levels of metadata.version, beginning with 7
_LEVEL_MIN: Final = 7
VERSIONS: Final = (
    "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1",
    "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0",
    "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0", "4.4-IV0",
)  # fmt: skip
#: the newest one that Kafka 4.3 uses without being asked
LATEST: Final = "4.3-IV0"
#: feature -> the versions of the metadata from which on a release sets level 1, 2, ...
_LEVELS: Final = {
    "kraft.version": ("3.9-IV0",),
    "transaction.version": ("4.0-IV2", "4.0-IV2"),
    "group.version": ("4.0-IV0",),
    "eligible.leader.replicas.version": ("4.1-IV0",),
    "share.version": ("4.2-IV0",),
    "streams.version": ("4.2-IV1",),
}
#: (feature, level) -> the version of the metadata that the level needs
_NEEDS: Final = {("eligible.leader.replicas.version", 1): "4.0-IV1"}


def level_of(version: str) -> int:
    """Return the level of metadata.version that a version or a release such as 4.0 stands for. Raise ValueError."""
    if version in VERSIONS:
        return VERSIONS.index(version) + _LEVEL_MIN
    release = [each for each in VERSIONS if each.partition("-")[0] == version]
    if not release:
        raise ValueError(version)
    return VERSIONS.index(release[-1]) + _LEVEL_MIN


def version_of(level: int) -> str | None:
    """Return the version of the metadata with this level, None if Kafka 4.3 knows none."""
    number = level - _LEVEL_MIN
    return VERSIONS[number] if 0 <= number < len(VERSIONS) else None


def shown_level(feature: str, level: int) -> str:
    """Return a level as kafka-features prints it."""
    return (version_of(level) or f"UNKNOWN {level}") if feature == METADATA else str(level)


def levels_at(version: str) -> dict[str, int]:
    """Return the levels of the other features that a release sets. Raise ValueError if there is no such release."""
    level = level_of(version)
    return {feature: sum(level >= level_of(first) for first in firsts) for feature, firsts in _LEVELS.items()}


def mapping(version: str) -> list[str]:
    """Return the lines about a release. Raise ValueError if there is no such release."""
    others = [f"{feature}={level}" for feature, level in levels_at(version).items()]
    return [f"{METADATA}={level_of(version)} ({version})", *others]


def dependencies(feature: str, level: int) -> list[str]:
    """Return the lines about a level of a feature. Raise ValueError, with the text, if it is unknown."""
    if feature == METADATA:
        version = version_of(level)
        if version is None:
            raise ValueError(f"Unknown {METADATA} {level}")
        return [f"{METADATA}={level} ({version}) has no dependencies."]
    if feature not in _LEVELS:
        raise ValueError(f"Unknown feature: {feature}")
    if not 0 <= level <= len(_LEVELS[feature]):
        raise ValueError(f"No feature:{feature} with feature level {level}")
    needed = _NEEDS.get((feature, level))
    if needed is None:
        return [f"{feature}={level} has no dependencies."]
    return [f"{feature}={level} requires:", f"    {METADATA}={level_of(needed)} ({needed})"]


def parse_level(text: str) -> tuple[str, int]:
    """Return the parts of feature=level. Raise ValueError, with the text."""
    name, equals, level = text.partition("=")
    if not equals:
        raise ValueError(f"Can't parse feature=level string {text}: equals sign not found.")
    try:
        number = int(level.strip())
    except ValueError:
        number = 1 << 15
    if not -(1 << 15) <= number < 1 << 15:
        raise ValueError(f"Can't parse feature=level string {text}: unable to parse {level.strip()} as a short.")
    return name.strip(), number
