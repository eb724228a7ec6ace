"""Names that a completion has found, for the next key: a file for each question, which only its owner can read."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

#: how long an answer of the cluster is used without asking again, and how long the lack of one
_FRESH_S, _FAILED_S = 10.0, 5.0
#: older answers are not used when the cluster does not answer
_STALE_S_MAX = 600.0
_FILES_MAX = 64
_FILE_BYTES_MAX = 4 << 20


class Cached(NamedTuple):
    """Names of the cache."""

    names: list[str]
    #: whether they are so new that the cluster need not be asked
    is_fresh: bool


def cache_directory() -> Path:
    """Return the directory of the files."""
    directory = os.environ.get("XDG_CACHE_HOME", "")
    parent = Path(directory) if os.path.isabs(directory) else Path.home() / ".cache"
    return parent / "ottla" / "completion"


def read(key: list[Any]) -> Cached | None:
    """Return the names for this question; None if there are none that can be used."""
    try:
        path = _path(key)
        if path.stat().st_size > _FILE_BYTES_MAX:
            return None
        value = json.loads(path.read_bytes())
        found_s, checked_s, names = value["found_s"], value["checked_s"], value["names"]
        now_s = time.time()
        # A time in the future is that of a clock that was set back.
        if not 0 <= now_s - found_s <= _STALE_S_MAX or not all(isinstance(name, str) for name in names):
            names = []
        age_s, limit_s = now_s - checked_s, _FRESH_S if checked_s == found_s else _FAILED_S
        return Cached(names, 0 <= age_s <= limit_s)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def write(key: list[Any], names: list[str], *, is_answer: bool) -> None:
    """Keep these names: an answer of the cluster, or what was known when it did not answer. Do nothing on failure."""
    now_s = time.time()
    with suppress(OSError, ValueError):
        path = _path(key)
        found_s = now_s if is_answer else _found_s(path)
        text = json.dumps({"found_s": found_s, "checked_s": now_s, "names": names})
        if len(text) > _FILE_BYTES_MAX:
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # with mode 0600
        with os.fdopen(fd, "w") as file:
            file.write(text)
        os.replace(temporary, path)
        _remove_oldest(path.parent)


def _found_s(path: Path) -> float:
    try:
        return float(json.loads(path.read_bytes())["found_s"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return 0.0


def _path(key: list[Any]) -> Path:
    # The key contains the login. Its digest does not show it, and another login does not get these names.
    digest = hashlib.sha256(json.dumps([os.getuid(), *key]).encode()).hexdigest()
    return cache_directory() / f"{digest}.json"


def _remove_oldest(directory: Path) -> None:
    files = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[_FILES_MAX:]:
        path.unlink(missing_ok=True)
