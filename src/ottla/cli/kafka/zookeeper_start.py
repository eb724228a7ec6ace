"""zookeeper-server-start: a ZooKeeper server with Kafka's zookeeper.properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.cli.kafka.errors import ToolError
from ottla.cli.kafka.server_start import start_daemon
from ottla.cli.kafka.tool import FAILED, guarded, print_error, print_line
from ottla.model.settings import parse_properties

if TYPE_CHECKING:
    from ottla.cli.zookeeper_server import Server

USAGE: Final = "USAGE: zookeeper-server-start.sh [-daemon] zookeeper.properties"
_DAEMON: Final = "-daemon"
_LOOPBACK: Final = "127.0.0.1"
_PORT: Final = 2181
_TICK_MS: Final = 3000
_SYNC_LIMIT: Final = 5
_MEMBER: Final = "server."
#: settings with an attribute of `Server`; the others are written into its file as they are
_READ: Final = frozenset({"dataDir", "clientPort", "clientPortAddress", "tickTime", "syncLimit"})
#: settings that `ottla zookeeper` sets for safety, or that it does not offer
_FIXED: Final = ("admin.enableServer", "admin.serverPort", "secureClientPort", "secureClientPortAddress")


def main(words: Sequence[str]) -> int:
    """Run the tool and return its exit code."""
    return guarded(lambda: _main(list(words)))


def _main(words: list[str]) -> int | None:
    if words[:1] == [_DAEMON] and len(words) > 1:
        return start_daemon("zookeeper-server-start", words[1:], name="zookeeper")
    if len(words) != 1 or words[0].startswith("-"):
        print_line(USAGE)
        return FAILED
    server = server_of(words[0])
    # Together with what it imports, it brings click.
    from ottla.cli.zookeeper import serve

    serve(server)
    return None


def server_of(path: str) -> Server:
    """Return the server that a file describes. Raise ToolError if it describes none."""
    from ottla.cli.zookeeper_server import Server

    settings = parse_properties(Path(path).read_text("utf-8"))
    if "dataDir" not in settings:
        raise ToolError(f"dataDir is not set in {path}; name the directory of the server's data")
    data = Path(settings["dataDir"])
    host = settings.get("clientPortAddress")
    if host is None:
        host = _LOOPBACK
        print_error(f"WARN listening on {host} only; set clientPortAddress for other machines, and TLS or a firewall")
    members = {int(name.removeprefix(_MEMBER)): text for name, text in settings.items() if name.startswith(_MEMBER)}
    for name in _FIXED:
        if settings.get(name, "false") not in ("", "false", "8080"):
            print_error(f"WARN {name} has no effect here; see 'ottla zookeeper --help'")
    rest = {
        name: text
        for name, text in settings.items()
        if name not in _READ and name not in _FIXED and not name.startswith(_MEMBER)
    }
    return Server(
        data=data,
        host=host,
        port=_number(settings, "clientPort", _PORT),
        number=_own_number(data) if members else 0,
        ensemble=members,
        tick_ms=_number(settings, "tickTime", _TICK_MS),
        sync_limit=_number(settings, "syncLimit", _SYNC_LIMIT),
        settings=rest,
    )


def _number(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ToolError(f"{name}={text} is not a number") from None


def _own_number(data: Path) -> int:
    """Return the number of this member of an ensemble, which ZooKeeper keeps in the file myid."""
    path = data / "myid"
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        raise ToolError(
            f"{path} file is missing, or has no number; write the number of this server.N into it"
        ) from None
