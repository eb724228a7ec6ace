"""Compile the hot modules with mypyc: `python tools/compile_hot_modules.py DIRECTORY`.

DIRECTORY gets a copy of the package in which the modules that handle every request are C extensions. Run it with
`PYTHONPATH=DIRECTORY`. The source tree itself is never compiled in place, because an extension module beside its source
hides later edits of that source. `OTTLA_COMPILE=1 pip install .` uses the same function through tools/build_hook.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: every produce and fetch passes through these; classes that inherit from theirs must be compiled, too
HOT_MODULES = (
    "ottla/broker/fetch/api.py",
    "ottla/broker/fetch/counted.py",
    "ottla/broker/fetch/fetch.py",
    "ottla/broker/fetch/reply.py",
    "ottla/broker/fetch/rows.py",
    "ottla/broker/fetch/traced.py",
    "ottla/broker/produce/api.py",
    "ottla/broker/produce/appending.py",
    "ottla/broker/produce/replies.py",
    "ottla/broker/produce/request.py",
    "ottla/broker/dispatch.py",
    "ottla/log/cleaned_segment.py",
    "ottla/log/file_region.py",
    "ottla/log/log.py",
    "ottla/log/log_state.py",
    "ottla/log/segment.py",
    "ottla/net/connection.py",
    "ottla/net/server.py",
    "ottla/net/tls.py",
    "ottla/broker/partitions/manager.py",
    "ottla/wire/fetch.py",
    "ottla/wire/produce.py",
)
#: mypyc puts the code of all modules into one library, which stands at the top of the import path
_LIBRARY = "ottla_hot"


def compile_into(directory: Path) -> list[Path]:
    """Copy the package into ``directory`` and compile it there; return the extension modules.

    Raise OSError if a file cannot be copied, subprocess.CalledProcessError if mypyc or the C compiler fails.
    """
    package = directory / "ottla"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "src" / "ottla", package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    # A process of its own: setuptools and mypyc take their options from the command line and the current directory.
    subprocess.run([sys.executable, __file__, "--here", str(directory)], check=True, cwd=directory)
    shutil.rmtree(directory / "build", ignore_errors=True)
    return sorted(directory.rglob("*.so"))


def _compile_here() -> None:
    from mypyc.build import mypycify
    from setuptools import setup

    options = [f"--config-file={ROOT / 'pyproject.toml'}", *HOT_MODULES]
    modules = mypycify(options, opt_level="3", debug_level="0", group_name=_LIBRARY)
    with contextlib.redirect_stdout(sys.stderr):
        setup(name=_LIBRARY, packages=[], ext_modules=modules, script_args=["--quiet", "build_ext", "--inplace"])


def main() -> int:
    if len(sys.argv) == 3 and sys.argv[1] == "--here":
        os.chdir(sys.argv[2])
        _compile_here()
        return 0
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    directory = Path(sys.argv[1]).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        made = compile_into(directory)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"the hot modules were not compiled: {error}; a C compiler and mypy are needed", file=sys.stderr)
        return 1
    print(f"{len(made)} extension modules in {directory}; use them with PYTHONPATH={directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
