"""The messages of a login with GSSAPI, with a context that only looks like Kerberos."""

from __future__ import annotations

import pytest

from ottla.security.errors import AuthenticationFailed
from ottla.security.kerberos import GssapiClientExchange, GssapiExchange
from ottla.security.sasl import Identity


class FakeContext:
    """A context that is complete after some tokens. It wraps data in brackets."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self.name: str | None = None

    def step(self, token: bytes) -> bytes:
        if token != b"token":
            raise AuthenticationFailed("no token of Kerberos")
        answer = self._answers.pop(0)
        if not self._answers:
            self.name = "alice/host@EXAMPLE.TEST"
        return answer

    def wrap(self, data: bytes) -> bytes:
        return b"(" + data + b")"

    def unwrap(self, data: bytes) -> bytes:
        if data[:1] + data[-1:] != b"()":
            raise AuthenticationFailed("not wrapped")
        return data[1:-1]


def exchange(*answers: bytes) -> GssapiExchange:
    return GssapiExchange(FakeContext(*answers), lambda name: name.partition("/")[0])


def say(login: GssapiExchange, *tokens: bytes) -> list[bytes]:
    return [login.respond(token)() for token in tokens]


NO_LAYER = b"\x01\0\0\0"


@pytest.mark.parametrize("name", [b"", b"alice/host@EXAMPLE.TEST", b"alice/host"])
def test_login_is_complete_after_the_choice_of_no_layer(name: bytes) -> None:
    login = exchange(b"one", b"two")
    assert say(login, b"token", b"token", b"") == [b"one", b"two", b"(" + NO_LAYER + b")"]
    assert login.identity is None
    assert say(login, b"(" + NO_LAYER + name + b")") == [b""]
    assert login.identity == Identity("User:alice")
    with pytest.raises(AuthenticationFailed):
        say(login, b"")


def test_layers_are_offered_at_once_if_kerberos_has_no_last_token() -> None:
    assert say(exchange(b""), b"token") == [b"(" + NO_LAYER + b")"]


@pytest.mark.parametrize(
    "tokens",
    [
        [b""],
        [b"x" * 70_000],
        [b"token", b"token"],
        [b"token", b"", NO_LAYER],
        [b"token", b"", b"(" + NO_LAYER[:3] + b")"],
        [b"token", b"", b"(\x02\0\0\0)"],
        [b"token", b"", b"(\x04\xff\xff\xff)"],
        [b"token", b"", b"(" + NO_LAYER + b"\xff)"],
    ],
    ids=["empty", "too long", "one token too many", "not wrapped", "short", "integrity", "encryption", "not UTF-8"],
)
def test_message_is_refused(tokens: list[bytes]) -> None:
    login = exchange(b"one")
    with pytest.raises(AuthenticationFailed):
        say(login, *tokens)
    assert login.identity is None


@pytest.mark.parametrize("name", [b"root", b"alice", b"alice/host@OTHER.TEST", b"kafka/host@EXAMPLE.TEST"])
def test_client_may_not_ask_for_another_user(name: bytes) -> None:
    """CVE-2017-12610: a client got the name that it asked for."""
    login = exchange(b"one")
    with pytest.raises(AuthenticationFailed, match="another user"):
        say(login, b"token", b"", b"(" + NO_LAYER + name + b")")
    assert login.identity is None


# -- the client's side ------------------------------------------------------------------------------------------------


class FakeClientContext(FakeContext):
    """The client's side of such a context: it begins without a token."""

    def step(self, token: bytes) -> bytes:
        return b"begin" if not token else super().step(token)


def test_client_negotiates_and_chooses_no_layer() -> None:
    login = GssapiClientExchange(FakeClientContext(b"next", b""))
    assert login.first() == b"begin"
    assert [login.answer(each) for each in (b"token", b"token")] == [b"next", b""]
    assert login.answer(b"(\x07\0\x10\0)") == b"(" + NO_LAYER + b")"
    assert login.answer(b"") is None


@pytest.mark.parametrize(
    "tokens",
    [
        [b"other"],
        [b"token", NO_LAYER],
        [b"token", b"(\x06\0\x10\0)"],
        [b"token", b"(\x01\0\0)"],
        [b"token", b"(" + NO_LAYER + b")", b"more"],
    ],
    ids=["not of Kerberos", "not wrapped", "without the choice of no layer", "short", "after the end"],
)
def test_client_refuses_what_the_broker_sends(tokens: list[bytes]) -> None:
    login = GssapiClientExchange(FakeClientContext(b""))
    login.first()
    for token in tokens[:-1]:
        login.answer(token)
    with pytest.raises(AuthenticationFailed):
        login.answer(tokens[-1])
