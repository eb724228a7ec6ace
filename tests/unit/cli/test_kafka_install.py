"""`ottla kafka` and the scripts of `ottla kafka install`."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.admin.failure import Failure
from ottla.cli.kafka.commands import COMMANDS
from ottla.cli.kafka.install import install, script
from ottla.cli.main import main


def test_scripts_have_the_names_of_the_commands_with_and_without_sh(tmp_path: Path) -> None:
    assert install(tmp_path / "new") == 2 * len(COMMANDS)
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        f"{name}{end}" for name in COMMANDS for end in ("", ".sh")
    }
    assert install(tmp_path / "new") == 2 * len(COMMANDS)


def test_a_script_runs_its_command_without_loading_click(tmp_path: Path) -> None:
    install(tmp_path)
    # The tests run from a checkout, which the interpreter of the script does not know.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [tmp_path / "kafka-topics.sh", "--version"], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "4.3.0\n", "")
    code = "import sys; from ottla.cli.kafka import topics; print('click' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "False\n"


def test_foreign_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "kafka-topics.sh").write_text("#!/bin/bash\nexec java\n")
    with pytest.raises(Failure, match="is not a script of Ottla; name another directory, or pass --force"):
        install(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kafka-topics.sh"]
    install(tmp_path, force=True)
    assert "ottla kafka install" in (tmp_path / "kafka-topics.sh").read_text()


def test_a_script_works_with_an_interpreter_in_a_path_with_spaces(tmp_path: Path) -> None:
    directory = tmp_path / "my python"
    directory.mkdir()
    (directory / "python3").symlink_to("/bin/echo")
    path = tmp_path / "kafka-topics"
    path.write_text(script("kafka-topics", str(directory / "python3")))
    path.chmod(0o755)
    done = subprocess.run([path, "--list", "a b"], capture_output=True, text=True, check=False)
    assert done.stdout == f"{path} --list a b\n"
    # Python reads the same text as a program.
    compile(path.read_text(), "script", "exec")


def test_flags_of_a_command_are_not_flags_of_ottla(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("kafka-topics", "topics.sh"):
        with pytest.raises(SystemExit) as ended:
            main(["kafka", name, "--version"])
        assert ended.value.code == 0
        assert capsys.readouterr().out == "4.3.0\n"
    with pytest.raises(SystemExit) as ended:
        main(["kafka", "topics", "--help"])
    assert ended.value.code == 1
    assert "--bootstrap-server <HOST:PORT,...>" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_can_be_loaded(name: str) -> None:
    module = importlib.import_module(f"ottla.cli.kafka.{COMMANDS[name].module}")
    assert module.TOOL.name == name if hasattr(module, "TOOL") else callable(module.main)
