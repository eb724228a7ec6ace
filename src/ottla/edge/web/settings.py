"""The settings that all HTTP services have: listeners, TLS, limits. A service adds its own rows in a subclass.

Names are Confluent's and Kafka's. The settings of the service's own Kafka client have a prefix, which Confluent's
services have too: `kafkastore.` for the registry, `client.` for the REST proxy. Each service accepts `client.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self
from urllib.parse import urlsplit

from ottla.model.setting_types import (
    ANY,
    BOOL,
    INT,
    LIST,
    STRING,
    InvalidSettings,
    Setting,
    SettingsSnapshot,
    SettingType,
    at_least,
    list_of,
    one_of,
    unknown_name,
)
from ottla.model.settings_security import ListenerSettings, listener_settings

CLIENT_PREFIX: Final = "client."


def _parse_client_authentication(text: str) -> str:
    # Confluent's older name ssl.client.auth is true or false, and that of Kafka none, requested or required.
    stripped = text.strip().upper()
    return {"TRUE": "REQUIRED", "FALSE": "NONE"}.get(stripped, stripped)


class WebSettings(SettingsSnapshot):
    """The settings of one HTTP service."""

    #: other prefixes of the settings of the Kafka client, besides `client.`
    client_prefixes: ClassVar[tuple[str, ...]] = ()
    #: settings of Confluent's service that have no effect here; they are reported when the service starts
    ignored_names: ClassVar[frozenset[str]] = frozenset()

    #: properties of the service's Kafka client, without the prefix
    client: Mapping[str, str]
    #: names that were given and have no effect
    ignored: tuple[str, ...]

    listeners = Setting(
        "listeners", LIST, (), ANY, "Addresses to listen on: http://HOST:PORT or https://HOST:PORT. --listen sets it."
    )
    bootstrap_servers = Setting(
        "bootstrap.servers", STRING, "", ANY, "Brokers of the cluster, as HOST:PORT. --bootstrap sets it."
    )
    allow_insecure_listeners = Setting(
        "allow.insecure.listeners", BOOL, False, ANY,
        "Whether a listener on another address than loopback needs no TLS and no authentication. --insecure sets it.",
    )  # fmt: skip
    ssl_keystore_type = ListenerSettings.ssl_keystore_type
    ssl_keystore_location = ListenerSettings.ssl_keystore_location
    ssl_keystore_password = ListenerSettings.ssl_keystore_password
    ssl_key_password = ListenerSettings.ssl_key_password
    ssl_keystore_key = ListenerSettings.ssl_keystore_key
    ssl_keystore_certificate_chain = ListenerSettings.ssl_keystore_certificate_chain
    ssl_truststore_type = ListenerSettings.ssl_truststore_type
    ssl_truststore_location = ListenerSettings.ssl_truststore_location
    ssl_truststore_password = ListenerSettings.ssl_truststore_password
    ssl_truststore_certificates = ListenerSettings.ssl_truststore_certificates
    ssl_enabled_protocols = ListenerSettings.ssl_enabled_protocols
    ssl_cipher_suites = ListenerSettings.ssl_cipher_suites
    ssl_principal_mapping_rules = ListenerSettings.ssl_principal_mapping_rules
    ssl_client_authentication = Setting(
        "ssl.client.authentication", SettingType("string", STRING.id, _parse_client_authentication), "NONE",
        one_of("NONE", "REQUESTED", "REQUIRED"), "Whether clients must have a certificate, at https listeners.",
        aliases=("ssl.client.auth",),
    )  # fmt: skip
    authentication_method = Setting(
        "authentication.method", LIST, ("NONE",), list_of("NONE", "BASIC", "BEARER"),
        "How clients prove who they are: NONE, BASIC, BEARER, or BASIC,BEARER.",
    )  # fmt: skip
    authentication_realm = Setting(
        "authentication.realm", STRING, "ottla", ANY, "Name that clients show to their users."
    )
    authentication_users_file = Setting(
        "authentication.users.file",
        STRING,
        "",
        ANY,
        "File with the users of BASIC: lines that `ottla user hash` writes.",
    )
    authentication_pass_through = Setting(
        "authentication.pass.through", BOOL, False, ANY,
        "Whether the service logs in to the cluster with the credentials of each request. The users of BASIC are then "
        "those of the cluster, and the REST proxy sends a token of BEARER with OAUTHBEARER.",
    )  # fmt: skip
    authentication_failures_per_minute = Setting(
        "authentication.failures.per.minute", INT, 30, at_least(1),
        "Failed authentications of one address; more: error 42901.",
    )  # fmt: skip
    sasl_oauthbearer_jwks_endpoint_url = ListenerSettings.sasl_oauthbearer_jwks_endpoint_url
    sasl_oauthbearer_jwks_endpoint_refresh_ms = ListenerSettings.sasl_oauthbearer_jwks_endpoint_refresh_ms
    sasl_oauthbearer_expected_audience = ListenerSettings.sasl_oauthbearer_expected_audience
    sasl_oauthbearer_expected_issuer = ListenerSettings.sasl_oauthbearer_expected_issuer
    sasl_oauthbearer_clock_skew_seconds = ListenerSettings.sasl_oauthbearer_clock_skew_seconds
    sasl_oauthbearer_sub_claim_name = ListenerSettings.sasl_oauthbearer_sub_claim_name
    sasl_oauthbearer_scope_claim_name = ListenerSettings.sasl_oauthbearer_scope_claim_name
    allowed_hosts = Setting(
        "allowed.hosts", LIST, (), ANY,
        "More host names that clients use for this service over http, such as registry or .example.com for a domain; * "
        "allows all. IP addresses, localhost, and the names in listeners, host.name and advertised.listeners need no "
        "entry. Another Host: error 40302.",
    )  # fmt: skip
    access_control_allow_origin = Setting(
        "access.control.allow.origin", LIST, (), ANY,
        "Origins of web pages that may use the service from a browser, such as https://shop.example; * allows all.",
    )  # fmt: skip
    access_control_allow_methods = Setting(
        "access.control.allow.methods", LIST, (), ANY, "Methods that these pages may use; empty: all."
    )
    access_control_allow_headers = Setting(
        "access.control.allow.headers", LIST, (), ANY,
        "Headers that these pages may send; empty: Accept, Authorization, Content-Type.",
    )  # fmt: skip
    access_control_expose_headers = Setting(
        "access.control.expose.headers",
        LIST,
        (),
        ANY,
        "Headers of answers that these pages may read, such as Location.",
    )
    rate_limit_requests_per_sec = Setting(
        "rate.limit.requests.per.sec", INT, 0, at_least(0),
        "Requests per second of one user, or of one address without authentication; more: error 42901. 0: no limit.",
    )  # fmt: skip
    max_connections = Setting(
        "max.connections", INT, 10_000, at_least(1),
        "Open connections, and at most three quarters of the open files that the process may have. With another one, "
        "the oldest that waits for a request is closed.",
    )  # fmt: skip
    max_header_bytes = Setting(
        "max.header.bytes", INT, 65_536, at_least(1024), "Bytes of the first line and the headers of a request."
    )
    connection_setup_timeout_ms = Setting(
        "connection.setup.timeout.ms", INT, 10_000, at_least(1),
        "Time that a client has for the TLS handshake, and then for the headers of a request.",
    )  # fmt: skip
    log_level = Setting("log.level", STRING, "INFO", one_of("DEBUG", "INFO", "WARNING", "ERROR"), "Log level.")
    log_format = Setting(
        "log.format",
        STRING,
        "text",
        one_of("text", "json"),
        "Form of the log: a line, or a JSON object, for each event.",
    )

    def tls(self) -> ListenerSettings:
        """Return the settings of the https listeners as those of a listener of the broker."""
        made = listener_settings({})
        shared = self.rows().keys() & ListenerSettings.rows().keys()
        vars(made).update({row.attribute: self.value_of(row.name) for row in map(self.rows().__getitem__, shared)})
        vars(made)["ssl_client_auth"] = self.ssl_client_authentication.lower()
        return made

    def own_hosts(self) -> list[str]:
        """Return the hosts that this service listens on and advertises, in the settings that it has."""
        texts = {name: self.value_of(name) for name in ("host.name", "advertised.listeners") if name in self.rows()}
        urls = (*self.listeners, *texts.get("advertised.listeners", ()))
        return [*(urlsplit(url).hostname or "" for url in urls), texts.get("host.name", "")]

    @property
    def authenticates_clients(self) -> bool:
        """Whether a client must prove who it is."""
        return bool(self.authentication_methods) or self.ssl_client_authentication == "REQUIRED"

    @property
    def authentication_methods(self) -> tuple[str, ...]:
        return tuple(method for method in self.authentication_method if method != "NONE")

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> Self:
        """Return the settings. Raise InvalidSettings with one line for each name or value that is not allowed."""
        rows = cls.rows()
        names = {alias: row for row in rows.values() for alias in (row.name, *row.aliases)}
        prefixes = (CLIENT_PREFIX, *cls.client_prefixes)
        values: dict[str, Any] = {row.attribute: row.default for row in rows.values()}
        client: dict[str, str] = {}
        ignored, problems = [], []
        for name, text in texts.items():
            prefix = next((each for each in prefixes if name.startswith(each)), "")
            if name in names:
                try:
                    values[names[name].attribute] = names[name].parse(text)
                except ValueError as error:
                    problems.append(str(error))
            elif prefix:
                client[name.removeprefix(prefix)] = text
            elif name in cls.ignored_names:
                ignored.append(name)
            else:
                problems.append(unknown_name(name, names))
        if problems:
            raise InvalidSettings(problems)
        # Also as a property of the client, as in Confluent's kafkastore.bootstrap.servers.
        inherited = client.pop("bootstrap.servers", "")
        values["bootstrap_servers"] = values["bootstrap_servers"] or inherited
        made = cls()
        vars(made).update(values, client=MappingProxyType(client), ignored=tuple(ignored))
        return made
