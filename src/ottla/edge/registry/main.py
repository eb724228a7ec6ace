"""Start an instance of the registry: settings, topic, state, election, routes."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, Final

from starlette.types import ASGIApp

from ottla.client.errors import ClientError
from ottla.client.logins import check_login
from ottla.client.reachability import why_unreachable
from ottla.edge.registry import election, errors, store
from ottla.edge.registry.answers import MEDIA_TYPES, error_answer
from ottla.edge.registry.compatibility import LEVELS
from ottla.edge.registry.election import Instance
from ottla.edge.registry.exporters import running
from ottla.edge.registry.exporters.api import ExporterHandlers
from ottla.edge.registry.exporters.running import Exporters, ExporterSettings
from ottla.edge.registry.forwarding import Forwarding
from ottla.edge.registry.requests import MODES
from ottla.edge.registry.routes import PARAMETERS, make_operations
from ottla.edge.registry.service import Registry
from ottla.edge.registry.state import COMPATIBILITY_DEFAULT, MODE_DEFAULT, State
from ottla.edge.registry.store import StoreSettings, prepare_topic
from ottla.edge.web.app import HttpError
from ottla.edge.web.service import Service, StoppedAtStart, run_service
from ottla.edge.web.settings import WebSettings
from ottla.env.tasks import Tasks
from ottla.model.errors import StartError
from ottla.model.setting_types import ANY, BOOL, INT, LIST, PASSWORD, STRING, Setting, at_least, between, one_of
from ottla.schemas.schema import InvalidSchema, SchemaTooComplex
from ottla.security.errors import SecurityConfigError
from ottla.security.secret_box import SecretBox

if TYPE_CHECKING:
    from ottla.security.certificates import Certificates

log = logging.getLogger(__name__)

LISTEN_DEFAULT: Final = "http://127.0.0.1:8081"


class RegistrySettings(WebSettings):
    """The settings of `ottla registry`, by the names of Confluent's registry."""

    client_prefixes: ClassVar[tuple[str, ...]] = ("kafkastore.",)

    kafkastore_topic = Setting(
        "kafkastore.topic", STRING, store.TOPIC_DEFAULT, ANY, "The topic that keeps the schemas."
    )
    kafkastore_topic_replication_factor = Setting(
        "kafkastore.topic.replication.factor", INT, store.REPLICATION_FACTOR_DEFAULT, at_least(1),
        "Replicas of a new topic; fewer if the cluster has fewer brokers.",
    )  # fmt: skip
    schema_registry_group_id = Setting(
        "schema.registry.group.id", STRING, election.GROUP_DEFAULT, ANY,
        "The consumer group that elects the leader; the instances of one registry share it.",
    )  # fmt: skip
    host_name = Setting(
        "host.name", STRING, "", ANY,
        "The host that other instances reach this one at. By default that of the listener, or the name of the machine.",
    )  # fmt: skip
    inter_instance_protocol = Setting(
        "inter.instance.protocol", STRING, "", one_of("", "http", "https"),
        "The protocol of the listener that other instances forward changes to. By default that of the first listener.",
        aliases=("schema.registry.inter.instance.protocol",),
    )  # fmt: skip
    ssl_endpoint_identification_algorithm = Setting(
        "ssl.endpoint.identification.algorithm", STRING, "https", one_of("https", ""),
        "https: the host names in the certificates of other instances are checked. Empty: they are not.",
    )  # fmt: skip
    leader_eligibility = Setting(
        "leader.eligibility", BOOL, True, ANY, "Whether this instance can be the leader.",
        aliases=("master.eligibility",),
    )  # fmt: skip
    schema_compatibility_level = Setting(
        "schema.compatibility.level", STRING, COMPATIBILITY_DEFAULT, one_of(*sorted(LEVELS)),
        "The compatibility level if none is configured.", aliases=("avro.compatibility.level",),
    )  # fmt: skip
    exporter_config_topic = Setting(
        "exporter.config.topic", STRING, running.CONFIG_TOPIC_DEFAULT, ANY, "The topic that keeps the exporters."
    )
    exporter_state_topic = Setting(
        "exporter.state.topic", STRING, running.STATE_TOPIC_DEFAULT, ANY,
        "The topic that keeps the progress of the exporters.",
    )  # fmt: skip
    exporter_max_exporters = Setting(
        "exporter.max.exporters",
        INT,
        running.EXPORTERS_MAX_DEFAULT,
        at_least(0),
        "How many exporters there may be.",
    )
    exporter_users = Setting(
        "exporter.users", LIST, (), ANY,
        "The users who may create, change and delete exporters, which make the registry open connections; empty: all.",
    )  # fmt: skip
    exporter_files_directory = Setting(
        "exporter.files.directory", STRING, "", ANY,
        "The directory of the files that properties of exporters may name (`ssl.ca.location` and others); empty: they "
        "may name none.",
    )  # fmt: skip
    password_encoder_secret = Setting(
        "password.encoder.secret", PASSWORD, "", ANY,
        "A text with which the secrets of exporters are encrypted in their topic; the same for all instances.",
    )  # fmt: skip
    request_max_bytes = Setting(
        "request.max.bytes", INT, 4 << 20, between(1024, 1 << 30), "Bytes of a request's body; more: error 413."
    )
    mode = Setting("mode", STRING, MODE_DEFAULT, one_of(*sorted(MODES)), "The mode if none is set.")


