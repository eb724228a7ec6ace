"""The versions of Spark that are allowed, tested and documented are the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from campaign.suites import SPARK_PREVIOUS

pyspark = pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")

ROOT = Path(__file__).resolve().parents[3]


def minors() -> tuple[str, str]:
    """Return the two minor releases that pyproject.toml allows, the newest last."""
    (allowed,) = [
        one
        for one in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["spark"]
        if one.startswith("pyspark")
    ]
    bounds = re.fullmatch(r"pyspark>=(\d+)\.(\d+),<(\d+)\.(\d+)", allowed)
    assert bounds is not None, allowed
    major, low, upper_major, high = map(int, bounds.groups())
    assert (upper_major, high) == (major, low + 2), "two minor releases are tested"
    return f"{major}.{low}", f"{major}.{low + 1}"


def test_spark_users_get_the_compiler_of_the_kernels() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(one.startswith("numba") for one in extras["spark"])


def test_the_two_minor_releases_that_are_allowed_are_tested() -> None:
    before, newest = minors()
    assert before == SPARK_PREVIOUS
    assert pyspark.__version__.rpartition(".")[0] in (before, newest)


def test_documents_name_the_releases_that_are_allowed() -> None:
    before, newest = minors()
    for page in ("docs/start/install.md", "docs/operate/spark-cluster.md"):
        assert f"PySpark {before} or {newest}" in (ROOT / page).read_text(), page
    assert f"allows ({newest})" in (ROOT / "ARCHITECTURE.md").read_text()


def test_every_private_part_names_the_releases_with_which_it_was_seen() -> None:
    before, newest = (re.escape(minor) for minor in minors())
    text = (ROOT / "src" / "ottla" / "spark" / "spark_internals.py").read_text()
    seen = re.findall(r"Seen with (.*?)\. If missing", text)
    assert len(seen) > 10
    for versions in seen:
        # A part is new until `make campaign NAME=spark-previous` has run.
        assert re.fullmatch(rf"({before}\.\d+ and )?{newest}\.\d+", versions), versions
