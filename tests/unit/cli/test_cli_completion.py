"""Completion of names: what the shells get, the cache of it, and what happens when the cluster does not answer."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla.admin.failure import NotHealthy
from ottla.cli import cluster as cluster_module
from ottla.cli import completion_cache, names, profiles
from ottla.cli.main import main
from ottla.cli.profiles import Profile, Profiles

Complete = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("OTTLA_BOOTSTRAP_SERVER", raising=False)
    monkeypatch.delenv("OTTLA_PROFILE", raising=False)


@pytest.fixture
def complete() -> Complete:
    """Return the lines that a shell gets, without the first one."""

    def run(line: str, *, shell: str = "zsh", typed: str = "") -> list[str]:
        environment = {"_OTTLA_COMPLETE": f"{shell}_complete", "COMP_LINE": line, "COMP_TYPED": typed}
        result = CliRunner().invoke(main, [], env=environment, prog_name="ottla")
        kind, *lines = result.stdout.splitlines()
        assert (result.exit_code, result.stderr, kind) == (0, "", "names")
        return lines

    return run


class _Counted:
    """Answers with topics, and counts the questions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *topics: str) -> None:
        self.known: dict[str, None] | Exception = dict.fromkeys(topics)
        self.count = 0
        monkeypatch.setattr(cluster_module, "connect", lambda connection: self)

    def topics(self) -> dict[str, None]:
        self.count += 1
        if isinstance(self.known, Exception):
            raise self.known
        return self.known


def test_names_of_commands_have_their_help(complete: Complete) -> None:
    (line,) = complete("ottla comp")
    assert line.split("\t")[0] == "completion"
    assert "shell" in line.split("\t")[1]


