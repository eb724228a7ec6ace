"""The files of `ottla security init`, and the certificates of `ottla cert`.

    DIR/server.properties   settings of the broker
    DIR/client.properties   settings of clients that log in as the admin user
    DIR/tls/ca.pem          certificate of the authority, which all clients need
    DIR/tls/ca.key          key of the authority
    DIR/tls/NAME.pem        key and certificate of a broker or a client
    DIR/metadata.db         metadata of the broker, with the admin user

Files with a key or a password can be read by their owner only.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ottla.broker.metadata.access_nodes import ACCESS_SKELETON, entity_path
from ottla.broker.metadata.embedded import FILE_NAME, EmbeddedStore
from ottla.broker.metadata.nodes import config_json, ops_create_skeleton
from ottla.broker.metadata.store import Create, Op
from ottla.cli.connection import load_properties
from ottla.cli.security_clients import Login, client_settings, java_settings
from ottla.env.disk import DIRECTORY_MODE
from ottla.log.directories import META
from ottla.model.types import Endpoint
from ottla.security.authority import is_pair, issue, new_authority
from ottla.security.certificates import KeyPair, read_key_file
from ottla.security.errors import SecurityConfigError
from ottla.security.quotas import Entity
from ottla.security.salts import SALT_BYTES
from ottla.security.scram import Mechanism, ScramCredential

SERVER, CLIENT, TLS = "server.properties", "client.properties", "tls"
#: what `ottla security init` creates and never overwrites
NEW_FILES = (SERVER, CLIENT, TLS)
BROKER = "broker"
_AUTHORITY, _AUTHORITY_KEY = "ca.pem", "ca.key"
_AUTHORITY_DAYS = 3650
_PRIVATE, _PUBLIC = 0o600, 0o644
_PASSWORD_BYTES = 24
_ITERATIONS = 8192
_MECHANISM = Mechanism.SCRAM_SHA_512
#: names and addresses by which clients on the same machine reach the broker
_LOCAL = ("localhost", "127.0.0.1", "::1")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")

_SERVER_TEXT = """\
# Written by `ottla security init`. docs/operate/security.md explains the settings.
broker.id={broker_id}
log.dirs={data}

# SASL_SSL is for clients with a user name and a password, SSL for clients and brokers with a certificate.
listeners={listeners}
{advertised}inter.broker.listener.name=SSL

# The broker notices new files and uses them for new connections.
ssl.keystore.type=PEM
ssl.keystore.location={data}/tls/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={data}/tls/ca.pem
ssl.client.auth=required
# The user of a certificate is its common name.
ssl.principal.mapping.rules=RULE:^CN=([^,]+)$/$1/,DEFAULT

# The metadata store has the users of SCRAM.
sasl.enabled.mechanisms={mechanism}

