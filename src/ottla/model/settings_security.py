"""The broker's settings of TLS, SASL and authorization, and their values for one listener.

Names and meanings are Kafka's. Most of them can be set for one listener, with the prefix ``listener.name.NAME.`` (the
name in lower case), and those of SASL for one mechanism of it:

    ssl.keystore.location                                        all listeners
    listener.name.clients.ssl.keystore.location                  the listener CLIENTS
    listener.name.clients.scram-sha-512.sasl.jaas.config         its mechanism SCRAM-SHA-512
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.model.setting_types import (
    ANY,
    BOOL,
    DOUBLE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    PASSWORD,
    STRING,
    Setting,
    SettingsSnapshot,
    at_least,
    between,
    list_of,
    one_of,
    unknown_name,
    unused,
)
from ottla.model.settings_foreign import is_ignored, refusal_of

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
#: the authorizers of Kafka that decide by ACLs, and the name for people who know none of them
AUTHORIZERS = (
    "acl", "kafka.security.auth.SimpleAclAuthorizer", "kafka.security.authorizer.AclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)  # fmt: skip
#: Kafka's classes that check signed tokens: that of Kafka 4, and that of Kafka 3
_OAUTH = "org.apache.kafka.common.security.oauthbearer."
_OAUTH_HANDLERS = (
    f"{_OAUTH}OAuthBearerValidatorCallbackHandler", f"{_OAUTH}secured.OAuthBearerValidatorCallbackHandler",
)  # fmt: skip
#: Kafka's classes that get tokens for a login: that of Kafka 4, and that of Kafka 3
OAUTH_LOGIN_HANDLERS = (
    f"{_OAUTH}OAuthBearerLoginCallbackHandler", f"{_OAUTH}secured.OAuthBearerLoginCallbackHandler",
)  # fmt: skip
#: Kafka's classes that do what Ottla does: get a token by client credentials or from a file, and check a token
_RETRIEVERS = tuple(f"{_OAUTH}{each}JwtRetriever" for each in ("Default", "ClientCredentials", "File"))
_VALIDATORS = tuple(f"{_OAUTH}{each}JwtValidator" for each in ("Default", "Broker", "Client"))
STORE_TYPES = one_of("PEM", "PKCS12", "JKS")
_STORE_TYPE_OR_NONE = one_of("", "PEM", "PKCS12", "JKS")
_ZOOKEEPER_SOCKETS = tuple(f"org.apache.zookeeper.ClientCnxnSocket{each}" for each in ("Netty", "NIO"))


class ListenerSettings(SettingsSnapshot):
    """The settings that a listener can have for itself."""

    # TLS: the broker's key and certificates

    ssl_keystore_type = Setting(
        "ssl.keystore.type", STRING, "PKCS12", STORE_TYPES,
        "Form of the file with the server's key and certificate. Kafka's default is JKS.",
    )  # fmt: skip
    ssl_keystore_location = Setting(
        "ssl.keystore.location", STRING, "", ANY, "File with the server's key and certificate."
    )
    ssl_keystore_password = Setting(
        "ssl.keystore.password", PASSWORD, "", ANY, "Password of that file."
    )  # fmt: skip
    ssl_key_password = Setting("ssl.key.password", PASSWORD, "", ANY, "Password of the key in that file.")
    ssl_keystore_key = Setting("ssl.keystore.key", PASSWORD, "", ANY, "The server's key as PEM, instead of a file.")
    ssl_keystore_certificate_chain = Setting(
        "ssl.keystore.certificate.chain", STRING, "", ANY,
        "The server's certificate and those of its issuers as PEM, instead of a file.",
    )  # fmt: skip
    ssl_truststore_type = Setting(
        "ssl.truststore.type", STRING, "PKCS12", STORE_TYPES,
        "Form of the file with the certificates that are trusted. Kafka's default is JKS.",
    )  # fmt: skip
    ssl_truststore_location = Setting(
        "ssl.truststore.location", STRING, "", ANY,
        "File with the certificates of the authorities that sign those of clients and brokers.",
    )  # fmt: skip
    ssl_truststore_password = Setting("ssl.truststore.password", PASSWORD, "", ANY, "Password of that file.")
    ssl_truststore_certificates = Setting(
        "ssl.truststore.certificates", STRING, "", ANY, "These certificates as PEM, instead of a file."
    )

    # TLS: connections

    ssl_client_auth = Setting(
        "ssl.client.auth", STRING, "none", one_of("none", "requested", "required"),
        "Whether clients must have a certificate. Listeners with SASL do not ask for one unless it is set for them.",
    )  # fmt: skip
    ssl_enabled_protocols = Setting(
        "ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), list_of("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"),
        "Versions of TLS that are accepted. TLSv1 and TLSv1.1 have no effect, as with Kafka on a current Java.",
    )  # fmt: skip
    ssl_cipher_suites = Setting(
        "ssl.cipher.suites",
        LIST,
        (),
        ANY,
        "Cipher suites of TLS 1.2, by the names of Java or OpenSSL; empty: OpenSSL's.",
    )
    ssl_endpoint_identification_algorithm = Setting(
        "ssl.endpoint.identification.algorithm", STRING, "https", one_of("https", ""),
        "https: this broker checks the host names in the certificates of other brokers. Empty: it does not.",
    )  # fmt: skip
    ssl_principal_mapping_rules = Setting(
        "ssl.principal.mapping.rules", STRING, "DEFAULT", ANY,
        "Rules that make user names from the subjects of client certificates.",
    )  # fmt: skip

    # SASL

    sasl_enabled_mechanisms = Setting(
        "sasl.enabled.mechanisms", LIST, (), list_of(*MECHANISMS),
        "Mechanisms that clients can use. Kafka's default is GSSAPI.",
    )  # fmt: skip
    sasl_jaas_config = Setting(
        "sasl.jaas.config", PASSWORD, "", ANY,
        "Login module of a mechanism with its options; set it for one mechanism of a listener.",
    )  # fmt: skip
    sasl_server_callback_handler_class = Setting(
        "sasl.server.callback.handler.class", STRING, "", one_of("", *_OAUTH_HANDLERS),
        "Kafka's class that checks tokens of OAUTHBEARER. Ottla checks them in the same way, with or without it.",
    )  # fmt: skip
    sasl_server_max_receive_size = Setting(
        "sasl.server.max.receive.size", INT, 65_536, at_least(1),
        "Maximum size of a request before the client is authenticated. Kafka's default is 524288.",
    )  # fmt: skip
    sasl_kerberos_service_name = Setting(
        "sasl.kerberos.service.name", STRING, "", ANY, "First part of the broker's Kerberos name."
    )
    sasl_kerberos_principal_to_local_rules = Setting(
        "sasl.kerberos.principal.to.local.rules", STRING, "DEFAULT", ANY,
        "Rules that make user names from Kerberos names.",
    )  # fmt: skip
    sasl_oauthbearer_jwks_endpoint_url = Setting(
        "sasl.oauthbearer.jwks.endpoint.url", STRING, "", ANY,
        "Where the public keys of the token issuer are: an https: or file: URL. OAUTHBEARER does not work without it.",
    )  # fmt: skip
    sasl_oauthbearer_jwks_endpoint_refresh_ms = Setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, 3_600_000, at_least(1_000), "How often they are read again."
    )
    sasl_oauthbearer_expected_audience = Setting(
        "sasl.oauthbearer.expected.audience", LIST, (), ANY, "Audiences of which a token must name one."
    )
    sasl_oauthbearer_expected_issuer = Setting(
        "sasl.oauthbearer.expected.issuer", STRING, "", ANY, "Issuer that a token must name."
    )
    sasl_oauthbearer_clock_skew_seconds = Setting(
        "sasl.oauthbearer.clock.skew.seconds", INT, 30, at_least(0), "Difference of clocks that is tolerated."
    )
    sasl_oauthbearer_sub_claim_name = Setting(
        "sasl.oauthbearer.sub.claim.name", STRING, "sub", ANY, "Claim with the user name."
    )
    sasl_oauthbearer_scope_claim_name = Setting(
        "sasl.oauthbearer.scope.claim.name", STRING, "scope", ANY, "Claim with the scope."
    )
    sasl_oauthbearer_jwt_validator_class = Setting(
        "sasl.oauthbearer.jwt.validator.class", STRING, "", one_of("", *_VALIDATORS),
        "Kafka's class that checks tokens. Ottla checks them in the same way, with or without it.",
    )  # fmt: skip
    sasl_oauthbearer_token_endpoint_url = Setting(
        "sasl.oauthbearer.token.endpoint.url", STRING, "", ANY,
        "Where this broker gets its token to log in to others: an https: URL of the issuer, or a file: URL.",
    )  # fmt: skip
    sasl_oauthbearer_jwt_retriever_class = Setting(
        "sasl.oauthbearer.jwt.retriever.class", STRING, "", one_of("", *_RETRIEVERS),
        "Kafka's class that gets this token. The URL decides what is done.",
    )  # fmt: skip
    sasl_oauthbearer_client_credentials_client_id = Setting(
        "sasl.oauthbearer.client.credentials.client.id", STRING, "", ANY,
        "Id of this broker at the issuer, instead of the option clientId of the login module.",
    )  # fmt: skip
    sasl_oauthbearer_client_credentials_client_secret = Setting(
        "sasl.oauthbearer.client.credentials.client.secret", PASSWORD, "", ANY,
        "Secret of this broker at the issuer, instead of the option clientSecret of the login module.",
    )  # fmt: skip
    sasl_oauthbearer_scope = Setting(
        "sasl.oauthbearer.scope", STRING, "", ANY, "Scope of the token, instead of the option scope."
    )
    sasl_oauthbearer_header_urlencode = Setting(
        "sasl.oauthbearer.header.urlencode", BOOL, False, ANY,
        "Whether id and secret are encoded as in a form before they are sent to the issuer.",
    )  # fmt: skip
    sasl_login_callback_handler_class = Setting(
        "sasl.login.callback.handler.class", STRING, "", one_of("", *OAUTH_LOGIN_HANDLERS),
        "Kafka's class that gets tokens of OAUTHBEARER. Ottla gets them in the same way, with or without it.",
    )  # fmt: skip
    sasl_login_connect_timeout_ms = Setting(
        "sasl.login.connect.timeout.ms", INT, 5_000, at_least(1),
        "Time to connect to the issuer. Kafka has no limit by default.",
    )  # fmt: skip
    sasl_login_read_timeout_ms = Setting(
        "sasl.login.read.timeout.ms", INT, 5_000, at_least(1),
        "Time for each part of the issuer's answer. Kafka has no limit by default.",
    )  # fmt: skip
    sasl_login_refresh_window_factor = Setting(
        "sasl.login.refresh.window.factor", DOUBLE, 0.8, between(0.5, 1.0),
        "Part of its lifetime after which a token is renewed.",
    )  # fmt: skip
    sasl_login_refresh_window_jitter = Setting(
        "sasl.login.refresh.window.jitter", DOUBLE, 0.05, between(0.0, 0.25), "Random part that is added to it."
    )
    sasl_login_refresh_min_period_seconds = Setting(
        "sasl.login.refresh.min.period.seconds", INT, 60, between(0, 900), "Shortest time between two renewals."
    )
    sasl_login_refresh_buffer_seconds = Setting(
        "sasl.login.refresh.buffer.seconds", INT, 300, between(0, 3600),
        "Time before its expiry at which a token has been renewed.",
    )  # fmt: skip
    sasl_login_retry_backoff_ms = Setting(
        "sasl.login.retry.backoff.ms", LONG, 100, at_least(1), "Time after which the issuer is asked again."
    )
    sasl_login_retry_backoff_max_ms = Setting(
        "sasl.login.retry.backoff.max.ms", LONG, 10_000, at_least(1), "Longest such time; it doubles each time."
    )
    connections_max_reauth_ms = Setting(
        "connections.max.reauth.ms", LONG, 0, at_least(0),
        "Clients must authenticate again after this time; 0: only when their credentials expire.",
    )  # fmt: skip
    max_connections = Setting(
        "max.connections", INT, INT_MAX, at_least(0),
        "Maximum number of open connections, of all listeners or of one; further ones are closed. The listener of "
        "other brokers is not limited by the others: the connection that was used least recently is closed for it.",
        dynamic=True,
    )  # fmt: skip
    max_connection_creation_rate = Setting(
        "max.connection.creation.rate", INT, INT_MAX, at_least(1),
        "Maximum number of new connections per second; further ones are served later.", dynamic=True,
    )  # fmt: skip

    # Accepted without effect: Kafka changes them at run time, so tools and test suites of clients do

    sasl_kerberos_kinit_cmd = unused(
        "sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", ANY,
        "Command with which Kafka renews Kerberos tickets. Ottla's Kerberos library renews them.",
    )  # fmt: skip
    sasl_kerberos_min_time_before_relogin = unused(
        "sasl.kerberos.min.time.before.relogin", LONG, 60_000, ANY,
        "Time in milliseconds between two attempts of Kafka to renew a Kerberos ticket.",
    )  # fmt: skip
    sasl_kerberos_ticket_renew_jitter = unused(
        "sasl.kerberos.ticket.renew.jitter", DOUBLE, 0.05, ANY, "Random part of the time until Kafka renews a ticket."
    )
    sasl_kerberos_ticket_renew_window_factor = unused(
        "sasl.kerberos.ticket.renew.window.factor", DOUBLE, 0.8, ANY,
        "Part of the lifetime of a Kerberos ticket after which Kafka renews it.",
    )  # fmt: skip
    ssl_keymanager_algorithm = unused(
        "ssl.keymanager.algorithm", STRING, "SunX509", ANY, "Java's algorithm that chooses keys. Ottla uses OpenSSL."
    )
    ssl_trustmanager_algorithm = unused(
        "ssl.trustmanager.algorithm", STRING, "PKIX", ANY,
        "Java's algorithm that checks certificates. Ottla uses OpenSSL.",
    )  # fmt: skip
    ssl_secure_random_implementation = unused(
        "ssl.secure.random.implementation", STRING, "", ANY, "Java's random numbers for TLS. Ottla uses OpenSSL's."
    )
    ssl_protocol = unused(
        "ssl.protocol", STRING, "TLSv1.3", ANY,
        "Java's TLS context, which does not limit the versions: `ssl.enabled.protocols` does.",
    )  # fmt: skip


def listener_settings(texts: Mapping[str, str]) -> ListenerSettings:
    """Return settings with these texts and defaults for the others. Raise ValueError for a text that is not allowed."""
    made = ListenerSettings()
    for row in ListenerSettings.rows().values():
        vars(made)[row.attribute] = row.parse(texts[row.name]) if row.name in texts else row.default
    return made


#: settings for one mechanism of a listener, by their names or the beginnings of them
_OF_MECHANISM = (
    "sasl.jaas.config", "sasl.server.callback.handler.class", "connections.max.reauth.ms",
    "sasl.server.max.receive.size", "sasl.login.", "sasl.oauthbearer.",
)  # fmt: skip


class SecuritySettings(ListenerSettings):
    """All settings of security in the broker's table."""

    security_inter_broker_protocol = Setting(
        "security.inter.broker.protocol", STRING, "PLAINTEXT", one_of(*PROTOCOLS),
        "Protocol between brokers, if `inter.broker.listener.name` is not set.",
    )  # fmt: skip
    inter_broker_listener_name = Setting(
        "inter.broker.listener.name", STRING, "", ANY, "Listener of other brokers that this broker connects to."
    )
    sasl_mechanism_inter_broker_protocol = Setting(
        "sasl.mechanism.inter.broker.protocol", STRING, "", one_of("", *MECHANISMS),
        "Mechanism with which brokers authenticate to each other. Kafka's default is GSSAPI.",
    )  # fmt: skip
    connection_failed_authentication_delay_ms = Setting(
        "connection.failed.authentication.delay.ms", INT, 100, at_least(0),
        "Time after which a client gets the reply that its authentication failed.",
    )  # fmt: skip
    connection_setup_timeout_ms = Setting(
        "connection.setup.timeout.ms", INT, 10_000, at_least(1),
        "Ottla only. Time that a client has for the TLS handshake, its first request and its authentication.",
    )  # fmt: skip
    ssl_handshakes_max = Setting(
        "ssl.handshakes.max", INT, 400, at_least(1),
        "Ottla only. TLS handshakes at the same time; with another one, the oldest is ended.",
    )  # fmt: skip
    allow_insecure_listeners = Setting(
        "allow.insecure.listeners", BOOL, False, ANY,
        "Ottla only. Whether a listener on another address than loopback can do without encryption and authentication. "
        "Otherwise it must be SASL_SSL, or SSL with `ssl.client.auth=required`.",
    )  # fmt: skip
    delegation_token_secret_key = Setting(
        "delegation.token.secret.key", PASSWORD, "", ANY,
        "Secret from which delegation tokens are made, the same on all brokers. Without it there are no tokens.",
        aliases=("delegation.token.master.key",),
    )  # fmt: skip
    delegation_token_max_lifetime_ms = Setting(
        "delegation.token.max.lifetime.ms", LONG, 604_800_000, at_least(1),
        "Time after which a delegation token cannot be renewed any more.",
    )  # fmt: skip
    delegation_token_expiry_time_ms = Setting(
        "delegation.token.expiry.time.ms", LONG, 86_400_000, at_least(1),
        "Time after which a delegation token expires if it is not renewed.",
    )  # fmt: skip
    delegation_token_max_per_owner = Setting(
        "delegation.token.max.per.owner", INT, 100, at_least(1),
        "Delegation tokens of one owner that have not expired. A user needs no right to create tokens for itself.",
    )  # fmt: skip
    zookeeper_set_acl = Setting(
        "zookeeper.set.acl", BOOL, False, ANY,
        "Whether only the brokers of this cluster can change its nodes in ZooKeeper. Set `zookeeper.auth.digest`, too.",
    )  # fmt: skip
    zookeeper_auth_digest = Setting(
        "zookeeper.auth.digest", PASSWORD, "", ANY,
        "Ottla only. USER:PASSWORD with which brokers authenticate to ZooKeeper, the same for all brokers.",
    )  # fmt: skip
    zookeeper_ssl_client_enable = Setting(
        "zookeeper.ssl.client.enable", BOOL, False, ANY, "Whether connections to ZooKeeper use TLS."
    )
    zookeeper_clientCnxnSocket = Setting(
        "zookeeper.clientCnxnSocket", STRING, "", one_of("", *_ZOOKEEPER_SOCKETS),
        "Kafka's class of connections to ZooKeeper; it needs that of Netty for TLS. Ottla needs none.",
    )  # fmt: skip
    zookeeper_ssl_keystore_location = Setting(
        "zookeeper.ssl.keystore.location", STRING, "", ANY, "File with the key and certificate for ZooKeeper."
    )
    zookeeper_ssl_keystore_password = Setting(
        "zookeeper.ssl.keystore.password", PASSWORD, "", ANY, "Password of that file."
    )
    zookeeper_ssl_keystore_type = Setting(
        "zookeeper.ssl.keystore.type", STRING, "", _STORE_TYPE_OR_NONE, "Form of that file; empty: the file decides."
    )
    zookeeper_ssl_truststore_location = Setting(
        "zookeeper.ssl.truststore.location", STRING, "", ANY,
        "File with the certificates of the authorities that sign those of ZooKeeper.",
    )  # fmt: skip
    zookeeper_ssl_truststore_password = Setting(
        "zookeeper.ssl.truststore.password", PASSWORD, "", ANY, "Password of that file."
    )
    zookeeper_ssl_truststore_type = Setting(
        "zookeeper.ssl.truststore.type", STRING, "", _STORE_TYPE_OR_NONE, "Form of that file; empty: the file decides."
    )
    zookeeper_ssl_endpoint_identification_algorithm = Setting(
        "zookeeper.ssl.endpoint.identification.algorithm", STRING, "HTTPS", one_of("HTTPS", "https", "", "false"),
        "HTTPS: the host names in the certificates of ZooKeeper are checked.",
    )  # fmt: skip
    zookeeper_ssl_enabled_protocols = Setting(
        "zookeeper.ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), list_of("TLSv1.2", "TLSv1.3"),
        "Versions of TLS for ZooKeeper.",
    )  # fmt: skip
    zookeeper_ssl_cipher_suites = Setting(
        "zookeeper.ssl.cipher.suites", LIST, (), ANY, "Cipher suites of TLS 1.2 for ZooKeeper; empty: OpenSSL's."
    )
    authorizer_class_name = Setting(
        "authorizer.class.name", STRING, "", one_of("", *AUTHORIZERS),
        "Whether ACLs decide what clients may do: `acl`, or one of Kafka's classes.",
    )  # fmt: skip
    super_users = Setting(
        "super.users", STRING, "", ANY, "Principals that may do everything: User:NAME, several joined by semicolons."
    )
    allow_everyone_if_no_acl_found = Setting(
        "allow.everyone.if.no.acl.found", BOOL, False, ANY, "Whether resources without any ACL are open to everyone."
    )