def run(texts: Mapping[str, str]) -> int:
    """Run an instance until SIGTERM or SIGINT. Return the exit code."""
    return run_service("registry", RegistrySettings.parse, texts, start, check_login)


@asynccontextmanager
async def start(service: Service[RegistrySettings]) -> AsyncIterator[ASGIApp]:
    """Read the topic, then answer requests."""
    settings = service.settings
    own = _own_instance(service)
    where = StoreSettings(
        settings.bootstrap_servers,
        settings.client,
        settings.kafkastore_topic,
        settings.kafkastore_topic_replication_factor,
    )
    cluster_id = await _prepare_unless_stopped(service.stop, where)
    state = State(compatibility_default=settings.schema_compatibility_level, mode_default=settings.mode)
    registry = Registry(where, settings.schema_registry_group_id, own, state)
    forwarding = Forwarding(_trusted(settings, own))
    registry.on_failure = service.fail
    await registry.start()
    exporters = _exporters(service, registry, where, cluster_id)
    exporters.start()
    service.before_stop(exporters.stop)
    service.before_stop(registry.stop)
    operations = make_operations(
        registry, forwarding, ExporterHandlers(registry, forwarding, exporters, settings.exporter_users),
        cluster_id=cluster_id, group=settings.schema_registry_group_id,
        request_max_bytes=settings.request_max_bytes,
    )  # fmt: skip
    yield service.make_app(
        operations,
        title="Ottla schema registry",
        error_response=error_answer,
        describe_error=_describe_error,
        error_media_types=MEDIA_TYPES,
        parameters=PARAMETERS,
        health=lambda: registry.failure or (None if registry.leader is not None else "the registry has no leader"),
    )
    await forwarding.close()


def _exporters(
    service: Service[RegistrySettings], registry: Registry, where: StoreSettings, cluster_id: str
) -> Exporters:
    settings, group = service.settings, service.settings.schema_registry_group_id
    topics = settings.exporter_config_topic, settings.exporter_state_topic
    box = SecretBox(settings.password_encoder_secret) if settings.password_encoder_secret else None
    exporter_settings = ExporterSettings(
        *topics, settings.exporter_max_exporters, box, settings.exporter_files_directory
    )  # fmt: skip
    made = Exporters(
        registry, where, exporter_settings, group=group,
        auto_context=f".{group}-{cluster_id}".replace(":", "-"),
    )  # fmt: skip
    service.guard.metrics.sources.append(made.add_metrics)
    return made


def _describe_error(error: Exception) -> HttpError | None:
    """Return what a client gets for an error of the cluster, such as at the login of a user, and of a schema."""
    if isinstance(error, ClientError):
        return errors.store_failed(f"the cluster does not answer: {error}")
    # A schema that was parsed can still be too complex to be normalised or compared.
    if isinstance(error, SchemaTooComplex):
        return errors.schema_too_large(str(error))
    return errors.invalid_schema(str(error)) if isinstance(error, InvalidSchema) else None


async def _prepare_unless_stopped(stop: asyncio.Event, where: StoreSettings) -> str:
    """Create the topic if it does not exist, and return the id of the cluster.

    Raise StartError if the cluster does not answer for a while, and StoppedAtStart if the service has to stop before.
    """
    ended = threading.Event()
    tasks = Tasks()

    async def end_at_stop() -> None:
        await stop.wait()
        ended.set()

    tasks.start(end_at_stop(), "end the start of the registry")
    try:
        # Also after a stop this waits for the thread, which makes no further attempt then.
        return await asyncio.to_thread(_prepare, where._replace(ended=ended))
    except ClientError as error:
        if stop.is_set():
            raise StoppedAtStart from None
        raise StartError(str(error)) from None
    finally:
        await tasks.stop()


def _prepare(where: StoreSettings) -> str:
    with where.connect() as cluster:
        if (reason := why_unreachable(cluster)) is not None:
            log.warning("%s: the registry is not ready until the cluster answers; trying again", reason)
    prepare_topic(where)
    with where.connect() as cluster:
        return cluster.cluster_id()


def _own_instance(service: Service[RegistrySettings]) -> Instance:
    """Return the address for other instances. Raise StartError if no listener has `inter.instance.protocol`."""
    protocol = service.settings.inter_instance_protocol or service.listeners[0].scheme
    listener = next((each for each in service.listeners if each.scheme == protocol), None)
    if listener is None:
        raise StartError(f"inter.instance.protocol={protocol} needs a listener {protocol}://HOST:PORT in listeners")
    host = service.settings.host_name or listener.host
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return Instance(listener.scheme, host, listener.port, service.settings.leader_eligibility)


def _trusted(settings: RegistrySettings, own: Instance) -> Certificates | None:
    """Return the certificates for https connections to other instances; None if the instances use http."""
    if own.scheme != "https":
        return None
    from ottla.security.certificates import Certificates, client_context

    try:
        return Certificates(settings.tls(), client_context)
    except SecurityConfigError as error:
        raise StartError(f"https to other instances: {error}") from None
