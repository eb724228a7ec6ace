"""Who may read and change the nodes in ZooKeeper. Pure.

With ``zookeeper.set.acl=true`` each node has two entries, as Kafka's nodes have:

    digest:USER:HASH   all rights     the brokers, which authenticate with ``zookeeper.auth.digest``
    world:anyone       read           everyone else; not for nodes with secrets, and those that say who may do what

ZooKeeper's scheme "digest" accepts every user name with every password. What protects the nodes is that their ACLs name
the hash of one user and password.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final, NamedTuple

from ottla.broker.metadata.nodes import CLUSTER_SECRET
from ottla.broker.metadata.store import UnusableStore, is_below

READ, ALL = 1, 31
#: nodes that only brokers may read, with all nodes below them
SECRET_PATHS: Final = (
    "/config/users", "/config/brokers", "/kafka-acl", "/kafka-acl-extended", "/delegation_token", CLUSTER_SECRET,
)  # fmt: skip
_INT = Struct("!i")


class Entry(NamedTuple):
    """One entry of the ACL of a node."""

    permissions: int
    scheme: str
    identity: str


_EVERYONE = "world", "anyone"
OPEN: Final = (Entry(ALL, *_EVERYONE),)


def encode_acl(entries: tuple[Entry, ...]) -> bytes:
    """Return an ACL as ZooKeeper's protocol has it: the number of entries, then each of them."""
    parts = [_INT.pack(len(entries))]
    for permissions, *texts in entries:
        parts.append(_INT.pack(permissions))
        parts += [_INT.pack(len(text.encode())) + text.encode() for text in texts]
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """How a broker authenticates to ZooKeeper, and whether it protects its nodes."""

    #: USER:PASSWORD; empty: it does not authenticate
    digest: str = field(default="", repr=False)
    sets_acl: bool = False
    #: returns a TLS context for a new connection; None: connections do not use TLS
    tls: Callable[[], Any] | None = field(default=None, repr=False)

    def check(self) -> None:
        """Raise UnusableStore if the settings contradict each other. Secrets are not shown."""
        user, colon, password = self.digest.partition(":")
        if self.digest and not (user and colon and password):
            raise UnusableStore("zookeeper.auth.digest has not the form USER:PASSWORD: correct it")
        if self.sets_acl and not self.digest:
            raise UnusableStore(
                "zookeeper.set.acl=true needs zookeeper.auth.digest=USER:PASSWORD: set it, the same for all brokers"
            )

    def entries_of(self, path: str) -> tuple[Entry, ...]:
        """Return the ACL that the node at a path below the chroot should have."""
        if not self.sets_acl:
            return OPEN
        brokers = Entry(ALL, "digest", digest_identity(self.digest))
        if any(is_below(secret, path) for secret in SECRET_PATHS):
            return (brokers,)
        return brokers, Entry(READ, *_EVERYONE)

    def encoded(self, path: str) -> bytes:
        return encode_acl(self.entries_of(path)) if self.sets_acl else OPEN_ACL


OPEN_ACL: Final = encode_acl(OPEN)
NO_SECURITY: Final = ZooKeeperSecurity()


def digest_identity(digest: str) -> str:
    """Return the user and the hash that ZooKeeper has in ACLs for USER:PASSWORD.

    >>> digest_identity("super:admin")
    'super:xQJmxLMiHGwaqBvst5y6rkB6HQs='
    """
    user = digest.partition(":")[0]
    # ZooKeeper's protocol prescribes SHA-1.
    return f"{user}:{base64.b64encode(hashlib.sha1(digest.encode()).digest()).decode()}"
