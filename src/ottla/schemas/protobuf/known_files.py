"""Files that every schema may import without a reference, the same as in Confluent's registry."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from ottla.schemas.protobuf.from_descriptor import file_from_descriptor
from ottla.schemas.protobuf.known_texts import KNOWN_TEXTS
from ottla.schemas.protobuf.linker import Linked, link, with_imports
from ottla.schemas.protobuf.parser import parse_text
from ottla.schemas.schema import Budget

_NAMES: Final = (
    "any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type",
    "wrappers",
)  # fmt: skip
_GOOGLE: Final = frozenset(f"google/protobuf/{name}.proto" for name in _NAMES)
_META: Final = "confluent/meta.proto"
_DESCRIPTOR: Final = "google/protobuf/descriptor.proto"

KNOWN_PATHS: Final = _GOOGLE | frozenset(KNOWN_TEXTS)


@cache
def known_file(path: str) -> Linked:
    """Return a file that every schema may import. Raise KeyError if the path is not known."""
    budget = Budget()
    if path in _GOOGLE:
        module = import_module(path.removesuffix(".proto").replace("/", ".") + "_pb2")
        descriptor = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        file, text = file_from_descriptor(descriptor, DescriptorPool, budget), ""
    else:
        text = KNOWN_TEXTS[path]
        file = parse_text(text, budget)
    pool = DescriptorPool()
    imported = with_imports((item.path, known_file(item.path)) for item in file.imports)
    for linked in imported.values():
        pool.AddSerializedFile(linked.serialized)
    return link(path, file, text, imported, pool=pool, budget=budget)


@cache
def meta_pool() -> DescriptorPool:
    """Return a pool with the options that Confluent's registry defines."""
    pool = DescriptorPool()
    for path in (_DESCRIPTOR, _META):
        pool.AddSerializedFile(known_file(path).serialized)
    return pool
