"""Options of ``format("ottla")`` for values with schemas of a schema registry, which ``option_table`` describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from ottla.client.errors import PropertyRefused
from ottla.spark.option_table import TOPIC_OPTIONS, Use, names
from ottla.spark.options import OptionError, Options
from ottla.spark.registry_schemas import LATEST, PREFIX, SCHEMA_TYPES, SETTING_NAMES, URL, RegistrySettings

FORMAT: Final = "value.format"
_BYTES: Final = "bytes"
_SUBJECT: Final = f"{PREFIX}subject"
_VERSION: Final = f"{PREFIX}version"
_READ_NAMES: Final = names(TOPIC_OPTIONS, Use.READ)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOptions:
    """How the values of a topic are decoded or encoded."""

    #: AVRO, JSON or PROTOBUF
    schema_type: str
    registry: RegistrySettings
    subject: str
    version: str
    message: str | None
    # Of writers:
    #: None: derived from the columns
    schema: str | None
    auto_register: bool
    use_latest: bool

    @classmethod
    def parse(cls, given: Options, topic: str | None) -> Self | None:
        """Return the options; None if values stay bytes. Raise OptionError. `topic` is the only topic, if there is one.

        Options of writers are unknown to a reader, so they have their defaults there.
        """
        form = (given.text(FORMAT) or _BYTES).lower()
        if form == _BYTES:
            useless = next((name for name in (URL, _SUBJECT) if given.text(name) is not None), None)
            if useless is not None:
                raise OptionError(f"the option {useless} needs {FORMAT}: set it to {', '.join(SCHEMA_TYPES)}")
            return None
        if form not in SCHEMA_TYPES:
            raise OptionError(f"the option {FORMAT} is one of bytes, {', '.join(SCHEMA_TYPES)}, not {form!r}")
        subject = given.text(_SUBJECT) or (f"{topic}-value" if topic is not None else "")
        if not subject:
            raise OptionError(f"the option {_SUBJECT} is missing: several topics have no subject in common")
        use_latest = given.flag("use.latest.version", False)
        if use_latest and given.text("auto.register.schemas") is not None and given.flag("auto.register.schemas", True):
            raise OptionError("the options use.latest.version and auto.register.schemas exclude each other")
        return cls(
            schema_type=SCHEMA_TYPES[form],
            registry=_registry(given),
            subject=subject,
            version=_version(given),
            message=given.text("value.message") or None,
            schema=given.text("value.schema") or None,
            auto_register=given.flag("auto.register.schemas", True),
            use_latest=use_latest,
        )

    @classmethod
    def of_reader(cls, options: Mapping[str, str]) -> Self | None:
        """Return the same for options of a reader that are not checked yet, when Spark asks for its columns."""
        own = ("value.", PREFIX)
        given = Options({name: each for name, each in options.items() if name.lower().startswith(own)}, _READ_NAMES)
        topics = next((each for name, each in options.items() if name.lower() == "subscribe"), "")
        return cls.parse(given, topics.strip() if "," not in topics and topics else None)


def _registry(given: Options) -> RegistrySettings:
    settings = {name: text for name in SETTING_NAMES if (text := given.text(name)) is not None}
    try:
        return RegistrySettings.parse(settings)
    except PropertyRefused as error:
        raise OptionError(str(error)) from None


def _version(given: Options) -> str:
    version = given.text(_VERSION) or LATEST
    if version != LATEST and not (version.isdecimal() and int(version) > 0):
        raise OptionError(f"the option {_VERSION} is latest or a number above zero, not {version!r}")
    return version
