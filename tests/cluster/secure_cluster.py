"""A cluster whose clients and brokers use TLS and SCRAM, and whose certificates can be replaced while it runs.

Each broker has two listeners: SECURE (SASL_SSL) for the load and for the other brokers, and PLAINTEXT for the campaign,
which asks for leaders and coordinators. An authorizer is configured; the users are super users.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import trustme
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from ottla.testing import ClusterProcess
from ottla.testing.process import reserve_port

_DEADLINE_S = 60.0
_PASSWORDS = {"broker": "password of the brokers", "load": "password of the clients"}
_LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="broker" password="{}";'


class SecureClusterProcess(ClusterProcess):
    """A ClusterProcess with a listener SECURE. ``create_users`` makes it usable."""

    def __init__(self, data: Path, *arguments: Any, **options: Any) -> None:
        super().__init__(data, *arguments, **options)
        self._certificates = data / "certificates"
        self._certificates.mkdir()
        self._authority = trustme.CA()
        self._authority.cert_pem.write_to_path(self._certificates / "ca.pem")
        self.replace_certificate()
        self._ports: list[socket.socket] = []
        for broker in self.brokers.values():
            self._ports.append(reserve_port())
            secure = f"SECURE://127.0.0.1:{self._ports[-1].getsockname()[1]}"
            # BrokerProcess takes the last port of its line `ready`.
            broker.settings |= {**self._settings(), "listeners": f"{secure},PLAINTEXT://{broker.bootstrap}"}

    def _settings(self) -> dict[str, str]:
        return {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
            "inter.broker.listener.name": "SECURE",
            "ssl.keystore.type": "PEM", "ssl.keystore.location": str(self._certificates / "broker.pem"),
            "ssl.truststore.type": "PEM", "ssl.truststore.location": str(self._certificates / "ca.pem"),
            "sasl.enabled.mechanisms": "SCRAM-SHA-512", "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.secure.scram-sha-512.sasl.jaas.config": _LOGIN.format(_PASSWORDS["broker"]),
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:broker;User:load;User:ANONYMOUS",
        }  # fmt: skip

    def replace_certificate(self) -> None:
        """Issue a new certificate for all brokers. They notice the new file."""
        issued = self._authority.issue_cert("127.0.0.1", "localhost")
        new = self._certificates / "broker.pem.new"
        descriptor = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(issued.private_key_and_cert_chain_pem.bytes())
        new.replace(self._certificates / "broker.pem")

    def create_users(self) -> None:
        """Store the passwords of the brokers and of the clients. Brokers can reach each other from now on."""
        information = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        users = [
            UserScramCredentialUpsertion(name, information, password.encode()) for name, password in _PASSWORDS.items()
        ]
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for done in admin.alter_user_scram_credentials(users).values():
            done.result(_DEADLINE_S)

    @property
    def client_settings(self) -> dict[str, str]:
        """Return the settings of the clients, by librdkafka's names."""
        return {
            "bootstrap.servers": ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in self._ports),
            "security.protocol": "SASL_SSL", "ssl.ca.location": str(self._certificates / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "load", "sasl.password": _PASSWORDS["load"],
        }  # fmt: skip

    def close(self) -> None:
        super().close()
        for port in self._ports:
            port.close()
