"""`tools/removed_names.py` shows what a commit from an old copy of the files would remove."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import removed_names

BEFORE = """
LIMIT = 1
def kept(): ...
def moved(): ...
def removed(): ...
class Broker:
    size: int = 0
    def start(self): ...
    def _stop(self): ...
"""


def git(directory: Path, *words: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    subprocess.run(["git", *identity, *words], cwd=directory, check=True, capture_output=True)


def test_names_that_no_file_has_any_more_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(BEFORE)
    git(tmp_path, "init", "--initial-branch=main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message=before")
    (tmp_path / "src" / "a.py").write_text("def kept(): ...\nclass Broker:\n    size: int = 0\n")
    (tmp_path / "src" / "b.py").write_text("def moved(): ...\n")
    monkeypatch.setattr(removed_names, "ROOT", tmp_path)
    assert removed_names.merge_base() is not None
    assert removed_names.removed_names("HEAD") == {"src/a.py": ["Broker.start", "LIMIT", "removed"]}


def test_files_without_history_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removed_names, "ROOT", tmp_path)
    assert removed_names.main([]) == 0
