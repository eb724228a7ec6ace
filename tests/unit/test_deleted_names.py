"""`tools/deleted_names.py`: what a branch deletes must stand in the message of a commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import deleted_names


class Repository:
    """A repository with a package and one commit on the branch main."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.git("init", "-q", "-b", "main")
        self.commit("Start", kept="class Kept: ...\n", other="def helper(): ...\nx = Setting(\n    'a.b', 1)\n")

    def git(self, *words: str) -> None:
        identity = ("-c", "user.name=Tester", "-c", "user.email=tester@example.com", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *words], cwd=self.path, check=True, capture_output=True)

    def commit(self, message: str, **modules: str) -> None:
        """Replace the modules of the package."""
        package = self.path / "src" / "ottla"
        package.mkdir(parents=True, exist_ok=True)
        for module in package.glob("*.py"):
            module.unlink()
        for name, text in modules.items():
            (package / f"{name}.py").write_text(text.replace("'", '"'))
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_deleted_function_and_setting_that_no_commit_mentions_fail(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.git("checkout", "-q", "-b", "work")
    repository.commit("docs: a reference page", kept="class Kept: ...\n")
    assert deleted_names.main(repository.path) == 1
    printed = capsys.readouterr()
    assert "a.b, helper" in printed.out
    assert "a.b, helper" in printed.err


@pytest.mark.parametrize(
    "message", ["Subject\n\nRemoves: a.b, help*", "Subject\n\nThe setting a.b and helper() are unused."]
)
def test_deletion_that_a_commit_mentions_passes(repository: Repository, message: str) -> None:
    repository.git("checkout", "-q", "-b", "work")
    repository.commit(message, kept="class Kept: ...\n")
    repository.commit("More", kept="class Kept:\n    x = 1\n")
    assert deleted_names.main(repository.path) == 0


def test_moved_name_is_not_deleted(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    repository.git("checkout", "-q", "-b", "work")
    repository.commit("Move", kept="async def helper(): ...\n", moved="class Kept: ...\nx = Setting('a.b', 1)\n")
    assert deleted_names.main(repository.path) == 0
    assert "none" in capsys.readouterr().out


def test_what_the_main_branch_adds_meanwhile_is_not_deleted(repository: Repository) -> None:
    repository.git("checkout", "-q", "-b", "work")
    repository.commit("Other", kept="class Kept: ...\n", other="def helper(): ...\nx = Setting('a.b', 1)\n", new="")
    repository.git("checkout", "-q", "main")
    repository.commit(
        "Add", kept="class Kept: ...\nclass Added: ...\n", other="def helper(): ...\nx = Setting('a.b', 1)\n"
    )
    repository.git("checkout", "-q", "work")
    assert deleted_names.main(repository.path) == 0


def test_main_branch_and_directory_without_git_are_not_checked(
    repository: Repository, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deleted_names.main(repository.path) == 0
    assert "commit of the main branch" in capsys.readouterr().out
    assert deleted_names.main(tmp_path_factory.mktemp("plain")) == 0
    assert "no checkout of git" in capsys.readouterr().out


def test_shallow_clone_is_not_checked(
    repository: Repository, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.git("checkout", "-q", "-b", "work")
    repository.commit("docs: a reference page", kept="class Kept: ...\n")
    clone = tmp_path_factory.mktemp("clone") / "clone"
    command = ["git", "clone", "-q", "--depth", "1", "--branch", "work", repository.path.as_uri(), str(clone)]
    subprocess.run(command, check=True, capture_output=True)
    assert deleted_names.main(clone) == 0
    assert "shallow clone" in capsys.readouterr().out