@pytest.mark.parametrize("word", ["topic describe or", "topic describe --watch or", "consume or", "offsets or"])
def test_topics_are_completed_in_arguments(complete: Complete, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    _Counted(monkeypatch, "orders", "payments")
    assert complete(f"ottla {word}") == ["orders"]


def test_name_that_is_in_the_line_is_not_offered_again(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    _Counted(monkeypatch, "orders", "orders-us")
    assert complete("ottla topic describe orders ") == ["orders-us"]


def test_value_after_an_equals_sign_keeps_its_option(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    _Counted(monkeypatch, "orders")
    assert complete("ottla txn hanging --topic=or") == ["--topic=orders"]
    assert complete("ottla txn hanging --topic=or", shell="bash", typed="or") == ["orders"]


def test_bash_gets_the_part_behind_a_colon_with_quotes_where_it_needs_them(
    complete: Complete, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Counted(monkeypatch, "a:b c$d")
    assert complete("ottla offsets a:b", shell="bash", typed="b") == [r"b\ c\$d"]
    assert complete("ottla offsets a", shell="bash", typed="a") == [r"a:b\ c\$d"]
    assert complete(r"ottla offsets a:b\ c", shell="bash", typed=r"b\ c") == [r"b\ c\$d"]
    assert complete('ottla offsets "a:b', shell="bash", typed='"a:b') == ['"a:b c$d']


def test_names_with_control_characters_are_left_out(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    _Counted(monkeypatch, "a\nb", "a\x1b[2J", "a")
    assert complete("ottla offsets a") == ["a"]


def test_file_is_left_to_the_shell() -> None:
    environment = {"_OTTLA_COMPLETE": "bash_complete", "COMP_LINE": "ottla topic list --command-config cl"}
    result = CliRunner().invoke(main, [], env=environment, prog_name="ottla")
    assert result.stdout == "file\n"


def test_profiles_are_completed(complete: Complete) -> None:
    profiles.change(lambda found: Profiles(by_name={"prod": Profile(), "test": Profile()}))
    assert complete("ottla topic list --profile p") == ["prod"]
    assert complete("ottla profile use t") == ["test"]


def test_cluster_is_that_of_the_options_the_file_and_the_profile(
    complete: Complete, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def connect(connection: Any) -> None:
        asked.append((connection.bootstrap, dict(connection.properties)))
        raise NotHealthy("no answer")

    monkeypatch.setattr(cluster_module, "connect", connect)
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file:2\nclient.id=x\n")
    profiles.change(lambda found: Profiles(by_name={"p": Profile(bootstrap="prod:3", properties={"a": "b"})}))
    for words in ("-b option:1", f"--command-config {file}", "--profile p"):
        complete(f"ottla topic describe {words} or")
    assert asked == [("option:1", {}), ("file:2", {"client.id": "x"}), ("prod:3", {"a": "b"})]


@pytest.mark.parametrize(
    "words", ["--profile nothing", "--command-config /does/not/exist", "-X novalue", "--timeout x", "--nothing"]
)
def test_wrong_line_completes_nothing_and_prints_no_error(complete: Complete, words: str) -> None:
    assert complete(f"ottla topic describe {words} or") == []


def test_second_key_does_not_ask_again_until_the_answer_is_old(
    complete: Complete, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = _Counted(monkeypatch, "orders")
    assert [complete("ottla offsets o"), complete("ottla topic describe or")] == [["orders"], ["orders"]]
    assert cluster.count == 1
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 11)
    cluster.known = {"other": None}
    assert (complete("ottla offsets o"), cluster.count) == (["other"], 2)


def test_old_answer_is_used_while_the_cluster_does_not_answer(
    complete: Complete, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = _Counted(monkeypatch, "orders")
    complete("ottla offsets o")
    cluster.known = NotHealthy("no answer")
    now_s = time.time()
    for later_s, count in ((20, 2), (22, 2), (30, 3)):
        monkeypatch.setattr(time, "time", lambda later_s=later_s: now_s + later_s)
        assert (complete("ottla offsets o"), cluster.count) == (["orders"], count)
    monkeypatch.setattr(time, "time", lambda: now_s + 700)
    assert complete("ottla offsets o") == []


def test_failure_is_remembered_for_a_moment(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = _Counted(monkeypatch)
    cluster.known = NotHealthy("no answer")
    assert [complete("ottla offsets o"), complete("ottla offsets o")] == [[], []]
    assert cluster.count == 1


def test_silent_cluster_does_not_keep_the_shell_waiting(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def connect(connection: Any) -> None:
        answers.wait()
        raise NotHealthy("too late")

    monkeypatch.setattr(cluster_module, "connect", connect)
    monkeypatch.setattr(names, "_TIMEOUT_S", 0.01)
    try:
        assert complete("ottla offsets o") == []
    finally:
        answers.set()


def test_cache_is_private_and_does_not_show_the_login(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    _Counted(monkeypatch, "orders")
    complete("ottla offsets -X sasl.password=canary-91 o")
    directory = completion_cache.cache_directory()
    (path,) = directory.iterdir()
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(directory.stat().st_mode)) == (0o600, 0o700)
    assert "canary-91" not in path.name + path.read_text()


def test_other_logins_and_addresses_have_other_answers() -> None:
    completion_cache.write(["topic", "h:1", [["user", "a"]]], ["x"], is_answer=True)
    assert completion_cache.read(["topic", "h:1", [["user", "b"]]]) is None
    assert completion_cache.read(["topic", "h:1", [["user", "a"]]]) == (["x"], True)


def test_cache_has_a_limit_of_files_and_of_bytes() -> None:
    for number in range(70):
        completion_cache.write(["topic", number], ["x"], is_answer=True)
    assert len(os.listdir(completion_cache.cache_directory())) == 64
    completion_cache.write(["large"], ["x" * 5_000_000], is_answer=True)
    assert completion_cache.read(["large"]) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"found_s": "x", "checked_s": 1, "names": []}', "[" * 100_000]
)
def test_file_that_is_damaged_is_ignored(complete: Complete, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    _Counted(monkeypatch, "orders")
    complete("ottla offsets o")
    (path,) = completion_cache.cache_directory().iterdir()
    path.write_text(text)
    assert complete("ottla offsets o") == ["orders"]
    assert json.loads(path.read_text())["names"] == ["orders"]


def test_cache_that_cannot_be_written_is_no_failure(
    complete: Complete, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    _Counted(monkeypatch, "orders")
    assert complete("ottla offsets o") == ["orders"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_is_printed_by_the_command_and_by_the_older_variable(ottla: Any, shell: str) -> None:
    script = ottla("completion", shell).stdout
    environment = {"_OTTLA_COMPLETE": f"{shell}_source"}
    assert CliRunner().invoke(main, [], env=environment, prog_name="ottla").stdout == script
    assert f"_OTTLA_COMPLETE={shell}_complete" in script


def test_unknown_shell_is_wrong_usage(ottla: Any) -> None:
    assert ottla("completion", "tcsh").exit_code == 2
