"""Hashes of passwords and the file of users that has them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli.main import main
from ottla.security import password_hashes
from ottla.security.errors import SecurityConfigError
from ottla.security.password_hashes import PasswordHash, UsersFile, hash_password, parse_users, user_line

CHEAP = {"ln": 10, "r": 8, "p": 1}


def line(name: str, password: str) -> str:
    return user_line(name, hash_password(password.encode(), b"salt" * 4, **CHEAP))


def write(path: Path, *lines: str, mode: int = 0o600) -> str:
    path.write_text("\n".join(lines))
    path.chmod(mode)
    return str(path)


def test_hash_is_that_of_the_rfc() -> None:
    # RFC 7914, section 12: scrypt("pleaseletmein", "SodiumChloride", 16384, 8, 1, 64)
    made = hash_password(b"pleaseletmein", b"SodiumChloride", ln=14, r=8, p=1)
    assert made.hash.hex().startswith("7023bdcb3afd7348461c06cd81fd38eb")
    assert made.is_password(b"pleaseletmein")
    assert not made.is_password(b"pleaseletmeout")


def test_line_is_read_back() -> None:
    users = parse_users("f", f"# people\n\n{line('ann', 's3cret')}\n{line('bob smith', 'x')}\n")
    assert sorted(users) == ["ann", "bob smith"]
    assert users["ann"].is_password(b"s3cret")
    assert not users["ann"].is_password(b"x")
    assert repr(users["ann"]) == "PasswordHash(ln=10, r=8, p=1)"


@pytest.mark.parametrize("name", ["", "a:b", "a\nb", "#a", " a", "a\r"])
def test_names_that_do_not_fit_into_a_line_are_refused(name: str) -> None:
    with pytest.raises(SecurityConfigError):
        line(name, "x")


@pytest.mark.parametrize(
    "text",
    [
        "ann",
        "ann:secret",
        "ann:{scrypt}ln=31,r=8,p=1$c2FsdHNhbHQ=$c2FsdHNhbHRzYWx0c2FsdA==",
        "ann:{scrypt}ln=10,r=8,p=99$c2FsdHNhbHQ=$c2FsdHNhbHRzYWx0c2FsdA==",
        "ann:{scrypt}ln=10,r=8,p=1$c2E=$c2FsdHNhbHRzYWx0c2FsdA==",
        "ann:{scrypt}ln=10,r=8,p=1$c2FsdHNhbHQ=$c2Fs",
        "ann:{scrypt}ln=10,r=8,p=1$c2FsdHNhbHQ$=c2FsdHNhbHRzYWx0c2FsdA==",
    ],
)
def test_malformed_line_is_named_and_not_shown(text: str) -> None:
    with pytest.raises(SecurityConfigError, match="line 2") as error:
        parse_users("f", f"\n{text}")
    assert "secret" not in str(error.value)
    assert "c2Fs" not in str(error.value)


def test_user_that_occurs_twice_is_refused() -> None:
    with pytest.raises(SecurityConfigError, match="line 2"):
        parse_users("f", f"{line('ann', 'a')}\n{line('ann', 'b')}")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602])
def test_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(SecurityConfigError, match="chmod 600"):
        UsersFile(write(tmp_path / "users", line("ann", "a"), mode=mode))


def test_changed_file_is_read_and_a_wrong_one_leaves_no_users(tmp_path: Path) -> None:
    path = tmp_path / "users"
    users = UsersFile(write(path, line("ann", "a")))
    assert not users.reload()
    write(path, line("ann", "a"), line("bob", "b"))
    assert users.reload()
    assert sorted(users.users) == ["ann", "bob"]
    write(path, "nonsense")
    for _ in range(2):
        with pytest.raises(SecurityConfigError):
            users.reload()
        assert users.users == {}
    write(path, line("eve", "e"))
    assert users.reload()
    path.unlink()
    with pytest.raises(SecurityConfigError, match="cannot be read"):
        users.reload()
    assert users.users == {}


def test_unknown_user_costs_as_much_as_a_known_one(tmp_path: Path) -> None:
    users = UsersFile(write(tmp_path / "users", line("ann", "a")))
    known, is_known = users.find("ann")
    other, is_other_known = users.find("bob")
    assert (is_known, is_other_known) == (True, False)
    assert (known.ln, known.r, known.p, len(known.hash)) == (other.ln, other.r, other.p, len(other.hash))
    empty = UsersFile(write(tmp_path / "empty", ""))
    assert empty.find("bob")[0].ln == PasswordHash(15, 8, 3, b"", b"").ln


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(password_hashes, "hash_password", partial(hash_password, **CHEAP))


@pytest.mark.usefixtures("cheap")
def test_command_writes_lines_that_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "users"
    for name, password in (("ann", "old"), ("bob", "b"), ("ann", "new")):
        result = CliRunner().invoke(main, ["user", "hash", name, "--file", str(path)], input=f"{password}\n")
        assert (result.exit_code, result.output) == (0, "")
    assert path.stat().st_mode & 0o777 == 0o600
    users = UsersFile(str(path)).users
    assert list(users) == ["bob", "ann"]
    assert users["ann"].is_password(b"new")


@pytest.mark.usefixtures("cheap")
def test_command_prints_a_line_and_refuses_a_name_with_a_colon() -> None:
    result = CliRunner().invoke(main, ["user", "hash", "ann"], input="s3cret\n")
    assert parse_users("out", result.output)["ann"].is_password(b"s3cret")
    result = CliRunner().invoke(main, ["user", "hash", "a:b"], input="s3cret\n")
    assert result.exit_code == 1
    assert "s3cret" not in result.output
