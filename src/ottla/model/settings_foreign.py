"""Kafka's broker settings that Ottla does not serve: which may be ignored, and which must be refused.

A server.properties written for Kafka should start Ottla, with a warning for each line that means nothing
here. Lines that promise protection (encryption, logins, permissions, policies) are refused instead: ignoring
them would open what their writer meant to close.
"""

#: accepted with a warning
_IGNORED_NAMES = frozenset(
    [
        "alter.log.dirs.replication.quota.window.num",
        "alter.log.dirs.replication.quota.window.size.seconds",
        "auto.include.jmx.reporter",
        "auto.leader.rebalance.enable",
        "broker.heartbeat.interval.ms",
        "broker.id.generation.enable",
        "broker.session.timeout.ms",
        "client.quota.callback.class",
        "connection.failed.authentication.delay.ms",
        "control.plane.listener.name",
        "controlled.shutdown.enable",
        "controlled.shutdown.max.retries",
        "controlled.shutdown.retry.backoff.ms",
        "delete.records.purgatory.purge.interval.requests",
        "early.start.listeners",
        "eligible.leader.replicas.enable",
        "fetch.purgatory.purge.interval.requests",
        "initial.broker.registration.timeout.ms",
        "inter.broker.listener.name",
        "inter.broker.protocol.version",
        "leader.imbalance.check.interval.seconds",
        "leader.imbalance.per.broker.percentage",
        "log.dir.failure.timeout.ms",
        "log.initial.task.delay.ms",
        "log.local.retention.bytes",
        "log.local.retention.ms",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "log.message.timestamp.difference.max.ms",
        "max.connection.creation.rate",
        "max.connections.per.ip.overrides",
        "max.request.partition.size.limit",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "num.io.threads",
        "num.network.threads",
        "num.replica.alter.log.dirs.threads",
        "process.roles",
        "producer.id.expiration.check.interval.ms",
        "producer.purgatory.purge.interval.requests",
        "queued.max.request.bytes",
        "replica.fetch.backoff.ms",
        "replica.selector.class",
        "replica.socket.receive.buffer.bytes",
        "replica.socket.timeout.ms",
        "replication.quota.window.num",
        "replication.quota.window.size.seconds",
        "reserved.broker.max.id",
        "server.max.startup.time.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "telemetry.max.bytes",
        "transaction.two.phase.commit.enable",
        "unclean.leader.election.interval.ms",
        "unstable.api.versions.enable",
        "unstable.feature.versions.enable",
    ]
)
_IGNORED_PREFIXES = (
    "confluent.",
    "controller.",
    "group.coordinator.",
    "group.share.",
    "group.streams.",
    "kafka.metrics.",
    "metadata.",
    "quota.",
    "remote.",
    "share.coordinator.",
    "zookeeper.",
)

#: refused unless the value is the one given here (Kafka's default, which protects nothing) or empty
_REFUSED_NAMES = {
    "allow.everyone.if.no.acl.found": "false",
    "alter.config.policy.class.name": "",
    "authorizer.class.name": "",
    "connections.max.reauth.ms": "0",
    "create.topic.policy.class.name": "",
    "principal.builder.class": "",
    "remote.log.storage.system.enable": "false",
    "sasl.enabled.mechanisms": "GSSAPI",
    "sasl.mechanism.inter.broker.protocol": "GSSAPI",
    "security.inter.broker.protocol": "PLAINTEXT",
    "ssl.client.auth": "none",
    "ssl.endpoint.identification.algorithm": "https",
    "super.users": "",
    "zookeeper.set.acl": "false",
    "zookeeper.ssl.client.enable": "false",
}
_REFUSED_PREFIXES = ("delegation.token.", "listener.name.", "password.encoder.", "sasl.", "security.", "ssl.")


def refusal_of(name: str, text: str) -> str | None:
    """The line that refuses a protection Ottla cannot give; it never shows the value, perhaps a secret."""
    if name not in _REFUSED_NAMES and not name.startswith(_REFUSED_PREFIXES):
        return None
    if text.strip() in ("", _REFUSED_NAMES.get(name, "")):
        return None
    return f"{name} is not supported yet, and ignoring it would not be safe; remove it to start without it"


def is_ignored(name: str) -> bool:
    """Whether Kafka knows `name` and Ottla can do without it."""
    return (
        name in _IGNORED_NAMES
        or name in _REFUSED_NAMES
        or name.startswith(_IGNORED_PREFIXES)
        or name.startswith(_REFUSED_PREFIXES)
    )
