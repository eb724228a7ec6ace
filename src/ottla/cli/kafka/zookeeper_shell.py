"""zookeeper-shell: ZooKeeper's own shell, with the Java that `ottla zookeeper` uses."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ottla.cli.kafka.errors import ToolError
from ottla.cli.kafka.tool import FAILED, guarded, print_line
from ottla.model.settings import parse_properties

USAGE: Final = "USAGE: zookeeper-shell.sh zookeeper_host:port[/path] [-zk-tls-config-file file] [args...]"
_TLS_FLAG: Final = "-zk-tls-config-file"
#: Kafka's names of the settings of TLS, and those of ZooKeeper
_TLS_NAMES: Final = {
    "zookeeper.clientCnxnSocket": "zookeeper.clientCnxnSocket",
    "zookeeper.ssl.client.enable": "zookeeper.client.secure",
    "zookeeper.ssl.keystore.location": "zookeeper.ssl.keyStore.location",
    "zookeeper.ssl.keystore.password": "zookeeper.ssl.keyStore.password",
    "zookeeper.ssl.keystore.type": "zookeeper.ssl.keyStore.type",
    "zookeeper.ssl.truststore.location": "zookeeper.ssl.trustStore.location",
    "zookeeper.ssl.truststore.password": "zookeeper.ssl.trustStore.password",
    "zookeeper.ssl.truststore.type": "zookeeper.ssl.trustStore.type",
    "zookeeper.ssl.protocol": "zookeeper.ssl.protocol",
    "zookeeper.ssl.enabled.protocols": "zookeeper.ssl.enabledProtocols",
    "zookeeper.ssl.cipher.suites": "zookeeper.ssl.ciphersuites",
    "zookeeper.ssl.endpoint.identification.algorithm": "zookeeper.ssl.hostnameVerification",
    "zookeeper.ssl.crl.enable": "zookeeper.ssl.crl",
    "zookeeper.ssl.ocsp.enable": "zookeeper.ssl.ocsp",
}


def main(words: Sequence[str]) -> int:
    """Run the tool and return its exit code."""
    return guarded(lambda: _main(list(words)))


def _main(words: list[str]) -> int:
    if not words:
        print_line(USAGE)
        return FAILED
    server, rest = words[0], words[1:]
    if rest[:1] != [_TLS_FLAG]:
        return subprocess.run(_command(server, rest)).returncode
    if len(rest) < 2:
        raise ToolError(f"no filename given with option {_TLS_FLAG}")
    settings = tls_settings(parse_properties(Path(rest[1]).read_text("utf-8")))
    # In a file and not in the arguments, which every user of the machine can read. It is created with mode 600.
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
        file.writelines(f"{name}={value}\n" for name, value in settings.items())
        file.flush()
        return subprocess.run(_command(server, rest[2:], configuration=file.name)).returncode


def tls_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings under ZooKeeper's names. Raise ToolError for a name that Kafka's tool refuses."""
    found = {}
    for name, value in given.items():
        if name not in _TLS_NAMES:
            raise ToolError(f"{name} is not a setting of TLS; known are {', '.join(_TLS_NAMES)}")
        is_algorithm = name.endswith("endpoint.identification.algorithm")
        found[_TLS_NAMES[name]] = str(value.upper() == "HTTPS").lower() if is_algorithm else value
    return found


def _command(server: str, rest: Sequence[str], *, configuration: str | None = None) -> list[str]:
    from ottla.cli.zookeeper_server import ZooKeeperFailed, find_jars
    from ottla.spark.java import JavaMissing, find_java

    try:
        java = find_java(program="ZooKeeper").home / "bin" / "java"
    except JavaMissing as missing:
        raise ZooKeeperFailed(str(missing)) from missing
    # ZooKeeper's client loads classes of TLS also without it.
    jars = find_jars(is_tls=True)
    extra = [path for name in ("commons-cli", "jline-2") for path in sorted(jars[0].parent.glob(f"{name}*.jar"))]
    path = os.pathsep.join(map(str, [*jars, *extra]))
    options = ["-XX:TieredStopAtLevel=1", "-Dslf4j.internal.verbosity=ERROR"]
    configured = [] if configuration is None else ["-client-configuration", configuration]
    main_class = "org.apache.zookeeper.ZooKeeperMain"
    return [str(java), *options, "-cp", path, main_class, "-server", server, *configured, *rest]
