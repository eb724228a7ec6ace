"""Each extra declares what its commands import: they start in an environment that has nothing else.

The environments have the newest versions, as links. `make extras` installs each extra into an empty environment, with
the newest and with the minimum versions.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from extras_check import CHECKS, EXTRAS, Environment, check_help
from extras_environment import closure, linked, minimum_versions

from ottla.cli import service_options

#: projects that are on PyPI
OTHER_PROJECTS = ("confluent-kafka",)


@pytest.mark.broker
@pytest.mark.parametrize("extra", ["edge", "spark", "sdp", "protobuf"])
def test_commands_of_an_extra_start_without_other_packages(tmp_path: Path, extra: str) -> None:
    CHECKS[extra](Environment(linked(tmp_path / "environment", extra), tmp_path))


def test_help_of_all_commands_needs_no_extra(tmp_path: Path) -> None:
    check_help(Environment(linked(tmp_path / "environment", ""), tmp_path))


def test_environment_of_an_extra_has_no_other_package(tmp_path: Path) -> None:
    """The test above would pass for every extra if its environment saw this one."""
    python = linked(tmp_path / "environment", "edge")
    script = "import importlib.util as u; print([n for n in ('starlette', 'pytest', 'pyspark') if u.find_spec(n)])"
    assert Environment(python, tmp_path).run("-c", script) == "['starlette']\n"
    assert {"starlette", "protobuf", "h11", "cffi"} <= closure("edge").keys()
    assert not {"pytest", "pyspark", "fastavro"} & closure("edge").keys()


def test_services_ask_for_packages_that_their_extra_has(tmp_path: Path) -> None:
    """A fresh registry did not start, because this list had a package of another extra."""
    script = "from ottla.cli.service_options import missing_package; print(missing_package())"
    assert Environment(linked(tmp_path / "edge", "edge"), tmp_path).run("-c", script) == "None\n"
    assert Environment(linked(tmp_path / "core", ""), tmp_path).run("-c", script).strip() in service_options.PACKAGES


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_requirement_has_one_minimum_version(extra: str) -> None:
    assert len(minimum_versions(extra)) == len({line.partition("==")[0] for line in minimum_versions(extra)})
    assert all("==" in line for line in minimum_versions(extra))


def test_documented_commands_install_extras_that_exist() -> None:
    """Ottla is not on PyPI, so `pip install ottla[edge]` would find nothing."""
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "src").rglob("*.py")]
    found = {page: re.findall(r"\bpip install (?:-\S+ )*'?(\S*?)\[([\w,]+)\]", page.read_text()) for page in pages}
    for page, commands in found.items():
        for project, extras in commands:
            assert project in (".", "PATH_OF_THE_CHECKOUT") or project in OTHER_PROJECTS, page
            assert project in OTHER_PROJECTS or set(extras.split(",")) <= set(EXTRAS), page
    assert any(found.values())