# Users may do what ACLs allow. Super users may do everything.
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{admin};User:{broker}
allow.everyone.if.no.acl.found=false
"""


class Created(NamedTuple):
    """What `ottla security init` has created."""

    config: Path
    client_config: Path
    #: paths and what they are for
    files: dict[str, str]
    #: settings by client: a mapping, or lines of code
    clients: Mapping[str, Any]


def create(data: Path, *, hosts: Sequence[str], port: int, admin: str, days: int) -> Created:
    """Create everything. Raise SecurityConfigError or StoreError."""
    check_name(admin)
    if admin == BROKER:
        raise SecurityConfigError(f"{BROKER} is the name of the broker's certificate; choose another one with --admin")
    broker_id = _owner_of(data)
    now = datetime.datetime.now(datetime.UTC)
    tls = data / TLS
    authority = new_authority(f"Ottla CA {secrets.token_hex(4)}", now=now, days=_AUTHORITY_DAYS)
    pairs = {
        BROKER: issue(authority, BROKER, hosts=[*hosts, *_LOCAL], for_broker=True, now=now, days=days),
        admin: issue(authority, admin, for_broker=False, now=now, days=days),
    }
    host = hosts[0] if hosts else "localhost"
    addresses = [Endpoint("SASL_SSL", host, port), Endpoint("SSL", host, port + 1 if port else 0)]
    login = Login(
        bootstrap=str(addresses[0]).partition("://")[2], mechanism=_MECHANISM.title, user=admin,
        password=secrets.token_urlsafe(_PASSWORD_BYTES), authority=str(tls / _AUTHORITY),
    )  # fmt: skip
    data.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    # First, because it fails if the broker runs or has this user.
    asyncio.run(_store_user(data / FILE_NAME, admin, login.password))
    tls.mkdir(DIRECTORY_MODE)
    write_new(tls / _AUTHORITY_KEY, authority.key, _PRIVATE)
    write_new(tls / _AUTHORITY, authority.certificates, _PUBLIC)
    for name, pair in pairs.items():
        write_new(tls / f"{name}.pem", pair.key + pair.certificates, _PRIVATE)
    java = "".join(f"{name}={text}\n" for name, text in java_settings(login).items())
    write_new(data / CLIENT, java.encode(), _PRIVATE)
    bound = [each._replace(host="0.0.0.0" if hosts else "127.0.0.1") for each in addresses]
    advertised = f"advertised.listeners={','.join(map(str, addresses))}\n" if hosts else ""
    server = _SERVER_TEXT.format(
        broker_id=broker_id, data=data, listeners=",".join(map(str, bound)), advertised=advertised,
        mechanism=_MECHANISM.title, admin=admin, broker=BROKER,
    )  # fmt: skip
    write_new(data / SERVER, server.encode(), _PRIVATE)
    files = {
        str(data / SERVER): "settings of the broker",
        str(data / CLIENT): f"settings of clients that log in as {admin}, for --command-config",
        str(tls / _AUTHORITY): "certificate of the authority, which every client needs",
        str(tls / _AUTHORITY_KEY): "key of the authority: keep a copy of it in a safe place",
        str(tls / f"{BROKER}.pem"): "key and certificate of the broker",
        str(tls / f"{admin}.pem"): f"key and certificate of {admin}, for the listener SSL",
    }
    return Created(data / SERVER, data / CLIENT, files, client_settings(login))


def check_name(name: str) -> None:
    """Raise SecurityConfigError if a name cannot be that of a file and of a user."""
    if _FILE_NAME.fullmatch(name) is None or name == "ca":
        raise SecurityConfigError(
            f"{name!r} is not a valid name of a certificate; use letters, digits, '.', '_' and '-'"
        )


def write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a file that does not exist. Raise SecurityConfigError if it does."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise SecurityConfigError(
            f"{path} exists and is not overwritten; choose another name, or move the file"
        ) from None
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)


def load_authority(data: Path, moved_key: Path | None = None) -> KeyPair:
    """Return the authority of a directory, with its key from another file if one is given. Raise SecurityConfigError.

    The error says where the key was looked for and how to name another place.
    """
    certificate = data / TLS / _AUTHORITY
    key = data / TLS / _AUTHORITY_KEY if moved_key is None else moved_key
    if not certificate.exists():
        raise SecurityConfigError(
            f"{certificate} does not exist; create an authority with ottla security init --data {data}"
        )
    if not key.exists():
        advice = "if the key was moved to a safe place, name the file with --ca-key FILE"
        if moved_key is not None:
            advice = "check --ca-key"
        raise SecurityConfigError(f"the key of the authority {certificate} is not in {key}; {advice}")
    pair = KeyPair(read_key_file(str(key)), certificate.read_bytes())
    if not is_pair(pair):
        raise SecurityConfigError(f"{key} is not the key of the authority {certificate}; name its key with --ca-key")
    return pair


def _owner_of(data: Path) -> int:
    """Return the id of the broker that the directory belongs to, 0 for a new one. Raise SecurityConfigError."""
    if not (data / META).exists():
        return 0
    if not (data / FILE_NAME).exists():
        raise SecurityConfigError(
            f"{data} belongs to a broker of a cluster, whose users are in ZooKeeper; choose a new directory for the "
            "certificates with --data"
        )
    meta = load_properties(str(data / META))
    number = meta.get("broker.id", meta.get("node.id", ""))
    return int(number) if number.isdigit() else 0


async def _store_user(path: Path, name: str, password: str) -> None:
    """Write the credentials of a user to the metadata of a broker that does not run. Raise StoreError."""
    credential = ScramCredential.from_password(_MECHANISM, password, secrets.token_bytes(SALT_BYTES), _ITERATIONS)
    store = EmbeddedStore.open(path)
    try:
        nodes = await store.load("/")
        node = entity_path(Entity(user=name))
        if node in nodes:
            raise SecurityConfigError(f"the user {name} exists; choose another name with --admin")
        ops: list[Op] = [*ops_create_skeleton(nodes)]
        ops += [Create(each) for each in ACCESS_SKELETON if each not in nodes]
        ops.append(Create(node, config_json({_MECHANISM.title: credential.text()})))
        await store.multi(ops)
    finally:
        await store.close()
