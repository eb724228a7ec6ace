"""kafka-delegation-tokens: create, renew, expire and describe delegation tokens."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import IllegalArgument, UsageError, check
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import Tool, print_line
from ottla.wire.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from ottla.wire.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from ottla.wire.messages.expire_delegation_token import ExpireDelegationTokenRequest
from ottla.wire.messages.renew_delegation_token import RenewDelegationTokenRequest

_MS: Final = 1000
_WIDTHS: Final = (15, 30, 15, 15, 25, 15, 15, 15)
_TITLES: Final = ("TOKENID", "HMAC", "OWNER", "REQUESTER", "RENEWERS", "ISSUEDATE", "EXPIRYDATE", "MAXDATE")
_ACTIONS: Final = ("create", "renew", "expire", "describe")
#: the first version in which an owner can be named
_OWNER_FROM: Final = 3
_FLAGS = (
    flag("bootstrap-server", metavar="HOST:PORT,...", help="Brokers of the cluster. Required."),
    flag("command-config", metavar="FILE", help="Properties of the client, with those of its login. Required."),
    flag("create", help="Create a token."),
    flag("renew", help="Make a token valid for longer."),
    flag("expire", help="End a token."),
    flag("describe", help="Print tokens."),
    flag("owner-principal", metavar="TYPE:NAME", is_value_optional=True, help="The owner of a token. Repeatable."),
    flag("renewer-principal", metavar="TYPE:NAME", is_value_optional=True, help="Who may renew it. Repeatable."),
    flag("max-life-time-period", metavar="MS", parse=int, is_value_optional=True, help="-1: the broker's default."),
    flag("renew-time-period", metavar="MS", parse=int, is_value_optional=True, help="-1: the broker's default."),
    flag("expiry-time-period", metavar="MS", parse=int, is_value_optional=True, help="-1: at once."),
    flag("hmac", metavar="BASE64", is_value_optional=True, help="The token, as --create prints it."),
)
_NEEDED: Final = {
    "create": ("max-life-time-period",),
    "renew": ("hmac", "renew-time-period"),
    "expire": ("hmac", "expiry-time-period"),
    "describe": (),
}
_REFUSED: Final = {
    "create": ("hmac", "renew-time-period", "expiry-time-period"),
    "renew": ("renewer-principal", "max-life-time-period", "expiry-time-period", "owner-principal"),
    "expire": ("renew", "max-life-time-period", "renew-time-period", "owner-principal"),
    "describe": ("renew-time-period", "max-life-time-period", "hmac", "expiry-time-period"),
}


def _run(options: Options) -> None:
    actions = options.any_of(*_ACTIONS)
    if len(actions) != 1:
        raise UsageError("Command must include exactly one action: --create, --renew, --expire or --describe")
    action = actions[0]
    options.require("bootstrap-server", "command-config", *_NEEDED[action])
    options.refuse_with(action, _REFUSED[action])
    properties = properties_of(options.value("command-config"))
    with connect(options.value("bootstrap-server"), properties, call=f"{action}DelegationToken") as admin:
        _RUN[action](admin, options)


def _create(admin: Admin, options: Options) -> None:
    renewers, lifetime_ms = _principals(options, "renewer-principal"), options.value("max-life-time-period")
    print_line(
        f"Calling create token operation with renewers :{_listed(renewers)} , max-life-time-period :{lifetime_ms}"
    )
    owners = _principals(options, "owner-principal")
    owner = owners[0] if owners else (None, None)
    answer = admin.ask_any(
        CreateDelegationTokenRequest(
            owner_principal_type=owner[0],
            owner_principal_name=owner[1],
            renewers=[CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in renewers],
            max_lifetime=lifetime_ms,
        ),
        _OWNER_FROM if owners else 0,
    )
    check(answer.error_code)
    print_line(f"Created delegation token with tokenId : {answer.token_id}")
    token = DescribedDelegationToken(
        principal_type=answer.principal_type,
        principal_name=answer.principal_name,
        token_requester_principal_type=answer.token_requester_principal_type or answer.principal_type,
        token_requester_principal_name=answer.token_requester_principal_name or answer.principal_name,
        issue_timestamp=answer.issue_timestamp,
        expiry_timestamp=answer.expiry_timestamp,
        max_timestamp=answer.max_timestamp,
        token_id=answer.token_id,
        hmac=answer.hmac,
        renewers=[DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name) for kind, name in renewers],
    )
    _print_tokens([token])


def _renew(admin: Admin, options: Options) -> None:
    period_ms = options.value("renew-time-period")
    print_line(f"Calling renew token operation with hmac :{options.value('hmac')} , renew-time-period :{period_ms}")
    answer = admin.ask_any(RenewDelegationTokenRequest(hmac=_hmac(options), renew_period=period_ms))
    check(answer.error_code)
    _print_end("renew", answer.expiry_timestamp)


def _expire(admin: Admin, options: Options) -> None:
    period_ms = options.value("expiry-time-period")
    print_line(f"Calling expire token operation with hmac :{options.value('hmac')} , expire-time-period :{period_ms}")
    answer = admin.ask_any(ExpireDelegationTokenRequest(hmac=_hmac(options), expiry_time_period=period_ms))
    check(answer.error_code)
    _print_end("expire", answer.expiry_timestamp)


def _print_end(verb: str, moment_ms: int) -> None:
    # Java's tool prints no line feed here.
    sys.stdout.write(f"Completed {verb} operation. New expiry date : {_date(moment_ms)}")


def _describe(admin: Admin, options: Options) -> None:
    owners = _principals(options, "owner-principal")
    if owners:
        print_line(f"Calling describe token operation for owners: {_listed(owners)}")
    else:
        print_line("Calling describe token operation for current user.")
    rows = [DescribeDelegationTokenOwner(principal_type=kind, principal_name=name) for kind, name in owners]
    answer = admin.ask_any(DescribeDelegationTokenRequest(owners=rows or None))
    check(answer.error_code)
    print_line(f"Total number of tokens : {len(answer.tokens)}")
    _print_tokens(answer.tokens, is_first=False)


def _print_tokens(tokens: Iterable[DescribedDelegationToken], *, is_first: bool = True) -> None:
    if is_first:
        print_line()
    print_line(_row(_TITLES))
    for each in tokens:
        print_line()
        print_line(
            _row(
                (
                    each.token_id,
                    base64.b64encode(each.hmac).decode(),
                    f"{each.principal_type}:{each.principal_name}",
                    f"{each.token_requester_principal_type}:{each.token_requester_principal_name}",
                    _listed((one.principal_type, one.principal_name) for one in each.renewers),
                    *map(_date, (each.issue_timestamp, each.expiry_timestamp, each.max_timestamp)),
                )
            )
        )


def _row(texts: Sequence[str]) -> str:
    return " ".join(f"{text:<{width}}" for text, width in zip(texts, _WIDTHS, strict=True))


def _date(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / _MS).strftime("%Y-%m-%dT%H:%M")


def _principals(options: Options, name: str) -> list[tuple[str, str]]:
    found = []
    for text in options.values(name):
        kind, colon, principal = str(text).strip().partition(":")
        if not colon or not kind:
            raise IllegalArgument(f"expected a string in format principalType:principalName but got {text}")
        found.append((kind, principal))
    return found


def _listed(principals: Iterable[tuple[str, str]]) -> str:
    return f"[{', '.join(f'{kind}:{name}' for kind, name in principals)}]"


def _hmac(options: Options) -> bytes:
    try:
        return base64.b64decode(options.value("hmac"), validate=True)
    except binascii.Error:
        raise IllegalArgument("Illegal base64 character in --hmac; pass what --create has printed") from None


_RUN: Final[dict[str, Callable[[Admin, Options], Any]]] = {
    "create": _create,
    "renew": _renew,
    "expire": _expire,
    "describe": _describe,
}

TOOL = Tool(
    name="kafka-delegation-tokens",
    summary="Create, renew, expire and describe delegation tokens.",
    flags=_FLAGS,
    run=_run,
)
