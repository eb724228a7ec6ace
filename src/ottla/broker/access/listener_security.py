"""The security of the broker's listeners: TLS, logins, and the certificates while the broker runs.

PLAINTEXT         dispatcher                           every client is User:ANONYMOUS
SSL               TLS ──► dispatcher                   the subject of the client's certificate, if it has one
SASL_PLAINTEXT    login ──► dispatcher                 the user that logged in
SASL_SSL          TLS ──► login ──► dispatcher         the user that logged in
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.access.authentication import Authentication, LoginRules
from ottla.env.clock import Clock
from ottla.env.log_limit import LogLimit
from ottla.model.errors import StartError
from ottla.model.settings import BrokerSettings
from ottla.model.types import Endpoint, is_loopback
from ottla.net.connection import ANONYMOUS, Connection, Handler
from ottla.net.server import Server
from ottla.net.tls import TlsServer
from ottla.security.certificates import Certificates, subject_of
from ottla.security.errors import AuthenticationFailed, SecurityConfigError
from ottla.security.jaas import LOGIN_MODULES, Login, parse_jaas
from ottla.security.kerberos import GssapiExchange
from ottla.security.principals import KerberosPrincipalMapper, SslPrincipalMapper, user
from ottla.security.salts import SaltShape, choose
from ottla.security.sasl import OWN_WORK, Exchange, Mechanisms, PlainExchange, ScramExchange, Work
from ottla.security.scram import FindCredential, Mechanism, ScramServer
from ottla.security.tokens import DelegationToken, TokenLogins, TokenSecret
from ottla.security.web_documents import web_context

if TYPE_CHECKING:
    from ottla.security.token_keys import TokenKeys

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

#: in place of a mechanism of SASL
TLS = "TLS"
#: returns the function that finds the credentials of users for a mechanism
Credentials = Callable[[Mechanism], FindCredential]


class ListenerSecurity:
    """What one listener does with a connection before the dispatcher gets its requests."""

    def __init__(
        self,
        name: str,
        settings: BrokerSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        server: Server,
        clock: Clock,
        credentials: Credentials,
        shapes: Callable[[Mechanism], Mapping[SaltShape, int]],
        secret: Callable[[], bytes],
        tokens: Callable[[], Mapping[str, DelegationToken]],
        works: Callable[[], Mapping[Work, int]],
    ) -> None:
        """Raise StartError, which says what to change, if a certificate or a login module is missing or wrong.

        ``secret`` makes the salts of users that do not exist, and ``shapes`` returns what those of known users look
        like. ``tokens`` returns the delegation tokens by id. ``works`` returns how many users there are by what is
        computed for their passwords.
        """
        self.name = name
        self.protocol = settings.protocol_of(name)
        self._settings = settings
        self._own = settings.of_listener(name)
        self._server, self._loop, self._clock = server, loop, clock
        self._credentials, self._shapes, self._secret, self._works = credentials, shapes, secret, works
        key = settings.delegation_token_secret_key.encode()
        self._token_logins = TokenLogins(TokenSecret(key=key), tokens, clock.wall_ms) if key else None
        self.tls: TlsServer | None = None
        self.authentication: Authentication | None = None
        self._token_keys: TokenKeys | None = None
        self._accepted_certificates = self._refused_certificates = 0
        try:
            self._prepare()
        except SecurityConfigError as error:
            raise StartError(f"listener {name} ({self.protocol}): {error}") from None

    @property
    def is_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @property
    def is_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    def _prepare(self) -> None:
        if self.is_tls:
            if self.is_sasl and not self._settings.listener_overrides.is_set(self.name, "ssl.client.auth"):
                # As in Kafka: clients that log in need no certificate unless this listener asks for it.
                vars(self._own)["ssl_client_auth"] = "none"
            self._certificates = Certificates(self._own)
            self._mapper = SslPrincipalMapper(self._own.ssl_principal_mapping_rules)
            self.tls = TlsServer(
                lambda: self._certificates.context, handshakes_max=self._settings.ssl_handshakes_max,
                setup_s=self._settings.connection_setup_timeout_ms / 1000, ready=self._handshake_done,
            )  # fmt: skip
        self._mechanisms = self._make_mechanisms() if self.is_sasl else {}

    def handler(self, dispatch: Handler) -> Handler:
        """Return the handler of new connections; requests of authenticated clients go to ``dispatch``."""
        if not self.is_sasl:
            return dispatch
        self.authentication = Authentication(
            self._loop, self._server, self._clock, mechanisms=self._mechanisms, rules=self._rules(),
            handle_authenticated=dispatch,
        )  # fmt: skip
        return self.authentication.handle

    @property
    def begin(self) -> Callable[[Connection], None] | None:
        """Return what is done with a connection that was accepted."""
        return None if self.authentication is None else self.authentication.begin

    def _rules(self) -> LoginRules:
        settings = self._settings
        return LoginRules(
            request_bytes_max=settings.socket_request_max_bytes,
            token_bytes_max=self._own.sasl_server_max_receive_size,
            setup_s=settings.connection_setup_timeout_ms / 1000,
            refusal_delay_s=settings.connection_failed_authentication_delay_ms / 1000,
            session_ms_max=self._session_ms_max,
        )

    def _session_ms_max(self, mechanism: str) -> int:
        text = self._settings.listener_overrides.of_mechanism(self.name, mechanism, "connections.max.reauth.ms")
        return self._own.connections_max_reauth_ms if text is None else int(text)

    # -- TLS ------------------------------------------------------------------------------------------------------

    def _handshake_done(self, connection: Connection, tls: ssl.SSLObject) -> None:
        if self.is_sasl:
            return  # the login is still to come
        certificate = tls.getpeercert(True)
        try:
            connection.principal = user(self._mapper.name(subject_of(certificate))) if certificate else ANONYMOUS
        except (AuthenticationFailed, ValueError) as error:
            log.info("connection closed peer=%s listener=%s reason=%s", connection.peer_host, self.name, error)
            self._refused_certificates += 1
            connection.abort()
            return
        self._accepted_certificates += 1
        self._server.set_up(connection)

    # -- figures --------------------------------------------------------------------------------------------------

    def accepted(self) -> Mapping[str, int]:
        """Return the number of clients that authenticated, by mechanism."""
        if self.authentication is not None:
            return self.authentication.accepted
        return {TLS: self._accepted_certificates} if self.is_tls else {}

    def refused(self) -> Mapping[str, int]:
        """Return the number of clients that failed to authenticate, by mechanism. Failed handshakes are TLS."""
        failed = {TLS: self.tls.failed + self._refused_certificates} if self.tls is not None else {}
        return {**failed, **self.authentication.refused} if self.authentication is not None else failed

    def reload(self) -> None:
        """Use new certificates if their files have changed, and read the keys of tokens if it is time.

        Certificates that do not work are reported and not used.
        """
        if self.is_tls:
            self._certificates.reload(self.name)
        if self._token_keys is not None and self._token_keys.take_due():
            self._loop.run_in_executor(None, self._token_keys.refresh)

    # -- logins ---------------------------------------------------------------------------------------------------

    def _make_mechanisms(self) -> Mechanisms:
        names = self._own.sasl_enabled_mechanisms
        if not names:
            raise SecurityConfigError("no mechanism is enabled; set sasl.enabled.mechanisms")
        return {name: self._make_mechanism(name) for name in names}

    def _make_mechanism(self, name: str) -> Callable[[], Exchange]:
        scram = Mechanism.named(name)
        if scram is not None:
            return partial(self._scram, scram)
        if name == "PLAIN":
            passwords = self._passwords()
            finders = {each: self._credentials(each) for each in Mechanism}
            return lambda: PlainExchange(passwords, finders, self._work_of_unknown)
        if name == "OAUTHBEARER":
            return self._oauth()
        assert name == "GSSAPI"
        return self._gssapi()

    def _work_of_unknown(self, name: str) -> Work:
        """Return what is computed for an unknown user of PLAIN: the same as for some known user."""
        return choose(self._secret(), name, self._works(), OWN_WORK)

    def _scram(self, mechanism: Mechanism) -> ScramExchange:
        nonce, logins = secrets.token_urlsafe(24), self._token_logins
        server = ScramServer(mechanism, self._credentials(mechanism), nonce=nonce, secret=self._secret())
        server.shapes = self._shapes(mechanism)
        if logins is not None:
            server.find_token = partial(logins.credential, mechanism)
        return ScramExchange(server, logins)

    def _oauth(self) -> Callable[[], Exchange]:
        # Only here: the import takes a sixth of the start of a broker.
        from ottla.security.oauth import OauthExchange, OauthRules
        from ottla.security.token_keys import TokenKeys

        own = self._settings.listener_overrides.of(self.name, self._settings, "OAUTHBEARER")
        login = self._login("OAUTHBEARER")
        if login is not None and any(option.startswith("unsecured") for option in login.options):
            raise SecurityConfigError(
                "sasl.jaas.config has an option for unsecured tokens, which prove nothing; remove it and set "
                "sasl.oauthbearer.jwks.endpoint.url"
            )
        tls = partial(web_context, own, {} if login is None else login.options)
        if own.sasl_oauthbearer_jwks_endpoint_url.startswith("https:"):
            tls()  # a store that cannot be read is reported at start
        self._token_keys = keys = TokenKeys(
            own.sasl_oauthbearer_jwks_endpoint_url, refresh_s=own.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000,
            monotonic=self._clock.monotonic, tls=tls,
        )  # fmt: skip
        rules = OauthRules(
            issuer=own.sasl_oauthbearer_expected_issuer or None, audiences=own.sasl_oauthbearer_expected_audience,
            user_claim=own.sasl_oauthbearer_sub_claim_name, scope_claim=own.sasl_oauthbearer_scope_claim_name,
            clock_skew_s=own.sasl_oauthbearer_clock_skew_seconds,
        )  # fmt: skip
        return lambda: OauthExchange(jwks=keys, rules=rules)

    def _gssapi(self) -> Callable[[], Exchange]:
        # Only here: the library of Kerberos need not be installed for other mechanisms.
        from ottla.security.gssapi import Kerberos

        setting = f"listener.name.{self.name.lower()}.gssapi.sasl.jaas.config"
        login = self._login("GSSAPI")
        options = {} if login is None else login.options
        keytab, principal = options.get("keyTab", ""), options.get("principal", "")
        if not keytab or not principal:
            raise SecurityConfigError(
                f"GSSAPI needs a keytab and a principal: set {setting} to com.sun.security.auth.module.Krb5LoginModule "
                'required useKeyTab=true storeKey=true keyTab="FILE" principal="SERVICE/HOST@REALM";'
            )
        service = self._own.sasl_kerberos_service_name or options.get("serviceName", "")
        if service != principal.partition("@")[0].partition("/")[0]:
            raise SecurityConfigError(
                f"sasl.kerberos.service.name is {service!r}; {setting} has another one: {principal}"
            )
        kerberos = Kerberos(keytab=keytab, principal=principal)
        mapper = KerberosPrincipalMapper(self._own.sasl_kerberos_principal_to_local_rules, kerberos.realm)
        return lambda: GssapiExchange(kerberos.accept(), mapper.name)

    def _passwords(self) -> dict[str, str]:
        """Return the users of the login module of PLAIN."""
        login = self._login("PLAIN")
        return {} if login is None else login.users

    def _login(self, mechanism: str) -> Login | None:
        """Return the login module of a mechanism, None if there is none. Raise SecurityConfigError."""
        setting = f"listener.name.{self.name.lower()}.{mechanism.lower()}.sasl.jaas.config"
        text = self._settings.listener_overrides.of_mechanism(self.name, mechanism, "sasl.jaas.config")
        is_own = text is not None
        if text is None:
            setting, text = "sasl.jaas.config", self._own.sasl_jaas_config
        if not text:
            return None
        login = parse_jaas(setting, text)
        if mechanism in LOGIN_MODULES[login.module]:
            return login
        if is_own or len(self._own.sasl_enabled_mechanisms) == 1:
            raise SecurityConfigError(f"{setting} names {login.module}, which is not for {mechanism}")
        return None  # it is the one of another mechanism


def insecure_listeners(settings: BrokerSettings) -> list[Endpoint]:
    """Return the listeners that are open to other machines without encryption or authentication.

    Raise StartError if there is one and the operator does not allow it.
    """
    found = []
    for endpoint in settings.endpoints:
        protocol, client_auth = settings.protocol_of(endpoint.name), settings.of_listener(endpoint.name).ssl_client_auth
        if is_loopback(endpoint.host) or protocol == "SASL_SSL" or (protocol == "SSL" and client_auth == "required"):
            continue
        if settings.allow_insecure_listeners:
            found.append(endpoint)
            continue
        way = "set ssl.client.auth=required" if protocol == "SSL" else "create certificates with ottla security init"
        raise StartError(
            f"listener {endpoint} uses {protocol}, which lets every machine of the network read and write all records; "
            f"listen on 127.0.0.1, or {way}, or allow it with --insecure (allow.insecure.listeners=true)"
        )
    return found
