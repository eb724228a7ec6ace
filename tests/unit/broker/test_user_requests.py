"""AlterUserScramCredentials: which credentials are accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.unit.broker.memory_broker import MemoryBroker

from ottla.model.errors import ErrorCode
from ottla.security.scram import Mechanism, ScramCredential
from ottla.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)

_TIMEOUT_S = 60
SHA256, SHA512 = Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512


def play(data: Path, script: Callable[[MemoryBroker], Awaitable[None]]) -> None:
    async def main() -> None:
        async with MemoryBroker(data) as broker, asyncio.timeout(_TIMEOUT_S):
            await script(broker)

    uvloop.run(main())


async def upsert(broker: MemoryBroker, **fields: Any) -> int:
    """Send one credential and return the error code."""
    row = {"name": "alice", "mechanism": SHA256, "iterations": 4096, "salt": b"salt", "salted_password": b"s" * 32}
    request = AlterUserScramCredentialsRequest(upsertions=[ScramCredentialUpsertion(**{**row, **fields})])
    (result,) = (await broker.root.decoded(request, 0)).results
    return int(result.error_code)


def test_salted_password_may_have_any_length_as_in_kafka(tmp_path: Path) -> None:
    """Kafka's clients send the length of the digest, tests of kafka-go another one."""

    async def script(broker: MemoryBroker) -> None:
        for mechanism in (SHA256, SHA512):
            for length in (1, 10, 32, 64, 200, 5000):
                salted = bytes([length % 256]) * length
                assert await upsert(broker, mechanism=mechanism, salted_password=salted) == 0
                stored = broker.broker.view.access.credentials["alice"][mechanism]
                assert stored == ScramCredential.from_salted(mechanism, b"salt", salted, 4096)

    play(tmp_path, script)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"salted_password": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b"s" * 257}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 4095}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 16385}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"name": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"name": "a" * 257}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"name": "alice\n"}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"name": "al\x1bice"}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"mechanism": 3}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
def test_other_credentials_are_refused(tmp_path: Path, fields: dict[str, Any], code: ErrorCode) -> None:
    async def script(broker: MemoryBroker) -> None:
        assert await upsert(broker, **fields) == code
        assert not broker.broker.view.access.credentials

    play(tmp_path, script)
