"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken (KIP-48, KIP-373)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ottla.broker.access.authentication import is_token_session
from ottla.broker.component import Component, ServedApi
from ottla.broker.metadata.access_nodes import TOKENS, token_json, token_path
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.nodes import count_change
from ottla.broker.metadata.store import Check, Create, Delete, Op, Put
from ottla.broker.metadata.view import ClusterView
from ottla.broker.request import RequestContext
from ottla.env.clock import Clock
from ottla.model.errors import ErrorCode, InvalidRequest, KafkaError, PolicyViolation, Refused
from ottla.net.connection import ANONYMOUS
from ottla.security.acls import ResourceType
from ottla.security.principals import is_name
from ottla.security.tokens import DelegationToken, TokenSecret
from ottla.wire.messages.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from ottla.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from ottla.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse
from ottla.wire.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse

_USER = "User"
_NAME_CHARS_MAX = 256
_RENEWERS_MAX = 100
#: tokens of the cluster, so that the store is not filled
_TOKENS_MAX = 10_000
#: expired tokens that are deleted when a token is created
_DELETED_MAX = 100
#: the time in the reply to a request that failed
_NO_TIME = -1

#: returns a token after a change, None to delete it
Changing = Callable[[DelegationToken], "DelegationToken | None"]


class TokenApis(Component):
    """The APIs of delegation tokens."""

    def __init__(self, *, metadata: ClusterMetadata, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock

    def apis(self) -> Mapping[int, ServedApi]:
        return {
            38: ServedApi(1, 3, self.create_delegation_token),
            39: ServedApi(1, 2, self.renew_delegation_token),
            40: ServedApi(1, 2, self.expire_delegation_token),
            41: ServedApi(1, 3, self.describe_delegation_token, large_reply=True),
        }

    async def create_delegation_token(
        self, request: CreateDelegationTokenRequest, context: RequestContext
    ) -> CreateDelegationTokenResponse:
        """CreateDelegationToken (38) v1-v3. v2 flexible. v3 tokens for other owners."""
        requester = context.connection.principal
        owner = f"{request.owner_principal_type or _USER}:{request.owner_principal_name}"
        owner = owner if request.owner_principal_name else requester
        answer = CreateDelegationTokenResponse(
            issue_timestamp=_NO_TIME, expiry_timestamp=_NO_TIME, max_timestamp=_NO_TIME
        )
        answer.principal_type, _, answer.principal_name = owner.partition(":")
        answer.token_requester_principal_type, _, answer.token_requester_principal_name = requester.partition(":")
        try:
            _check_login(context)
            if owner != requester and not context.may(ResourceType.USER, owner):
                raise Refused(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
            if any(each.principal_type != _USER for each in request.renewers):
                raise Refused(ErrorCode.INVALID_PRINCIPAL_TYPE)
            secret = self._secret()
            renewers = tuple(f"{_USER}:{each.principal_name}" for each in request.renewers)
            if len(renewers) > _RENEWERS_MAX or not all(map(_is_short_name, (owner, *renewers))):
                raise InvalidRequest(
                    f"a token has {_RENEWERS_MAX} renewers at most, with {_NAME_CHARS_MAX} characters each, and no "
                    "control characters"
                )
            token = self._new_token(owner, requester, renewers, request.max_lifetime)
            await self._create(token)
        except KafkaError as error:
            answer.error_code = error.code
            return answer
        answer.issue_timestamp, answer.expiry_timestamp = token.issued_ms, token.expires_ms
        answer.max_timestamp = token.expires_ms_max
        answer.token_id, answer.hmac = token.token_id, secret.hmac(token.token_id)
        return answer

    def _secret(self) -> TokenSecret:
        key = self._metadata.started_settings.delegation_token_secret_key
        if not key:
            raise Refused(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        return TokenSecret(key=key.encode())

    def _new_token(self, owner: str, requester: str, renewers: tuple[str, ...], lifetime_ms: int) -> DelegationToken:
        settings, now_ms = self._metadata.started_settings, self._clock.wall_ms()
        longest = settings.delegation_token_max_lifetime_ms
        last = now_ms + (longest if lifetime_ms <= 0 else min(lifetime_ms, longest))
        return DelegationToken(
            token_id=base64.urlsafe_b64encode(self._metadata.new_id()).decode().rstrip("="),
            owner=owner,
            requester=requester,
            renewers=renewers,
            issued_ms=now_ms,
            expires_ms=min(last, now_ms + settings.delegation_token_expiry_time_ms),
            expires_ms_max=last,
        )

    async def _create(self, token: DelegationToken) -> None:
        """Store a new token, and delete some that have expired: tokens only become more when one is created."""
        path, change_id = token_path(token.token_id), self._metadata.new_id()
        per_owner_max = self._metadata.started_settings.delegation_token_max_per_owner

        def decide(view: ClusterView) -> tuple[Sequence[Op], None]:
            known = view.access.tokens
            expired = [each.token_id for each in known.values() if each.is_expired(token.issued_ms)][:_DELETED_MAX]
            if len(known) - len(expired) >= _TOKENS_MAX:
                raise PolicyViolation(f"there are {_TOKENS_MAX} delegation tokens already")
            of_owner = sum(
                each.owner == token.owner and not each.is_expired(token.issued_ms) for each in known.values()
            )
            if of_owner >= per_owner_max:
                raise PolicyViolation(
                    f"{token.owner} has {per_owner_max} delegation tokens (delegation.token.max.per.owner)"
                )
            deletions = [Delete(token_path(each), view.versions[token_path(each)]) for each in expired]
            # Creations are counted: one that another broker has made meanwhile conflicts, and limits are checked again.
            return [_counting(view, change_id), *deletions, Create(path, token_json(token))], None

        await self._metadata.write(decide)

    async def renew_delegation_token(
        self, request: RenewDelegationTokenRequest, context: RequestContext
    ) -> RenewDelegationTokenResponse:
        """RenewDelegationToken (39) v1-v2. v2 flexible. A negative period stands for the default."""
        now_ms = self._clock.wall_ms()
        period_ms = request.renew_period
        if period_ms < 0:
            period_ms = self._metadata.started_settings.delegation_token_expiry_time_ms

        def renew(token: DelegationToken) -> DelegationToken:
            return replace(token, expires_ms=min(token.expires_ms_max, now_ms + period_ms))

        try:
            changed = await self._change(context, request.hmac, renew)
        except KafkaError as error:
            return RenewDelegationTokenResponse(error_code=error.code, expiry_timestamp=_NO_TIME)
        assert changed is not None
        return RenewDelegationTokenResponse(expiry_timestamp=changed.expires_ms)

    async def expire_delegation_token(
        self, request: ExpireDelegationTokenRequest, context: RequestContext
    ) -> ExpireDelegationTokenResponse:
        """ExpireDelegationToken (40) v1-v2. v2 flexible. A negative period deletes the token."""
        now_ms, period_ms = self._clock.wall_ms(), request.expiry_time_period

        def expire(token: DelegationToken) -> DelegationToken | None:
            if period_ms < 0:
                return None
            return replace(token, expires_ms=min(token.expires_ms_max, now_ms + period_ms))

        try:
            changed = await self._change(context, request.hmac, expire)
        except KafkaError as error:
            return ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp=_NO_TIME)
        return ExpireDelegationTokenResponse(expiry_timestamp=now_ms if changed is None else changed.expires_ms)

    async def _change(self, context: RequestContext, code: bytes, change: Changing) -> DelegationToken | None:
        """Change the token with this HMAC, and return it; None if it is deleted. Raise a KafkaError."""
        _check_login(context)
        secret, change_id, now_ms = self._secret(), self._metadata.new_id(), self._clock.wall_ms()
        principal = context.connection.principal

        def decide(view: ClusterView) -> tuple[Sequence[Op], DelegationToken | None]:
            token = _find(view, secret, code)
            if token is None:
                raise Refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
            if not token.belongs_to(principal):
                raise Refused(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
            if token.is_expired(now_ms):
                raise Refused(ErrorCode.DELEGATION_TOKEN_EXPIRED)
            changed, path = change(token), token_path(token.token_id)
            if changed == token:
                return [], changed
            version = view.versions[path]
            if changed is None:
                return [_counting(view, change_id), Delete(path, version)], None
            return [Check(TOKENS, view.versions[TOKENS]), Put(path, token_json(changed), version)], changed

        return await self._metadata.write(decide)

    def describe_delegation_token(
        self, request: DescribeDelegationTokenRequest, context: RequestContext
    ) -> DescribeDelegationTokenResponse:
        """DescribeDelegationToken (41) v1-v3. v2 flexible. v3 requesters. Null asks for the tokens of all owners."""
        try:
            _check_login(context)
            secret = self._secret()
        except KafkaError as error:
            return DescribeDelegationTokenResponse(error_code=error.code)
        owners = None if request.owners is None else {f"{o.principal_type}:{o.principal_name}" for o in request.owners}
        now_ms = self._clock.wall_ms()
        return DescribeDelegationTokenResponse(tokens=[
            _described(token, secret)
            for token in self._metadata.view.access.tokens.values()
            if (owners is None or any(map(token.belongs_to, owners)))
            and not token.is_expired(now_ms)
            and _may_describe(context, token)
        ])  # fmt: skip


def _is_short_name(principal: str) -> bool:
    return len(principal) <= _NAME_CHARS_MAX and is_name(principal)


def _check_login(context: RequestContext) -> None:
    """Raise Refused unless the client has logged in by other means than a token."""
    connection = context.connection
    if connection.principal == ANONYMOUS or is_token_session(connection):
        raise Refused(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def _counting(view: ClusterView, change_id: bytes) -> Op:
    """Return the operation that counts the creation or the deletion of tokens."""
    return count_change(TOKENS, view.versions[TOKENS], change_id)


def _find(view: ClusterView, secret: TokenSecret, code: bytes) -> DelegationToken | None:
    token_id = view.access.token_index.find(secret, code)
    return None if token_id is None else view.access.tokens.get(token_id)


def _may_describe(context: RequestContext, token: DelegationToken) -> bool:
    return (
        token.belongs_to(context.connection.principal)
        or context.may(ResourceType.DELEGATION_TOKEN, token.token_id, quiet=True)
        or context.may(ResourceType.USER, token.owner, quiet=True)
    )


def _described(token: DelegationToken, secret: TokenSecret) -> DescribedDelegationToken:
    described = DescribedDelegationToken(
        issue_timestamp=token.issued_ms, expiry_timestamp=token.expires_ms, max_timestamp=token.expires_ms_max,
        token_id=token.token_id, hmac=secret.hmac(token.token_id),
    )  # fmt: skip
    described.principal_type, _, described.principal_name = token.owner.partition(":")
    kind, _, name = token.requester.partition(":")
    described.token_requester_principal_type, described.token_requester_principal_name = kind, name
    renewers = (each.partition(":") for each in token.renewers)
    described.renewers = [
        DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name) for kind, _, name in renewers
    ]
    return described
