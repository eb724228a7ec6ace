"""Disks that fill, fail and lose power. What a machine cannot do is skipped with a line that says so."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

#: EXT4_IOC_SHUTDOWN and "drop what is not yet in the journal": what a power cut leaves
_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = struct.pack("I", 2)
#: how long a disk may take to finish the calls that are in flight when a process is stopped
_FREEZE_S_MAX = 60
_UNMOUNT_S_MAX = 60

_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* Fails calls with EIO while the control file names them: "fdatasync /path/prefix". */
static int failing(const char *call, int fd) {
    char line[PATH_MAX + 32], link[64], path[PATH_MAX];
    const char *control = getenv("OTTLA_TEST_FAULTS");
    FILE *file = control ? fopen(control, "r") : NULL;
    if (!file) return 0;
    char *read = fgets(line, sizeof line, file);
    fclose(file);
    if (!read) return 0;
    line[strcspn(line, "\n")] = 0;
    char *prefix = strchr(line, ' ');
    if (!prefix) return 0;
    *prefix++ = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    if (!strstr(line, call) || strncmp(path, prefix, strlen(prefix))) return 0;
    errno = EIO;
    return 1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)

int fdatasync(int fd) { REAL(fdatasync); return failing("fdatasync", fd) ? -1 : real(fd); }
int fsync(int fd) { REAL(fsync); return failing("fsync", fd) ? -1 : real(fd); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64); return failing("pwrite", fd) ? -1 : real(fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite); return failing("pwrite", fd) ? -1 : real(fd, data, size, at);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    REAL(pwritev64); return failing("pwrite", fd) ? -1 : real(fd, parts, count, at);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    REAL(pwritev); return failing("pwrite", fd) ? -1 : real(fd, parts, count, at);
}
ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    REAL(pread64); return failing("pread", fd) ? -1 : real(fd, data, size, at);
}
ssize_t pread(int fd, void *data, size_t size, off_t at) {
    REAL(pread); return failing("pread", fd) ? -1 : real(fd, data, size, at);
}
"""


class FailingDisk:
    """A library that is loaded into the broker and fails its disk calls on demand."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler: a failing disk cannot be played (apt-get install gcc)")
        source = directory / "faults.c"
        source.write_text(_SHIM)
        self._library = directory / "faults.so"
        self._control = directory / "faults"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", self._library, source, "-ldl"], check=True, capture_output=True
        )

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Brokers that are started from now on have it."""
        monkeypatch.setenv("LD_PRELOAD", str(self._library))
        monkeypatch.setenv("OTTLA_TEST_FAULTS", str(self._control))

    def fail(self, calls: str, below: Path) -> None:
        """From now on these calls (fdatasync, fsync, pwrite, pread) fail with EIO on files below a path."""
        # Replaced as a whole: the broker reads it at every call.
        fresh = self._control.with_suffix(".new")
        fresh.write_text(f"{calls} {below}\n")
        fresh.rename(self._control)

    def heal(self) -> None:
        self._control.unlink(missing_ok=True)


class Ext4:
    """A small ext4 file system in a file, that can be filled and can lose its power."""

    def __init__(self, directory: Path, megabytes: int) -> None:
        self.path = directory / "disk"
        self._image = directory / "disk.img"
        if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
            pytest.skip("mounting a disk of one's own needs root and mkfs.ext4 (apt-get install e2fsprogs)")
        self.path.mkdir()
        with open(self._image, "wb") as image:
            image.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", self._image], check=True)
        self.mount()

    def mount(self) -> None:
        done = subprocess.run(["mount", "-o", "loop", self._image, self.path], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a disk of one's own cannot be mounted here: {done.stderr.strip()}")

    def unmount(self) -> None:
        """Unmount the disk once no process uses it: those that were just killed take a moment to end."""
        deadline = time.monotonic() + _UNMOUNT_S_MAX
        while (done := subprocess.run(["umount", self.path], capture_output=True, text=True)).returncode:
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.1)

    def cut_power(self, pid: int | None = None) -> None:
        """Drop everything that was not synced; until the next mount every write fails.

        ``pid`` is a process that uses the disk: it is frozen first, and stays so. A sync that is in flight while ext4
        shuts down can return success although its data is dropped, which no real power cut does. An acknowledgement
        sent after such a sync would count as a loss.
        """
        if pid is not None:
            freeze(pid)
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, _NO_LOG_FLUSH)
        finally:
            os.close(fd)

    def fill_up(self, path: Path) -> None:
        """Write a file until there is not one block left."""
        with open(path, "ab", buffering=0) as file:
            for block in (1 << 20, 4096, 1):
                with suppress(OSError):
                    while True:
                        file.write(bytes(block))
                        os.fsync(file.fileno())

    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize


def freeze(pid: int) -> None:
    """Stop a process and return when no thread of it is running or inside a system call.

    SIGSTOP takes effect when a thread returns to user space. A thread in uninterruptible sleep (state D) is inside a
    call to the disk: that call finishes first, and its result reaches nobody before the process continues.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _FREEZE_S_MAX
    while moving := {thread: state for thread, state in thread_states(pid).items() if state not in "TtZX"}:
        assert time.monotonic() < deadline, f"threads still move after {_FREEZE_S_MAX} s: {moving}"
        time.sleep(0.001)


def thread_states(pid: int) -> dict[int, str]:
    """Return the state letter of every thread, as the kernel shows it in /proc: R, S, D, T, ..."""
    states = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            stat = Path(f"/proc/{pid}/task/{thread}/stat").read_text()
            states[int(thread)] = stat.rpartition(")")[2].split()[0]
    return states


@contextmanager
def ext4(directory: Path, megabytes: int) -> Iterator[Ext4]:
    disk = Ext4(directory, megabytes)
    try:
        yield disk
    finally:
        disk.unmount()


@contextmanager
def traced(monkeypatch: pytest.MonkeyPatch, directory: Path, *options: str) -> Iterator[Path]:
    """Brokers that are started inside run under strace; where its output goes."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: system calls cannot be watched (apt-get install strace)")
    output = directory / "strace.txt"
    wrapper = directory / "python-under-strace"
    # -D: the broker stays the child of whoever starts it, and signals reach it and not strace.
    wrapper.write_text(f'#!/bin/sh\nexec {strace} -D -f -qq -o {output} {" ".join(options)} {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    if subprocess.run([strace, "-qq", "-o", os.devnull, "true"], capture_output=True).returncode:
        pytest.skip("strace may not trace here: system calls cannot be watched")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(wrapper))
        yield output
