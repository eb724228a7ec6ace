"""Runs protoc, of the package grpcio-tools, over many texts."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import grpc_tools
from google.protobuf import descriptor_pb2

_INCLUDE = Path(grpc_tools.__file__).with_name("_proto")
#: runs protoc inside of one process, because starting one takes 0.1 s; protoc writes its errors to file descriptor 2
_WORKER = """
import os, sys
from grpc_tools import protoc
folder, count, *include = sys.argv[1:]
os.chdir(folder)
for index in range(int(count)):
    with open(f"t{index}.err", "wb") as errors:
        os.dup2(errors.fileno(), 2)
    options = ["--retain_options", f"--descriptor_set_out=t{index}.desc", "-I."]
    protoc.main(["protoc", *options, *(f"-I{path}" for path in include), f"t{index}.proto"])
"""


def compile_with_protoc(texts: list[str], include: tuple[Path, ...] = ()) -> list[Any]:
    """Return a FileDescriptorProto for each text that protoc accepts, and its error message for each other one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for index, text in enumerate(texts):
            (folder / f"t{index}.proto").write_bytes(text.encode())
        paths = [str(path) for path in (_INCLUDE, *include)]
        subprocess.run([sys.executable, "-c", _WORKER, name, str(len(texts)), *paths], check=True, timeout=600)
        return [_result(folder / f"t{index}") for index in range(len(texts))]


def _result(path: Path) -> Any:
    descriptor = path.with_suffix(".desc")
    if not descriptor.exists():
        return path.with_suffix(".err").read_text() or "refused without an error message"
    return descriptor_pb2.FileDescriptorSet.FromString(descriptor.read_bytes()).file[0]
