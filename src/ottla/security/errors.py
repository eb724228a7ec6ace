"""Errors of this package."""

from __future__ import annotations

from ottla.model.errors import AuthenticationFailed, OttlaError

__all__ = ["AuthenticationFailed", "SecurityConfigError"]


class SecurityConfigError(OttlaError):
    """A setting of TLS, SASL or ACLs is wrong; the text says what to change."""
