"""The SCRAM credentials of users: list, set and delete."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.admin.client import AdminClient
from ottla.admin.error_codes import check
from ottla.admin.failure import NotFound
from ottla.model.errors import ErrorCode
from ottla.model.printable import shown
from ottla.security.scram import Mechanism
from ottla.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName

_SALT_BYTES = 24


class Credential(NamedTuple):
    """What the cluster stores instead of a password."""

    mechanism: Mechanism
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"Credential({self.mechanism.title})"


def credentials_of(password: bytes, mechanisms: Iterable[Mechanism], iterations: int) -> list[Credential]:
    """Return what the cluster stores for a password: a salted hash for each mechanism, each with a new salt."""
    found = []
    for mechanism in mechanisms:
        salt = os.urandom(_SALT_BYTES)
        salted = hashlib.pbkdf2_hmac(mechanism.digest, password, salt, iterations)
        found.append(Credential(mechanism, iterations, salt, salted))
    return found


def describe(client: AdminClient, names: Sequence[str]) -> dict[str, dict[Mechanism, int]]:
    """Return the mechanisms and iterations of users: all, or these. Raise NotFound."""
    users = [UserName(name=name) for name in names] or None
    answer = client.ask_any(DescribeUserScramCredentialsRequest(users=users))
    check(answer.error_code, "the users", answer.error_message)
    found: dict[str, dict[Mechanism, int]] = {}
    for result in answer.results:
        _check(result.error_code, result.user, result.error_message)
        found[result.user] = {Mechanism(each.mechanism): each.iterations for each in result.credential_infos}
    return dict(sorted(found.items()))


def upsert(client: AdminClient, name: str, credentials: Iterable[Credential]) -> None:
    """Set the credentials of a user. Its credentials for other mechanisms stay."""
    rows = [
        ScramCredentialUpsertion(
            name=name, mechanism=each.mechanism, iterations=each.iterations, salt=each.salt,
            salted_password=each.salted_password,
        )
        for each in credentials
    ]  # fmt: skip
    _alter(client, AlterUserScramCredentialsRequest(upsertions=rows))


def delete(client: AdminClient, mechanisms: Mapping[str, Iterable[Mechanism]]) -> None:
    """Delete the credentials of users. Raise NotFound."""
    rows = [ScramCredentialDeletion(name=name, mechanism=each) for name in mechanisms for each in mechanisms[name]]
    _alter(client, AlterUserScramCredentialsRequest(deletions=rows))


def _alter(client: AdminClient, request: AlterUserScramCredentialsRequest) -> None:
    answer = client.ask_any(request)
    for result in answer.results:
        _check(result.error_code, result.user, result.error_message)


def _check(code: int, user: str, text: str | None) -> None:
    if code == ErrorCode.RESOURCE_NOT_FOUND:
        raise NotFound(f"user {shown(user)}: {shown(text or 'has no SCRAM credentials')}; see 'ottla user list'")
    check(code, f"user {shown(user)}", text)
