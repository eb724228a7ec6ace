"""A Spark session from one map of settings: the same code on a laptop and on a cluster.

    spark = build_session("orders", conf={"spark.sql.shuffle.partitions": "4"})

The master is the caller's, else `local[*]`. Settings for one machine are used only if all of Spark runs here: in this
process (`local[*]`), or in a cluster whose master listens on a loopback address. The caller's settings take precedence.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

import ottla
from ottla.model import extras
from ottla.model.errors import OttlaError
from ottla.spark.home import home_without_archive
from ottla.spark.java import find_java
from ottla.spark.spark_internals import LOCAL_CHECKPOINT_MANAGER, complete_environments, is_submitted
from ottla.spark.stream_server import stream_variables
from ottla.spark.worker_daemon import MODULE as WORKER_DAEMON

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

#: right wherever the job runs
_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.metricsEnabled": "true",
    # State beyond the heap, and commits that write what has changed instead of everything.
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # On a busy machine a worker needs longer than 15 s to start, and a query should not die of that.
    "spark.python.authenticate.socketTimeout": "120s",
    # Hadoop itself knows the file system of S3 as s3a:// only; hadoop-aws has the class.
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
}
#: right on one machine, and wrong on many
_LOCAL_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.python.daemon.module": WORKER_DAEMON,
    # The default one forks a process per file on local disks, some dozens for each micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": LOCAL_CHECKPOINT_MANAGER,
}
_SOURCES = ("ottla", "ottla-table")


class ConnectRefused(OttlaError):
    """The caller asks for a session of Spark Connect, which does not give access to Spark's JVM."""

    def __init__(self, remote: str) -> None:
        super().__init__(
            f"pipelines do not run on Spark Connect ({remote}), because they read the plan of each batch in Spark's "
            "JVM: name a master (--master local[*], spark://..., yarn, k8s://...), or unset SPARK_REMOTE and "
            'spark.remote. format("ottla") and format("ottla-table") work in sessions of Spark Connect'
        )


class SparkMissing(OttlaError):
    """pyspark, or what it needs, is not installed; the text says what to install."""


def build_session(app_name: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of this process. Its master is ``master``, else that of ``conf`` or spark-submit, else local.

    Raise ConnectRefused if that is a server of Spark Connect.
    """
    check_packages()
    refuse_connect(master, conf or {}, os.environ)
    settings = settings_of(app_name, master, conf or {}, os.environ)
    prepare_environment(os.environ, settings)
    settings = executor_environment(os.environ, settings) | settings
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    children = _child_processes()
    try:
        session: SparkSession = builder.getOrCreate()
    except KeyboardInterrupt:
        # PySpark has removed the directory where a starting JVM announces its port; the JVM would never end.
        for child in _child_processes() - children:
            os.kill(child, signal.SIGKILL)
        raise
    prepare_streams(session)
    return session


def refuse_connect(master: str | None, conf: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Raise ConnectRefused if these settings ask for Spark Connect. A master takes precedence over SPARK_REMOTE."""
    chosen = master or conf.get("spark.master")
    remote = conf.get("spark.remote") or (chosen if (chosen or "").startswith("sc://") else None)
    if remote is None and chosen is None and not is_submitted(environ):
        remote = environ.get("SPARK_REMOTE")
    if remote:
        raise ConnectRefused(remote)


def check_packages() -> None:
    """Raise SparkMissing if a package that Spark needs is not installed."""
    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise SparkMissing(extras.missing(package, extras.SPARK))


def _child_processes() -> set[int]:
    """Return the ids of this process's children; none where there is no /proc."""
    children: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        children.update(map(int, path.read_text().split()))
    return children


def prepare_streams(session: SparkSession) -> None:
    """Let streams of our sources start at the same time, in one process. `build_session` does this for its sessions."""
    complete_environments(session, _SOURCES, stream_variables())


def settings_of(
    app_name: str, master: str | None, conf: Mapping[str, str], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return all settings of a session: defaults, and the settings of the caller, which take precedence."""
    chosen = master or conf.get("spark.master")
    if chosen is None and not is_submitted(environ):
        chosen = "local[*]"
    settings = _DEFAULTS | (_LOCAL_DEFAULTS if chosen and is_on_this_machine(chosen) else {}) | dict(conf)
    settings["spark.app.name"] = app_name
    if chosen is not None:
        settings["spark.master"] = chosen
    return settings


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def is_on_this_machine(master: str) -> bool:
    """Return whether all executors of a master are on this machine.

    >>> [is_on_this_machine(master) for master in ("local[2]", "spark://127.0.0.1:7077", "spark://a:7077,b:7077")]
    [True, True, False]
    """
    if not master.startswith("spark://"):
        return is_local(master)
    hosts = [address.rpartition(":")[0].strip("[]") for address in master.removeprefix("spark://").split(",")]
    return all(map(_is_loopback, hosts))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def prepare_environment(environ: MutableMapping[str, str], settings: Mapping[str, str]) -> None:
    """Set the variables that Spark takes from the environment of the process that starts it."""
    environ["JAVA_HOME"] = str(find_java(environ).home)
    # Workers would otherwise run the first python3 of PATH, which need not have our packages.
    environ.setdefault("PYSPARK_PYTHON", settings.get("spark.pyspark.python", sys.executable))
    environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    environ.pop("SPARK_REMOTE", None)
    if is_on_this_machine(settings.get("spark.master", "")):
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        _add_own_packages(environ)
        # Another Python may have no PySpark but that of the archive.
        if "SPARK_HOME" not in environ and environ["PYSPARK_PYTHON"] == sys.executable:
            home = home_without_archive(environ)
            if home is not None:
                environ["SPARK_HOME"] = str(home)


def executor_environment(environ: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Settings by which executors of a cluster on this machine get what this process has.

    The cluster may have been started with another Java and other packages. The paths of other machines are not known
    here.
    """
    master = settings.get("spark.master", "")
    if is_local(master) or not is_on_this_machine(master):
        return {}
    names = ("JAVA_HOME", "PYTHONPATH", "OTTLA_NUMBA")
    return {f"spark.executorEnv.{name}": environ[name] for name in names if environ.get(name)}


def _add_own_packages(environ: MutableMapping[str, str]) -> None:
    """Let workers find our packages where this process found them, also in a checkout that is not installed."""
    root = str(Path(ottla.__file__).resolve().parent.parent)
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root not in paths and root not in (os.path.dirname(os.__file__), *_site_packages()):
        environ["PYTHONPATH"] = os.pathsep.join([root, *paths])


def _site_packages() -> list[str]:
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
