"""A .proto text as a FileDescriptorSet, compiled by the protoc of the package grpcio-tools (extra ``protobuf``).

protoc runs as a process of its own, 0.1 s for each text: inside of this process it would write its errors to the
process's standard error. Formats compile their schemas on the driver and send the result to the tasks, so that workers
need no compiler. Why no parser in Python: docs/decisions/0011-parsers.md.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from ottla.model.extras import install_command
from ottla.spark.wire_format import SchemaRefused

_FILE = "schema.proto"
_TIMEOUT_S = 120.0
_ERRORS_MAX = 3
_ERROR = re.compile(r"(?P<file>[^:]+):(?P<line>\d+):\d+: (?P<what>.*)")


@lru_cache(maxsize=64)
def compile_proto(text: str, directory: str | None = None) -> bytes:
    """Return the FileDescriptorSet of a text and its imports, as bytes; the file of the text is the last one.

    Imports are found in `directory` and, for google/protobuf, in the compiler. Raise SchemaRefused with the lines that
    protoc refuses, or if grpcio-tools is not installed. A text is compiled once in the life of a process.
    """
    if importlib.util.find_spec("grpc_tools") is None:
        raise SchemaRefused(
            "a .proto text needs the package grpcio-tools: install Ottla with its extra protobuf, in a checkout "
            f"({install_command('spark,protobuf')}), or compile the text with "
            "protoc --include_imports --descriptor_set_out=FILE.desc and give FILE.desc instead"
        )
    with tempfile.TemporaryDirectory(prefix="ottla-proto-") as work:
        Path(work, _FILE).write_bytes(text.encode())
        includes = ["-I."] if directory is None else ["-I.", f"-I{Path(directory).resolve()}"]
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc", *includes, "--include_imports"]
        try:
            ran = subprocess.run(
                [*command, "--descriptor_set_out=out", _FILE],
                cwd=work,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SchemaRefused(f"protoc could not compile the .proto text: {error}") from None
        if ran.returncode:
            raise SchemaRefused(f"protoc refuses the .proto text: {_complaints(ran.stderr)}")
        return Path(work, "out").read_bytes()


def _complaints(output: str) -> str:
    """Return protoc's first errors, with lines counted in the text that was given."""
    found = []
    for line in output.splitlines():
        error = _ERROR.fullmatch(line)
        if error is None or "warning:" in line:
            continue
        place = f"line {error['line']}" if error["file"] == _FILE else f"{error['file']}, line {error['line']}"
        found.append(f"{place}: {error['what'].rstrip('.')}")
    return "; ".join(found[:_ERRORS_MAX]) or output.strip() or "it gives no reason"
