"""The file with the alerts of a cluster: replaced as a whole. A crash leaves the old contents or the new ones."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_SIZE_BYTES_MAX: Final = 64 << 20


class StateFile:
    """Blocking; used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Create the directory. Raise OSError if the file cannot be written."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._draft()
        draft.touch(mode=0o600)
        draft.unlink()

    def read(self) -> bytes | None:
        """Return the contents; None if there is no file. Raise OSError."""
        try:
            with open(self.path, "rb") as file:
                data = file.read(_SIZE_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        if len(data) > _SIZE_BYTES_MAX:
            raise OSError(f"it has more than {_SIZE_BYTES_MAX} bytes")
        return data

    def write(self, data: bytes) -> None:
        """Replace the contents; they are on the disk afterwards. Raise OSError."""
        draft = self._draft()
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def set_aside(self) -> Path:
        """Rename contents that cannot be used, so that people can look at them. Return the new name. Raise OSError."""
        aside = self.path.with_suffix(".unusable")
        os.replace(self.path, aside)
        return aside

    def _draft(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{os.getpid()}")
