"""A Kerberos realm of its own: the KDC of MIT Kerberos on a loopback port, with all its files in one directory."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.testing.process import reserve_port

REALM = "OTTLA.TEST"
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local")
_START_S_MAX = 60.0


def missing() -> str | None:
    """Return one line that says what is missing, None if a KDC can be started."""
    absent = [name for name in _PROGRAMS if _path(name) is None]
    return (
        f"Kerberos is not installed ({', '.join(absent)}): apt-get install krb5-kdc krb5-admin-server"
        if absent
        else None
    )


def _path(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Realm:
    """A running KDC."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with reserve_port() as reserved:
            self._port = reserved.getsockname()[1]
        self.config = directory / "krb5.conf"
        self.config.write_text(
            f"[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\ndns_lookup_realm = false\nrdns = false\n"
            f"dns_canonicalize_hostname = false\nudp_preference_limit = 1\n"
            f"default_ccache_name = FILE:{directory}/ccache\n"
            f"[realms]\n{REALM} = {{\n  kdc = 127.0.0.1:{self._port}\n}}\n"
        )
        profile = directory / "kdc.conf"
        profile.write_text(
            f"[kdcdefaults]\nkdc_listen = 127.0.0.1:{self._port}\nkdc_tcp_listen = 127.0.0.1:{self._port}\n"
            f"[realms]\n{REALM} = {{\n  database_name = {directory}/principals\n  key_stash_file = {directory}/stash\n"
            f"  acl_file = {directory}/acl\n}}\n[logging]\nkdc = FILE:{directory}/kdc.log\n"
        )
        self.environment = {**os.environ, "KRB5_CONFIG": str(self.config), "KRB5_KDC_PROFILE": str(profile)}
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "password of the database")
        kdc = _path("krb5kdc")
        assert kdc is not None
        self._process = subprocess.Popen(
            [kdc, "-n", "-r", REALM], env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._await()
        except BaseException:
            self.close()
            raise

    def _await(self) -> None:
        deadline = time.monotonic() + _START_S_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1.0).close()
                return
            except OSError:
                log = self._directory / "kdc.log"
                text = log.read_text() if log.exists() else ""
                assert self._process.poll() is None and time.monotonic() < deadline, f"the KDC does not start: {text}"
                time.sleep(0.02)

    def add(self, *principals: str) -> str:
        """Create principals with random keys and return a keytab with the keys."""
        keytab = self._directory / (principals[0].replace("/", "-") + ".keytab")
        for principal in principals:
            self._run("kadmin.local", "-r", REALM, "addprinc", "-randkey", principal)
            self._run("kadmin.local", "-r", REALM, "ktadd", "-k", str(keytab), principal)
        keytab.chmod(0o600)
        return str(keytab)

    def _run(self, name: str, *arguments: str) -> None:
        path = _path(name)
        assert path is not None
        done = subprocess.run([path, *arguments], env=self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
