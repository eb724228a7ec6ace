"""Reads a schema together with the schemas that it refers to, in text or base64, each after the files it imports."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from ottla.schemas.protobuf.from_descriptor import file_from_descriptor
from ottla.schemas.protobuf.known_files import KNOWN_PATHS, known_file
from ottla.schemas.protobuf.linker import Linked, link, with_imports
from ottla.schemas.protobuf.model import File
from ottla.schemas.protobuf.parser import parse_text
from ottla.schemas.protobuf.printer import Printer
from ottla.schemas.schema import TEXT_BYTES_MAX, Budget, InvalidSchema, SchemaTooComplex

#: the path of a schema in its own descriptor; clients use the same one
ROOT: Final = "default"

_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]*+={0,2}\s*+\Z")
_META_FILES: Final = ("google/protobuf/descriptor.proto", "confluent/meta.proto")


def load(text: str, references: Mapping[str, str], budget: Budget) -> tuple[Linked, str]:
    """Return the linked file of a schema, and its text. Raise InvalidSchema if it or a reference is invalid."""
    size = len(text) + sum(map(len, references.values()))
    if size > TEXT_BYTES_MAX:
        raise SchemaTooComplex(f"the schema and its references have more than {TEXT_BYTES_MAX:,} characters")
    loader = _Loader({**references, ROOT: text}, budget)
    return loader.load()


class _Loader:
    def __init__(self, texts: Mapping[str, str], budget: Budget) -> None:
        self._texts = texts
        self._budget = budget
        self._linked: dict[str, Linked] = {}
        #: all files that are linked
        self._pool = DescriptorPool()
        #: descriptors and trees of files that wait for their imports
        self._pending: dict[str, File | Any] = {}
        self._text = ""

    def load(self) -> tuple[Linked, str]:
        """Link all files that the schema needs, depth first, without recursion."""
        stack = [ROOT]
        while stack:
            path = stack[-1]
            if path in self._linked:
                stack.pop()
                continue
            if path not in self._pending:
                self._pending[path] = self._read(path)
                stack.extend(self._unlinked_imports(path))
                continue
            stack.pop()
            self._link(path)
        return self._linked[ROOT], self._text

    def _read(self, path: str) -> File | Any:
        try:
            return read_source(self._texts[path], self._budget)
        except SchemaTooComplex:
            raise
        except InvalidSchema as error:
            raise self._error(path, error) from None

    def _unlinked_imports(self, path: str) -> list[str]:
        missing = []
        for name in _imports(self._pending[path]):
            if name in self._linked:
                continue
            if name in self._texts and name != ROOT:
                if name in self._pending:
                    raise self._error(path, InvalidSchema(f'"{name}" imports itself, directly or through other files'))
                missing.append(name)
            elif name in KNOWN_PATHS:
                self._add_known(name)
        return missing

    def _add_known(self, name: str) -> None:
        known = known_file(name)
        for path, linked in with_imports([(name, known)]).items():
            if path not in self._linked and (path == name or path not in self._texts):
                self._linked[path] = linked
                self._pool.AddSerializedFile(linked.serialized)

    def _link(self, path: str) -> None:
        source = self._pending[path]
        text = self._texts[path]
        try:
            if not isinstance(source, File):
                file = file_from_descriptor(source, lambda: self._options_pool(source), self._budget)
                text = Printer().file(file)
                source = parse_text(text, self._budget)
            self._linked[path] = link(path, source, text, self._linked, pool=self._pool, budget=self._budget)
        except SchemaTooComplex:
            raise
        except InvalidSchema as error:
            raise self._error(path, error) from None
        if path == ROOT:
            self._text = Printer().file(self._linked[path].file)

    def _options_pool(self, descriptor: Any) -> DescriptorPool:
        """Return a pool that knows the options of Protobuf, of Confluent, of the imports and of the file itself."""
        for path in _META_FILES:
            if path not in self._linked:
                self._add_known(path)
        pool = DescriptorPool()
        imports = (name for name in descriptor.dependency if name in self._linked)
        files = with_imports((path, self._linked[path]) for path in (*_META_FILES, *imports))
        self._budget.spend(len(files))
        for linked in files.values():
            pool.AddSerializedFile(linked.serialized)
        try:
            own = descriptor_pb2.FileDescriptorProto.FromString(descriptor.SerializeToString())
            own.name = ROOT
            pool.AddSerializedFile(own.SerializeToString())
        except (TypeError, DecodeError):
            pass  # the file's own options are unknown then; the linker says what is wrong with the file
        return pool

    @staticmethod
    def _error(path: str, error: InvalidSchema) -> InvalidSchema:
        return error if path == ROOT else InvalidSchema(f'in the reference "{path}": {error}')


def read_source(text: str, budget: Budget) -> File | Any:
    """Return the tree of a text in .proto syntax, or the FileDescriptorProto of a text in base64."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidSchema("the schema has characters that are not valid Unicode") from None
    if text.strip() and _BASE64.match(text) is not None:
        descriptor = _decode(text)
        if descriptor is not None:
            return descriptor
    return parse_text(text, budget)


def _decode(text: str) -> Any | None:
    """Return the FileDescriptorProto that a text in base64 stands for; None if it stands for none."""
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
        descriptor = descriptor_pb2.FileDescriptorProto.FromString(content)
    except (binascii.Error, DecodeError):
        return None
    is_empty = not (
        descriptor.message_type
        or descriptor.enum_type
        or descriptor.service
        or descriptor.extension
        or descriptor.dependency
    )
    return None if is_empty else descriptor


def _imports(source: File | Any) -> list[str]:
    return [item.path for item in source.imports] if isinstance(source, File) else list(source.dependency)
