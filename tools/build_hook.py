"""Build hook: `OTTLA_COMPILE=1 pip install .` compiles the hot modules, any other build stays pure Python.

If the compilation fails, for example because there is no C compiler, the build says so and goes on with pure Python.
An editable install is never compiled: an extension module beside its source would hide later edits of that source.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileHotModules(BuildHookInterface):  # type: ignore[misc]
    PLUGIN_NAME = "custom"
    #: the compiled files, until they are in the wheel
    _directory: Path | None = None

    def dependencies(self) -> list[str]:
        return ["mypy==2.4.1", "setuptools>=65"] if _is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not _is_wanted() or version == "editable":
            return
        self._directory = directory = Path(tempfile.mkdtemp(prefix="ottla-compile-"))
        script = Path(self.root) / "tools" / "compile_hot_modules.py"
        done = subprocess.run([sys.executable, str(script), str(directory)])
        if done.returncode != 0:
            self.app.display_warning("Ottla is installed as pure Python: its hot modules could not be compiled")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in directory.rglob("*.so"):
            build_data["force_include"][str(path)] = str(path.relative_to(directory))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def _is_wanted() -> bool:
    return os.environ.get("OTTLA_COMPILE") == "1"
