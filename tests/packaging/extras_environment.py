"""Virtual environments that have what one extra of Ottla declares, and nothing else.

`linked` makes one in a moment, without a network: its packages are links to those of this environment. `install` makes
one by pip, with the newest or the minimum versions.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent.parent
_OWN = ("ottla", "pyspark_ottla", "pyspark_ottla_table")
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def declared(extra: str) -> list[Requirement]:
    """Return the requirements of Ottla itself and of an extra, which is empty for none."""
    found = [Requirement(text) for text in _PROJECT["dependencies"]]
    waiting = [extra] if extra else []
    while waiting:
        for text in _PROJECT["optional-dependencies"][waiting.pop()]:
            requirement = Requirement(text)
            if requirement.name == "ottla":
                waiting += requirement.extras
            else:
                found.append(requirement)
    return found


def closure(extra: str) -> dict[str, Distribution]:
    """Return the distributions of this environment that an extra brings, by name, with those that they require."""
    found: dict[str, Distribution] = {}
    done: set[tuple[str, str]] = set()
    waiting = declared(extra)
    while waiting:
        requirement = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = canonicalize_name(requirement.name)
        for chosen in ("", *requirement.extras):
            if (name, chosen) in done:
                continue
            done.add((name, chosen))
            try:
                found[name] = distribution(name)
            except PackageNotFoundError:
                raise AssertionError(f"{requirement} is not installed here: run make test") from None
            for text in found[name].requires or ():
                inner = Requirement(text)
                if inner.marker is None or inner.marker.evaluate({"extra": chosen}):
                    inner.marker = None
                    waiting.append(inner)
    return found


def linked(directory: Path, extra: str) -> Path:
    """Make an environment of links and return its Python."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(directory)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(directory), "platbase": str(directory)}))
    tops = {
        name: {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        for name, found in closure(extra).items()
    }
    owners = Counter(top for each in tops.values() for top in each)
    for name, found in closure(extra).items():
        for top in tops[name]:
            if owners[top] == 1:
                _link(site / top, Path(str(found.locate_file(top))))
                continue
            # A namespace package such as google has a directory that several distributions share.
            for second in {file.parts[1] for file in found.files or () if file.parts[0] == top and len(file.parts) > 1}:
                _link(site / top / second, Path(str(found.locate_file(f"{top}/{second}"))))
    for top in _OWN:
        _link(site / top, ROOT / "src" / top)
    return directory / "bin" / "python"


def _link(place: Path, target: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    if not place.exists():
        place.symlink_to(target)


def minimum_versions(extra: str) -> list[str]:
    """Return a constraint for each declared requirement: the lowest version that it allows."""
    lowest = {}
    for requirement in declared(extra):
        bounds = [each.version for each in requirement.specifier if each.operator in (">=", "==")]
        assert len(bounds) == 1, f"{requirement} needs one lower bound"
        lowest.setdefault(canonicalize_name(requirement.name), bounds[0])
    return [f"{name}=={version}" for name, version in sorted(lowest.items())]


def install(directory: Path, extra: str, *, minimum: bool) -> Path:
    """Make an environment by pip and return its Python."""
    venv.EnvBuilder(with_pip=True).create(directory)
    python = directory / "bin" / "python"
    constraints = minimum_versions(extra) if minimum else []
    _constraints_of(python).write_text("\n".join(constraints) + "\n")
    install_tools(python, [f"{ROOT}[{extra}]" if extra else str(ROOT)])
    return python


def install_tools(python: Path, packages: Sequence[str]) -> None:
    """Install more packages into such an environment; the versions of the others stay."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "-c", str(_constraints_of(python)), *packages], check=True, stdout=sys.stderr)


def _constraints_of(python: Path) -> Path:
    return python.parent.parent / "constraints.txt"
