"""What a person may do in the console."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from ottla.edge.console.settings import ConsoleSettings
from ottla.edge.web.server import Listener
from ottla.model.types import is_loopback


class Role(enum.IntEnum):
    """Each role may do what the ones before it may."""

    NONE = 0
    #: read everything that the cluster shows to the user of the console
    VIEWER = 1
    #: produce, create and alter topics, reset offsets, register schemas
    EDITOR = 2
    #: delete, move replicas, elect leaders, change users, ACLs and quotas
    ADMIN = 3

    @classmethod
    def named(cls, text: str) -> Role:
        return cls[text.upper()]


class Roles:
    """The roles of the people who use one console."""

    def __init__(self, settings: ConsoleSettings, listeners: Sequence[Listener]) -> None:
        is_local = all(is_loopback(listener.host) for listener in listeners)
        anonymous = settings.role_anonymous or ("viewer" if is_local else "none")
        self.anonymous = Role.named(anonymous)
        self._default = Role.named(settings.role_default)
        self._by_name: Mapping[str, Role] = {
            name: Role.named(role) for name, _, role in (text.rpartition(":") for text in settings.roles)
        }
        self._read_only = settings.read_only

    def of(self, name: str) -> Role:
        """Return the role of a user who has logged in."""
        return self._by_name.get(name, self._default)

    def allows(self, role: Role, needed: Role) -> bool:
        """Return whether somebody with this role may do what needs the other one."""
        return role >= needed and not (self._read_only and needed > Role.VIEWER)
