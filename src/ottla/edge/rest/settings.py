"""Settings of the REST proxy, with Confluent's names where Confluent has the setting.

`client.NAME` is a property of all Kafka clients of the proxy, `producer.NAME` and `consumer.NAME` one of its producers
and consumers, as in Confluent's file. `admin.NAME` is accepted as `client.NAME`. `schema.registry.NAME` is a property
of the client of the registry, such as `schema.registry.basic.auth.user.info`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Final, Self

from ottla.edge.web.settings import WebSettings
from ottla.model.setting_types import ANY, BOOL, INT, INT_MAX, LIST, LONG, STRING, Setting, at_least, between

_PRODUCER: Final = "producer."
_CONSUMER: Final = "consumer."
_REGISTRY: Final = "schema.registry."


class RestSettings(WebSettings):
    """All settings of one proxy."""

    client_prefixes: ClassVar[tuple[str, ...]] = ("admin.",)
    ignored_names: ClassVar[frozenset[str]] = frozenset(
        {
            "access.control.skip.options",
            "api.v3.produce.response.thread.pool.size",
            "compression.enable",
            "confluent.resource.name.authority",
            "consumer.iterator.backoff.ms",
            "consumer.iterator.timeout.ms",
            "consumer.threads",
            "http2.enabled",
            "idle.timeout.ms",
            "metric.reporters",
            "metrics.jmx.prefix",
            "metrics.num.samples",
            "metrics.sample.window.ms",
            "metrics.tag.map",
            "producer.threads",
            "request.logger.name",
            "request.queue.capacity",
            "request.queue.capacity.growby",
            "request.queue.capacity.init",
            "response.mediatype.default",
            "response.mediatype.preferred",
            "shutdown.graceful.ms",
            "simpleconsumer.pool.size.max",
            "simpleconsumer.pool.timeout.ms",
            "streaming.connection.max.duration.grace.period.ms",
            "suppress.stack.trace.response",
            "thread.pool.max",
            "thread.pool.min",
            "zookeeper.connect",
        }
    )

    #: properties of the client of the schema registry, without the prefix
    registry: Mapping[str, str]
    #: more properties of producers and of consumers, without the prefix
    producer: Mapping[str, str]
    consumer: Mapping[str, str]

    id = Setting("id", STRING, "", ANY, "Name of this instance; ids of its consumer instances contain it.")
    host_name = Setting(
        "host.name", STRING, "", ANY,
        "Host name of this instance in base_uri and in links; without it they have the host of the request.",
    )  # fmt: skip
    advertised_listeners = Setting(
        "advertised.listeners", LIST, (), ANY,
        "URL of this instance in base_uri and in links, such as https://rest-1:8082. Replaces host.name.",
    )  # fmt: skip
    schema_registry_url = Setting(
        "schema.registry.url", LIST, (), ANY, "URLs of the schema registry. --registry sets it."
    )
    schema_registry_pass_through = Setting(
        "schema.registry.pass.through", BOOL, True, ANY,
        "Whether the schema registry gets the credentials of each request, with authentication.pass.through=true.",
    )  # fmt: skip
    consumer_instance_timeout_ms = Setting(
        "consumer.instance.timeout.ms", INT, 300_000, between(1000, INT_MAX),
        "A consumer instance without a request for this long is deleted and leaves its group.",
    )  # fmt: skip
    consumer_request_timeout_ms = Setting(
        "consumer.request.timeout.ms", INT, 1000, between(0, 600_000),
        "How long a GET of records waits for records; an instance or a request can choose another time.",
    )  # fmt: skip
    consumer_request_max_bytes = Setting(
        "consumer.request.max.bytes", INT, 64 << 20, at_least(0), "Bytes of keys and values in one answer with records."
    )
    fetch_min_bytes = Setting(
        "fetch.min.bytes", INT, -1, between(-1, 10_000_000),
        "A GET of records waits for this many bytes; -1 waits until no more records arrive for 50 ms.",
    )  # fmt: skip
    consumer_instances_max = Setting(
        "consumer.instances.max", INT, 1000, at_least(1), "Consumer instances of this process; more: error 50301."
    )
    consumer_instances_per_group_max = Setting(
        "consumer.instances.per.group.max", INT, 200, at_least(1),
        "Consumer instances of one group in this process; more: error 42903.",
    )  # fmt: skip
    api_v2_enable = Setting("api.v2.enable", BOOL, True, ANY, "Whether version 2 of the API is served.")
    api_v3_enable = Setting("api.v3.enable", BOOL, True, ANY, "Whether version 3 of the API is served.")
    api_endpoints_allowlist = Setting(
        "api.endpoints.allowlist", LIST, (), ANY,
        "Names of the operations that are served, such as api.v3.topics.list or api.v3.topics.*; empty: all.",
    )  # fmt: skip
    api_endpoints_blocklist = Setting(
        "api.endpoints.blocklist", LIST, (), ANY, "Names of operations that are not served."
    )
    api_v3_produce_batch_maximum_entries = Setting(
        "api.v3.produce.batch.maximum.entries", INT, 10, between(1, 50),
        "Entries of one records:batch request; more: error 42208.",
    )  # fmt: skip
    request_max_bytes = Setting(
        # Larger JSON texts would keep other requests waiting while they are parsed, for about 0.1 s per MiB.
        "request.max.bytes", INT, 4 << 20, between(1024, 1 << 30),
        "Bytes of a request's body, and of one record of a stream; more: error 413.",
    )  # fmt: skip
    rate_limit_bytes_per_sec = Setting(
        "rate.limit.bytes.per.sec", LONG, 0, at_least(0),
        "Bytes of bodies per second of one user, or of one address; more: error 42902. 0: no limit.",
    )  # fmt: skip
    streaming_connection_max_duration_ms = Setting(
        "streaming.connection.max.duration.ms", INT, 86_400_000, at_least(1000),
        "A stream of produced or read records ends after this time.",
    )  # fmt: skip
    read_streams_max = Setting(
        "read.streams.max", INT, 100, at_least(1), "Streams of read records at the same time; more: error 50301."
    )
    identities_max = Setting(
        "identities.max", INT, 100, at_least(1), "Users with open Kafka clients; more: the least recently used close."
    )
    identity_idle_ms = Setting(
        "identity.idle.ms", INT, 300_000, at_least(1000), "Idle time after which a user's Kafka clients close."
    )
    client_timeout_ms = Setting(
        "client.timeout.ms", INT, 30_000, between(100, 600_000),
        "How long a request to the cluster may take, with its retries.",
    )  # fmt: skip

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> Self:
        """Return the settings. Raise InvalidSettings with one line for each name or value that is not allowed."""
        own = {name for row in cls.rows().values() for name in (row.name, *row.aliases)} | cls.ignored_names
        parts: dict[str, dict[str, str]] = {_PRODUCER: {}, _CONSUMER: {}, _REGISTRY: {}, "": {}}
        for name, text in texts.items():
            prefix = next((each for each in parts if each and name.startswith(each) and name not in own), "")
            parts[prefix][name.removeprefix(prefix)] = text
        made = super().parse(parts[""])
        clients = {"producer": _PRODUCER, "consumer": _CONSUMER, "registry": _REGISTRY}
        vars(made).update({name: MappingProxyType(parts[prefix]) for name, prefix in clients.items()})
        return made
