"""Show the public names that a branch removes: functions, classes, methods, constants and tests.

python tools/removed_names.py             compare the files here with the merge base of HEAD and main
python tools/removed_names.py --base REF  compare with another commit

A commit that was made from an old copy of the files removes what was added to main since. Read the list: each name must
have been removed on purpose. A name that exists in another file is not listed, because it has moved.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: directories whose names are compared; the messages are generated
FILES = ("src/*.py", "tests/*.py", "tools/*.py", "benchmarks/*.py", ":!src/ottla/wire/messages")


def public_names(text: str) -> set[str]:
    """Return the public names that a module defines: `name`, and `Class.name` for members of public classes."""
    return set(_names(ast.parse(text).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined = [node.name]
        elif isinstance(node, ast.Assign):
            defined = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            defined = [node.target.id]
        else:
            continue
        for name in defined:
            if not name.startswith("_"):
                yield prefix + name
                if isinstance(node, ast.ClassDef):
                    yield from _names(node.body, f"{name}.")


def removed_names(base: str) -> dict[str, list[str]]:
    """Return the names that the files at `base` have and no file has now, by the file at `base`."""
    changed = _git("diff", "--name-only", "--no-renames", "--diff-filter=MD", base, "--", *FILES).splitlines()
    before = {path: public_names(_git("show", f"{base}:{path}")) for path in changed}
    tracked = _git("ls-files", "--cached", "--others", "--exclude-standard", "--", *FILES).splitlines()
    now: set[str] = set()
    if any(before.values()):
        now = set().union(*(public_names((ROOT / path).read_text()) for path in tracked if (ROOT / path).exists()))
    removed = {path: sorted(names - now) for path, names in before.items()}
    return {path: names for path, names in removed.items() if names}


def merge_base() -> str | None:
    """Return the merge base of HEAD and main, or None if there is no main, as in an export without history."""
    for main in ("origin/main", "main"):
        done = subprocess.run(["git", "merge-base", "HEAD", main], cwd=ROOT, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout.strip()
    return None


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Show the public names that a branch removes.")
    parser.add_argument("--base", help="compare with this commit instead of the merge base of HEAD and main")
    base = parser.parse_args(arguments).base or merge_base()
    removed = removed_names(base) if base else {}
    if removed:
        print(f"Public names that are removed since {base}. Each must be removed on purpose:")
    for path, names in removed.items():
        print(f"  {path}: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
