"""How this broker connects to ZooKeeper: Kafka's settings ``zookeeper.ssl.*``, and the credentials for its nodes."""

from __future__ import annotations

from functools import partial

from ottla.broker.metadata.zookeeper.acl import ZooKeeperSecurity
from ottla.model.errors import StartError
from ottla.model.settings import BrokerSettings
from ottla.model.settings_security import ListenerSettings, listener_settings
from ottla.security.certificates import client_context, store_type
from ottla.security.errors import SecurityConfigError

_PREFIX = "zookeeper."
_NETTY = "org.apache.zookeeper.ClientCnxnSocketNetty"


def zookeeper_security(settings: BrokerSettings) -> ZooKeeperSecurity:
    """Return how this broker connects to ZooKeeper. Raise StartError if a setting is wrong, without its secret."""
    tls = None
    if settings.zookeeper_ssl_client_enable:
        try:
            own = _tls_settings(settings)
            client_context(own)
        except SecurityConfigError as error:
            # The texts of this error name the settings of listeners.
            text = str(error).replace(" ssl.", f" {_PREFIX}ssl.")
            raise StartError(f"connections to ZooKeeper (zookeeper.ssl.client.enable=true): {text}") from None
        # Made anew for each connection, because the files may change.
        tls = partial(client_context, own)
    elif settings.zookeeper_clientCnxnSocket == _NETTY:
        raise StartError(
            f"zookeeper.clientCnxnSocket={_NETTY} is for TLS; set zookeeper.ssl.client.enable=true, or remove it"
        )
    return ZooKeeperSecurity(settings.zookeeper_auth_digest, settings.zookeeper_set_acl, tls)


def _tls_settings(settings: BrokerSettings) -> ListenerSettings:
    texts: dict[str, str] = {"ssl.enabled.protocols": ",".join(settings.zookeeper_ssl_enabled_protocols)}
    texts["ssl.cipher.suites"] = ",".join(settings.zookeeper_ssl_cipher_suites)
    algorithm = settings.zookeeper_ssl_endpoint_identification_algorithm.lower()
    texts["ssl.endpoint.identification.algorithm"] = "" if algorithm == "false" else algorithm
    for kind in ("keystore", "truststore"):
        for part in ("location", "password", "type"):
            texts[f"ssl.{kind}.{part}"] = settings.value_of(f"{_PREFIX}ssl.{kind}.{part}")
        # As ZooKeeper does: without a type the file decides.
        if not texts[f"ssl.{kind}.type"]:
            texts[f"ssl.{kind}.type"] = store_type(texts[f"ssl.{kind}.location"])
    return listener_settings(texts)
