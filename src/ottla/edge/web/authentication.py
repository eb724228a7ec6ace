"""Who sends a request: HTTP basic authentication, bearer tokens, certificates.

    authentication.method=BASIC     a user name and a password: those of authentication.users.file, or, with
                                    authentication.pass.through=true, those of a user of the Kafka cluster
    authentication.method=BEARER    a signed token (JWT), checked with the keys of sasl.oauthbearer.jwks.endpoint.url,
                                    whose web server may have a certificate of ssl.truststore.location
    authentication.method=NONE      the subject of the client's certificate, if it has one

With authentication.pass.through=true the service logs in to the cluster as the user of each request, so that the ACLs
of the cluster decide what the user can do: with the name and the password, or by OAUTHBEARER with the token.

Cost. A hash of a password takes a quarter of a second and 32 MB, and a login to the cluster some milliseconds. Both run
in a few threads. Checks of the same credentials at the same time are done once, and the result of a successful one
holds for a short time. The table of these results has keyed hashes, no passwords. A wrong password of a known user
takes as long as that of an unknown one.

Failures. Each address, of IPv6 its first 64 bits, has a budget of failures; when it is used up, the client gets 429
until some time has passed. Requests with credentials that were checked a short time ago are not affected, and a user
who has logged in from the same address before has a budget of its own. Checks wait for a thread in a fair order
(`check_queue.py`), so that wrong passwords from several addresses do not keep valid users out. No log, error or repr
shows a password or a token.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import logging
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.requests import Request

from ottla.edge.web.app import HttpError
from ottla.edge.web.check_queue import CheckQueue, Sender, TrustedSenders
from ottla.edge.web.rates import Rates, network_of_client
from ottla.edge.web.settings import WebSettings
from ottla.env.log_limit import LogLimit
from ottla.model.errors import StartError
from ottla.security.errors import AuthenticationFailed, KeysBeingRead, SecurityConfigError
from ottla.security.password_hashes import UsersFile
from ottla.security.principals import SslPrincipalMapper

# cryptography and PyJWT have 15 MB and take 0.1 s: services without tokens and certificates do not load them.
if TYPE_CHECKING:
    from ottla.security import sasl
    from ottla.security.token_keys import TokenKeys

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

#: threads that compute hashes, threads that log in to the cluster, and checks that wait for one of them
_THREADS: Final = 2
_LOGIN_THREADS: Final = 8
_WAITING_MAX: Final = 64
#: checks of one user who has logged in before that come first; a user has one or two passwords
_TRUSTED_CHECKS_MAX: Final = 2
#: how long a successful check holds
CACHE_S: Final = 60.0
_CACHE_MAX: Final = 10_000
_HEADER_CHARACTERS_MAX: Final = 64 << 10
_NAME_CHARACTERS_MAX: Final = 1024
#: how often the file of users is checked for changes
_USERS_S: Final = 1.0
#: how long a thread waits for keys that another one reads
_KEYS_ATTEMPTS: Final = 50
_KEYS_PAUSE_S: Final = 0.1
_REFUSAL: Final = "authentication failed: the credentials are not valid"


@dataclass(frozen=True, slots=True)
class Identity:
    """The user of a request, or with an empty name the service itself. Equal for equal credentials."""

    name: str = ""
    #: properties with which a Kafka client logs in as this user; empty: the client of the service is used
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    #: the token with which a Kafka client logs in as this user by OAUTHBEARER; empty without one
    token: str = field(default="", repr=False)
    #: when the token expires
    expires_ms: int | None = None

    @property
    def is_expired(self) -> bool:
        return self.expires_ms is not None and self.expires_ms <= time.time() * 1000


def identity_of(request: Request) -> Identity:
    """Return the user of an authenticated request; an identity without a name if there is none."""
    found = request.scope.get("identity")
    return found if isinstance(found, Identity) else Identity()


def client_key(request: Request) -> str:
    """Return what rates count by: the name of the user, otherwise the address."""
    name = identity_of(request).name
    return f"user {name}" if name else f"address {network_of_client(request)}"


class Login(NamedTuple):
    """A user name and a password that a client has sent."""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.name!r})"


#: returns whether the cluster accepts a login with these properties of a Kafka client; it may block for seconds
CheckLogin = Callable[[Mapping[str, str]], bool]
#: checks credentials in a thread; returns the identity, None if they are wrong, and raises if they cannot be checked
_Check = Callable[[], Identity | None]


class _Waiting(NamedTuple):
    """A check that waits for a thread, and the future of its result."""

    check: _Check
    result: asyncio.Future[Identity | None]


class Authenticator:
    """Authenticates requests by the settings of a service. Called on the event loop."""

    def __init__(
        self, settings: WebSettings, check_login: CheckLogin | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Raise StartError, which says what to change, if a file is missing or settings do not fit together."""
        self._settings = settings
        self._now = now
        self._check_login = check_login
        self._basic, self._bearer = (method in settings.authentication_method for method in ("BASIC", "BEARER"))
        self._pass_through = settings.authentication_pass_through
        self._mapper = SslPrincipalMapper(settings.ssl_principal_mapping_rules)
        self._users: UsersFile | None = None
        self._users_due = 0.0
        self._keys: TokenKeys | None = None
        try:
            self._prepare()
        except SecurityConfigError as error:
            raise StartError(f"authentication.method={','.join(settings.authentication_method)}: {error}") from None
        self._secret = os.urandom(32)
        #: keyed hash of credentials -> identity and when the entry expires
        self._known: OrderedDict[bytes, tuple[float, Identity]] = OrderedDict()
        #: checks that wait or are in progress, by the same hash
        self._checks: dict[bytes, asyncio.Future[Identity | None]] = {}
        self._checks_of: Counter[Sender] = Counter()
        self._waiting: CheckQueue[_Waiting] = CheckQueue(_WAITING_MAX)
        self._trusted = TrustedSenders(now)
        self._idle_threads = _THREADS if self._users is not None else _LOGIN_THREADS
        self._threads = ThreadPoolExecutor(self._idle_threads, thread_name_prefix="authentication")
        self._failures = Rates(per_s=settings.authentication_failures_per_minute / 60, burst_s=60.0, now=now)

    def _prepare(self) -> None:
        settings = self._settings
        if self._pass_through and not (self._basic or self._bearer):
            raise SecurityConfigError("authentication.pass.through=true needs BASIC or BEARER")
        if self._pass_through and not settings.client.get("security.protocol", "").upper().startswith("SASL_"):
            raise SecurityConfigError(
                "authentication.pass.through=true needs a listener of the cluster with logins: set "
                "client.security.protocol=SASL_SSL"
            )
        if self._basic and self._pass_through:
            if settings.authentication_users_file:
                raise SecurityConfigError(
                    "with authentication.pass.through=true the users are those of the cluster; remove "
                    "authentication.users.file"
                )
            if self._check_login is None:
                raise SecurityConfigError("this service does not log in to the cluster for its users")
        elif self._basic:
            if not settings.authentication_users_file:
                raise SecurityConfigError(
                    "BASIC needs authentication.users.file, with lines of ottla user hash, or "
                    "authentication.pass.through=true"
                )
            self._users = UsersFile(settings.authentication_users_file)
        if self._bearer:
            from ottla.security.oauth import OauthRules
            from ottla.security.token_keys import TokenKeys
            from ottla.security.web_documents import web_context

            tls = partial(web_context, settings.tls(), {})
            if settings.sasl_oauthbearer_jwks_endpoint_url.startswith("https:"):
                tls()  # a store that cannot be read is reported at start
            self._keys = TokenKeys(
                settings.sasl_oauthbearer_jwks_endpoint_url, monotonic=self._now,
                refresh_s=settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000, tls=tls,
            )  # fmt: skip
            self._rules = OauthRules(
                issuer=settings.sasl_oauthbearer_expected_issuer or None,
                audiences=settings.sasl_oauthbearer_expected_audience,
                user_claim=settings.sasl_oauthbearer_sub_claim_name,
                scope_claim=settings.sasl_oauthbearer_scope_claim_name,
                clock_skew_s=settings.sasl_oauthbearer_clock_skew_seconds,
            )

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, request: Request) -> Identity | None:
        """Return the user of the request; None if none is needed and the client has no certificate.

        Raise HttpError 401 if the credentials are missing or wrong, and 429 after too many wrong ones.
        """
        if not (self._basic or self._bearer):
            return self._certified(request)
        self._reload_users()
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if len(text) > _HEADER_CHARACTERS_MAX:
            raise self._refusal("the credentials are too long")
        if scheme.lower() == "basic" and self._basic:
            login = _parse_basic(text)
            if login is None:
                raise self._refusal(_REFUSAL)
            credentials = f"basic\0{login.name}\0{login.password}"
            return await self._authenticate(request, login.name, credentials, self._basic_check(login))
        if scheme.lower() == "bearer" and self._bearer:
            token = text.strip()
            name = _claimed_name(token, self._settings.sasl_oauthbearer_sub_claim_name)
            return await self._authenticate(request, name, f"bearer\0{token}", lambda: self._check_token(token))
        raise self._refusal("the request has no credentials")

    def _certified(self, request: Request) -> Identity | None:
        certificate = request.scope.get("client_certificate")
        if certificate is None:
            return None
        from ottla.security.certificates import subject_of

        try:
            return Identity(self._mapper.name(subject_of(certificate)))
        except (AuthenticationFailed, ValueError):
            raise self._refusal("the subject of the certificate is not accepted") from None

    # -- checks -------------------------------------------------------------------------------------------------------

    async def _authenticate(self, request: Request, name: str, credentials: str, check: _Check) -> Identity:
        key = hashlib.blake2b(credentials.encode(), key=self._secret, digest_size=32).digest()
        if (known := self._find(key)) is not None:
            return known
        sender = Sender(network_of_client(request), name)
        budget = "\0".join(sender) if sender in self._trusted else sender.address
        if (wait_s := self._failures.wait_s(budget)) > 0:
            headers = {"retry-after": str(int(wait_s) + 1)}
            raise HttpError(429, 42901, "authentication failed too often; try again later", headers)
        try:
            identity = await self._check_once(key, sender, check)
        except AuthenticationFailed as error:
            log.info("authentication failed peer=%s reason=%s", sender.address, error)
            identity = None
        if identity is None:
            self._failures.spend(budget)
            raise self._refusal(_REFUSAL)
        self._trusted.add(sender)
        return identity

    def _find(self, key: bytes) -> Identity | None:
        found = self._known.get(key)
        if found is None:
            return None
        if found[0] <= self._now():
            del self._known[key]
            return None
        self._known.move_to_end(key)
        return found[1]

    async def _check_once(self, key: bytes, sender: Sender, check: _Check) -> Identity | None:
        """Run a check in a thread, or wait for the same one that is in progress."""
        running = self._checks.get(key)
        if running is None:
            running = self._checks[key] = asyncio.get_running_loop().create_future()
            users = None if self._users is None else self._users.users
            running.add_done_callback(lambda done: self._remember(key, done, users))
            # A user who sends many wrong passwords at once does not come first with all of them.
            is_trusted = sender in self._trusted and self._checks_of[sender] < _TRUSTED_CHECKS_MAX
            self._checks_of[sender] += 1
            running.add_done_callback(lambda _: self._forget_check_of(sender))
            lost = self._waiting.add(_Waiting(check, running), sender.address, is_trusted=is_trusted)
            if lost is not None:
                reason = "too many clients authenticate at the same time"
                lost.result.set_exception(HttpError(503, 503, reason, {"retry-after": "1"}))
            self._start_checks()
        # A client that disconnects does not end the check for the others.
        return await asyncio.shield(running)

    def _forget_check_of(self, sender: Sender) -> None:
        self._checks_of[sender] -= 1
        if not self._checks_of[sender]:
            del self._checks_of[sender]

    def _start_checks(self) -> None:
        """Give checks that wait to threads that are idle."""
        while self._idle_threads and (waiting := self._waiting.take()) is not None:
            self._idle_threads -= 1
            work = asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(self._threads, waiting.check))
            work.add_done_callback(partial(self._end_check, waiting.result))

    def _end_check(self, result: asyncio.Future[Identity | None], work: asyncio.Future[Identity | None]) -> None:
        self._idle_threads += 1
        if work.cancelled():
            result.cancel()
        elif (error := work.exception()) is not None:
            result.set_exception(error)
        else:
            result.set_result(work.result())
        self._start_checks()

    def _remember(self, key: bytes, done: asyncio.Future[Identity | None], users: object) -> None:
        del self._checks[key]
        if done.cancelled() or done.exception() is not None:
            return
        identity = done.result()
        if identity is None or (self._users is not None and self._users.users is not users):
            return
        expires = self._now() + CACHE_S
        if identity.expires_ms is not None:
            expires = min(expires, self._now() + identity.expires_ms / 1000 - time.time())
        self._known[key] = (expires, identity)
        if len(self._known) > _CACHE_MAX:
            self._known.popitem(last=False)

    def _basic_check(self, login: Login) -> _Check:
        if self._users is None:
            return lambda: self._check_at_cluster(login)
        password_hash, is_known = self._users.find(login.name)
        identity = Identity(login.name)
        password = login.password.encode()
        return lambda: identity if password_hash.is_password(password) and is_known else None

    def _check_at_cluster(self, login: Login) -> Identity | None:
        assert self._check_login is not None
        client = self._settings.client
        mechanism = client.get("sasl.mechanism") or client.get("sasl.mechanisms") or "PLAIN"
        own = {"sasl.mechanism": mechanism, "sasl.username": login.name, "sasl.password": login.password}
        inherited = {name: text for name, text in client.items() if not name.startswith("sasl.")}
        if not self._check_login({**inherited, "bootstrap.servers": self._settings.bootstrap_servers, **own}):
            return None
        return Identity(login.name, tuple(own.items()))

    def _check_token(self, token: str) -> Identity:
        assert self._keys is not None
        if self._keys.take_due():
            self._keys.refresh()
        found = self._check_signature(token, self._keys)
        name = found.principal.removeprefix("User:")
        return Identity(name, token=token if self._pass_through else "", expires_ms=found.expires_ms)

    def _check_signature(self, token: str, keys: TokenKeys) -> sasl.Identity:
        """Return the user of a token. Wait a while if another thread reads the keys, then raise HttpError 503."""
        from ottla.security.oauth import check_token

        for _ in range(_KEYS_ATTEMPTS):
            try:
                return check_token(token, keys, self._rules)
            except KeysBeingRead:
                time.sleep(_KEYS_PAUSE_S)
        raise HttpError(503, 503, "the keys of the token issuer are being read", {"retry-after": "1"})

    def _reload_users(self) -> None:
        if self._users is None or self._now() < self._users_due:
            return
        self._users_due = self._now() + _USERS_S
        try:
            if self._users.reload():
                self._known.clear()
        except SecurityConfigError as error:
            self._known.clear()
            log.error("file of users is not used, no user can authenticate error=%s", error)

    def _refusal(self, text: str) -> HttpError:
        realm = self._settings.authentication_realm.replace("\\", "").replace('"', "")
        schemes = []
        if self._basic:
            schemes.append(f'Basic realm="{realm}", charset="UTF-8"')
        if self._bearer:
            schemes.append(f'Bearer realm="{realm}"')
        return HttpError(401, 40101, text, {"www-authenticate": ", ".join(schemes)} if schemes else {})


def _parse_basic(text: str) -> Login | None:
    """Return the user name and the password of a header. None if it is malformed.

    >>> _parse_basic("YW5uOnM6MQ=="), _parse_basic("x")
    (Login('ann'), None)
    """
    try:
        name, colon, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    # The protocol of Kafka's logins ends a name at a zero byte.
    return Login(name, password) if colon and name and password and "\0" not in name + password else None


def _claimed_name(token: str, claim: str) -> str:
    """Return which user a token names, before its signature is checked: only to count senders. Empty if none.

    >>> payload = base64.urlsafe_b64encode(b'{"sub": "ann"}').decode().rstrip("=")
    >>> _claimed_name(f"x.{payload}.y", "sub"), _claimed_name("x.y.z", "sub")
    ('token ann', '')
    """
    payload = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, RecursionError):
        return ""
    name = claims.get(claim) if isinstance(claims, dict) else None
    return f"token {name}" if isinstance(name, str) and name and len(name) <= _NAME_CHARACTERS_MAX else ""
