"""The first requests of a connection: ApiVersions, then the login by SASL.

Each handshake is a generator. It yields what it needs, an `Ask` or a `NextToken`, gets the result of that step, and
returns the result of the handshake:

    steps = log_in("PLAIN", 2)
    step = next(steps)
    while True:                  # until StopIteration, which has the result
        step = steps.send(reply to step.request, or the token of the SASL exchange)
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

from ottla.client.protocol.frames import SIZE, Sent, decode_reply
from ottla.model.errors import AuthenticationFailed, ErrorCode
from ottla.wire import Message
from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

#: the first version with the features of the cluster
_API_VERSIONS: Final = 3
#: after version 0 the tokens are sent without Kafka's frames
SASL_HANDSHAKE_VERSION: Final = 1
_CODE: Final = Struct(">h")


class Ask(NamedTuple):
    """Send this request. The handshake continues with the reply: its bytes without the size."""

    request: Message
    version: int

    def decode(self, reply: memoryview) -> Any:
        return decode_reply(reply, Sent(0, self.request.API_KEY, self.version))


class NextToken(NamedTuple):
    """Give the token of the server to the SASL exchange; None begins it. The handshake continues with the answer."""

    challenge: bytes | None


class Served(NamedTuple):
    """The content of a reply to ApiVersions."""

    error_code: int
    #: lowest and highest version of each API
    versions: Mapping[int, tuple[int, int]]
    #: finalized features of the cluster and their levels, such as transaction.version
    features: Mapping[str, int]


class MechanismNotEnabled(AuthenticationFailed):
    """The broker does not accept the SASL mechanism."""

    def __init__(self, mechanism: str, enabled: list[str]) -> None:
        super().__init__(f"the mechanism {mechanism} is not enabled there")
        self.enabled = enabled


class LoginRefused(AuthenticationFailed):
    """The broker does not accept the credentials."""

    def __init__(self, code: int, text: str | None) -> None:
        super().__init__(text or "the login was refused")
        #: the broker's text, or the error code if it sent none
        self.reason = text or str(code)


def negotiate(software_version: str) -> Generator[Ask | NextToken, Any, Served]:
    """Ask which versions of the APIs the broker has."""
    ask = Ask(ApiVersionsRequest(client_software_name="ottla", client_software_version=software_version), _API_VERSIONS)
    reply = yield ask
    (code,) = _CODE.unpack_from(reply, SIZE.size)
    if code == ErrorCode.UNSUPPORTED_VERSION:
        # A broker that does not know this version replies in version 0, which every broker has.
        ask = Ask(ApiVersionsRequest(), 0)
        reply = yield ask
    answer: ApiVersionsResponse = ask.decode(reply)
    return Served(
        answer.error_code,
        {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys},
        {row.name: row.max_version_level for row in answer.finalized_features},
    )


def log_in(mechanism: str, version: int) -> Generator[Ask | NextToken, Any, float]:
    """Authenticate with SaslAuthenticate of this version. Return the lifetime of the session in s, 0 without an end.

    Raise MechanismNotEnabled or LoginRefused.
    """
    # Imported by clients that log in.
    from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest
    from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest

    # Get the first token before the handshake: its issuer may be slow, and the broker limits the time of a login.
    token = yield NextToken(None)
    ask = Ask(SaslHandshakeRequest(mechanism=mechanism), SASL_HANDSHAKE_VERSION)
    answer = ask.decode((yield ask))
    if answer.error_code:
        raise MechanismNotEnabled(mechanism, list(answer.mechanisms))
    while token is not None:
        ask = Ask(SaslAuthenticateRequest(auth_bytes=token), version)
        answer = ask.decode((yield ask))
        if answer.error_code:
            raise LoginRefused(answer.error_code, answer.error_message)
        token = yield NextToken(bytes(answer.auth_bytes))
    return float(answer.session_lifetime) / 1000
