"""Kafka's broker settings that have no row in the tables: which are ignored, and which are refused.

A server.properties written for Kafka should start Ottla, with a warning for each setting that has no effect here.
Settings that promise protection (encryption, authentication, authorization, policies) are refused instead, because
ignoring them would leave open what the operator wants closed.

At run time (IncrementalAlterConfigs) none of these settings is accepted. Dynamic settings of Kafka that have no effect
and protect nothing are rows of `settings_unused` and `settings_security`, which are accepted.
"""

#: ignored in the file, with a warning; none of them can change at run time in Kafka, but for those of _REFUSED_DYNAMIC
_IGNORED_NAMES = frozenset(
    [
        "alter.log.dirs.replication.quota.window.num",
        "alter.log.dirs.replication.quota.window.size.seconds",
        "auto.include.jmx.reporter",
        "broker.heartbeat.interval.ms",
        "broker.id.generation.enable",
        "broker.session.timeout.ms",
        "client.quota.callback.class",
        "config.providers",
        "control.plane.listener.name",
        "controlled.shutdown.enable",
        "controlled.shutdown.max.retries",
        "controlled.shutdown.retry.backoff.ms",
        "cordoned.log.dirs",
        "delegation.token.expiry.check.interval.ms",
        "delete.records.purgatory.purge.interval.requests",
        "early.start.listeners",
        "eligible.leader.replicas.enable",
        "fetch.purgatory.purge.interval.requests",
        "initial.broker.registration.timeout.ms",
        "inter.broker.protocol.version",
        "log.dir.failure.timeout.ms",
        "log.initial.task.delay.ms",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "log.message.timestamp.difference.max.ms",
        "max.connections.per.ip.overrides",
        "max.request.partition.size.limit",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "num.replica.alter.log.dirs.threads",
        "process.roles",
        "producer.id.expiration.check.interval.ms",
        "producer.purgatory.purge.interval.requests",
        "queued.max.request.bytes",
        "replica.fetch.backoff.ms",
        "replica.socket.receive.buffer.bytes",
        "replica.socket.timeout.ms",
        "replication.quota.window.num",
        "replication.quota.window.size.seconds",
        "reserved.broker.max.id",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.mechanism.controller.protocol",
        "server.max.startup.time.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "ssl.allow.dn.changes",
        "ssl.allow.san.changes",
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
    "alter.config.policy.class.name": "",
    "create.topic.policy.class.name": "",
    "principal.builder.class": "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
    "remote.log.storage.system.enable": "false",
    "zookeeper.ssl.crl.enable": "false",
    "zookeeper.ssl.ocsp.enable": "false",
}
_REFUSED_PREFIXES = ("password.encoder.", "sasl.", "security.", "ssl.")
#: ignored settings of which Kafka does not know the names either, or which may hold passwords of other systems
_HIDDEN_PREFIXES = ("confluent.", "kafka.metrics.", "remote.", "zookeeper.")
_SECRET_WORDS = ("password", "secret", "jaas", "token", "credential")

#: dynamic settings of Kafka that are refused at run time, and why
_REFUSED_DYNAMIC = {
    "config.providers": "it names Java classes",
    "cordoned.log.dirs": "log directories cannot be cordoned",
    "max.connections.per.ip.overrides": "the limit of connections is the same for all addresses",
    "metric.reporters": "it names Java classes; set metrics.listener for Prometheus metrics",
    "principal.builder.class": "it names a Java class",
}
_SET_AT_START = "it is set at start"
_REFUSED_DYNAMIC_PREFIXES = {"sasl.": _SET_AT_START, "ssl.": _SET_AT_START}


def refusal_of(name: str, text: str) -> str | None:
    """Return why a setting of the file is refused, None if it is not. The value is not shown: it may be a secret."""
    if name in _IGNORED_NAMES or (name not in _REFUSED_NAMES and not name.startswith(_REFUSED_PREFIXES)):
        return None
    if text.strip() in ("", _REFUSED_NAMES.get(name, "")):
        return None
    return f"{name} is not supported yet, and ignoring it would not be safe; remove it to start without it"


def is_ignored(name: str) -> bool:
    """Return whether `name` is a setting of Kafka that is ignored in the file."""
    return (
        name in _IGNORED_NAMES
        or name in _REFUSED_NAMES
        or name.startswith(_IGNORED_PREFIXES)
        or name.startswith(_REFUSED_PREFIXES)
    )


def dynamic_refusal_of(name: str) -> str | None:
    """Return why a setting of Kafka cannot be changed at run time, None if Kafka has no such setting."""
    prefixes = {**_REFUSED_DYNAMIC_PREFIXES, "listener.name.": _SET_AT_START}
    reasons = [why for prefix, why in prefixes.items() if name.startswith(prefix)]
    if reason := _REFUSED_DYNAMIC.get(name) or next(iter(reasons), None):
        return f"{name} cannot be changed: {reason}"
    if is_ignored(name):
        return f"{name} cannot change while the broker runs, and has no effect in Ottla"
    return None


def is_secret(name: str) -> bool:
    """Return whether the value of an ignored setting must not be shown: Kafka hides values of unknown settings, too."""
    return name.startswith(_HIDDEN_PREFIXES) or any(word in name for word in _SECRET_WORDS)


def foreign_rows() -> list[tuple[str, str, str]]:
    """Return the table for the documentation: name or prefix, what happens in the file, what happens at run time."""
    rows: dict[str, tuple[str, str]] = {}
    for name in _IGNORED_NAMES:
        rows[name] = "ignored with a warning", "refused"
    for prefix in _IGNORED_PREFIXES:
        rows[f"{prefix}*"] = "ignored with a warning", "refused"
    for name, harmless in _REFUSED_NAMES.items():
        allowed = f"refused unless empty or `{harmless}`" if harmless else "refused unless empty"
        rows[name] = allowed, "refused"
    for prefix in _REFUSED_PREFIXES:
        rows[f"{prefix}*"] = "refused unless empty", "refused"
    for name, why in (
        _REFUSED_DYNAMIC | {f"{prefix}*": why for prefix, why in _REFUSED_DYNAMIC_PREFIXES.items()}
    ).items():
        rows[name] = rows[name][0], f"refused: {why}"
    return [(name, *treatments) for name, treatments in sorted(rows.items())]
