"""Commands whose packages are not installed name the command that installs them."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.main import main
from ottla.model import extras

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "words",
    [("plan", "shop.yaml"), ("sql", "shop.yaml", "SELECT 1"), ("compact", "shop.yaml"), ("vacuum", "shop.yaml")],
    ids=" ".join,
)
def test_missing_package_of_a_pipeline_command_is_one_line_with_the_remedy(
    ottla: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ottla("pipeline", "init").exit_code == 0
    for name in ("ottla.pipeline.start_plan", "ottla.pipeline.query", "deltalake.exceptions"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    result = ottla("pipeline", *words)
    assert result.exit_code == 1
    assert re.fullmatch(
        r"error: the package deltalake[.\w]* is missing; install Ottla with its extra spark, in a checkout: "
        r"\S.* install -e '\.\[spark\]'\n",
        result.stderr,
    )


def test_missing_module_of_no_extra_is_shown_as_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ottla.cli.topic", None)
    with pytest.raises(ModuleNotFoundError):
        main(["topic", "list"])


def test_each_package_of_an_extra_is_known_by_its_module() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {
        re.split(r"[<>=\[]", line)[0] for extra in ("spark", "sdp", "edge", "protobuf") for line in declared[extra]
    } - {"ottla"}
    modules = packages_distributions()
    found = {
        name: [module for module, packages in modules.items() if name in packages and not module.startswith("_")]
        for name in wanted
    }
    unknown = {name for name, names in found.items() if not any(map(extras.extra_of, names))}
    assert not unknown, {name: found[name] for name in unknown}


def test_command_is_for_the_environment_and_keeps_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip, python = tmp_path / "bin" / "pip", tmp_path / "bin" / "python"
    pip.parent.mkdir()
    pip.write_text("#!/bin/sh\n")
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(pip.parent))
    assert extras.install_command("edge") == "pip install -e '.[edge]'"
    monkeypatch.setenv("PATH", "/nowhere")
    assert extras.install_command("edge") == f"{python} -m pip install -e '.[edge]'"
    monkeypatch.setattr(sys, "prefix", str(ROOT))
    assert extras.install_command("edge") == f"{python} -m pip install '.[edge]'"
