"""How this broker authenticates to other brokers: TLS, and a login with any of Kafka's mechanisms.

    PLAIN, SCRAM      user and password of the login module
    OAUTHBEARER       a token of ``sasl.oauthbearer.token.endpoint.url``, renewed before it expires
    GSSAPI            a Kerberos ticket for the keytab of the login module, renewed by the Kerberos library

Tokens and tickets come from other servers. They are asked in threads, and for tokens in one thread only, so that a
server that does not answer occupies no more than that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ottla.client.async_connections import Login as PeerLogin
from ottla.client.async_connections import PeerSecurity
from ottla.model.errors import StartError
from ottla.model.settings import BrokerSettings
from ottla.model.settings_security import ListenerSettings
from ottla.model.types import Endpoint
from ottla.security.bearer_tokens import (
    ANSWER_BYTES_MAX,
    ClientCredentials,
    RefreshRules,
    TokenSource,
    check_extensions,
)
from ottla.security.certificates import Certificates, client_context
from ottla.security.errors import AuthenticationFailed, SecurityConfigError
from ottla.security.jaas import LOGIN_MODULES, Login, parse_jaas
from ottla.security.kerberos import GssapiClientExchange
from ottla.security.sasl_client import MECHANISMS, PASSWORD_MECHANISMS, BearerExchange, Sasl, SaslExchange
from ottla.security.web_documents import Limits, web_context

log = logging.getLogger(__name__)

_EXTENSION = "extension_"


class Peers:
    """What this broker needs to connect to others, and what must be renewed while it runs."""

    def __init__(self, settings: BrokerSettings) -> None:
        """Raise StartError, which says what to change."""
        listener = settings.inter_broker_listener
        if not listener:
            raise StartError(
                f"security.inter.broker.protocol is {settings.security_inter_broker_protocol}, but no listener has "
                "this protocol; add one to listeners, or set inter.broker.listener.name"
            )
        protocol, own = settings.protocol_of(listener), settings.of_listener(listener)
        self._certificates: Certificates | None = None
        self._tokens: PeerTokens | None = None
        try:
            tls = None
            if protocol.endswith("SSL"):
                self._certificates = certificates = Certificates(own, client_context)
                tls = lambda: certificates.context  # noqa: E731
            self.security = PeerSecurity(tls)
            if protocol.startswith("SASL_"):
                mechanism = settings.sasl_mechanism_inter_broker_protocol
                self.security = PeerSecurity(tls, mechanism, self._logins(settings, listener, mechanism))
        except SecurityConfigError as error:
            raise StartError(f"connections to other brokers (listener {listener}, {protocol}): {error}") from None

    def reload(self) -> None:
        """Use new certificates if their files have changed, and renew the token if it is time."""
        if self._certificates is not None:
            self._certificates.reload("of other brokers")
        if self._tokens is not None:
            self._tokens.renew_if_due()

    # -- mechanisms -----------------------------------------------------------------------------------------------

    def _logins(self, settings: BrokerSettings, listener: str, mechanism: str) -> Callable[[Endpoint], PeerLogin]:
        """Return the function that begins a login to a broker. Raise SecurityConfigError."""
        if mechanism not in MECHANISMS:
            raise SecurityConfigError(f"set sasl.mechanism.inter.broker.protocol to one of {', '.join(MECHANISMS)}")
        found = _login_module(settings, listener, mechanism)
        if mechanism in PASSWORD_MECHANISMS:
            sasl = _password(found, mechanism)
            return lambda endpoint: _Immediate(sasl.start())
        if mechanism == "OAUTHBEARER":
            own = settings.listener_overrides.of(listener, settings, mechanism)
            self._tokens = tokens = PeerTokens(token_source(own, found))
            extensions = _extensions(found.login)
            return lambda endpoint: _Bearer(tokens, extensions)
        return _kerberos(found, settings.of_listener(listener))


class _Found(NamedTuple):
    """A login module, and the setting that it is in."""

    setting: str
    login: Login


def _login_module(settings: BrokerSettings, listener: str, mechanism: str) -> _Found:
    """Return the login module of a mechanism. Raise SecurityConfigError if there is none."""
    setting = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    text = settings.listener_overrides.of_mechanism(listener, mechanism, "sasl.jaas.config")
    if text is None:
        setting, text = "sasl.jaas.config", settings.of_listener(listener).sasl_jaas_config
    if not text:
        raise SecurityConfigError(f"set {setting} to the login module of {mechanism}")
    login = parse_jaas(setting, text)
    if mechanism not in LOGIN_MODULES[login.module]:
        raise SecurityConfigError(f"{setting} names {login.module}, which is not for {mechanism}")
    return _Found(setting, login)


def _password(found: _Found, mechanism: str) -> Sasl:
    options = found.login.options
    try:
        return Sasl(mechanism=mechanism, username=options["username"], password=options["password"])
    except KeyError as missing:
        raise SecurityConfigError(f"{found.setting} has no option {missing.args[0]}") from None


def token_source(own: ListenerSettings, found: _Found) -> TokenSource:
    """Return the source of this broker's tokens. Raise SecurityConfigError."""
    options = found.login.options
    if any(option.startswith("unsecured") for option in options):
        raise SecurityConfigError(
            f"{found.setting} has an option for unsecured tokens, which no broker accepts; set "
            "sasl.oauthbearer.token.endpoint.url"
        )
    credentials = ClientCredentials(
        url=own.sasl_oauthbearer_token_endpoint_url,
        client_id=own.sasl_oauthbearer_client_credentials_client_id or options.get("clientId", ""),
        client_secret=own.sasl_oauthbearer_client_credentials_client_secret or options.get("clientSecret", ""),
        scope=own.sasl_oauthbearer_scope or options.get("scope", ""),
        url_encode=own.sasl_oauthbearer_header_urlencode,
        tls=partial(web_context, own, options),
        limits=Limits(
            ANSWER_BYTES_MAX, own.sasl_login_connect_timeout_ms / 1000, own.sasl_login_read_timeout_ms / 1000
        ),
    )
    credentials.check()
    if credentials.url.startswith("https:"):
        credentials.tls()  # a store that cannot be read is reported at start
    rules = RefreshRules(
        own.sasl_login_refresh_window_factor, own.sasl_login_refresh_window_jitter,
        own.sasl_login_refresh_min_period_seconds, own.sasl_login_refresh_buffer_seconds,
        own.sasl_login_retry_backoff_ms / 1000, own.sasl_login_retry_backoff_max_ms / 1000,
    )  # fmt: skip
    return TokenSource(
        credentials.fetch, rules=rules, user_claim=own.sasl_oauthbearer_sub_claim_name, is_file=credentials.is_file,
        random=random.random,
    )  # fmt: skip


