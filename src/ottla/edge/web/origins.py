"""Requests of web pages: cross-origin resource sharing (CORS), and the refusal of foreign pages.

A browser lets a page of any web site send some requests to this service, also to one that listens on loopback only. The
page cannot read the answer, but the request is done. So requests that change something are refused if they come from a
page of another origin, unless `access.control.allow.origin` allows it. Other clients send no Origin and are not
affected. A page has the origin of this service if its host is that of the request, which `hosts.py` has checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from ottla.edge.web.app import HttpError
from ottla.edge.web.settings import WebSettings

_SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")
#: how long a browser remembers the answer to a preflight request
_MAX_AGE_S: Final = 3600
_DEFAULT_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
_DEFAULT_HEADERS: Final = "Accept, Authorization, Content-Type"


class Origins:
    """Which web pages may use the service."""

    def __init__(self, settings: WebSettings) -> None:
        self._allowed = settings.access_control_allow_origin
        self._methods = ", ".join(settings.access_control_allow_methods) or _DEFAULT_METHODS
        self._headers = ", ".join(settings.access_control_allow_headers) or _DEFAULT_HEADERS
        self._exposed = ", ".join(settings.access_control_expose_headers)

    def headers_for(self, method: str, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that the answer needs. Raise HttpError 403 if the page may not send this request."""
        origin = headers.get("origin", "")
        if not origin:
            return {}
        exposed = {} if method == "OPTIONS" or not self._exposed else {"access-control-expose-headers": self._exposed}
        if "*" in self._allowed:
            return {"access-control-allow-origin": "*", **exposed}
        if origin in self._allowed:
            return {"access-control-allow-origin": origin, "vary": "Origin", **exposed}
        if method not in _SAFE_METHODS and not _is_same_host(origin, headers.get("host", "")):
            raise HttpError(403, 40301, "requests of web pages of this origin are not allowed")
        return {}

    def preflight_headers(self, headers: Mapping[str, str]) -> dict[str, str] | None:
        """Return the headers of the answer to a preflight request; None if the request is none or is not allowed."""
        if "access-control-request-method" not in headers:
            return None
        found = self.headers_for("OPTIONS", headers)
        if not found:
            return None
        return {
            **found, "access-control-allow-methods": self._methods, "access-control-allow-headers": self._headers,
            "access-control-max-age": str(_MAX_AGE_S),
        }  # fmt: skip


def _is_same_host(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower() != ""
    except ValueError:
        return False
