"""Reads the receivers of a file of rules. Secrets are named, by a file or a variable, and never written in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ottla.edge.monitor.alerts.fields import Fields
from ottla.edge.monitor.alerts.patterns import LabelPatterns, NamePatterns
from ottla.edge.monitor.alerts.rules import EmailSettings, Level, Receiver, ReceiverKind, Secret
from ottla.model.printable import shown
from ottla.model.types import is_loopback

_LEVELS: Final = {each.word: each for each in Level}
_TLS: Final = ("starttls", "implicit", "none")
_PORTS: Final = {"starttls": 587, "implicit": 465, "none": 25}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
#: what mail servers accept without quotes; a line break in an address would be a new header
_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,253}", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9._:-]{1,253}", re.ASCII)


def parse_receiver(table: Fields, directory: Path | None) -> Receiver:
    """Return a receiver. Problems are reported to the table."""
    name = table.take_name()
    table.place = f"receiver {shown(name)[:64]!r}"
    kind = table.take_choice("type", [str(each) for each in ReceiverKind], ReceiverKind.WEBHOOK)
    is_email = kind == ReceiverKind.EMAIL
    url = "" if is_email else _url(table)
    made = Receiver(
        name=name,
        kind=ReceiverKind(kind),
        url=url,
        secret_url=Secret() if is_email else _secret(table, "url", directory),
        bearer=_secret(table, "bearer", directory) if kind == ReceiverKind.WEBHOOK else Secret(),
        hmac=_secret(table, "hmac", directory) if kind == ReceiverKind.WEBHOOK else Secret(),
        ca_file=_path(table.take_text("ca_file"), directory),
        email=_email(table, directory) if is_email else None,
        level_min=_LEVELS[table.take_choice("severity_min", list(_LEVELS), "info")],
        match=_match(table),
        send_closed=table.take_flag("send_closed", True),
    )
    if not is_email and bool(made.url) == bool(made.secret_url):
        table.problem("give one of url, url_file and url_env")
    if (made.bearer or made.hmac) and is_readable(made.url):
        table.problem("secrets are not sent over http:// to another machine; use https://")
    table.end()
    return made


def is_readable(url: str) -> bool:
    """Return whether others in the network can read what is sent to a URL."""
    parts = urlsplit(url) if url and not check_url(url) else None
    return parts is not None and parts.scheme == "http" and not is_loopback(parts.hostname or "")


def check_url(url: str) -> str:
    """Return why messages cannot be sent to a URL; empty if they can."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is no URL"
    if parts.scheme not in ("http", "https") or not host:
        return "must begin with http://HOST or https://HOST"
    if parts.username is not None or parts.password is not None:
        return "must not have a user name or a password; use bearer_file"
    if not url.isascii() or any(sign <= " " or sign == "\x7f" for sign in url):
        return "must be ASCII without spaces"
    return ""


def _url(table: Fields) -> str:
    url = table.take_text("url")
    reason = check_url(url) if url else ""
    if reason:
        table.problem(f"url {reason}")
    return url


def _secret(table: Fields, key: str, directory: Path | None) -> Secret:
    if key != "url" and table.has(key):
        table.problem(f"{key} must not be in this file; write {key}_file or {key}_env")
        table.take_text(key)
    secret = Secret(file=_path(table.take_text(f"{key}_file"), directory), environment=table.take_text(f"{key}_env"))
    if secret.file and secret.environment:
        table.problem(f"give one of {key}_file and {key}_env")
    if secret.environment and not _VARIABLE.fullmatch(secret.environment):
        table.problem(f"{key}_env must be the name of a variable of the environment")
    return secret


def _path(text: str, directory: Path | None) -> str:
    return str((directory or Path()) / text) if text else ""


def _match(table: Fields) -> LabelPatterns:
    inner = table.inner(f"{table.place}: match", table.take_table("match"))
    found = {label: NamePatterns(inner.take_texts(label) or ()) for label in inner.remaining()}
    return LabelPatterns(found)


def _email(table: Fields, directory: Path | None) -> EmailSettings:
    tls = table.take_choice("tls", _TLS, "starttls")
    host, _, port = table.take_text("smtp").partition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else _PORTS[tls]
    if not _HOST.fullmatch(host) or not 0 < number < 65_536 or (port and not port.isdigit()):
        table.problem('smtp must be the mail server, as "HOST" or "HOST:PORT"')
    sender, recipients = table.take_text("from"), table.take_texts("to") or ()
    for key, address in (("from", sender), *(("to", each) for each in recipients)):
        if not _ADDRESS.fullmatch(address):
            table.problem(f"{key} must be an address such as alerts@example.com")
    if not recipients:
        table.problem("to is missing: one address, or a list")
    made = EmailSettings(
        host=host,
        port=number,
        sender=sender,
        recipients=recipients,
        tls=tls,
        user=table.take_text("user"),
        password=_secret(table, "password", directory),
    )
    if bool(made.user) != bool(made.password):
        table.problem("user needs password_file or password_env, and they need user")
    if made.user and tls == "none":
        table.problem('tls = "none" would send the password readable; use starttls or implicit')
    return made
