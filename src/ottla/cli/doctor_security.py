"""`ottla doctor security`: checks of the security of a broker's settings. Reads files only; the broker need not run.

"fail" means that clients without rights get access or that clients with rights get none, "warn" that the setting may
be intended.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from pathlib import Path

from ottla.broker.main import gather_settings
from ottla.broker.metadata.embedded import FILE_NAME
from ottla.cli.doctor import FAIL, OK, WARN, Check
from ottla.model.settings import BROKER_SETTINGS, BrokerSettings, InvalidSettings
from ottla.model.types import Endpoint, is_loopback
from ottla.security.authority import CertificateInfo, describe
from ottla.security.certificates import load_key_pair, load_trusted, server_context
from ottla.security.errors import SecurityConfigError
from ottla.security.jaas import parse_jaas
from ottla.security.principals import parse_super_users

#: a certificate that ends earlier is reported
SOON_DAYS = 30
PASSWORD_CHARS_MIN = 12


def check_security(config: str, now: datetime.datetime) -> Iterator[Check]:
    """Yield the verdicts about the settings in a file."""
    try:
        settings = gather_settings({}, config_file=config)
    except (InvalidSettings, ValueError) as error:
        yield Check("settings", FAIL, "; ".join(str(error).splitlines()), "correct the file")
        return
    yield from _check_files(config, settings)
    seen: set[str] = set()
    for endpoint in settings.endpoints:
        yield from _check_listener(endpoint, settings)
        yield from _check_logins(endpoint.name, settings)
        if settings.protocol_of(endpoint.name).endswith("SSL"):
            yield from _check_tls(endpoint, settings, seen, now)
    yield from _check_rights(settings)
    yield from _check_other_addresses(settings)


# -- files ------------------------------------------------------------------------------------------------------------


def _check_files(config: str, settings: BrokerSettings) -> Iterator[Check]:
    secrets = [name for name, row in BROKER_SETTINGS.items() if row.sensitive and settings.value_of(name)]
    secrets += [
        name for name in settings.listener_overrides.texts if name.endswith(("password", "jaas.config", ".key"))
    ]
    if secrets and (check := _check_private("settings", config)):
        yield check
    metadata = os.path.join(settings.data_dirs[0], FILE_NAME)
    if os.path.exists(metadata) and (check := _check_private("metadata", metadata)):
        yield check
    for path in settings.data_dirs:
        if os.path.isdir(path) and os.stat(path).st_mode & 0o007:
            text = f"all users of this machine can open {path}, and files of earlier versions can be read by them"
            yield Check("data", WARN, text, f"run chmod 750 {path}")


def _check_private(name: str, path: str) -> Check | None:
    """Return a failure if others than the owner can read a file with secrets."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return Check(name, FAIL, f"{path} cannot be read: {error.strerror}", "check the path and its owner")
    if mode & 0o077:
        return Check(name, FAIL, f"{path} has secrets and other users can read it", f"run chmod 600 {path}")
    return None


# -- listeners --------------------------------------------------------------------------------------------------------


def _check_listener(endpoint: Endpoint, settings: BrokerSettings) -> Iterator[Check]:
    name, protocol = f"listener {endpoint.name}", settings.protocol_of(endpoint.name)
    own = settings.of_listener(endpoint.name)
    where = f"{endpoint} uses {protocol}"
    is_local = is_loopback(endpoint.host)
    if protocol == "SASL_SSL" or (protocol == "SSL" and own.ssl_client_auth == "required"):
        yield Check(name, OK, f"{where}: encrypted and authenticated")
    elif is_local:
        yield Check(name, OK, f"{where}, and only programs on this machine reach it")
    elif protocol == "SSL":
        yield Check(name, FAIL, f"{where} without ssl.client.auth=required: clients need no identity", "set it")
    else:
        remedy = "use SASL_SSL, or SSL with ssl.client.auth=required; 'ottla security init' creates the files"
        yield Check(name, FAIL, f"{where}: everyone in the network reads what is sent", remedy)
    if protocol == "SASL_PLAINTEXT" and "PLAIN" in own.sasl_enabled_mechanisms:
        verdict = WARN if is_local else FAIL
        yield Check(name, verdict, "PLAIN sends passwords without encryption", "use SCRAM-SHA-512, or SASL_SSL")


def _check_logins(listener: str, settings: BrokerSettings) -> Iterator[Check]:
    """Yield a warning for short passwords in the settings. They are not shown."""
    texts = {"sasl.jaas.config": settings.of_listener(listener).sasl_jaas_config}
    prefix = f"listener.name.{listener.lower()}."
    texts |= {
        given: text
        for given, text in settings.listener_overrides.texts.items()
        if given.startswith(prefix) and given.endswith("sasl.jaas.config")
    }
    for setting, text in texts.items():
        if not text:
            continue
        try:
            login = parse_jaas(setting, text)
        except SecurityConfigError as error:
            yield Check(f"listener {listener}", FAIL, str(error), "correct the setting")
            continue
        passwords = {**login.users, "": login.options.get("password", "")}
        weak = sorted(user or "the broker" for user, word in passwords.items() if 0 < len(word) < PASSWORD_CHARS_MIN)
        if weak:
            yield Check(
                f"listener {listener}", WARN,
                f"{setting} has passwords of fewer than {PASSWORD_CHARS_MIN} characters: {', '.join(weak)}",
                "use random ones, for example of `openssl rand -base64 24`",
            )  # fmt: skip


