"""Answers to clients of HTTP/1.0, which do not know chunks: an answer without a length is collected and gets one."""

from __future__ import annotations

from typing import Final

from starlette.types import Message, Send

#: bytes of a collected answer
COLLECTED_BYTES_MAX: Final = 16 << 20
_WITHOUT_BODY: Final = (204, 304)


class WholeAnswer:
    """Takes the messages of an answer and sends them on with a length."""

    def __init__(self, send: Send) -> None:
        self._send = send
        #: the first message of an answer that is collected
        self._start: Message | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._is_refused = False

    async def send(self, message: Message) -> None:
        if self._is_refused:
            return
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", [])}
            if b"content-length" in names or message["status"] in _WITHOUT_BODY:
                await self._send(message)
            else:
                self._start = message
            return
        if self._start is None:
            await self._send(message)
            return
        body = message.get("body", b"")
        self._pieces.append(body)
        self._size += len(body)
        if self._size > COLLECTED_BYTES_MAX:
            self._is_refused = True
            await self._send_whole(
                {"type": "http.response.start", "status": 505, "headers": [(b"content-type", b"application/json")]},
                b'{"error_code":505,"message":"the answer is too long for HTTP/1.0: use HTTP/1.1"}',
            )
        elif not message.get("more_body", False):
            await self._send_whole(self._start, b"".join(self._pieces))

    async def _send_whole(self, start: Message, body: bytes) -> None:
        length = (b"content-length", b"%d" % len(body))
        await self._send({**start, "headers": [*start["headers"], length]})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self._start = None
        self._pieces.clear()
