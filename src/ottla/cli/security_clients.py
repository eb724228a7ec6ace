"""The settings with which clients log in, in the form of each client library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: the names of the clients in the output
TITLES = {
    "librdkafka": "librdkafka (confluent-kafka, kcat)", "java": "Java", "aiokafka": "aiokafka",
    "kafka-python": "kafka-python", "kafkajs": "kafkajs", "spark": "Spark (format kafka or ottla)",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user with a password, and the certificate of the authority that has signed the broker's."""

    bootstrap: str
    mechanism: str
    user: str
    password: str = field(repr=False)
    #: path of the certificate
    authority: str


def java_settings(login: Login) -> dict[str, str]:
    """Return the properties of Java's clients, which `--command-config` and Spark understand, too."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "bootstrap.servers": login.bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": login.mechanism,
        "sasl.jaas.config": f'{module} required username="{login.user}" password="{login.password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": login.authority,
    }


def client_settings(login: Login) -> Mapping[str, Any]:
    """Return the settings of each client: properties by name, or lines of code."""
    user, password, mechanism = login.user, login.password, login.mechanism
    return {
        "librdkafka": {
            "bootstrap.servers": login.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": login.authority,
        },
        "java": java_settings(login),
        "aiokafka": "\n".join([
            f'AIOKafkaProducer(bootstrap_servers="{login.bootstrap}", security_protocol="SASL_SSL",',
            f'    ssl_context=ssl.create_default_context(cafile="{login.authority}"),',
            f'    sasl_mechanism="{mechanism}", sasl_plain_username="{user}",',
            f'    sasl_plain_password="{password}")',
        ]),
        "kafka-python": "\n".join([
            f'KafkaProducer(bootstrap_servers="{login.bootstrap}", security_protocol="SASL_SSL",',
            f'    ssl_cafile="{login.authority}", sasl_mechanism="{mechanism}",',
            f'    sasl_plain_username="{user}", sasl_plain_password="{password}")',
        ]),
        "kafkajs": "\n".join([
            f'new Kafka({{brokers: ["{login.bootstrap}"],',
            f'    ssl: {{ca: [require("fs").readFileSync("{login.authority}")]}},',
            f'    sasl: {{mechanism: "{mechanism.lower()}", username: "{user}", password: "{password}"}}}})',
        ]),
        "spark": {f"kafka.{name}": text for name, text in java_settings(login).items()},
    }  # fmt: skip
