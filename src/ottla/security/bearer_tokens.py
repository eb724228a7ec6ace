"""Tokens with which this process logs in by OAUTHBEARER: from a file, or from the token endpoint of an issuer.

    sasl.oauthbearer.token.endpoint.url=file:///PATH      the token is in the file, which another program renews
    sasl.oauthbearer.token.endpoint.url=https://...       requested with the client's id and secret (RFC 6749, 4.4)

This module does not verify tokens: only the broker that gets a token can do so. The claims of a token say when it
expires. A new token is requested before that, after a part of its lifetime (``sasl.login.refresh.*``). If the issuer
does not answer, the current token is used until it expires, and the request is repeated with exponential back-off.

No error message contains the secret, the token, or the answer of the issuer.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode

from ottla.security.errors import AuthenticationFailed, SecurityConfigError
from ottla.security.web_documents import DocumentError, Limits, check_url, read_file, request_document

ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
ANSWER_BYTES_MAX: Final = 1 << 20
_TOKEN_CHARACTERS_MAX: Final = 60_000
#: a token that expires sooner is not used for a login
_MARGIN_S: Final = 2.0
#: b64token of RFC 6750: nothing of it can end the message of the login early
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
#: names and values of extensions by RFC 7628; "auth" is the token's own name
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+", re.ASCII)
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7E \t\r\n]*", re.ASCII)


class BearerToken(NamedTuple):
    """A token and the wall clock times of its claims, in seconds."""

    text: str
    issued: float
    expires: float

    def __repr__(self) -> str:
        return f"BearerToken(expires={self.expires})"


def parse_token(text: str, *, now: float, user_claim: str = "sub") -> BearerToken:
    """Return a token with its times. Raise AuthenticationFailed if no broker would accept it."""
    if len(text) > _TOKEN_CHARACTERS_MAX or not _TOKEN.fullmatch(text) or text.count(".") != 2:
        raise AuthenticationFailed("the token is no signed JSON Web Token")
    body = text.split(".")[1]
    try:
        claims: Any = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        expires, issued = float(claims["exp"]), float(claims.get("iat") or now)
        name = claims[user_claim]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, binascii.Error):
        raise AuthenticationFailed(f"the token has no claims exp and {user_claim} of the right form") from None
    if not isinstance(name, str) or not name:
        raise AuthenticationFailed(f"the claim {user_claim} of the token is no name")
    if not now < expires < float("inf"):
        raise AuthenticationFailed("the token has expired")
    return BearerToken(text, min(issued, now), expires)


class RefreshRules(NamedTuple):
    """When a new token is asked for: Kafka's ``sasl.login.refresh.*`` and ``sasl.login.retry.*``, in seconds."""

    window_factor: float = 0.8
    window_jitter: float = 0.05
    period_s_min: float = 60.0
    buffer_s: float = 300.0
    retry_s: float = 0.1
    retry_s_max: float = 10.0

    def refresh_at(self, token: BearerToken, now: float, random: float) -> float:
        """Return the time at which a new token is asked for. ``random`` is from 0 to 1.

        As in Kafka, the minimum time between two requests and the time before the expiry are ignored if
        the lifetime is shorter than both together.
        """
        wanted = token.issued + (token.expires - token.issued) * (self.window_factor + random * self.window_jitter)
        if token.expires - now < self.period_s_min + self.buffer_s:
            return wanted
        return min(max(wanted, now + self.period_s_min), token.expires - self.buffer_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """The source of a token, and the secret of the client that requests it."""

    url: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    #: whether id and secret are encoded as in a form before they are joined (RFC 6749, 2.3.1); Kafka's default is no
    url_encode: bool = False
    tls: Callable[[], ssl.SSLContext] = field(default=ssl.create_default_context, repr=False)
    limits: Limits = field(default_factory=lambda: Limits(ANSWER_BYTES_MAX))

    def check(self) -> None:
        """Raise SecurityConfigError if the URL is not allowed or the client has no secret."""
        parts = check_url(ENDPOINT, self.url)
        if parts.scheme != "file" and not (self.client_id and self.client_secret):
            raise SecurityConfigError(
                f"{ENDPOINT} needs an id and a secret of the client: set the options clientId and clientSecret of "
                "OAuthBearerLoginModule in sasl.jaas.config"
            )

    @property
    def is_file(self) -> bool:
        return self.url.startswith("file:")

    def fetch(self) -> str:
        """Return a new token. This may take seconds. Raise AuthenticationFailed."""
        parts = check_url(ENDPOINT, self.url)
        try:
            if parts.scheme == "file":
                return read_file(parts, _TOKEN_CHARACTERS_MAX).decode("ascii").strip()
            context = self.tls() if parts.scheme == "https" else None
            form = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
            answer = request_document(
                parts, self.limits, tls=context, headers=self._headers(), body=urlencode(form).encode()
            )
            token = json.loads(answer)["access_token"]
        except (DocumentError, SecurityConfigError) as error:
            raise AuthenticationFailed(f"no token from {ENDPOINT}: {error}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise AuthenticationFailed(f"no token from {ENDPOINT}: the answer has none") from None
        if not isinstance(token, str):
            raise AuthenticationFailed(f"no token from {ENDPOINT}: the answer has none")
        return token.strip()

    def _headers(self) -> dict[str, str]:
        pair = [quote_plus(each) if self.url_encode else each for each in (self.client_id, self.client_secret)]
        basic = base64.b64encode(":".join(pair).encode()).decode()
        return {
            "Authorization": f"Basic {basic}", "Accept": "application/json", "Cache-Control": "no-cache",
            "Content-Type": "application/x-www-form-urlencoded",
        }  # fmt: skip


class TokenSource:
    """The current token. All methods may be called in any thread; ``renew`` and ``token`` block."""

    def __init__(
        self,
        fetch: Callable[[], str],
        *,
        rules: RefreshRules | None = None,
        user_claim: str = "sub",
        is_file: bool = False,
        wall: Callable[[], float] = time.time,
        random: Callable[[], float] = lambda: 0.5,
    ) -> None:
        """``is_file``: the token is read at each login, because it costs nothing and the file may have changed."""
        self._fetch = fetch
        self._rules = rules or RefreshRules()
        self._user_claim = user_claim
        self._is_file = is_file
        self._wall = wall
        self._random = random
        #: held during a request to the issuer, so that there is one at a time
        self._renewing = threading.Lock()
        self._token: BearerToken | None = None
        self._refresh_at = 0.0
        # After a failure
        self._retry_at = 0.0
        self._retry_s = 0.0
        self._failure = ""

    def current(self) -> str | None:
        """Return the token if it can be used now, None if a new one must be requested first."""
        token = self._token
        if token is None or self._is_file or self._wall() > token.expires - _MARGIN_S:
            return None
        return token.text

    def is_due(self) -> bool:
        """Return whether it is time to call ``renew``, although the current token may still be valid."""
        now = self._wall()
        return not self._is_file and self._token is not None and now >= self._refresh_at and now >= self._retry_at

    def renew(self) -> str:
        """Ask for a new token and return it. Raise AuthenticationFailed.

        Soon after a failure, send no request and raise the same failure again.
        """
        asked_at = self._wall()
        with self._renewing:
            token = self._token
            if self._refresh_at > asked_at and not self._is_file and token is not None and self.current():
                return token.text  # another thread has renewed it meanwhile
            if self._wall() < self._retry_at and self._failure:
                raise AuthenticationFailed(self._failure)
            try:
                token = parse_token(self._fetch(), now=self._wall(), user_claim=self._user_claim)
            except AuthenticationFailed as error:
                self._retry_s = min(max(self._retry_s * 2, self._rules.retry_s), self._rules.retry_s_max)
                self._retry_at = self._wall() + self._retry_s
                self._failure = str(error)
                raise
            self._retry_s = self._retry_at = 0.0
            self._failure = ""
            self._token = token
            self._refresh_at = self._rules.refresh_at(token, self._wall(), self._random())
            return token.text

    def token(self) -> str:
        """Return a token; request a new one if it is due. Raise AuthenticationFailed if there is none."""
        current = self.current()
        if current is not None and not self.is_due():
            return current
        try:
            return self.renew()
        except AuthenticationFailed:
            if current is None:
                raise
            return current


def check_extensions(extensions: Mapping[str, str]) -> None:
    """Raise SecurityConfigError if SASL extensions (KIP-342) are not of the form of RFC 7628."""
    for name, value in extensions.items():
        if name.lower() == "auth" or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
            raise SecurityConfigError("an option extension_NAME of the login module is not allowed by RFC 7628")
