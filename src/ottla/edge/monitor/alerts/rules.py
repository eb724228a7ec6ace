"""Rules, receivers and silences as a file declares them. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.edge.monitor.alerts.patterns import LabelPatterns, NamePatterns

MINUTE_MS = 60_000
#: see Rule.keep_ms
KEEP_MS = MINUTE_MS


class Level(enum.IntEnum):
    """The severity of an alert, in the words of Prometheus' users. Larger is worse."""

    INFO = 0
    WARNING = 1
    CRITICAL = 2

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckCondition:
    """True while a check of `ottla doctor` finds a problem."""

    #: names of checks
    checks: NamePatterns
    #: one alert for each object that the check names; otherwise one alert for all of them
    is_per_object: bool
    #: only findings that name one of these objects
    names: NamePatterns


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueCondition:
    """True while a value is above or below a bound, or is one of some words. One alert for each set of labels."""

    value: str
    above: float | None = None
    below: float | None = None
    words: frozenset[str] = frozenset()
    match: LabelPatterns = field(default_factory=LabelPatterns)

    def holds(self, value: float | str) -> bool:
        if isinstance(value, str):
            return value in self.words
        return (self.above is not None and value > self.above) or (self.below is not None and value < self.below)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When an alert opens and closes, and what it says."""

    name: str
    condition: CheckCondition | ValueCondition
    #: None: that of the finding
    level: Level | None
    #: an alert opens when its condition was true for so long
    for_ms: int = 0
    #: it closes when its condition was false for so long, so that it does not open and close again and again
    keep_ms: int = KEEP_MS
    #: what to say, with {label}, {value}, {names} and {count}; empty: the text of the finding
    text: str = ""
    #: what to do; empty: the advice of the finding
    advice: str = ""
    #: labels that are added to the alerts
    labels: Mapping[str, str] = field(default_factory=dict)
    #: receivers; empty: all of them
    notify: frozenset[str] = frozenset()


class ReceiverKind(enum.StrEnum):
    WEBHOOK = "webhook"
    EMAIL = "email"
    SLACK = "slack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A text that is read when it is used, so that it is in no message, log or dump. At most one way is given."""

    file: str = ""
    environment: str = ""

    def __bool__(self) -> bool:
        return bool(self.file or self.environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailSettings:
    host: str
    port: int
    sender: str
    recipients: tuple[str, ...]
    #: starttls, implicit or none
    tls: str = "starttls"
    user: str = ""
    password: Secret = Secret()


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """Where messages go."""

    name: str
    kind: ReceiverKind
    #: of a webhook or of Slack; empty if it is a secret
    url: str = ""
    secret_url: Secret = Secret()
    #: sent as `Authorization: Bearer …`
    bearer: Secret = Secret()
    #: key of HMAC-SHA256 of the body, sent as `X-Ottla-Signature: sha256=…`
    hmac: Secret = Secret()
    #: file with certificates of authorities, besides those of the system
    ca_file: str = ""
    email: EmailSettings | None = None
    #: alerts below this severity are not sent
    level_min: Level = Level.INFO
    match: LabelPatterns = field(default_factory=LabelPatterns)
    #: whether it gets messages about alerts that have closed
    send_closed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Alerts that match are shown and not sent, between two moments."""

    match: LabelPatterns
    from_ms: int | None
    until_ms: int
    reason: str

    def holds(self, labels: Mapping[str, str], now_ms: int) -> bool:
        return (self.from_ms is None or self.from_ms <= now_ms) and now_ms < self.until_ms and self.match.match(labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Which alerts share a message, and how often one is sent."""

    #: labels; alerts with the same values of all of them are in one message
    by: tuple[str, ...] = ("rule",)
    #: wait before the first message of a group, so that alerts of the same cause are in it
    wait_ms: int = 10_000
    #: between messages about changes of a group
    interval_ms: int = MINUTE_MS
    #: until a message is repeated while its alerts stay open
    repeat_ms: int = 4 * 60 * MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a file declares."""

    rules: tuple[Rule, ...]
    receivers: tuple[Receiver, ...] = ()
    silences: tuple[Silence, ...] = ()
    grouping: Grouping = Grouping()
    #: of the console or of this monitor, for links in messages; empty: none
    external_url: str = ""

    def rule(self, name: str) -> Rule | None:
        return next((each for each in self.rules if each.name == name), None)
