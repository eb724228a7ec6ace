"""Logins of the console: who sends a request, with which role, and whether a form was sent by our own page.

    browser                                   console
      GET /c/main/topics   no cookie ───────► the role of people without a login, or a redirect to /login
      POST /login  name, password ──────────► `edge.web.authentication` checks them, with its limits for failures
      ◄── cookie ottla_session, a random token that names an entry of a table: HttpOnly, SameSite=Strict
      POST /c/main/topics/x/delete  csrf ───► the token of the session must be in the form

A script sends `Authorization: Basic` with each request instead of a cookie; it needs no token in its forms, because a
browser does not add this header to the requests of other pages. A session ends after `session.hours`, with a logout,
and when the console stops.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.requests import Request

from ottla.edge.console.roles import Role, Roles
from ottla.edge.web.app import HttpError
from ottla.edge.web.authentication import Authenticator, Identity

COOKIE: Final = "ottla_session"
_SESSIONS_MAX: Final = 10_000
_SCOPE_KEY: Final = "ottla.console.caller"
_CREDENTIALS_CHARACTERS_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Caller:
    """The person, or the script, that sends a request."""

    identity: Identity
    role: Role
    #: the token that forms must have; empty for scripts, which send credentials with each request
    csrf: str = field(default="", repr=False)
    #: the token of the session; empty without one
    session: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def is_logged_in(self) -> bool:
        return bool(self.identity.name)


@dataclass(slots=True)
class _Session:
    identity: Identity
    role: Role
    csrf: str
    expires: float


class Sessions:
    """The people who have logged in. Used on the event loop."""

    def __init__(
        self,
        authenticator: Authenticator,
        roles: Roles,
        *,
        lifetime_s: float,
        needs_login: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``needs_login`` says whether people can log in at all."""
        self._authenticator = authenticator
        self.roles = roles
        self._lifetime_s = lifetime_s
        self.has_logins = needs_login
        self._now = now
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    async def authenticate(self, request: Request) -> Identity:
        """Note who sends a request, and return the identity. Raise HttpError if credentials are wrong."""
        caller = await self._caller(request)
        request.scope[_SCOPE_KEY] = caller
        return caller.identity

    async def _caller(self, request: Request) -> Caller:
        if self.has_logins and "authorization" in request.headers:
            identity = await self._authenticator(request)
            assert identity is not None
            return Caller(identity, self.roles.of(identity.name))
        token = _cookie(request)
        session = self._sessions.get(token)
        if session is not None and session.expires > self._now() and not session.identity.is_expired:
            return Caller(session.identity, session.role, session.csrf, token)
        self._sessions.pop(token, None)
        return Caller(Identity(), self.roles.anonymous)

    async def log_in(self, request: Request, name: str, password: str) -> str:
        """Return the cookie of a new session. Raise HttpError 401 if name or password are wrong, 429 after too many."""
        if len(name) + len(password) > _CREDENTIALS_CHARACTERS_MAX:
            raise HttpError(401, 40101, "the name or the password is too long")
        text = base64.b64encode(f"{name}:{password}".encode()).decode()
        scope = {**request.scope, "headers": [(b"authorization", f"Basic {text}".encode())]}
        identity = await self._authenticator(Request(scope))
        assert identity is not None
        token = secrets.token_urlsafe(32)
        expires = self._now() + self._lifetime_s
        self._sessions[token] = _Session(identity, self.roles.of(identity.name), secrets.token_urlsafe(32), expires)
        while len(self._sessions) > _SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return _cookie_text(token, int(self._lifetime_s), is_secure=request.url.scheme == "https")

    def log_out(self, caller: Caller) -> str:
        """End the session and return the cookie that removes it from the browser."""
        self._sessions.pop(caller.session, None)
        return _cookie_text("", 0, is_secure=False)

    def check_form(self, caller: Caller, token: str) -> None:
        """Raise HttpError 403 if a form was not sent by a page of this session."""
        if caller.session and not hmac.compare_digest(caller.csrf.encode(), token.encode()):
            raise HttpError(403, 40303, "this form belongs to an earlier login; open the page again and repeat")

    def check_role(self, caller: Caller, needed: Role) -> None:
        """Raise HttpError: 401 if a login would help, 403 if not."""
        if self.roles.allows(caller.role, needed):
            return
        if not caller.is_logged_in and self.has_logins:
            raise HttpError(401, 40101, "log in to do this")
        if not self.roles.allows(Role.ADMIN, needed):
            raise HttpError(403, 40301, "this console changes nothing, because read.only=true")
        raise HttpError(403, 40301, f"this needs the role {needed.name.lower()}; you have {caller.role.name.lower()}")


def caller_of(request: Request) -> Caller:
    found = request.scope[_SCOPE_KEY]
    assert isinstance(found, Caller)
    return found


def _cookie(request: Request) -> str:
    """Return the token in the cookie of the session; empty without one."""
    try:
        cookies = SimpleCookie(request.headers.get("cookie", ""))
    except CookieError:
        return ""
    found = cookies.get(COOKIE)
    return found.value if found is not None else ""


def _cookie_text(token: str, age_s: int, *, is_secure: bool) -> str:
    secure = "; Secure" if is_secure else ""
    return f"{COOKIE}={token}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"
