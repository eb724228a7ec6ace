"""Runs protoc, of the package grpcio-tools, over many texts."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import grpc_tools
from google.protobuf import descriptor_pb2

_INCLUDE = Path(grpc_tools.__file__).with_name("_proto")
#: runs protoc inside of one process, because starting one takes 0.1 s; protoc writes its errors to file descriptor 2
_WORKER = """
import os, sys
from grpc_tools import protoc
folder, first, count, *include = sys.argv[1:]
os.chdir(folder)
for index in range(int(first), int(count)):
    with open(f"t{index}.err", "wb") as errors:
        os.dup2(errors.fileno(), 2)
    options = ["--retain_options", f"--descriptor_set_out=t{index}.desc", "-I."]
    protoc.main(["protoc", *options, *(f"-I{path}" for path in include), f"t{index}.proto"])
"""


#: the result for a text that ends the process of protoc
CRASHED: Final = "protoc crashed"


def compile_with_protoc(texts: list[str], include: tuple[Path, ...] = (), worker: str = _WORKER) -> list[Any]:
    """Return a FileDescriptorProto for each text that protoc accepts, and its error message for each other one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for index, text in enumerate(texts):
            (folder / f"t{index}.proto").write_bytes(text.encode())
        paths = [str(path) for path in (_INCLUDE, *include)]
        crashed: set[int] = set()
        first = 0
        while first < len(texts):
            command = [sys.executable, "-c", worker, name, str(first), str(len(texts)), *paths]
            code = subprocess.run(command, check=False, timeout=600).returncode
            if code == 0:
                break
            # The worker has made a file for the errors of each text that it has begun.
            last = max(int(path.stem[1:]) for path in folder.glob("t*.err"))
            assert last >= first, f"protoc does not start: exit code {code}"
            crashed.add(last)
            first = last + 1
        return [CRASHED if index in crashed else _result(folder / f"t{index}") for index in range(len(texts))]


def _result(path: Path) -> Any:
    descriptor = path.with_suffix(".desc")
    if not descriptor.exists():
        return path.with_suffix(".err").read_text() or "refused without an error message"
    return descriptor_pb2.FileDescriptorSet.FromString(descriptor.read_bytes()).file[0]
