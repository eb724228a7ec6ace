"""The APIs of delegation tokens, on a metadata store: who may do what, and how long tokens live."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.broker.admin_fixtures import NOW_MS, Admin, create_skeleton
from tests.unit.broker.request_fixtures import request_context

from ottla.broker.access.authentication import _Login
from ottla.broker.access.permissions import Access
from ottla.broker.access.token_apis import TokenApis
from ottla.broker.metadata.access_nodes import ACCESS_SKELETON
from ottla.broker.metadata.embedded import EmbeddedStore
from ottla.broker.metadata.store import Create
from ottla.model.errors import ErrorCode
from ottla.model.settings import BrokerSettings
from ottla.net.connection import ANONYMOUS
from ottla.security.acls import Authorizer, Entry, Operation, Pattern, PatternType, Permission, ResourceType
from ottla.security.tokens import TokenSecret
from ottla.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from ottla.wire.messages.describe_delegation_token import DescribeDelegationTokenOwner, DescribeDelegationTokenRequest
from ottla.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from ottla.wire.messages.renew_delegation_token import RenewDelegationTokenRequest

HOUR_MS, DAY_MS, WEEK_MS = 3_600_000, 86_400_000, 604_800_000
ALICE, BOB, EVE, ADMIN = "User:alice", "User:bob", "User:eve", "User:admin"


class Tokens:
    """Requests of several users to one broker."""

    def __init__(
        self, runner: asyncio.Runner, directory: Path, *, key: str = "secret", access: Access | None = None
    ) -> None:
        self._runner = runner
        self._store = EmbeddedStore.open(str(directory / "metadata.db"))
        self.admin = Admin(self._store)
        texts = {"log.dirs": "unused", "delegation.token.secret.key": key}
        self.admin.metadata.started_settings = BrokerSettings.parse(texts)
        self.now_ms = NOW_MS
        clock: Any = SimpleNamespace(wall_ms=lambda: self.now_ms)
        self.apis = TokenApis(metadata=self.admin.metadata, clock=clock)
        self._access = access or Access()
        runner.run(self._open())

    async def _open(self) -> None:
        await create_skeleton(self._store)
        await self._store.multi([Create(path) for path in ACCESS_SKELETON])
        await self.admin.open()

    def close(self) -> None:
        self._runner.run(self._store.close())

    def context(self, api_key: int, principal: str, is_token: bool = False) -> Any:
        context = request_context(3, api_key=api_key, principal=principal, access=self._access)
        context.connection.login = None  # type: ignore[attr-defined]
        if is_token:
            login = _Login()
            login.is_token = True
            context.connection.login = login
        return context

    def create(self, principal: str, *, is_token: bool = False, **fields: Any) -> Any:
        request = CreateDelegationTokenRequest(**{"max_lifetime": -1, **fields})
        return self._runner.run(self.apis.create_delegation_token(request, self.context(38, principal, is_token)))

    def create_together(self, principal: str, count: int) -> list[Any]:
        request = CreateDelegationTokenRequest(max_lifetime=-1)
        context = self.context(38, principal)

        async def create() -> list[Any]:
            requests = (self.apis.create_delegation_token(request, context) for _ in range(count))
            return await asyncio.gather(*requests)

        return self._runner.run(create())

    def renew(self, principal: str, code: bytes, period_ms: int, *, is_token: bool = False) -> Any:
        request = RenewDelegationTokenRequest(hmac=code, renew_period=period_ms)
        return self._runner.run(self.apis.renew_delegation_token(request, self.context(39, principal, is_token)))

    def expire(self, principal: str, code: bytes, period_ms: int, *, is_token: bool = False) -> Any:
        request = ExpireDelegationTokenRequest(hmac=code, expiry_time_period=period_ms)
        return self._runner.run(self.apis.expire_delegation_token(request, self.context(40, principal, is_token)))

    def describe(self, principal: str, owners: list[str] | None = None, *, is_token: bool = False) -> Any:
        rows = None if owners is None else [
            DescribeDelegationTokenOwner(principal_type="User", principal_name=each.removeprefix("User:"))
            for each in owners
        ]  # fmt: skip
        request = DescribeDelegationTokenRequest(owners=rows)
        return self.apis.describe_delegation_token(request, self.context(41, principal, is_token))

    def described(self, principal: str, owners: list[str] | None = None) -> set[str]:
        return {each.token_id for each in self.describe(principal, owners).tokens}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Tokens]]:
    """Starts a broker with the arguments of Tokens."""
    made: list[Tokens] = []
    with asyncio.Runner() as runner:

        def start(**options: Any) -> Tokens:
            made.append(Tokens(runner, tmp_path, **options))
            return made[-1]

        yield start
        for each in made:
            each.close()


@pytest.fixture
def tokens(start: Callable[..., Tokens]) -> Tokens:
    return start()


def test_token_has_the_times_and_principals_of_the_request(tokens: Tokens) -> None:
    renewers = [CreatableRenewers(principal_type="User", principal_name="bob")]
    made = tokens.create(ALICE, renewers=renewers)
    assert made.error_code == 0
    assert (made.principal_type, made.principal_name) == ("User", "alice")
    assert (made.token_requester_principal_type, made.token_requester_principal_name) == ("User", "alice")
    assert (made.issue_timestamp, made.expiry_timestamp) == (NOW_MS, NOW_MS + DAY_MS)
    assert made.max_timestamp == NOW_MS + WEEK_MS
    assert len(made.hmac) == 64
    (row,) = tokens.describe(ALICE).tokens
    assert (row.token_id, row.hmac, row.expiry_timestamp) == (made.token_id, made.hmac, made.expiry_timestamp)
    assert [each.principal_name for each in row.renewers] == ["bob"]


def test_lifetime_is_at_most_that_of_the_settings(tokens: Tokens) -> None:
    short = tokens.create(ALICE, max_lifetime=HOUR_MS)
    assert (short.expiry_timestamp, short.max_timestamp) == (NOW_MS + HOUR_MS, NOW_MS + HOUR_MS)
    long = tokens.create(ALICE, max_lifetime=1 << 62)
    assert long.max_timestamp == NOW_MS + WEEK_MS


def test_renewal_ends_at_the_maximum(tokens: Tokens) -> None:
    made = tokens.create(ALICE)
    assert tokens.renew(ALICE, made.hmac, 2 * DAY_MS).expiry_timestamp == NOW_MS + 2 * DAY_MS
    assert tokens.renew(ALICE, made.hmac, 1 << 62).expiry_timestamp == NOW_MS + WEEK_MS
    assert tokens.renew(ALICE, made.hmac, -1).expiry_timestamp == NOW_MS + DAY_MS


def test_token_is_deleted_by_a_negative_period(tokens: Tokens) -> None:
    made = tokens.create(ALICE)
    assert tokens.expire(ALICE, made.hmac, HOUR_MS).expiry_timestamp == NOW_MS + HOUR_MS
    assert tokens.expire(ALICE, made.hmac, -1).expiry_timestamp == NOW_MS
    assert tokens.expire(ALICE, made.hmac, -1).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert not tokens.describe(ALICE).tokens


def test_expired_token_is_hidden_and_deleted_with_the_next_creation(tokens: Tokens) -> None:
    made = tokens.create(ALICE)
    tokens.now_ms += DAY_MS + 1
    assert not tokens.describe(ALICE).tokens
    assert tokens.renew(ALICE, made.hmac, -1).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    other = tokens.create(ALICE)
    assert other.error_code == 0
    assert set(tokens.admin.view.access.tokens) == {other.token_id}
    assert tokens.renew(ALICE, made.hmac, -1).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_tokens_of_one_owner_are_limited_and_others_still_get_theirs(tmp_path: Path) -> None:
    """A user needs no right for tokens of its own, and the number of tokens of the cluster is limited."""
    with asyncio.Runner() as runner, contextlib.closing(Tokens(runner, tmp_path)) as tokens:
        limit = tokens.admin.metadata.started_settings.delegation_token_max_per_owner
        assert limit == 100
        made = [tokens.create(EVE) for _ in range(limit)]
        assert {each.error_code for each in made} == {0}
        assert tokens.create(EVE).error_code == ErrorCode.POLICY_VIOLATION
        assert tokens.create(ALICE).error_code == 0
        assert tokens.expire(EVE, made[0].hmac, -1).error_code == 0
        assert tokens.create(EVE).error_code == 0
        assert tokens.create(EVE).error_code == ErrorCode.POLICY_VIOLATION
        tokens.now_ms += DAY_MS + 1
        assert tokens.create(EVE).error_code == 0, "tokens that have expired do not count"


def test_limit_of_one_owner_holds_for_requests_at_the_same_time(tokens: Tokens) -> None:
    """Several brokers, or several requests to one, decide from the same metadata."""
    limit = tokens.admin.metadata.started_settings.delegation_token_max_per_owner
    for _ in range(limit - 2):
        tokens.create(EVE)
    made = tokens.create_together(EVE, 5)
    assert sorted(each.error_code for each in made) == [0, 0, *[ErrorCode.POLICY_VIOLATION] * 3]
    assert len(tokens.described(EVE)) == limit


def test_token_is_found_by_its_hmac_without_those_of_other_tokens(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [tokens.create(ALICE) for _ in range(20)]
    wrong = bytes([made[0].hmac[0] ^ 1]) + made[0].hmac[1:]
    assert tokens.renew(ALICE, made[0].hmac, HOUR_MS).error_code == 0
    computed: list[str] = []
    hmac_of = TokenSecret.hmac
    monkeypatch.setattr(TokenSecret, "hmac", lambda secret, each: computed.append(each) or hmac_of(secret, each))
    for code in (wrong, wrong[:-1], b"", made[0].hmac + b"0"):
        assert tokens.renew(ALICE, code, HOUR_MS).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        assert not computed
    for each in made:
        assert tokens.renew(ALICE, each.hmac, 2 * HOUR_MS).error_code == 0
        assert set(computed) == {each.token_id}
        computed.clear()
    assert tokens.expire(ALICE, made[0].hmac, -1).error_code == 0
    assert tokens.expire(ALICE, made[0].hmac, -1).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert tokens.renew(ALICE, made[1].hmac, HOUR_MS).error_code == 0


@pytest.mark.parametrize("name", ["bob\n", "\x1bbob"])
def test_renewer_with_control_characters_is_refused(tokens: Tokens, name: str) -> None:
    renewers = [CreatableRenewers(principal_type="User", principal_name=name)]
    assert tokens.create(ALICE, renewers=renewers).error_code == ErrorCode.INVALID_REQUEST


def test_owner_and_renewers_change_a_token_and_others_do_not(tokens: Tokens) -> None:
    renewers = [CreatableRenewers(principal_type="User", principal_name="bob")]
    made = tokens.create(ALICE, renewers=renewers)
    assert tokens.renew(BOB, made.hmac, HOUR_MS).error_code == 0
    for answer in (tokens.renew(EVE, made.hmac, 1), tokens.expire(EVE, made.hmac, -1)):
        assert (answer.error_code, answer.expiry_timestamp) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, -1)


@pytest.mark.parametrize(("principal", "is_token"), [(ANONYMOUS, False), (ALICE, True)])
def test_client_without_a_login_of_its_own_is_refused(tokens: Tokens, principal: str, is_token: bool) -> None:
    made = tokens.create(ALICE)
    answers = [
        tokens.create(principal, is_token=is_token),
        tokens.renew(principal, made.hmac, 1, is_token=is_token),
        tokens.expire(principal, made.hmac, -1, is_token=is_token),
        tokens.describe(principal, is_token=is_token),
    ]
    assert {each.error_code for each in answers} == {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED}


def test_without_a_secret_there_are_no_tokens(start: Callable[..., Tokens]) -> None:
    tokens = start(key="")
    answers = [
        tokens.create(ALICE), tokens.renew(ALICE, b"x", 1), tokens.expire(ALICE, b"x", 1),
        tokens.describe(ALICE),
    ]  # fmt: skip
    assert {each.error_code for each in answers} == {ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED}


def test_renewer_that_is_no_user_is_refused(tokens: Tokens) -> None:
    renewers = [CreatableRenewers(principal_type="Group", principal_name="bob")]
    assert tokens.create(ALICE, renewers=renewers).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


# -- rights ------------------------------------------------------------------------------------------------------------


def access(*rules: tuple[str, ResourceType, str, Operation]) -> Access:
    authorizer = Authorizer()
    for principal, resource, name, operation in rules:
        entry = Entry(principal, "*", operation, Permission.ALLOW)
        authorizer.put(Pattern(resource, name, PatternType.LITERAL), [entry])
    return Access(authorizer)


def test_token_for_another_owner_needs_the_right(start: Callable[..., Tokens]) -> None:
    tokens = start(access=access((ADMIN, ResourceType.USER, ALICE, Operation.CREATE_TOKENS)))
    owner = {"owner_principal_type": "User", "owner_principal_name": "alice"}
    made = tokens.create(ADMIN, **owner)
    assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (0, "alice", "admin")
    assert tokens.create(EVE, **owner).error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    # Everyone may create tokens for himself, and the requester of a token may change it.
    assert tokens.create(EVE).error_code == 0
    assert tokens.renew(ADMIN, made.hmac, 1).error_code == 0


def test_only_own_tokens_are_described_without_the_right(start: Callable[..., Tokens]) -> None:
    tokens = start(access=access((BOB, ResourceType.USER, ALICE, Operation.DESCRIBE_TOKENS)))
    of_alice, of_eve = tokens.create(ALICE).token_id, tokens.create(EVE).token_id
    assert tokens.described(EVE) == {of_eve}
    assert tokens.described(EVE, [ALICE]) == set()
    assert tokens.described(BOB) == {of_alice}
    assert tokens.described(BOB, [ALICE, EVE]) == {of_alice}
    assert tokens.described(ALICE, []) == set()
