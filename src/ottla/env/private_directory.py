"""A directory of this user alone, in the shared directory of temporary files.

Other users can create files there first, also symbolic links. A file with a name that they can predict would be written
to where their link points, or be readable for them.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


class NotPrivate(OSError):
    """Another user could read or replace the files of a directory. The text says which, and what to do."""


def private_directory(name: str, parent: str | None = None) -> Path:
    """Return the directory of this user with this name, and create it if it is missing. Raise NotPrivate.

    ``parent`` is the directory of temporary files, unless it is given.
    """
    path = Path(parent or tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.lstat()
        # Of the directory itself: a link could point to another directory of this user.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise NotPrivate(f"{path} does not belong to this user, or is a link: remove it, or set TMPDIR") from None
        if stat.S_IMODE(found.st_mode) & 0o077:
            path.chmod(0o700)
    return path