SECURITY_SETTINGS = SecuritySettings.rows()
LISTENER_SETTINGS = ListenerSettings.rows()
_PREFIX = "listener.name."


def is_listener_setting(name: str) -> bool:
    return name.startswith(_PREFIX)


def listener_of(name: str) -> str:
    """Return the listener of a setting with the prefix ``listener.name.``."""
    return name.removeprefix(_PREFIX).partition(".")[0].upper()


def listener_row(name: str) -> Setting[Any] | None:
    """Return the row of a setting with the prefix ``listener.name.``; None if there is none."""
    return LISTENER_SETTINGS.get(_without_mechanism(name.removeprefix(_PREFIX).partition(".")[2]))


def check_listener_text(name: str, row: Setting[Any], text: str) -> None:
    """Raise ValueError if a value is not allowed for one listener."""
    try:
        if row.parse(text) == 0 and row.name == "max.connections":
            raise ValueError("expected at least 1: no client could connect to the listener")
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


@dataclass(frozen=True, slots=True)
class ListenerOverrides:
    """The settings with the prefix ``listener.name.``, by the names as they were given."""

    #: set at start
    static: Mapping[str, str]
    #: changed while the broker runs
    dynamic: Mapping[str, str] = field(default_factory=dict)

    @property
    def texts(self) -> Mapping[str, str]:
        return {**self.static, **self.dynamic}

    def __repr__(self) -> str:
        return f"ListenerOverrides({', '.join(self.texts)})"  # values may be secrets

    def problems(self, listeners: Iterable[str], unopened: Iterable[str] = ()) -> Iterator[str]:
        """Yield what is wrong: unknown listeners, settings and values. Secrets are not shown.

        Settings of the listeners ``unopened``, which are those of controllers, have no effect, nor have dynamic ones of
        listeners that only other brokers have.
        """
        known = {name.lower() for name in listeners}
        controllers = {name.lower() for name in unopened}
        for given, text in self.texts.items():
            listener, _, rest = given.removeprefix(_PREFIX).partition(".")
            row = listener_row(given)
            if listener not in known and given in self.dynamic:
                continue
            if listener in controllers or (row is None and refusal_of(rest, text) is None and is_ignored(rest)):
                continue
            if listener not in known:
                yield f"{given}: there is no listener {listener.upper()} in listeners"
            elif row is None:
                yield f"{given}: {unknown_name(rest, LISTENER_SETTINGS)}"
            else:
                try:
                    check_listener_text(given, row, text)
                except ValueError as error:
                    yield str(error)

    def of(self, listener: str, shared: SettingsSnapshot, mechanism: str = "") -> ListenerSettings:
        """Return the settings of a listener, or of one mechanism of it: its own ones, and ``shared`` for the rest."""
        made, texts = ListenerSettings(), self.texts
        for row in LISTENER_SETTINGS.values():
            text = self.of_mechanism(listener, mechanism, row.name) if mechanism else None
            if text is None:
                text = texts.get(f"{_PREFIX}{listener.lower()}.{row.name}")
            value: Any = shared.value_of(row.name) if text is None else row.parse(text)
            vars(made)[row.attribute] = value
        return made

    def of_mechanism(self, listener: str, mechanism: str, name: str) -> str | None:
        """Return the text of a setting of one mechanism; None if it is not set for it."""
        return self.texts.get(f"{_PREFIX}{listener.lower()}.{mechanism.lower()}.{name}")

    def is_set(self, listener: str, name: str) -> bool:
        return f"{_PREFIX}{listener.lower()}.{name}" in self.texts


def _without_mechanism(name: str) -> str:
    mechanism, _, rest = name.partition(".")
    return rest if mechanism.upper() in MECHANISMS and rest.startswith(_OF_MECHANISM) else name
