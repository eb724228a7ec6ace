"""Remedies for errors of the operating system, for the one line that a person reads when a broker cannot start."""

from __future__ import annotations

import errno
import os

_PERMISSION = (errno.EACCES, errno.EPERM)


def listen_advice(error: OSError, *, host: str, port: int, option: str) -> str:
    """Return the cause of a failed bind or listen and the remedy; `option` is the option that names the address."""
    cause = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.EADDRINUSE:
        return (
            f"{cause}; stop the process that uses the port (`ss -ltnp 'sport = :{port}'` shows it) "
            f"or choose another port with {option}"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{cause}; this machine has no address {host} (`ip address` lists its addresses): "
            f"choose one of them, or 0.0.0.0 for all, with {option}"
        )
    if error.errno in _PERMISSION:
        return f"{cause}; ports below 1024 need a privilege: choose a higher port with {option}"
    return f"{cause}; choose another address with {option}"


def directory_advice(error: OSError, *, option: str) -> str:
    """Return the cause why a data directory cannot be used and the remedy; `option` is the option that names it."""
    cause = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"a file is in the place of the directory; choose a directory with {option}"
    if error.errno in _PERMISSION:
        return f"{cause}; give the user of this process the right to read and write it, or choose another with {option}"
    if error.errno == errno.EROFS:
        return f"{cause}; choose a directory on a writable file system with {option}"
    if error.errno == errno.ENOSPC:
        return f"{cause}; make room on its disk, or choose another with {option}"
    return f"{cause}; check its disk, or choose another with {option}"
