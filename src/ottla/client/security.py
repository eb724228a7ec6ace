"""TLS and SASL of a client, as client properties say.

The properties have the names of librdkafka and of the Java clients. Some have one name in each, such as
`ssl.ca.location` and `ssl.truststore.location`. Files are PEM or PKCS12.
"""

from __future__ import annotations

import difflib
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.client.errors import AuthenticationFailed, PropertyRefused
from ottla.security.errors import SecurityConfigError
from ottla.security.jaas import parse_jaas
from ottla.security.sasl_client import MECHANISMS, BearerExchange, Sasl, SaslExchange

if TYPE_CHECKING:
    # It takes longer to import than many commands run, so only clients with TLS do.
    import ssl

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
_PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)

_SASL_NAMES: Final = (
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.jaas.config",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.kerberos.service.name",
    "sasl.kerberos.principal",
    "sasl.kerberos.keytab",
)
#: properties of other clients that have no effect here: they ask for what this client always does
_SASL_WITHOUT_EFFECT: Final = (
    "sasl.login.callback.handler.class", "sasl.oauthbearer.method", "sasl.kerberos.kinit.cmd",
)  # fmt: skip
#: the properties of TLS
TLS_PROPERTIES: Final = (
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.truststore.type",
    "ssl.truststore.password",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
)
#: librdkafka's names, and the names of Java's clients for the same
_OTHER_NAMES: Final = {
    "ssl.ca.pem": "ssl.truststore.certificates", "ssl.ca.location": "ssl.truststore.location",
    "ssl.key.pem": "ssl.keystore.key", "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.password": "ssl.key.password",
}  # fmt: skip
_FILE_BYTES_MAX: Final = 1 << 20
#: all properties of this client
PROPERTIES: Final = ("security.protocol", *TLS_PROPERTIES, *_SASL_NAMES, *_SASL_WITHOUT_EFFECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketLogin:
    """A login with a token or a ticket of another server, by OAUTHBEARER or GSSAPI."""

    mechanism: str
    #: for errors: the client's id at the issuer, or the principal
    username: str
    #: begins a login to a host
    begin: Callable[[str], SaslExchange] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How a new connection is encrypted and authenticated."""

    protocol: str = PLAINTEXT
    tls: ssl.SSLContext | None = None
    sasl: Sasl | TicketLogin | None = None

    @classmethod
    def parse(cls, properties: Mapping[str, str], token: str = "") -> Security:
        """Return the security that the properties describe. With a token the login uses OAUTHBEARER.

        :raises PropertyRefused: if a property is unknown, missing, or has no effect together with the others.
        """
        for name in properties:
            if name not in PROPERTIES:
                near = difflib.get_close_matches(name, PROPERTIES, 1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(PROPERTIES)}"
                raise PropertyRefused(f"client property {name} is not known; {hint}")
        protocol = properties.get("security.protocol", PLAINTEXT).upper()
        if protocol not in _PROTOCOLS:
            raise PropertyRefused(f"security.protocol={protocol} is not known; choose one of {', '.join(_PROTOCOLS)}")
        _refuse_useless(properties, protocol)
        tls = tls_context(properties) if protocol in (SSL, SASL_SSL) else None
        sasl = None
        if protocol in (SASL_PLAINTEXT, SASL_SSL):
            sasl = _with_token(token) if token else _parse_sasl(properties)
        return cls(protocol=protocol, tls=tls, sasl=sasl)

    def wrap(self, plain: socket.socket, host: str) -> socket.socket:
        """Return the socket, with TLS if the protocol has it. Wait up to the timeout of the socket.

        :raises AuthenticationFailed: if the certificate of the broker is not trusted.
        """
        if self.tls is None:
            return plain
        import ssl

        try:
            return self.tls.wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailed(
                f"the certificate of {host} is not trusted ({error.verify_message}); set ssl.ca.location to the file "
                "of the authority that signed it, or connect by a name that it is for"
            ) from None


def _refuse_useless(properties: Mapping[str, str], protocol: str) -> None:
    # A client with a password and without security.protocol would send its records unencrypted, which its user may not
    # expect. A client that sets security.protocol=PLAINTEXT asks for that.
    if protocol == PLAINTEXT and "security.protocol" in properties:
        return
    for prefix, protocols in (("ssl.", (SSL, SASL_SSL)), ("sasl.", (SASL_PLAINTEXT, SASL_SSL))):
        named = next((name for name in properties if name.startswith(prefix)), None)
        if named is not None and protocol not in protocols:
            raise PropertyRefused(
                f"{named} has no effect with security.protocol={protocol}; set it to {' or '.join(protocols)}, or "
                f"leave {named} out"
            )


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Return the context of a client for TLS_PROPERTIES. Raise PropertyRefused if a file cannot be used."""
    import ssl

    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        if properties.get(name, "PEM").upper() not in ("PEM", "PKCS12"):
            raise PropertyRefused(f"{name}={properties[name]} cannot be read; convert the store to PEM or PKCS12")
    context = _context_of_stores(properties) if _has_stores(properties) else _context_of_files(properties)
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "none", ""):
        raise PropertyRefused(f"ssl.endpoint.identification.algorithm={algorithm} is not known; choose https or none")
    context.check_hostname = algorithm == "https"
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _context_of_files(properties: Mapping[str, str]) -> ssl.SSLContext:
    import ssl

    authority = properties.get("ssl.ca.location") or properties.get("ssl.truststore.location")
    authority_text = properties.get("ssl.ca.pem") or properties.get("ssl.truststore.certificates")
    certificate = properties.get("ssl.certificate.location") or properties.get("ssl.keystore.location")
    try:
        context = ssl.create_default_context(cafile=authority, cadata=authority_text)
        if certificate is not None:
            key = properties.get("ssl.key.location")
            # A password must be given in any case: without one OpenSSL would ask the terminal for it.
            context.load_cert_chain(certificate, key, lambda: properties.get("ssl.key.password", ""))
    except (OSError, ValueError) as error:
        raise PropertyRefused(
            f"the files of ssl.ca.location, ssl.certificate.location and ssl.key.location cannot be used ({error}); "
            "they must be PEM, and the key must be the certificate's"
        ) from None
    return context


