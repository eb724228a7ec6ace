"""Errors of this package."""

from __future__ import annotations

from ottla.model.errors import AuthenticationFailed, OttlaError

__all__ = ["AuthenticationFailed", "KeysBeingRead", "SecurityConfigError"]


class SecurityConfigError(OttlaError):
    """A setting of TLS, SASL or ACLs is wrong; the text says what to change."""


class KeysBeingRead(OttlaError):
    """A login needs a key that may be in the document that a thread is reading. Check the login again afterwards."""
