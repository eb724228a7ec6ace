"""Small files on any file system: which addresses are local, and what messages say about others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest

from ottla.spark import stored_files
from ottla.spark.stored_files import (
    FileSystemUnusable,
    is_local,
    list_names,
    open_filesystem,
    read_file,
    replace_file,
)


def test_replaced_file_has_the_new_content_and_no_draft_stays(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/checkpoint/record.json"
    assert read_file(uri) is None and list_names(f"{tmp_path}/checkpoint") == []
    for content in (b"old", b"new"):
        replace_file(uri, content)
        assert read_file(uri) == content
    assert list_names(f"{tmp_path}/checkpoint") == ["record.json"]


@pytest.mark.parametrize("fails", [False, True])
def test_file_of_a_distributed_file_system_is_replaced_when_its_draft_is_complete(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: bool
) -> None:
    """HDFS shows a file from its creation on, so a crash during the write would leave a file that is cut off."""

    class Hdfs:
        type_name = "hdfs"

        def create_dir(self, path: str, *, recursive: bool) -> None:
            os.makedirs(path, exist_ok=recursive)

        @contextmanager
        def open_output_stream(self, path: str) -> Iterator[BinaryIO]:
            with open(path, "wb") as stream:
                if fails:
                    raise OSError("the writer died")
                yield stream

        def move(self, source: str, target: str) -> None:
            os.replace(source, target)

    monkeypatch.setattr(stored_files, "open_filesystem", lambda uri: (Hdfs(), uri))
    path = tmp_path / "checkpoint" / "offsets"
    path.parent.mkdir()
    path.write_bytes(b"old")
    with suppress(OSError):
        replace_file(str(path), b"new")
    assert path.read_bytes() == (b"old" if fails else b"new")


@pytest.mark.parametrize("uri", ["file:/tmp/x", "file:///tmp/x", "/tmp/x"])
def test_local_paths_are_understood_as_hadoop_writes_them(uri: str) -> None:
    assert open_filesystem(uri)[1] == "/tmp/x"
    assert is_local(uri)


def test_missing_libraries_of_hdfs_are_one_line_that_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(uri: str) -> None:
        raise OSError("Unable to load libjvm\n" + "dlopen(/usr/lib/jvm/libjvm.so) failed\n" * 20)

    monkeypatch.setattr(stored_files, "fs", SimpleNamespace(FileSystem=SimpleNamespace(from_uri=fail)))
    with pytest.raises(FileSystemUnusable, match=r"set JAVA_HOME, HADOOP_HOME .*CLASSPATH") as refused:
        open_filesystem("hdfs://name-node/checkpoints")
    assert "dlopen" not in str(refused.value) and "\n" not in str(refused.value)


def test_scheme_that_nobody_knows_says_what_would_do() -> None:
    assert not is_local("nosuch://host/x")
    with pytest.raises(FileSystemUnusable, match="Use a directory that it can open"):
        open_filesystem("nosuch://host/x")
