"""Sends a message to a receiver. Blocking; call it in a thread. The only module of the package that opens connections.

A message has a time for the whole exchange, and an answer a maximum size. Redirects are errors, so that a message, and
the secrets of its headers, reach only the host that the file names. Errors contain no secret and no answer.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import smtplib
import socket
import ssl
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any, Final
from urllib.parse import urlsplit

from ottla.edge.monitor.alerts.bodies import Origin, email_message, slack_body, webhook_body
from ottla.edge.monitor.alerts.grouping import Message
from ottla.edge.monitor.alerts.receiver_fields import check_url, is_readable
from ottla.edge.monitor.alerts.rules import EmailSettings, Receiver, ReceiverKind, Secret
from ottla.env.socket_deadline import SocketDeadline
from ottla.model.errors import OttlaError
from ottla.model.printable import shown
from ottla.security.web_documents import DocumentError, Limits, request_document

_ANSWER_BYTES_MAX: Final = 64 << 10
_SECRET_BYTES_MAX: Final = 16 << 10
_PACKET_S: Final = 10.0
_TOTAL_S: Final = 30.0
_ACCEPTED: Final = range(200, 300)


class DeliveryFailed(OttlaError):
    """A receiver has not accepted a message."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        #: another attempt will fail in the same way until somebody changes the file or the receiver
        self.is_final = is_final


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long an exchange may take."""

    packet_s: float = _PACKET_S
    total_s: float = _TOTAL_S


def send(message: Message, origin: Origin, now_ms: int, times: Times = Times()) -> None:  # noqa: B008 - it is frozen
    """Send a message. Return when the receiver has accepted it; raise DeliveryFailed otherwise."""
    receiver = message.receiver
    if receiver.email is not None:
        mail = email_message(message, origin, receiver.email, now_ms)
        _send_mail(mail, receiver, receiver.email, times)
    elif receiver.kind is ReceiverKind.SLACK:
        _post(receiver, slack_body(message, origin), times)
    else:
        _post(receiver, webhook_body(message, origin), times)


def read_secret(secret: Secret) -> str:
    """Return a secret: the first line of its file, or its variable. Raise DeliveryFailed if there is none."""
    if secret.environment:
        text = os.environ.get(secret.environment, "")
        place = f"variable {secret.environment}"
    else:
        place = f"file {shown(secret.file)}"
        try:
            with open(secret.file, "rb") as file:
                data = file.read(_SECRET_BYTES_MAX + 1)
            text = data.decode().partition("\n")[0].strip() if len(data) <= _SECRET_BYTES_MAX else ""
        except OSError as error:
            raise DeliveryFailed(f"{place} cannot be read: {error.strerror}", is_final=True) from None
        except UnicodeDecodeError:
            text = ""
    if not text or not text.isprintable():
        raise DeliveryFailed(f"{place} has no secret in its first line", is_final=True)
    return text


def _post(receiver: Receiver, body: bytes, times: Times) -> None:
    url = receiver.url or read_secret(receiver.secret_url)
    # A URL that is a secret was not checked when the file was read, and is not in the message.
    if reason := check_url(url):
        raise DeliveryFailed(f"the URL {reason}", is_final=True)
    if (receiver.bearer or receiver.hmac) and is_readable(url):
        raise DeliveryFailed("secrets are not sent over http:// to another machine; use https://", is_final=True)
    headers = {"Content-Type": "application/json", "User-Agent": "ottla-monitor"}
    if receiver.bearer:
        headers["Authorization"] = f"Bearer {_ascii(read_secret(receiver.bearer))}"
    if receiver.hmac:
        key = read_secret(receiver.hmac).encode()
        headers["X-Ottla-Signature"] = f"sha256={hmac.new(key, body, hashlib.sha256).hexdigest()}"
    parts = urlsplit(url)
    tls = _context(receiver) if parts.scheme == "https" else None
    limits = Limits(_ANSWER_BYTES_MAX, connect_s=times.packet_s, read_s=times.packet_s, total_s=times.total_s)
    try:
        request_document(parts, limits, tls=tls, headers=headers, body=body, statuses=_ACCEPTED)
    except DocumentError as error:
        is_final = 300 <= error.status < 500 and error.status not in (408, 425, 429)
        raise DeliveryFailed(shown(str(error)), is_final=is_final) from None


def _ascii(text: str) -> str:
    if not text.isascii():
        raise DeliveryFailed("the secret must be ASCII", is_final=True)
    return text


def _context(receiver: Receiver) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if receiver.ca_file:
        try:
            context.load_verify_locations(receiver.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise DeliveryFailed(
                f"ca_file cannot be used: {error.strerror or 'no certificates'}", is_final=True
            ) from None
    return context


def _send_mail(mail: EmailMessage, receiver: Receiver, settings: EmailSettings, times: Times) -> None:
    deadline = SocketDeadline(times.total_s)
    try:
        password = read_secret(settings.password) if settings.password else ""
        context = None if settings.tls == "none" else _context(receiver)
        with _connection(settings, context, deadline, times) as server:
            if settings.tls == "starttls":
                assert context is not None
                server.starttls(context=context)
            if settings.user:
                server.login(settings.user, password)
            server.send_message(mail)
    except (OSError, smtplib.SMTPException, ValueError) as error:
        if deadline.is_over:
            raise DeliveryFailed(f"the mail server has not answered within {times.total_s:g} seconds") from None
        raise _mail_failure(error) from None
    finally:
        deadline.close()


def _mail_failure(error: Exception) -> DeliveryFailed:
    """Return an error without the text of the mail server, which may repeat what it was sent."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return DeliveryFailed(f"the certificate of the mail server is not trusted: {error.verify_message}")
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return DeliveryFailed(f"the mail server refuses the login: status {error.smtp_code}", is_final=True)
    if isinstance(error, smtplib.SMTPResponseException):
        return DeliveryFailed(f"the mail server answers with status {error.smtp_code}", is_final=error.smtp_code >= 500)
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        codes = sorted({code for code, _ in error.recipients.values()})
        return DeliveryFailed(
            f"the mail server refuses the recipients: status {', '.join(map(str, codes))}", is_final=min(codes) >= 500
        )
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return DeliveryFailed("the mail server has no STARTTLS, or no login that Python knows", is_final=True)
    if isinstance(error, OSError) and not isinstance(error, smtplib.SMTPException):
        return DeliveryFailed(f"the mail server is not reachable: {error.strerror or type(error).__name__}")
    return DeliveryFailed(f"the mail server does not answer as expected: {type(error).__name__}")


def _connection(
    settings: EmailSettings, context: ssl.SSLContext | None, deadline: SocketDeadline, times: Times
) -> smtplib.SMTP:
    """Return an open connection that the deadline watches."""

    class Watched(smtplib.SMTP):
        def _get_socket(self, host: str, port: int, timeout: float) -> Any:
            opened = deadline.watch(socket.create_connection((host, port), timeout))
            if settings.tls == "implicit":
                assert context is not None
                return context.wrap_socket(opened, server_hostname=host)
            return opened

    return Watched(settings.host, settings.port, timeout=times.packet_s)
