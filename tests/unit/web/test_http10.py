"""Answers to clients of HTTP/1.0 have a length."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from ottla.edge.web import http10
from ottla.edge.web.http10 import WholeAnswer


def answered(*messages: Message) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def run() -> None:
        answer = WholeAnswer(send)
        for message in messages:
            await answer.send(message)

    asyncio.run(run())
    return sent


def start(*headers: tuple[bytes, bytes], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def piece(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def test_answer_in_pieces_is_sent_with_its_length() -> None:
    sent = answered(start((b"content-type", b"x")), piece(b"ab", more=True), piece(b"c", more=True), piece(b""))
    assert sent == [start((b"content-type", b"x"), (b"content-length", b"3")), piece(b"abc")]


def test_answer_with_a_length_is_sent_as_it_is() -> None:
    for messages in (
        [start((b"Content-Length", b"2")), piece(b"a", more=True), piece(b"b")],
        [start(status=204), piece(b"")],
    ):
        assert answered(*messages) == messages


def test_answer_that_is_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http10, "COLLECTED_BYTES_MAX", 3)
    head, body = answered(start(), piece(b"ab", more=True), piece(b"cd", more=True), piece(b"e"))
    assert head["status"] == 505
    assert (b"content-length", b"%d" % len(body["body"])) in head["headers"]
