"""Show the public names of src/ottla that this branch deletes, and fail if no commit of the branch mentions them.

    python tools/deleted_names.py

A commit that was made from a stale tree deletes what others have added meanwhile, without a word. So this tool lists
the public functions and classes of modules and the settings that exist at the merge base with the main branch and
nowhere in HEAD. Names are compared, not paths: a moved name is not deleted. Each deleted name must stand in the message
of a commit since the merge base, best in a line of its own, in which * stands for any characters:

    Removes: ReplicaFetcher, parse_*, log.cleaner.io.buffer.size

It passes on the main branch, and where there is nothing to compare with: it prints why.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = "src/ottla"
_MAIN_BRANCHES = ("main", "origin/main")
_NAME = re.compile(r"^(?:class|def|async def) ([A-Za-z]\w*)", re.MULTILINE)
_SETTING = re.compile(r"\bSetting\(\s*\"([^\"]+)\"")
_REMOVES = re.compile(r"^Removes: (.+)$", re.MULTILINE)


class NothingToCompare(Exception):
    """There is no merge base, or no commit since. The text says why."""


def public_names(text: str) -> set[str]:
    """Return the public functions and classes that a module defines, and its settings."""
    return {*_NAME.findall(text), *_SETTING.findall(text)}


def unmentioned(names: Iterable[str], messages: str) -> list[str]:
    """Return the names that the messages of commits do not mention, sorted."""
    patterns = [pattern for line in _REMOVES.findall(messages) for pattern in re.split(r"[,\s]+", line) if pattern]
    words = set(re.findall(r"[\w.-]*\w", messages))
    return sorted(
        name for name in names if name not in words and not any(fnmatchcase(name, pattern) for pattern in patterns)
    )


def merge_base(repository: Path) -> str:
    """Return the nearest commit that HEAD and a main branch share. Raise NothingToCompare if there is none."""
    if _try(repository, "rev-parse", "--verify", "HEAD") is None:
        raise NothingToCompare("this is no checkout of git")
    found = [_try(repository, "merge-base", "HEAD", branch) for branch in _MAIN_BRANCHES]
    bases = {base: int(_git(repository, "rev-list", "--count", f"{base}..HEAD")) for base in found if base}
    if not bases:
        is_shallow = _try(repository, "rev-parse", "--is-shallow-repository") == "true"
        raise NothingToCompare("this is a shallow clone" if is_shallow else "there is no merge base with a branch main")
    base = min(bases, key=lambda each: bases[each])
    if bases[base] == 0:
        raise NothingToCompare("HEAD is a commit of the main branch")
    return base


def names_at(repository: Path, commit: str) -> set[str]:
    """Return the public names of the package at a commit."""
    command = ["git", "archive", "--format=tar", commit, _PACKAGE]
    archive = subprocess.run(command, cwd=repository, capture_output=True, check=True).stdout
    names: set[str] = set()
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            file = files.extractfile(member)
            if file is not None and member.name.endswith(".py"):
                names |= public_names(file.read().decode())
    return names


def _git(repository: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=repository, capture_output=True, check=True, text=True).stdout.strip()


def _try(repository: Path, *words: str) -> str | None:
    """Return what git prints, None if it fails or is missing."""
    try:
        return _git(repository, *words)
    except (subprocess.CalledProcessError, FileNotFoundError):
        return None


def main(repository: Path = _ROOT) -> int:
    """Print the deleted names. Return 1 if one of them is not mentioned."""
    try:
        base = merge_base(repository)
    except NothingToCompare as reason:
        print(f"deleted names: not checked, {reason}")
        return 0
    deleted = names_at(repository, base) - names_at(repository, "HEAD")
    missing = unmentioned(deleted, _git(repository, "log", "--format=%B", f"{base}..HEAD"))
    print(f"deleted names since {base[:10]}: {', '.join(sorted(deleted)) or 'none'}")
    if missing:
        print(f"no commit mentions the deletion of {', '.join(missing)}", file=sys.stderr)
        print("Restore them, or write 'Removes: NAME' into the message of the commit (STYLE.md).", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