# -- certificates -----------------------------------------------------------------------------------------------------


def _check_tls(endpoint: Endpoint, settings: BrokerSettings, seen: set[str], now: datetime.datetime) -> Iterator[Check]:
    name, own = f"listener {endpoint.name}", settings.of_listener(endpoint.name)
    if not own.ssl_endpoint_identification_algorithm and endpoint.name == settings.inter_broker_listener:
        detail = "this broker does not check the host names of other brokers"
        yield Check(name, WARN, detail, "set ssl.endpoint.identification.algorithm=https")
    try:
        server_context(own)
        found = describe(load_key_pair(own).certificates)
        trusted = load_trusted(own)
    except SecurityConfigError as error:
        yield Check(name, FAIL, str(error), "correct it, the broker does not start")
        return
    yield from _check_hosts(endpoint, settings, found[0])
    files = [
        (own.ssl_keystore_location, found),
        (own.ssl_truststore_location, describe(trusted.encode()) if trusted else []),
    ]
    for path, certificates in files:
        if path and path not in seen:
            seen.add(path)
            yield from (_check_expiry(path, each, now) for each in certificates)


def _check_expiry(path: str, certificate: CertificateInfo, now: datetime.datetime) -> Check:
    what = f"{path}: {certificate.name}"
    days = (certificate.not_after - now).days
    name = Path(path).stem
    remedy = f"renew it, for example with 'ottla cert renew {name} --data {Path(path).parent.parent}'"
    if certificate.is_authority:
        remedy = "create a new authority, and add its certificate to the truststores before the old one ends"
    if certificate.not_after <= now:
        return Check("certificate", FAIL, f"{what} has expired on {certificate.not_after:%Y-%m-%d}", remedy)
    if certificate.not_before > now:
        return Check("certificate", FAIL, f"{what} is not valid yet", "check the clock of this machine")
    if days < SOON_DAYS:
        return Check("certificate", WARN, f"{what} expires in {days} days", remedy)
    return Check("certificate", OK, f"{what} is valid for {days} days")


def _check_hosts(endpoint: Endpoint, settings: BrokerSettings, certificate: CertificateInfo) -> Iterator[Check]:
    """Yield a failure if clients that check host names do not accept the certificate."""
    advertised = {each.name: each.host for each in settings.advertised_endpoints}
    host = advertised.get(endpoint.name, endpoint.host)
    wildcard = "*." + host.partition(".")[2]
    if host not in ("", "0.0.0.0", "::") and host not in certificate.hosts and wildcard not in certificate.hosts:
        yield Check(
            f"listener {endpoint.name}", FAIL,
            f"clients use {host}, but the certificate is for {', '.join(certificate.hosts) or 'no host'}",
            f"issue one with 'ottla cert issue NAME --broker --host {host} --data DIR'",
        )  # fmt: skip


# -- rights and other addresses ---------------------------------------------------------------------------------------


def _check_rights(settings: BrokerSettings) -> Iterator[Check]:
    if not settings.authorizer_class_name:
        yield Check("ACLs", WARN, "every client may do everything", "set authorizer.class.name=acl and super.users")
        return
    yield Check("ACLs", OK, "clients may do what ACLs allow")
    if settings.allow_everyone_if_no_acl_found:
        detail = "topics and groups without an ACL are open to everyone"
        yield Check("ACLs", WARN, detail, "set allow.everyone.if.no.acl.found=false")
    try:
        users = parse_super_users(settings.super_users)
    except SecurityConfigError as error:
        yield Check("super users", FAIL, str(error), "correct super.users")
        return
    if not users:
        yield Check(
            "super users", FAIL, "there is none, so no user can create the first ACL", "set super.users=User:NAME"
        )
    elif "User:ANONYMOUS" in users:
        yield Check("super users", FAIL, "clients without a login may do everything", "remove User:ANONYMOUS")
    else:
        yield Check("super users", OK, ", ".join(sorted(users)))


def _check_other_addresses(settings: BrokerSettings) -> Iterator[Check]:
    metrics = settings.metrics_endpoint
    if metrics is not None and not is_loopback(metrics.host):
        yield Check("metrics", WARN, f"{metrics} shows the names of topics and groups to everyone", "use 127.0.0.1")
    if settings.zookeeper_connect and not settings.zookeeper_set_acl:
        yield Check(
            "ZooKeeper", FAIL, "everyone who reaches ZooKeeper can change users, ACLs and all other metadata",
            "set zookeeper.set.acl=true and zookeeper.auth.digest=USER:PASSWORD on all brokers",
        )  # fmt: skip
    if settings.allow_insecure_listeners:
        detail = "allow.insecure.listeners lets the broker start with open listeners"
        yield Check("listeners", WARN, detail, "remove it when all listeners are secure")
