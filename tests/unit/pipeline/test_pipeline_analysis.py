"""The deep check shows problems, and nothing that Java prints when it starts."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from ottla.pipeline import analysis


class Session:
    """Stands for a session that has started."""

    class sparkContext:
        @staticmethod
        def setLogLevel(level: str) -> None:
            pass


def print_as_java() -> None:
    subprocess.run(
        ["sh", "-c", "echo WARNING: Using incubator modules >&2; echo Setting default log level"], check=True
    )


def test_warnings_of_java_are_not_printed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def build(*arguments: Any) -> Any:
        print_as_java()
        return Session()

    monkeypatch.setattr(analysis, "build_session", build)
    found: SparkSession | Session = analysis._quiet_session("test")
    assert isinstance(found, Session)
    assert capfd.readouterr() == ("", "")


def test_output_of_a_java_that_does_not_start_is_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def build(*arguments: Any) -> Any:
        print_as_java()
        raise PySparkRuntimeError("Java has ended")

    monkeypatch.setattr(analysis, "build_session", build)
    with pytest.raises(PySparkRuntimeError):
        analysis._quiet_session("test")
    assert "Using incubator modules" in capfd.readouterr().err
