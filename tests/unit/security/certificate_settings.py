"""Settings of a listener and files for tests of certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ottla.model.settings_security import LISTENER_SETTINGS, ListenerOverrides, SecuritySettings


def settings(**texts: str) -> Any:
    """Return the settings of a listener; ``ssl_client_auth`` is ssl.client.auth."""
    shared = SecuritySettings()
    for row in LISTENER_SETTINGS.values():
        vars(shared)[row.attribute] = row.parse(texts[row.attribute]) if row.attribute in texts else row.default
    return ListenerOverrides({}).of("SSL", shared)


def write(path: Path, data: bytes, mode: int = 0o600) -> str:
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)
