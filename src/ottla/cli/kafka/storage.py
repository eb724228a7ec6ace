"""kafka-storage: the log directories of a server.properties, before the first start of a broker.

A broker of Ottla prepares its directories when it starts, and makes the id of the cluster then. So `format` checks the
file and creates the directories, for scripts that were written for Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ottla.cli.kafka import releases
from ottla.cli.kafka.arguments import Given, Syntax, argument
from ottla.cli.kafka.arguments import main as run_main
from ottla.cli.kafka.errors import ToolError
from ottla.cli.kafka.features import print_dependencies, print_mapping
from ottla.cli.kafka.metadata_quorum import random_id
from ottla.cli.kafka.server_start import settings_of
from ottla.cli.kafka.tool import FAILED, OK, print_error, print_line
from ottla.env.disk import DIRECTORY_MODE
from ottla.model.settings import parse_properties

_META: Final = "meta.properties"
_DEFAULT: Final = "/tmp/kafka-logs"
_CONFIG = argument("--config", "-c", metavar="FILE", is_required=True, help="The broker's server.properties.")
_RELEASE = argument("--release-version", "-r", metavar="VERSION", help="A release of Kafka.")
_FEATURE = argument("--feature", "-f", metavar="FEATURE", is_repeatable=True, help="A feature and its level.")
SYNTAX: Final = Syntax(
    name="kafka-storage",
    summary="Look at the log directories of a broker, and prepare them.",
    commands=(
        Syntax(
            name="kafka-storage info", summary="Print the log directories and their owner.", arguments=(_CONFIG,)
        ),
        Syntax(
            name="kafka-storage format",
            summary="Check the file and create the log directories; the broker does the rest when it starts.",
            arguments=(
                _CONFIG,
                argument("--cluster-id", "-t", metavar="ID", is_required=True, help="Ignored: the broker makes an id."),
                argument("--add-scram", "-S", metavar="CREDENTIAL", is_repeatable=True, help="Refused: see below."),
                argument("--ignore-formatted", "-g", help="Succeed if a directory is in use."),
                _RELEASE,
                _FEATURE,
                argument("--standalone", "-s", help="One broker that is its own controller."),
                argument("--no-initial-controllers", "-N", help="Accepted."),
                argument("--initial-controllers", "-I", metavar="CONTROLLERS", help="Refused: see below."),
            ),
            exclusive=(("standalone", "no-initial-controllers", "initial-controllers"),),
        ),
        Syntax(
            name="kafka-storage version-mapping", summary="Print the levels of features in a release.",
            arguments=(_RELEASE,),
        ),
        Syntax(
            name="kafka-storage feature-dependencies", summary="Print which other levels a level needs.",
            arguments=(_FEATURE,),
        ),
        Syntax(name="kafka-storage random-uuid", summary="Print a random id."),
    ),
)  # fmt: skip
_SCRAM_HELP: Final = (
    "--add-scram is not possible here: a broker keeps its users in the cluster's metadata. Create the user for the "
    "brokers with 'ottla security init', and others with 'ottla user' or kafka-configs"
)
_CONTROLLERS_HELP: Final = (
    "--initial-controllers is not possible here: Ottla's brokers form a cluster with ZooKeeper. Start "
    "zookeeper-server-start, and set zookeeper.connect in the file"
)


def main(words: Sequence[str]) -> int:
    """Run the tool and return its exit code."""
    return run_main(SYNTAX, words, _run, help_code=0)


def _run(given: Given) -> int:
    if given.command == "random-uuid":
        print_line(random_id())
    elif given.command == "version-mapping":
        print_mapping(given["release-version"])
    elif given.command == "feature-dependencies":
        print_dependencies(given["feature"])
    elif given.command == "info":
        return _info(directories(parse_properties(Path(given["config"]).read_text("utf-8"))))
    else:
        _format(given)
    return OK


def directories(settings: Mapping[str, str]) -> list[Path]:
    """Return the log directories of a file."""
    text = settings.get("log.dirs") or settings.get("log.dir") or _DEFAULT
    return [Path(each.strip()) for each in text.split(",") if each.strip()]


def _info(listed: Sequence[Path]) -> int:
    present = [path for path in listed if path.is_dir()]
    if present:
        print_line("Found log directory:" if len(present) == 1 else "Found log directories:")
        _print_all(present)
    metadata = [parse_properties((path / _META).read_text()) for path in present if (path / _META).exists()]
    if metadata:
        fields = ", ".join(f"{name}={value}" for name, value in sorted(metadata[0].items()))
        print_line(f"Found metadata: {{{fields}}}\n")
    problems = [f"{path} does not exist" for path in listed if path not in present]
    problems += [f"{path} is not formatted." for path in present if not (path / _META).exists()]
    if problems:
        print_line("Found problem:" if len(problems) == 1 else "Found problems:")
        _print_all(problems)
    return FAILED if problems else OK


def _print_all(lines: Sequence[object]) -> None:
    for line in lines:
        print_line(f"  {line}")
    print_line()


def _format(given: Given) -> None:
    if given.has("add-scram"):
        raise ToolError(_SCRAM_HELP)
    if given.has("initial-controllers"):
        raise ToolError(_CONTROLLERS_HELP)
    version = given["release-version"] or releases.LATEST
    try:
        releases.level_of(version)
    except ValueError:
        raise ToolError(f"Unknown release version '{version}'.") from None
    for path in directories(settings_of(given["config"], {})):
        if (path / _META).exists():
            if not given.has("ignore-formatted"):
                raise ToolError(
                    f"Log directory {path} is already formatted. Use --ignore-formatted to ignore this directory and "
                    "format the others."
                )
            continue
        path.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        what = "dynamic metadata voter" if given.has("standalone") else "metadata"
        print_line(f"Formatting {what} directory {path} with metadata.version {version}.")
    print_error("the broker makes the id of the cluster when it starts for the first time; kafka-cluster prints it")