def _has_stores(properties: Mapping[str, str]) -> bool:
    """Return whether a key or certificates are in the text of a property or in a PKCS12 file."""
    return any(name in properties for name in ("ssl.keystore.key", "ssl.key.pem")) or any(
        _store_type(properties, kind) == "PKCS12" for kind in ("keystore", "truststore")
    )


def _store_type(properties: Mapping[str, str], kind: str) -> str:
    path = properties.get(f"ssl.{kind}.location")
    if f"ssl.{kind}.type" in properties or path is None:
        return properties.get(f"ssl.{kind}.type", "PEM").upper()
    # librdkafka has no type: its ssl.keystore.location is PKCS12, while ours was always PEM.
    try:
        with open(path, "rb") as file:
            return "PEM" if b"-----BEGIN" in file.read(_FILE_BYTES_MAX) else "PKCS12"
    except OSError:
        return "PEM"  # which reports that the file cannot be read


def _context_of_stores(properties: Mapping[str, str]) -> ssl.SSLContext:
    # Imports a library of 10 MB, which only clients with such files need.
    from ottla.model.settings_security import listener_settings
    from ottla.security.certificates import client_context

    texts = {name: text for name, text in properties.items() if name.startswith(("ssl.keystore.", "ssl.truststore."))}
    texts |= {f"ssl.{kind}.type": _store_type(properties, kind) for kind in ("keystore", "truststore")}
    for name, other in _OTHER_NAMES.items():
        if name in properties:
            texts.setdefault(other, properties[name])
    try:
        return client_context(listener_settings(texts))
    except SecurityConfigError as error:
        raise PropertyRefused(str(error)) from None


