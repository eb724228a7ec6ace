"""Topic subscriptions by regular expression, resolved by the coordinator.

A client sends the expression, so matching it must take time linear in the name: it is RE2, by Google's own library, as
it is in Kafka by a port of it. The library is loaded when the first expression arrives; most brokers never see one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ottla.model.errors import ErrorCode, Refused

#: bytes that a compiled expression may take; a larger one is refused as invalid
_COMPILED_BYTES_MAX: Final = 1 << 20
#: characters; a name of a topic has at most 249, so that nothing sensible is longer
_EXPRESSION_LENGTH_MAX: Final = 4096


def matching_topics(expression: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names that the expression matches from the first character to the last, in order.

    :raises Refused: INVALID_REGULAR_EXPRESSION.
    """
    match = _compile(expression).fullmatch
    return tuple(sorted(name for name in names if match(name) is not None))


def _compile(expression: str) -> Any:
    import re2

    if len(expression) > _EXPRESSION_LENGTH_MAX:
        raise Refused(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The regular expression has more than {_EXPRESSION_LENGTH_MAX} characters; use a shorter one.",
        )
    options = re2.Options()
    options.max_mem = _COMPILED_BYTES_MAX
    # What a client got wrong is told to the client, not to our standard error.
    options.log_errors = False
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else str(error)
        raise Refused(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{expression!r} is not a regular expression of RE2: {reason}",
        ) from None
