"""The nodes of the metadata tree for ACLs, users, quotas and tokens, as Kafka stored them in ZooKeeper. Pure.

    /kafka-acl/Topic/NAME                     {"version": 1, "acls": [{"principal": "User:a", "host": "*",
    /kafka-acl-extended/prefixed/Topic/NAME    "permissionType": "Allow", "operation": "Read"}]}
    /config/users/NAME                        {"version": 1, "config": {"SCRAM-SHA-256": "salt=...",
    /config/users/NAME/clients/ID                                       "producer_byte_rate": "1048576"}}
    /config/clients/ID, /config/ips/IP        the same, without credentials
    /delegation_token/tokens/ID               {"version": 3, "owner": "User:a", "tokenRequester": "User:a",
                                               "renewers": ["User:b"], "issueTimestamp": 1, "maxTimestamp": 3,
                                               "expiryTimestamp": 2, "tokenId": "ID"}

Names are percent-encoded as Kafka's Sanitizer does it, ``<default>`` apart. A resource whose name has a slash or is
longer than a node's name may be gets its percent-encoded name, too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from ottla.broker.metadata.nodes import config_of, to_json
from ottla.security.acls import Entry, Operation, Pattern, PatternType, Permission, ResourceType
from ottla.security.quotas import DEFAULT, Entity, Quota
from ottla.security.salts import SaltShape
from ottla.security.sasl import Work
from ottla.security.scram import Mechanism, ScramCredential
from ottla.security.tokens import DelegationToken, TokenIndex

LITERAL_ACLS: Final = "/kafka-acl"
PREFIXED_ACLS: Final = "/kafka-acl-extended/prefixed"
USERS: Final = "/config/users"
CLIENTS: Final = "/config/clients"
IPS: Final = "/config/ips"
_TOKENS_ROOT: Final = "/delegation_token"
TOKENS: Final = f"{_TOKENS_ROOT}/tokens"

#: the paths of all these nodes begin with one of these
ACCESS_ROOTS: Final = ("/kafka-acl", USERS, CLIENTS, IPS, _TOKENS_ROOT)

_TYPES: Final = {
    ResourceType.TOPIC: "Topic", ResourceType.GROUP: "Group", ResourceType.CLUSTER: "Cluster",
    ResourceType.TRANSACTIONAL_ID: "TransactionalId", ResourceType.DELEGATION_TOKEN: "DelegationToken",
    ResourceType.USER: "User",
}  # fmt: skip
_TYPES_BY_TITLE: Final = {title: kind for kind, title in _TYPES.items()}

#: nodes that every tree with security has
ACCESS_SKELETON: Final = (
    LITERAL_ACLS, *(f"{LITERAL_ACLS}/{title}" for title in _TYPES_BY_TITLE),
    "/kafka-acl-extended", PREFIXED_ACLS, *(f"{PREFIXED_ACLS}/{title}" for title in _TYPES_BY_TITLE),
    USERS, CLIENTS, IPS, _TOKENS_ROOT, TOKENS,
)  # fmt: skip


def _title(name: str) -> str:
    """Return the name of a constant as Kafka's nodes have it: CLUSTER_ACTION is ClusterAction."""
    return "".join(word.capitalize() for word in name.split("_"))


_OPERATIONS: Final = {_title(each.name): each for each in Operation}
_PERMISSIONS: Final = {_title(each.name): each for each in Permission}


def sanitize(name: str) -> str:
    """Return a name as a part of a path, as Kafka's Sanitizer writes it."""
    if name == DEFAULT:
        return name
    encoded = quote(name, safe="-_.~").replace("~", "%7E")
    # "." and ".." are parts that ZooKeeper does not allow.
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded


def desanitize(name: str) -> str:
    return name if name == DEFAULT else unquote(name)


# -- ACLs -------------------------------------------------------------------------------------------------------------


def acl_path(pattern: Pattern) -> str:
    root = PREFIXED_ACLS if pattern.pattern_type is PatternType.PREFIXED else LITERAL_ACLS
    # Kafka writes the name as it is. A name that is no part of a path is encoded, with a mark that no topic has.
    name = pattern.name if _is_part(pattern.name) else "%" + quote(pattern.name, safe="").replace(".", "%2E")
    return f"{root}/{_TYPES[pattern.resource_type]}/{name}"


def _is_part(name: str) -> bool:
    return bool(name) and "/" not in name and name not in (".", "..") and "\0" not in name and not name.startswith("%")


def pattern_of(path: str) -> Pattern | None:
    """Return the pattern whose ACLs are at this path; None for other paths. Raise one of MALFORMED."""
    for root, pattern_type in ((PREFIXED_ACLS, PatternType.PREFIXED), (LITERAL_ACLS, PatternType.LITERAL)):
        if path.startswith(root + "/"):
            title, _, name = path.removeprefix(root + "/").partition("/")
            if not name:
                return None
            plain = unquote(name[1:]) if name.startswith("%") else name
            return Pattern(_TYPES_BY_TITLE[title], plain, pattern_type)
    return None


def acls_json(entries: Iterable[Entry]) -> bytes:
    rows = [
        {
            "principal": each.principal, "permissionType": _title(each.permission.name),
            "operation": _title(each.operation.name), "host": each.host,
        }
        for each in sorted(entries)
    ]  # fmt: skip
    return to_json({"version": 1, "acls": rows})


def acls_of(value: bytes) -> frozenset[Entry]:
    """Return the entries in the value of a node. Raise one of MALFORMED."""
    return frozenset(
        Entry(
            str(row["principal"]), str(row["host"]), _OPERATIONS[row["operation"]], _PERMISSIONS[row["permissionType"]]
        )
        for row in json.loads(value)["acls"]
    )


