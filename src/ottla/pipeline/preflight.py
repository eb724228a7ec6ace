"""Errors that can be known before Spark starts: brokers, topics, directories, functions of Python steps.

Spark takes 10 s or more to start, and reports a missing broker as a Java stack trace. Each check here takes
milliseconds if the answer is known, and at most `_ANSWER_S_MAX` for a broker that does not answer.
"""

from __future__ import annotations

import importlib.util
import os
import re
import time
from typing import Final

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, ConnectionLost, Unreachable
from ottla.client.protocol.metadata import parse_bootstrap
from ottla.model.errors import OttlaError
from ottla.pipeline.connecting import open_cluster
from ottla.pipeline.declaration import Declaration, PythonStep, TopicSink
from ottla.pipeline.layout import Layout

#: for one address; one that refuses connections is known at once
_ANSWER_S_MAX: Final = 5.0
#: beside the checkpoints of the flows
_ENVIRONMENT_FILE: Final = "_environment"
#: options of an object store for one question; by default deltalake repeats it for minutes
_STORE_LIMITS: Final = {"max_retries": "1", "retry_timeout": "5s", "connect_timeout": "5s", "timeout": "10s"}
#: deltalake writes errors for terminals
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


class BrokersUnreachable(OttlaError):
    """No broker of the pipeline answers."""


class TopicsMissing(OttlaError):
    """A topic that the pipeline reads does not exist."""


class DirectoryNotWritable(OttlaError):
    """Tables or checkpoints cannot be written."""


class EnvironmentMismatch(OttlaError):
    """The checkpoints belong to another environment of the pipeline."""


def check_cluster(declaration: Declaration) -> None:
    """Raise BrokersUnreachable, TopicsMissing, or another ClientError if the pipeline cannot use its cluster."""
    with _reach(declaration) as cluster:
        wanted = {source.topic: source for source in declaration.sources.values()}
        missing = wanted.keys() - cluster.topics(wanted).keys() - topics_written(declaration).keys()
    if missing:
        names = sorted(missing)
        what = f"topic {names[0]} does not exist" if len(names) == 1 else f"topics {', '.join(names)} do not exist"
        place = wanted[names[0]].place
        raise TopicsMissing(
            f"{what}; create with 'ottla topic create {' '.join(names)} -b {declaration.brokers}', or correct 'topic' "
            f"in {place.file}, line {place.line}"
        )


def check_directories(declaration: Declaration) -> None:
    """Raise DirectoryNotWritable if storage or checkpoints are local and cannot be written, or cannot be opened."""
    layout = Layout.of(declaration)
    for key, path in (("storage", layout.storage), ("checkpoints", layout.checkpoints)):
        why = _why_unreachable(key, path) if "://" in path else _why_not_writable(path)
        if why is not None:
            raise DirectoryNotWritable(f"{key} {path} cannot be used: {why}; correct '{key}' in {declaration.file}")


def _why_not_writable(path: str) -> str | None:
    """Return why a local directory cannot be created or written to; None if it can."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        return f"{path} is not a directory"
    return None if os.access(path, os.W_OK | os.X_OK) else f"this user may not write to {path}"


def _why_unreachable(key: str, uri: str) -> str | None:
    """Return why an object store or HDFS cannot be used, in one line; None if it can, or if a package is missing.

    Tables are opened by deltalake, checkpoints by pyarrow and by Spark.
    """
    if importlib.util.find_spec("deltalake") is None or importlib.util.find_spec("pyarrow") is None:
        # The start of the session says what to install.
        return None
    from ottla.spark.stored_files import FileSystemUnusable, open_filesystem
    from ottla.spark.table_location import TableLocation

    try:
        if key == "storage":
            TableLocation.at(uri, _STORE_LIMITS).files().get_file_info("_status")
        else:
            filesystem, path = open_filesystem(uri)
            filesystem.get_file_info(path)
    except (OSError, FileSystemUnusable, ValueError) as error:
        lines = [line.strip(" \u21b3") for line in _COLOURS.sub("", str(error)).splitlines()]
        return ": ".join(dict.fromkeys(filter(None, [*lines[:1], *lines[-1:]]))).rstrip(".")
    return None


def claim_checkpoints(declaration: Declaration) -> None:
    """Note the environment beside the checkpoints of a pipeline. Raise EnvironmentMismatch if they are another's.

    The caller owns the pipeline. Checkpoints of a time when the pipeline had no environments go to the first one.
    """
    from ottla.spark.stored_files import read_file, replace_file

    layout = Layout.of(declaration)
    uri = f"{layout.checkpoints}/{layout.pipeline}/{_ENVIRONMENT_FILE}"
    owner = (read_file(uri) or b"").decode().strip()
    if owner and owner != declaration.environment:
        chosen = f"environment {declaration.environment!r}" if declaration.environment else "no environment"
        raise EnvironmentMismatch(
            f"the checkpoints in {layout.checkpoints}/{layout.pipeline} belong to environment {owner!r}, and this run "
            f"has {chosen}; give it its own 'checkpoints' and 'storage', or delete {uri} if the environment was renamed"
        )
    if declaration.environment and not owner:
        replace_file(uri, f"{declaration.environment}\n".encode())


def check_functions(declaration: Declaration) -> None:
    """Raise FunctionRefused if the function of a Python step does not exist."""
    steps = [
        (flow, step)
        for flow in declaration.flows.values()
        for step in flow.steps
        if isinstance(step, PythonStep) and step.call is None
    ]
    if not steps or importlib.util.find_spec("pyspark") is None:
        # The start of the session says what to install.
        return
    from ottla.pipeline.graph import Graph
    from ottla.pipeline.plan import find_function

    graph = Graph(declaration)
    for flow, step in steps:
        find_function(graph, flow, step)


def topics_written(declaration: Declaration) -> dict[str, TopicSink | None]:
    """Return the topics that flows write, with the sink that says how to create each; None for side outputs."""
    topics: dict[str, TopicSink | None] = {}
    for flow in declaration.flows.values():
        topics |= {side.topic: None for _, side in flow.side_outputs if side.topic}
    return topics | {sink.topic: sink for sink in declaration.topic_sinks}


def _reach(declaration: Declaration) -> Cluster:
    """Return a client of the first address that answers.

    Raise ConnectionLost if none answers and one accepts connections: a broker that is paused, or another program. Raise
    BrokersUnreachable if none accepts connections.
    """
    found = parse_bootstrap(declaration.brokers)
    addresses = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in found]
    reasons: dict[str, None] = {}
    lost: ConnectionLost | None = None
    for address in addresses:
        cluster = open_cluster(declaration, brokers=address, timeout_s=_ANSWER_S_MAX)
        try:
            cluster.metadata([], time.monotonic() + _ANSWER_S_MAX)
        except Unreachable as error:
            cluster.close()
            reasons[error.reason] = None
        except ConnectionLost as error:
            cluster.close()
            lost = error
        except ClientError:
            cluster.close()
            raise
        else:
            return cluster
    if lost is not None:
        raise lost
    noun = "broker" if len(addresses) == 1 else "brokers"
    raise BrokersUnreachable(
        f"{noun} {', '.join(addresses)} cannot be reached: {'; '.join(reasons)}; start one with 'ottla broker', or "
        f"correct 'brokers' in {declaration.file}"
    )
