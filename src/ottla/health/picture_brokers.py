"""The parts of a picture that each broker knows: settings, log directories, versions, certificates."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ottla import __version__
from ottla.admin import config_requests
from ottla.client.protocol.metadata import Node
from ottla.health.asker import Asker
from ottla.health.types import BrokerPicture, CertificatePicture, DirectoryPicture, Feature, Part
from ottla.model.types import Endpoint, TopicPartition, parse_endpoint
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.describe_log_dirs import DescribeLogDirsRequest

_CONNECT_S = 2.0
#: TLS listeners whose certificates are read
_LISTENERS_MAX = 100
#: the listener names that are protocols themselves
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class BrokerReader:
    """Asks each broker for what it alone knows."""

    def __init__(self, asker: Asker, nodes: Collection[Node], racks: Mapping[int, str | None]) -> None:
        self._asker = asker
        self._nodes = nodes
        self._racks = racks
        self._added_bytes: dict[tuple[TopicPartition, int], int] = {}

    def read(
        self, added: Collection[tuple[TopicPartition, int]]
    ) -> tuple[dict[int, BrokerPicture], dict[tuple[TopicPartition, int], int]]:
        """Return the brokers, and the bytes of the replicas that moves add, by partition and broker."""
        brokers = {node.broker_id: self._read_broker(node, added) for node in self._nodes}
        return brokers, self._added_bytes

    def _read_broker(self, node: Node, added: Collection[tuple[TopicPartition, int]]) -> BrokerPicture:
        versions, features = self._read_versions(node)
        topic_bytes: dict[str, int] = {}
        return BrokerPicture(
            node=node,
            rack=self._racks.get(node.broker_id) or None,
            settings=self._read_settings(node),
            directories=tuple(self._read_directories(node, added, topic_bytes)),
            topic_bytes=topic_bytes,
            versions=versions,
            features=features,
        )

    def _read_versions(self, node: Node) -> tuple[dict[int, tuple[int, int]], dict[str, Feature]]:
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
        answer = self._asker.ask(Part.VERSIONS, node, request)
        if answer is None or not self._asker.accepts(Part.VERSIONS, answer.error_code):
            return {}, {}
        finalized = {row.name: row.max_version_level for row in answer.finalized_features}
        features = {
            row.name: Feature(row.max_version, finalized[row.name])
            for row in answer.supported_features
            if row.name in finalized
        }
        return {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}, features

    def _read_settings(self, node: Node) -> dict[str, str]:
        request = config_requests.describe_request("broker", [str(node.broker_id)])
        answer = self._asker.ask(Part.BROKER_SETTINGS, node, request)
        for row in answer.results if answer is not None else ():
            if self._asker.accepts(Part.BROKER_SETTINGS, row.error_code, row.error_message):
                return {each.name: each.value for each in row.configs if each.value is not None}
        return {}

    def _read_directories(
        self, node: Node, added: Collection[tuple[TopicPartition, int]], topic_bytes: dict[str, int]
    ) -> Iterator[DirectoryPicture]:
        """Yield the log directories. Add the bytes of each topic to ``topic_bytes``."""
        answer = self._asker.ask(Part.DIRECTORIES, node, DescribeLogDirsRequest(topics=None))
        if answer is None or not self._asker.accepts(Part.DIRECTORIES, answer.error_code):
            return
        for row in answer.results:
            size = 0
            for topic in row.topics:
                for each in topic.partitions:
                    size += each.partition_size
                    topic_bytes[topic.name] = topic_bytes.get(topic.name, 0) + each.partition_size
                    key = TopicPartition(topic.name, each.partition_index), node.broker_id
                    if added and key in added and not each.is_future_key:
                        self._added_bytes[key] = each.partition_size
            yield DirectoryPicture(
                broker_id=node.broker_id,
                path=row.log_dir,
                error_code=row.error_code,
                total_bytes=row.total_bytes if row.total_bytes >= 0 else None,
                usable_bytes=row.usable_bytes if row.usable_bytes >= 0 else None,
                size_bytes=size,
            )


def listeners_of(broker: BrokerPicture) -> list[tuple[Endpoint, str]]:
    """Return the addresses that a broker advertises, or binds to without advertised ones, with their protocols."""
    text = broker.settings.get("advertised.listeners") or broker.settings.get("listeners") or ""
    found = []
    for word in text.split(","):
        try:
            endpoint = parse_endpoint(word.strip())
        except ValueError:
            continue
        found.append((endpoint, protocol_of(broker, endpoint.name)))
    return found


def protocol_of(broker: BrokerPicture, listener: str) -> str:
    """Return the security protocol of a listener; "" if it is not known."""
    pairs = [
        word.strip().upper().split(":") for word in broker.settings.get("listener.security.protocol.map", "").split(",")
    ]
    known = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    return known.get(listener.upper(), listener.upper() if listener.upper() in _PROTOCOLS else "")


def read_certificates(asker: Asker, brokers: Iterable[BrokerPicture]) -> tuple[CertificatePicture, ...]:
    """Return the certificates of the TLS listeners, also of those that this client does not use."""
    wanted = [
        (broker, endpoint)
        for broker in brokers
        if broker.id not in asker.problems
        for endpoint, protocol in listeners_of(broker)
        if protocol.endswith("SSL") and endpoint.port
    ]
    found = []
    for broker, endpoint in wanted[:_LISTENERS_MAX]:
        host = endpoint.host if endpoint.host not in ("", "0.0.0.0", "::") else broker.node.host
        try:
            info = _show_certificate(host, endpoint.port)
        except (OSError, ValueError) as error:
            where = f"{endpoint.name} of broker {broker.id} at {host}:{endpoint.port}"
            asker.refused(Part.CERTIFICATES, f"listener {where}: {getattr(error, 'strerror', None) or error}")
            continue
        found.append(
            CertificatePicture(
                broker_id=broker.id, listener=endpoint.name, host=host, hosts=info.hosts,
                not_before=info.not_before, not_after=info.not_after,
            )
        )  # fmt: skip
    return tuple(found)


def _show_certificate(host: str, port: int) -> Any:
    """Return what the certificate of a listener says, without trusting it. Raise OSError or ValueError."""
    # cryptography is imported only for clusters with TLS.
    from ottla.security.authority import describe

    return describe(ssl.get_server_certificate((host, port), timeout=_CONNECT_S).encode())[0]
