"""A lock between processes, for what is brought or built once and then used by all of them."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory; its file stands beside the directory, which need not exist."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    # The operating system releases the lock when its holder ends, however that happens.
    with directory.with_name(f"{directory.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