def _parse_sasl(properties: Mapping[str, str]) -> Sasl | TicketLogin:
    mechanism = (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "").upper()
    if mechanism not in MECHANISMS:
        raise PropertyRefused(f"sasl.mechanism={mechanism or 'nothing'} is not known; choose {', '.join(MECHANISMS)}")
    if mechanism in ("OAUTHBEARER", "GSSAPI"):
        try:
            return _bearer(properties) if mechanism == "OAUTHBEARER" else _kerberos(properties)
        except SecurityConfigError as error:
            raise PropertyRefused(str(error)) from None
    jaas = properties.get("sasl.jaas.config", "")
    found = {}
    for word in ("username", "password"):
        match = re.search(rf'\b{word}\s*=\s*"((?:[^"\\]|\\.)*)"', jaas)
        value = properties.get(f"sasl.{word}") or (re.sub(r"\\(.)", r"\1", match[1]) if match is not None else None)
        if not value:
            raise PropertyRefused(f"sasl.mechanism={mechanism} needs sasl.{word}")
        found[word] = value
    return Sasl(mechanism=mechanism, username=found["username"], password=found["password"])


def _options(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options of the login module, if there is one. Raise SecurityConfigError."""
    text = properties.get("sasl.jaas.config")
    return {} if text is None else parse_jaas("sasl.jaas.config", text).options


def _bearer(properties: Mapping[str, str]) -> TicketLogin:
    # Imported by clients that use it.
    from ottla.security.bearer_tokens import ClientCredentials, TokenSource
    from ottla.security.web_documents import web_context

    options = _options(properties)
    authority = properties.get("ssl.ca.location") or properties.get("ssl.truststore.location")

    def tls() -> ssl.SSLContext:
        context = web_context(None, options)
        if authority is not None and _store_type(properties, "truststore") == "PEM":
            context.load_verify_locations(cafile=authority)
        return context

    credentials = ClientCredentials(
        url=properties.get("sasl.oauthbearer.token.endpoint.url", ""),
        client_id=properties.get("sasl.oauthbearer.client.id") or options.get("clientId", ""),
        client_secret=properties.get("sasl.oauthbearer.client.secret") or options.get("clientSecret", ""),
        scope=properties.get("sasl.oauthbearer.scope") or options.get("scope", ""), tls=tls,
    )  # fmt: skip
    credentials.check()
    source = TokenSource(credentials.fetch, is_file=credentials.is_file)
    return TicketLogin(
        mechanism="OAUTHBEARER", username=credentials.client_id or credentials.url,
        begin=lambda host: BearerExchange(source.token),
    )  # fmt: skip


def _with_token(token: str) -> TicketLogin:
    return TicketLogin(
        mechanism="OAUTHBEARER", username="the user of the token", begin=lambda host: BearerExchange(lambda: token)
    )


def _kerberos(properties: Mapping[str, str]) -> TicketLogin:
    # Imported by clients that use it.
    from ottla.security.gssapi import KerberosClient
    from ottla.security.kerberos import GssapiClientExchange

    options = _options(properties)
    service = properties.get("sasl.kerberos.service.name") or options.get("serviceName", "")
    principal = properties.get("sasl.kerberos.principal") or options.get("principal", "")
    keytab = properties.get("sasl.kerberos.keytab") or options.get("keyTab", "")
    if not service or not principal or not keytab:
        raise SecurityConfigError(
            "sasl.mechanism=GSSAPI needs sasl.kerberos.service.name, sasl.kerberos.principal and sasl.kerberos.keytab"
        )
    client = KerberosClient(keytab=keytab, principal=principal, service=service)
    return TicketLogin(
        mechanism="GSSAPI", username=principal, begin=lambda host: GssapiClientExchange(client.connect(host))
    )


def begin_login(login: Sasl | TicketLogin, host: str) -> SaslExchange:
    """Return the client's side of a new login to the broker on a host."""
    return login.start() if isinstance(login, Sasl) else login.begin(host)
