"""The files of a project for Spark Declarative Pipelines: the specification, a README, and what `export` made."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ottla.model.errors import OttlaError
from ottla.pipeline.declaration import Declaration, TopicSink
from ottla.pipeline.layout import Layout
from ottla.pipeline.sdp.export import DEFINITIONS, Project

SPECIFICATION: Final = "spark-pipeline.yml"
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    # Spark's default of 200 is for clusters; the first run writes the number into the checkpoints.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # All streams of a Python data source share an environment that Spark does not guard: they must not start together.
    "spark.sql.pipelines.execution.maxConcurrentFlows": "1",
}
#: settings that a session has from its start on, although their names begin with `spark.sql.`
_STATIC: Final = ("spark.sql.catalogImplementation", "spark.sql.warehouse.", "spark.sql.extensions", "spark.sql.hive.")
#: tables that are still there in the next run, and a server that only this machine reaches
_COMMAND: Final = {
    "spark.sql.catalogImplementation": "hive",
    "spark.connect.grpc.binding.address": "127.0.0.1",
}


class ProjectExists(OttlaError):
    """The directory has files already; the text says what to do."""


def project_files(declaration: Declaration, project: Project) -> dict[str, str]:
    """Return the text of all files of a project, by path."""
    return {
        SPECIFICATION: _specification(declaration),
        "README.md": _readme(declaration, project),
        **project.files,
    }


def write_project(declaration: Declaration, project: Project, directory: str, *, force: bool = False) -> list[str]:
    """Write a project and return the paths of its files. Raise ProjectExists if the directory has files.

    With `force`, files of an earlier export are overwritten; other files stay.
    """
    root, beside = Path(directory), Path(declaration.file).parent
    if root.exists() and (not root.is_dir() or any(root.iterdir())) and not force:
        raise ProjectExists(f"{directory} is not empty; choose another --out, or add --force to overwrite its files")
    contents = {path: text.encode() for path, text in project_files(declaration, project).items()}
    for path, source in project.copies.items():
        if (beside / source).is_file():
            contents[path] = (beside / source).read_bytes()
    for path, data in contents.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return list(contents)


def missing_modules(declaration: Declaration, project: Project) -> list[str]:
    """Return modules of Python steps that are not beside the declaration, and must be installed where Spark runs."""
    beside = Path(declaration.file).parent
    return [
        Path(path).stem
        for path, source in project.copies.items()
        if path.startswith("modules/") and not (beside / source).is_file()
    ]


def command(declaration: Declaration) -> list[str]:
    """Return the command that runs a project in its directory."""
    others = {name: value for name, value in declaration.spark.items() if not _is_runtime(name)}
    words = ["spark-pipelines", "run"]
    for name, value in (_COMMAND | others).items():
        words += ["--conf", f"{name}={value}"]
    return words


def _is_runtime(name: str) -> bool:
    return name.startswith("spark.sql.") and not name.startswith(_STATIC)


def _specification(declaration: Declaration) -> str:
    layout = Layout.of(declaration)
    storage = f"{layout.checkpoints}/{declaration.name}/sdp"
    settings = _SETTINGS | {name: value for name, value in declaration.spark.items() if _is_runtime(name)}
    lines = [
        f"name: {json.dumps(declaration.name)}",
        "# Checkpoints. A run continues where the one before ended, as long as this directory exists.",
        f"storage: {json.dumps(storage if '://' in storage else f'file://{storage}')}",
        "libraries:",
        "  - glob:",
        f"      include: {DEFINITIONS}/**",
        "configuration:",
        *(f"  {name}: {json.dumps(value)}" for name, value in settings.items()),
    ]
    return "\n".join(lines) + "\n"


def _readme(declaration: Declaration, project: Project) -> str:
    lines = [
        f"# {declaration.name}",
        "",
        f"A project for Spark Declarative Pipelines, exported from {Path(declaration.file).name} by "
        "`ottla pipeline export --to sdp`.",
        "",
        "    pip install 'PATH_OF_THE_CHECKOUT[sdp]'    # a checkout of Ottla, which is not on PyPI",
        *(f"    {line}" for line in _topic_commands(declaration, project)),
        "    export PYSPARK_PYTHON=python",
        f"    {shlex.join(command(declaration))}",
        "",
        "Run it in this directory: Spark keeps the catalog in `metastore_db` and the tables in `spark-warehouse`. "
        "`--full-refresh` and `--full-refresh-all` write all rows to the topics again.",
    ]
    if project.notes:
        lines += ["", "Differences from the pipeline:", "", *(f"- {note.summary}" for note in project.notes)]
    return "\n".join(lines) + "\n"


def _topic_commands(declaration: Declaration, project: Project) -> Iterator[str]:
    """Yield commands that create the topics of sinks."""
    for topic in project.topics:
        words = ["ottla", "topic", "create", topic.topic or "", "--if-not-exists", "-b", declaration.brokers]
        if isinstance(topic, TopicSink):
            words += ["--partitions", str(topic.partitions)] if topic.partitions is not None else []
            for name, value in topic.config.items():
                words += ["--config", f"{name}={value}"]
        yield shlex.join(words)
