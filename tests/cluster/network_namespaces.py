"""Hosts on this machine: one network namespace each, joined by a bridge, with cuts between any two of them.

    with Hosts(["broker-1", "broker-2", "zookeeper", "clients"]) as hosts:
        hosts.enter("clients")
        subprocess.Popen([*hosts.prefix("broker-1"), "ottla", "broker", ...])
        hosts.cut("broker-1", "broker-2")
        hosts.heal()

The bridge is in a namespace of its own, so that nothing outside of the new namespaces changes: neither interfaces nor
routes nor firewall rules of the machine. The names of the namespaces start with ``ottla-`` and the id of the process
that created them. ``close`` deletes them; those of a process that was killed are deleted by the next one.

A cut is a rule of nftables that drops packets at the receiver. The sender learns nothing: its connections stay open and
carry no bytes, and new ones get no answer. A route that leads nowhere would fail at once at the sender instead.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from campaign.report import CannotRun

_DIRECTORY = Path("/run/netns")
_NAME = re.compile(r"ottla-([0-9]+)-.+")
_SWITCH = "switch"
_NETWORK = "10.77.14"
_CLONE_NEWNET = 0x40000000
_RULES = "table inet cuts { chain input { type filter hook input priority 0; policy accept; }; }"


def install_nftables() -> None:
    """Install the program that drops packets, if this user can. `check_requirements` tells if that failed."""
    if os.geteuid() == 0 and shutil.which("nft") is None and shutil.which("apt-get") is not None:
        for words in (["update", "-qq"], ["install", "-y", "-qq", "nftables"]):
            subprocess.run(["apt-get", *words], capture_output=True, check=False)


def check_requirements() -> None:
    """Raise CannotRun if this user or this machine cannot create network namespaces and rules of nftables."""
    if os.geteuid() != 0:
        raise CannotRun("network namespaces need root: run it as root, or with sudo")
    for program, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(program) is None:
            raise CannotRun(f"the program {program} is missing: apt-get install {package}")


class Hosts:
    """Namespaces with one address each. The n-th name, from 1 on, has the address that ends with n."""

    def __init__(self, names: Sequence[str]) -> None:
        """Create the namespaces. Raise CannotRun if the kernel or the user does not allow it."""
        check_requirements()
        _delete_those_of_ended_processes()
        self.addresses = {name: f"{_NETWORK}.{number}" for number, name in enumerate(names, 1)}
        self._own = f"ottla-{os.getpid()}-"
        self._created: list[str] = []
        try:
            self._create(_SWITCH)
            self._in(_SWITCH, "ip", "link", "add", "bridge", "type", "bridge")
            self._in(_SWITCH, "ip", "link", "set", "bridge", "up")
            for number, name in enumerate(names, 1):
                self._create_host(name, f"port-{number}")
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            output = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            raise CannotRun(f"network namespaces cannot be used here: {output}") from error
        except BaseException:
            self.close()
            raise

    def _create(self, name: str) -> None:
        _run("ip", "netns", "add", self._own + name)
        self._created.append(name)
        self._in(name, "ip", "link", "set", "lo", "up")

    def _create_host(self, name: str, port: str) -> None:
        self._create(name)
        _run(
            "ip", "link", "add", "eth0", "netns", self._own + name, "type", "veth",
            "peer", "name", port, "netns", self._own + _SWITCH,
        )  # fmt: skip
        self._in(_SWITCH, "ip", "link", "set", port, "master", "bridge", "up")
        self._in(name, "ip", "address", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        self._in(name, "ip", "link", "set", "eth0", "up")
        self._in(name, "nft", _RULES)

    def prefix(self, name: str) -> list[str]:
        """Return the words before a command that runs it on this host."""
        return ["ip", "netns", "exec", self._own + name]

    def enter(self, name: str) -> None:
        """Move the calling thread to a host, and the threads and processes that it starts from now on."""
        with (_DIRECTORY / (self._own + name)).open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns to {name}")

    # -- cuts -----------------------------------------------------------------------------------------------------

    def drop(self, sender: str, receiver: str) -> None:
        """Drop what one host sends to another one. The other direction is as before."""
        self._in(receiver, "nft", f"add rule inet cuts input ip saddr {self.addresses[sender]} drop")

    def cut(self, one: str, other: str) -> None:
        """Drop what two hosts send to each other."""
        self.drop(one, other)
        self.drop(other, one)

    def cut_groups(self, ones: Iterable[str], others: Sequence[str]) -> None:
        """Drop what the hosts of one group and those of another group send to each other."""
        for one in ones:
            for other in others:
                self.cut(one, other)

    def heal(self) -> None:
        """End all cuts."""
        for name in self.addresses:
            self._in(name, "nft", "flush chain inet cuts input")

    # -- end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Delete the namespaces. The processes in them must have ended."""
        while self._created:
            with suppress(OSError, subprocess.CalledProcessError):
                _run("ip", "netns", "delete", self._own + self._created.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _in(self, name: str, *command: str) -> None:
        _run(*self.prefix(name), *command)


def _delete_those_of_ended_processes() -> None:
    """Delete the namespaces that an earlier process left, because it was killed."""
    for path in _DIRECTORY.glob("ottla-*") if _DIRECTORY.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match is not None and not Path("/proc", match[1]).exists():
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "delete", path.name)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
