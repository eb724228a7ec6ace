"""Options of ``format("ottla")`` for keys and values with schemas of a registry, which ``option_table`` describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ottla.client.errors import PropertyRefused
from ottla.spark.option_table import TOPIC_OPTIONS, Use, names
from ottla.spark.options import OptionError, Options
from ottla.spark.registry_schemas import LATEST, PREFIX, SCHEMA_TYPES, SETTING_NAMES, URL, RegistrySettings

Part = Literal["value", "key"]

#: the parts of a record that may have a schema
PARTS: Final[tuple[Part, ...]] = ("value", "key")
_BYTES: Final = "bytes"
#: the options with the subject and the version of a part
_SUBJECT: Final[Mapping[Part, str]] = {"value": f"{PREFIX}subject", "key": "key.subject"}
_VERSION: Final[Mapping[Part, str]] = {"value": f"{PREFIX}version", "key": "key.version"}
_READ_NAMES: Final = names(TOPIC_OPTIONS, Use.READ)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOptions:
    """How the values, or the keys, of a topic are decoded or encoded."""

    part: Part
    #: AVRO, JSON or PROTOBUF
    schema_type: str
    registry: RegistrySettings
    subject: str
    version: str
    message: str | None
    # Of writers:
    #: None: derived from the column
    schema: str | None
    auto_register: bool
    use_latest: bool

    @property
    def format_option(self) -> str:
        """The name of the option with the format of this part."""
        return f"{self.part}.format"


def parse_schema_options(given: Options, topic: str | None) -> tuple[SchemaOptions, ...]:
    """Return the options of each part that is not bytes. Raise OptionError. `topic` is the only topic, if there is one.

    Options of writers are unknown to a reader, so they have their defaults there.
    """
    found = tuple(each for part in PARTS if (each := _parse(given, topic, part)) is not None)
    if not found and given.text(URL) is not None:
        raise OptionError(f"the option {URL} needs value.format or key.format: set it to {', '.join(SCHEMA_TYPES)}")
    return found


def schema_options_of_reader(options: Mapping[str, str]) -> tuple[SchemaOptions, ...]:
    """Return the same for options of a reader that are not checked yet, when Spark asks for its columns."""
    own = ("value.", "key.", PREFIX)
    given = Options({name: each for name, each in options.items() if name.lower().startswith(own)}, _READ_NAMES)
    topics = next((each for name, each in options.items() if name.lower() == "subscribe"), "")
    return parse_schema_options(given, topics.strip() if "," not in topics and topics else None)


def _parse(given: Options, topic: str | None, part: Part) -> SchemaOptions | None:
    name = f"{part}.format"
    form = (given.text(name) or _BYTES).lower()
    if form == _BYTES:
        if given.text(_SUBJECT[part]) is not None:
            raise OptionError(f"the option {_SUBJECT[part]} needs {name}: set it to {', '.join(SCHEMA_TYPES)}")
        return None
    if form not in SCHEMA_TYPES:
        raise OptionError(f"the option {name} is one of bytes, {', '.join(SCHEMA_TYPES)}, not {form!r}")
    subject = given.text(_SUBJECT[part]) or (f"{topic}-{part}" if topic is not None else "")
    if not subject:
        raise OptionError(f"the option {_SUBJECT[part]} is missing: several topics have no subject in common")
    use_latest = given.flag("use.latest.version", False)
    if use_latest and given.text("auto.register.schemas") is not None and given.flag("auto.register.schemas", True):
        raise OptionError("the options use.latest.version and auto.register.schemas exclude each other")
    return SchemaOptions(
        part=part,
        schema_type=SCHEMA_TYPES[form],
        registry=_registry(given),
        subject=subject,
        version=_version(given, _VERSION[part]),
        message=given.text(f"{part}.message") or None,
        schema=given.text(f"{part}.schema") or None,
        auto_register=given.flag("auto.register.schemas", True),
        use_latest=use_latest,
    )


def _registry(given: Options) -> RegistrySettings:
    settings = {name: text for name in SETTING_NAMES if (text := given.text(name)) is not None}
    try:
        return RegistrySettings.parse(settings)
    except PropertyRefused as error:
        raise OptionError(str(error)) from None


def _version(given: Options, name: str) -> str:
    version = given.text(name) or LATEST
    if version != LATEST and not (version.isdecimal() and int(version) > 0):
        raise OptionError(f"the option {name} is latest or a number above zero, not {version!r}")
    return version
