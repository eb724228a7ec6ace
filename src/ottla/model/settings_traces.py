"""The broker's settings of traces."""

from urllib.parse import urlsplit

from ottla.model.setting_types import DOUBLE, INT, STRING, Check, Setting, SettingsSnapshot, at_least, between


def is_endpoint_url(text: str) -> bool:
    """Return whether a text is the address of an OTLP endpoint: http or https, without a user name."""
    try:
        url = urlsplit(text.strip())
        _ = url.port
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.hostname) and url.username is None and not url.query


class TraceSettings(SettingsSnapshot):
    """The part of the broker's table about traces."""

    traces_endpoint = Setting(
        "traces.endpoint",
        STRING,
        "",
        Check(
            "nothing, or http://HOST:PORT or https://HOST:PORT, without a user name",
            lambda value: not value or is_endpoint_url(value),
        ),
        "Ottla only. Address of a collector for OpenTelemetry traces (OTLP over HTTP). Empty: there are no traces, and "
        "they cost nothing. Needs the extra `otel`.",
    )
    traces_sample_ratio = Setting(
        "traces.sample.ratio",
        DOUBLE,
        0.01,
        between(0, 1),
        "Ottla only. Share of the produced batches that are traced. Batches with a sampled `traceparent` are traced in "
        "any case.",
    )
    traces_per_second_max = Setting(
        "traces.per.second.max",
        INT,
        100,
        at_least(1),
        "Ottla only. Produced batches that are traced in one second at most, also of those with a `traceparent`.",
    )