# -- users and quotas -------------------------------------------------------------------------------------------------


def entity_path(entity: Entity) -> str:
    """Return the node of the settings of a user, a client id, both of them, or an address."""
    if entity.ip is not None:
        return f"{IPS}/{sanitize(entity.ip)}"
    if entity.user is None:
        assert entity.client_id is not None
        return f"{CLIENTS}/{sanitize(entity.client_id)}"
    path = f"{USERS}/{sanitize(entity.user)}"
    return path if entity.client_id is None else f"{path}/clients/{sanitize(entity.client_id)}"


def entity_of(path: str) -> Entity | None:
    """Return whose settings are at this path; None for other paths."""
    for root in (USERS, CLIENTS, IPS):
        if path.startswith(root + "/"):
            name, _, rest = path.removeprefix(root + "/").partition("/")
            if root == IPS:
                return Entity(ip=desanitize(name))
            if root == CLIENTS:
                return Entity(client_id=desanitize(name))
            if not rest:
                return Entity(desanitize(name))
            kind, _, client_id = rest.partition("/")
            return Entity(desanitize(name), desanitize(client_id)) if kind == "clients" and client_id else None
    return None


def quotas_in(config: Mapping[str, str]) -> dict[str, float]:
    """Return the quotas in the settings of an entity. Raise ValueError."""
    names = {each.value for each in Quota}
    return {name: float(text) for name, text in config.items() if name in names}


def credentials_in(config: Mapping[str, str]) -> dict[Mechanism, ScramCredential]:
    """Return the SCRAM credentials in the settings of a user. Raise ValueError."""
    found = ((Mechanism.named(name), text) for name, text in config.items())
    return {mechanism: ScramCredential.parse(text) for mechanism, text in found if mechanism is not None}


# -- delegation tokens ------------------------------------------------------------------------------------------------


def token_path(token_id: str) -> str:
    return f"{TOKENS}/{token_id}"


def token_json(token: DelegationToken) -> bytes:
    return to_json({
        "version": 3, "owner": token.owner, "tokenRequester": token.requester, "renewers": list(token.renewers),
        "issueTimestamp": token.issued_ms, "maxTimestamp": token.expires_ms_max, "expiryTimestamp": token.expires_ms,
        "tokenId": token.token_id,
    })  # fmt: skip


def token_of(value: bytes) -> DelegationToken:
    """Return the token in the value of a node. Raise one of MALFORMED."""
    fields = json.loads(value)
    return DelegationToken(
        token_id=str(fields["tokenId"]), owner=str(fields["owner"]),
        # Nodes of version 1 and 2 have no requester, and none has renewers if there are none.
        requester=str(fields.get("tokenRequester", fields["owner"])),
        renewers=tuple(map(str, fields.get("renewers", ()))), issued_ms=int(fields["issueTimestamp"]),
        expires_ms=int(fields["expiryTimestamp"]), expires_ms_max=int(fields["maxTimestamp"]),
    )  # fmt: skip


class AccessView:
    """The ACLs, users, quotas and delegation tokens of the cluster, as the nodes say it."""

    def __init__(self) -> None:
        self.acls: dict[Pattern, frozenset[Entry]] = {}
        self.configs: dict[Entity, dict[str, str]] = {}
        #: by user name
        self.credentials: dict[str, dict[Mechanism, ScramCredential]] = {}
        #: the number of credentials of each mechanism by what clients see of them
        self.shapes: dict[Mechanism, Counter[SaltShape]] = {each: Counter() for each in Mechanism}
        #: the number of users with credentials by what is computed for their passwords
        self.works: Counter[Work] = Counter()
        #: by id
        self.tokens: dict[str, DelegationToken] = {}
        self.token_index = TokenIndex()

    def apply(self, path: str, value: bytes | None) -> Pattern | Entity | None:
        """Apply the change of a node. Return the ACLs or settings that changed; None for tokens and other nodes.

        Raise one of MALFORMED.
        """
        if path.startswith(TOKENS + "/"):
            token = token_of(value) if value else None
            token_id = path.removeprefix(TOKENS + "/")
            if token is None:
                self.tokens.pop(token_id, None)
                self.token_index.remove(token_id)
            else:
                self.tokens[token_id] = token
                self.token_index.add(token_id)
            return None
        pattern = pattern_of(path)
        if pattern is not None:
            entries = acls_of(value) if value else frozenset()
            self.acls.pop(pattern, None)
            if entries:
                self.acls[pattern] = entries
            return pattern
        entity = entity_of(path)
        if entity is None:
            return None
        config: dict[str, Any] = config_of(value) if value else {}
        quotas_in(config)  # a value that is no number is found here, not when it is used
        credentials = credentials_in(config)
        self.configs.pop(entity, None)
        if config:
            self.configs[entity] = config
        if entity.user is not None and entity.client_id is None:
            self._put_credentials(entity.user, credentials)
        return entity

    def _put_credentials(self, user: str, credentials: dict[Mechanism, ScramCredential]) -> None:
        """Replace the credentials of a user, which may be none."""
        before = self.credentials.pop(user, {})
        for mechanism, credential in before.items():
            self.shapes[mechanism] -= Counter([credential.shape])
        if before:
            self.works -= Counter([Work.of(before)])
        if credentials:
            self.credentials[user] = credentials
            self.works[Work.of(credentials)] += 1
        for mechanism, credential in credentials.items():
            self.shapes[mechanism][credential.shape] += 1
