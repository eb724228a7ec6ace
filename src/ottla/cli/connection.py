"""The options with which commands find their cluster.

The first of these that has a property wins: its own flag, -X, --command-config, a profile that --profile names, the
environment, another profile, the default. See `profiles` for the profile of a command.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ottla.cli.options import gathered_options
from ottla.cli.profiles import Choice, chosen, profile_option

if TYPE_CHECKING:
    from ottla.cli.cluster import ClusterClient

BOOTSTRAP_ENVIRONMENT = "OTTLA_BOOTSTRAP_SERVER"
BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
TIMEOUT_S_DEFAULT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The address of a cluster, the properties of its clients, and the limit for each request."""

    bootstrap: str
    #: whether the user named an address; if not, it is the default
    bootstrap_named: bool
    #: librdkafka properties, without bootstrap.servers
    properties: Mapping[str, str]
    timeout_s: float

    def connect(self) -> ClusterClient:
        """Return a client of the cluster, see `cluster.connect`. The client is imported only when a command uses it."""
        from ottla.cli.cluster import connect

        return connect(self)


def parse_pairs(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """A click callback for repeatable KEY=VALUE options."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE", ctx, parameter)
        pairs[key.strip()] = value
    return pairs


def _connection(
    bootstrap_server: str | None, properties: dict[str, str], command_config: str | None, timeout: float
) -> ClusterOptions:
    filed = load_properties(command_config) if command_config is not None else {}
    return make_connection(bootstrap_server, properties, filed, timeout, choice=chosen())


#: -b, -X, --command-config, --timeout and --profile; the command gets a `connection`
connection_options = gathered_options(
    "connection",
    _connection,
    click.option(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        help=f"Bootstrap servers.  [env: {BOOTSTRAP_ENVIRONMENT}; default: {BOOTSTRAP_DEFAULT}]",
    ),
    click.option(
        "-X",
        "properties",
        metavar="KEY=VALUE",
        multiple=True,
        callback=parse_pairs,
        help="Set a librdkafka property, such as security.protocol. Repeatable.",
    ),
    click.option(
        "--command-config",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="Read client properties from a file of KEY=VALUE lines.",
    ),
    click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0.1),
        default=TIMEOUT_S_DEFAULT,
        show_default=True,
        help="Time limit for each request to the cluster.",
    ),
    profile_option,
)


def make_connection(
    bootstrap: str | None,
    properties: Mapping[str, str],
    filed: Mapping[str, str],
    timeout_s: float,
    *,
    choice: Choice | None = None,
) -> ClusterOptions:
    merged = {**filed, **properties}
    given = bootstrap or _pop_address(merged)
    if choice is None:
        named = given or os.environ.get(BOOTSTRAP_ENVIRONMENT)
    else:
        own, address = choice_properties(choice)
        named, is_used = choice.address(given, address, BOOTSTRAP_ENVIRONMENT)
        merged = {**own, **merged} if is_used else merged
    return ClusterOptions(
        bootstrap=named or BOOTSTRAP_DEFAULT,
        bootstrap_named=named is not None,
        properties=_translate_java(merged),
        timeout_s=timeout_s,
    )


def choice_properties(choice: Choice) -> tuple[dict[str, str], str | None]:
    """Return the properties of a profile and of the file that it names, and the address. Its own take precedence."""
    path = choice.profile.command_config
    properties = {**(load_properties(path) if path is not None else {}), **choice.profile.properties}
    address = _pop_address(properties)
    return properties, choice.profile.bootstrap or address


def _pop_address(properties: dict[str, str]) -> str | None:
    found = [properties.pop(name, None) for name in ("bootstrap.servers", "metadata.broker.list")]
    return found[0] or found[1]


def load_properties(path: str) -> dict[str, str]:
    """Read a Java-style properties file: KEY=VALUE, # and ! for comments, a backslash joins lines."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"\\\r?\n[ \t]*", "", file.read())
    pairs = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        match = re.fullmatch(r"([^=:\s]+)\s*[=:\s]\s*(.*)", line)
        if match is None:
            # The line is not shown, because it may be a part of a password.
            raise click.UsageError(f"{path}: line {number} is not of the form KEY=VALUE")
        pairs[match[1]] = match[2]
    return pairs


def split_addresses(bootstrap: str) -> list[tuple[str, int]]:
    """Return the addresses in `host:port,...`. Raise UsageError if one of them is not of this form."""
    # Imported by commands that connect to a cluster.
    from ottla.client.errors import PropertyRefused
    from ottla.client.protocol.metadata import parse_bootstrap

    try:
        return parse_bootstrap(bootstrap)
    except PropertyRefused as error:
        raise click.UsageError(str(error)) from None


#: settings of Java clients that librdkafka does not have and does not need
_JAVA_ONLY = (
    "ssl.enabled.protocols",
    "ssl.keystore.type",
    "ssl.protocol",
    "ssl.truststore.password",
    "ssl.truststore.type",
)
#: Java's names for PEM in the text of a setting, and those of librdkafka
_PEM_TEXTS = {
    "ssl.truststore.certificates": "ssl.ca.pem", "ssl.keystore.key": "ssl.key.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
}  # fmt: skip


def _translate_java(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties with librdkafka's names of TLS and SASL. Raise UsageError for a file that only Java reads.

    ssl.keystore.location means PEM or PKCS12 for Java, and PKCS12 for librdkafka.
    """
    truststore, keystore = (properties.get(f"ssl.{kind}store.location") for kind in ("trust", "key"))
    if truststore is not None:
        _refuse_java_store("truststore", properties.get("ssl.truststore.type", "JKS"), ("PEM",))
        del properties["ssl.truststore.location"]
        properties.setdefault("ssl.ca.location", truststore)
    # Without a type the name is librdkafka's, which means PKCS12.
    keystore_type = properties.get("ssl.keystore.type", "PKCS12")
    if keystore is not None:
        _refuse_java_store("keystore", keystore_type, ("PEM", "PKCS12"))
    if keystore is not None and keystore_type.upper() == "PEM":
        del properties["ssl.keystore.location"]
        properties.setdefault("ssl.certificate.location", keystore)
        properties.setdefault("ssl.key.location", keystore)
    for name, other in _PEM_TEXTS.items():
        if name in properties:
            properties.setdefault(other, properties.pop(name))
    if properties.get("ssl.endpoint.identification.algorithm") == "":
        properties["ssl.endpoint.identification.algorithm"] = "none"
    for name in _JAVA_ONLY:
        properties.pop(name, None)
    return _translate_jaas(properties)


def _refuse_java_store(kind: str, given: str, readable: tuple[str, ...]) -> None:
    if given.upper() not in readable:
        raise click.UsageError(
            f"ssl.{kind}.type={given} can only be read by Java; convert the file and set it to {' or '.join(readable)}"
        )


def _translate_jaas(properties: dict[str, str]) -> dict[str, str]:
    # Java clients keep user and password in one JAAS line, which librdkafka does not read.
    jaas = properties.pop("sasl.jaas.config", None)
    if jaas is not None:
        for word in ("username", "password"):
            match = re.search(rf'\b{word}\s*=\s*"((?:[^"\\]|\\.)*)"', jaas)
            if match is None:
                raise click.UsageError(
                    f"sasl.jaas.config has no {word}; set sasl.mechanism, sasl.username, sasl.password"
                )
            properties.setdefault(f"sasl.{word}", re.sub(r"\\(.)", r"\1", match[1]))
    return properties