def _extensions(login: Login) -> dict[str, str]:
    options = login.options.items()
    found = {name.removeprefix(_EXTENSION): value for name, value in options if name.startswith(_EXTENSION)}
    check_extensions(found)
    return found


def _kerberos(found: _Found, own: ListenerSettings) -> Callable[[Endpoint], PeerLogin]:
    # Only here: the library of Kerberos need not be installed for other mechanisms.
    from ottla.security.gssapi import KerberosClient

    options = found.login.options
    service = own.sasl_kerberos_service_name or options.get("serviceName", "")
    if not options.get("keyTab") or not options.get("principal") or not service:
        raise SecurityConfigError(
            f"{found.setting} needs the options keyTab and principal, and sasl.kerberos.service.name must be set"
        )
    client = KerberosClient(keytab=options["keyTab"], principal=options["principal"], service=service)
    return lambda endpoint: _Threaded(GssapiClientExchange(client.connect(endpoint.host)))


# -- logins -----------------------------------------------------------------------------------------------------------


class _Immediate:
    """A login that asks no other server."""

    def __init__(self, exchange: SaslExchange) -> None:
        self._exchange = exchange

    async def first(self) -> bytes:
        return self._exchange.first()

    async def answer(self, challenge: bytes) -> bytes | None:
        return self._exchange.answer(challenge)


class _Threaded:
    """A login whose messages are computed in threads, because the exchange may ask the KDC."""

    def __init__(self, exchange: SaslExchange) -> None:
        self._exchange = exchange

    async def first(self) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(None, self._exchange.first)

    async def answer(self, challenge: bytes) -> bytes | None:
        return await asyncio.get_running_loop().run_in_executor(None, self._exchange.answer, challenge)


class _Bearer:
    """A login with a token."""

    def __init__(self, tokens: PeerTokens, extensions: dict[str, str]) -> None:
        self._tokens = tokens
        self._extensions = extensions
        self._exchange: SaslExchange | None = None

    async def first(self) -> bytes:
        token = await self._tokens.get()
        self._exchange = BearerExchange(lambda: token, self._extensions)
        return self._exchange.first()

    async def answer(self, challenge: bytes) -> bytes | None:
        assert self._exchange is not None
        return self._exchange.answer(challenge)


class PeerTokens:
    """The token of this broker. All logins wait for the same request to the issuer."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._request: asyncio.Future[str] | None = None

    async def get(self) -> str:
        """Return a token. Raise AuthenticationFailed."""
        current = self._source.current()
        if current is not None:
            return current
        # One of several logins may be cancelled; the request is that of all.
        return await asyncio.shield(self._renew())

    def renew_if_due(self) -> None:
        if self._request is None and self._source.is_due():
            self._renew()

    def _renew(self) -> asyncio.Future[str]:
        if self._request is None:
            loop = asyncio.get_running_loop()
            self._request = loop.create_future()
            self._request.add_done_callback(self._renewed)
            # A daemon, because the end of the process must not wait for the issuer.
            threading.Thread(target=self._ask, args=(loop, self._request), name="token", daemon=True).start()
        return self._request

    def _ask(self, loop: asyncio.AbstractEventLoop, request: asyncio.Future[str]) -> None:
        # Stays if the thread ends with another exception, so that no login waits forever.
        complete = partial(_set_exception, request, AuthenticationFailed("the request for a token failed"))
        try:
            complete = partial(_set_result, request, self._source.renew())
        except AuthenticationFailed as error:
            complete = partial(_set_exception, request, error)
        finally:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(complete)

    def _renewed(self, request: asyncio.Future[str]) -> None:
        self._request = None
        if not request.cancelled() and (error := request.exception()) is not None:
            log.warning("token for logins to other brokers cannot be renewed error=%s", error)


def _set_result(request: asyncio.Future[str], token: str) -> None:
    if not request.done():
        request.set_result(token)


def _set_exception(request: asyncio.Future[str], error: Exception) -> None:
    if not request.done():
        request.set_exception(error)
