"""The metrics pages of brokers: rates and latencies, which the Kafka protocol does not have.

Rates are differences between two readings, so that the first page shows none. Everything that a page says is a number
of a known name: other lines are skipped, and a page that is too large or too slow is a problem of one broker.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.error import URLError
from urllib.parse import urlsplit

_TIMEOUT_S: Final = 3.0
_BYTES_MAX: Final = 32 << 20
_EVERY_S: Final = 4.0
_LINE: Final = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})? (?P<value>[^ ]+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_REQUESTS: Final = "ottla_requests_total"
_SECONDS: Final = "ottla_request_seconds"
#: metrics without labels that are kept
_PLAIN: Final = (
    "ottla_bytes_in_total", "ottla_bytes_out_total", "ottla_connections", "ottla_connections_muted",
    "ottla_connections_refused_total", "ottla_fetches_parked", "ottla_loop_lag_seconds", "ottla_frames_refused_total",
)  # fmt: skip


@dataclass(slots=True)
class Sample:
    """What one metrics page has said."""

    at_s: float
    plain: dict[str, float] = field(default_factory=dict)
    #: by API
    requests: dict[str, float] = field(default_factory=dict)
    #: by API: cumulative counts by the upper limit of the bucket in seconds
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiFigures:
    """The requests of one API since the reading before."""

    api: str
    per_s: float
    #: the limit of the bucket in which 99 of 100 requests are; None without a request
    p99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFigures:
    """What a metrics page says about one broker; None where it is not known."""

    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None
    p99_ms: float | None = None
    connections: int | None = None
    apis: Sequence[ApiFigures] = ()
    plain: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""


class BrokerMetrics:
    """Reads the pages that `broker.metrics.urls` names. Used by one thread at a time for each broker."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._urls = parse_urls(urls)
        #: the last two readings of each broker
        self._samples: dict[int, tuple[Sample | None, Sample]] = {}

    @property
    def is_configured(self) -> bool:
        return bool(self._urls)

    def knows(self, broker: int) -> bool:
        return broker in self._urls

    def figures(self, broker: int) -> BrokerFigures:
        """Return the figures of a broker; blocks. A page is read again after some seconds."""
        if broker not in self._urls:
            return BrokerFigures(problem=f"broker.metrics.urls has no {broker}=URL")
        before, last = self._samples.get(broker, (None, None))
        if last is None or time.monotonic() - last.at_s > _EVERY_S:
            try:
                text = _fetch(self._urls[broker])
            except (OSError, ValueError, URLError) as error:
                return BrokerFigures(problem=f"the metrics of broker {broker} cannot be read: {error}")
            before, last = last, parse_page(text, time.monotonic())
            self._samples[broker] = before, last
        return figures_of(before, last)


def parse_urls(texts: Iterable[str]) -> dict[int, str]:
    """Return the URL of each broker. Raise ValueError if an item is not ID=URL.

    >>> parse_urls(["1=http://127.0.0.1:9464/metrics"])
    {1: 'http://127.0.0.1:9464/metrics'}
    """
    found = {}
    for text in texts:
        number, sign, address = text.partition("=")
        if not sign or not number.strip().isdecimal() or urlsplit(address).scheme not in ("http", "https"):
            raise ValueError(f"broker.metrics.urls: {text!r} is not ID=URL, such as 1=http://127.0.0.1:9464/metrics")
        found[int(number)] = address
    return found


def _fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
        content: bytes = answer.read(_BYTES_MAX + 1)
    if len(content) > _BYTES_MAX:
        raise ValueError(f"the page has more than {_BYTES_MAX >> 20} MB")
    return content.decode(errors="replace")


def parse_page(text: str, at_s: float) -> Sample:
    """Return the known metrics of a page in the text format of Prometheus."""
    sample = Sample(at_s)
    for line in text.splitlines():
        if not line.startswith("ottla_"):
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        name, labels = match["name"], dict(_LABEL.findall(match["labels"] or ""))
        if name in _PLAIN:
            sample.plain[name] = value
        elif name == _REQUESTS and "api" in labels:
            sample.requests[labels["api"]] = value
        elif name == f"{_SECONDS}_bucket" and "api" in labels and "le" in labels:
            sample.buckets.setdefault(labels["api"], {})[float(labels["le"].replace("+Inf", "inf"))] = value
    return sample


def figures_of(before: Sample | None, last: Sample) -> BrokerFigures:
    """Return the figures between two readings of a page."""
    connections = last.plain.get("ottla_connections")
    known = None if connections is None else int(connections)
    if before is None or last.at_s <= before.at_s:
        return BrokerFigures(connections=known, plain=last.plain)
    seconds = last.at_s - before.at_s
    apis = []
    merged: dict[float, float] = {}
    for api, count in sorted(last.requests.items()):
        grown = max(count - before.requests.get(api, 0.0), 0.0)
        buckets = _grown(before.buckets.get(api, {}), last.buckets.get(api, {}))
        # A Fetch waits for records: its time says nothing about the broker.
        if api.upper() != "FETCH":
            for limit, value in buckets.items():
                merged[limit] = merged.get(limit, 0.0) + value
        if grown:
            apis.append(ApiFigures(api=api, per_s=grown / seconds, p99_ms=_percentile(buckets)))
    return BrokerFigures(
        bytes_in_per_s=_rate(before, last, "ottla_bytes_in_total", seconds),
        bytes_out_per_s=_rate(before, last, "ottla_bytes_out_total", seconds),
        p99_ms=_percentile(merged), connections=known, plain=last.plain,
        apis=sorted(apis, key=lambda each: (-each.per_s, each.api)),
    )  # fmt: skip


def _rate(before: Sample, last: Sample, name: str, seconds: float) -> float | None:
    if name not in last.plain or name not in before.plain:
        return None
    return max(last.plain[name] - before.plain[name], 0.0) / seconds


def _grown(before: Mapping[float, float], last: Mapping[float, float]) -> dict[float, float]:
    """Return how much the buckets have grown; a broker that was started again counts from 0."""
    if any(last.get(limit, 0.0) < value for limit, value in before.items()):
        return dict(last)
    return {limit: value - before.get(limit, 0.0) for limit, value in last.items()}


def _percentile(buckets: Mapping[float, float]) -> float | None:
    """Return the limit below which 99 of 100 requests are, in milliseconds."""
    limits = sorted(buckets)
    if not limits or not buckets[limits[-1]]:
        return None
    wanted = 0.99 * buckets[limits[-1]]
    limit = next(each for each in limits if buckets[each] >= wanted)
    finite = limit if limit != float("inf") else max((each for each in limits if each != float("inf")), default=0.0)
    return finite * 1000
